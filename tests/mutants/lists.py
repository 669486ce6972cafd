"""Lists that cost their page, and reads that stop nobody."""

from __future__ import annotations

from mutants.mutant import Mutant

_READS = "api/test_reads.py"
_SHARED = f"{_READS}::test_one_tenants_reads_leave_connections_to_others_and_are_given_up_in_time"

MUTANTS = (
    Mutant(
        "one-tenant-reads-on-all-connections",
        "six lists of one tenant keep every other from being served",
        "store/pool.py",
        "self._pool.get_max_size() // 2",
        "self._pool.get_max_size()",
        (_SHARED,),
    ),
    Mutant(
        "a-read-takes-its-minute",
        "a list that takes long holds its connection for as long",
        "store/pool.py",
        "seconds if timeout is None else min(seconds, timeout))",
        "timeout)",
        (_SHARED,),
    ),
    Mutant(
        "pages-of-any-size",
        "a page of a thousand large payloads takes a gigabyte",
        "store/sql/jobs/page.sql",
        " and page.bytes < $2::bigint",
        " and $2::bigint > 0",
        ("store/test_lists.py::test_a_page_ends_by_bytes_and_the_next_goes_on_behind_it",),
    ),
    Mutant(
        "a-page-that-ended-by-bytes-is-the-last",
        "whatever lies behind a page that was full of bytes is never listed",
        "operations/jobs.py",
        "if found and found[-1].job_id != asked[-1]:",
        "if not found and asked:",
        ("store/test_lists.py::test_a_page_ends_by_bytes_and_the_next_goes_on_behind_it",),
    ),
    Mutant(
        "active-ones-by-a-walk-alone",
        "beside many that are completed, active jobs are some hundred empty pages away",
        "store/jobs.py",
        "best = None if going_on is None else _both(",
        "best = None if True else _both(",
        ("store/test_lists.py::test_few_of_a_status_are_one_page_beside_many_that_are_completed",),
    ),
    Mutant(
        "a-list-forgets-those-that-run",
        "an ended job whose run lives is not among the active ones",
        "store/sql/jobs/list_live.sql",
        "from (select job_id from queued union",
        "from (select job_id from queued where false union",
        ("store/test_lists.py::test_every_list_is_whole_and_no_page_of_it_costs_more_than_its_bound",),
    ),
    Mutant(
        "figures-of-whoever-is-busiest",
        "behind another tenant's queue one's own runs are not counted",
        "store/sql/store/tenant_counts.sql",
        "from own join duly.runs r on r.job_id = own.job_id",
        "from live r join own on r.job_id = own.job_id",
        ("store/test_lists.py::test_others_load_does_not_falsify_a_tenants_figures",),
    ),
    Mutant(
        "one-look-for-all-tenants",
        "one tenant's slow look keeps all others' pages waiting",
        "api/live.py",
        "kind = who.tenant, who.role",
        'kind = "default", who.role',
        (f"{_READS}::test_one_tenants_slow_look_delays_no_others_page",),
    ),
)
