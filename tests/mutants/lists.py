"""Mutants of lists, which cost what their page costs, and of reads, which must not hold up others."""

from __future__ import annotations

from mutants.mutant import Mutant

_READS = "api/test_reads.py"
_SHARED = f"{_READS}::test_one_tenants_reads_leave_connections_to_others_and_are_given_up_in_time"

MUTANTS = (
    Mutant(
        "one-tenant-reads-on-all-connections",
        "six lists of one tenant keep every other tenant from being served",
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
        "jobs after a page that ended by its bytes are never listed",
        "operations/jobs.py",
        "if found and found[-1].job_id != asked[-1]:",
        "if not found and asked:",
        ("store/test_lists.py::test_a_page_ends_by_bytes_and_the_next_goes_on_behind_it",),
    ),
    Mutant(
        "active-ones-by-a-walk-alone",
        "among many completed jobs, active ones come after some hundred empty pages",
        "store/jobs.py",
        "best = None if going_on is None else _both(",
        "best = None if True else _both(",
        ("store/test_lists.py::test_few_of_a_status_are_one_page_beside_many_that_are_completed",),
    ),
    Mutant(
        "a-list-forgets-those-that-run",
        "an ended job with an unfinished run is not listed as active",
        "store/sql/jobs/list_live.sql",
        "from (select job_id from queued union",
        "from (select job_id from queued where false union",
        ("store/test_lists.py::test_every_list_is_whole_and_no_page_of_it_costs_more_than_its_bound",),
    ),
    Mutant(
        "figures-of-whoever-is-busiest",
        "a tenant's runs behind another tenant's long queue are not counted",
        "store/sql/stores/tenant_counts.sql",
        "from own join duly.runs r on r.job_id = own.job_id",
        "from live r join own on r.job_id = own.job_id",
        ("store/test_lists.py::test_others_load_does_not_falsify_a_tenants_figures",),
    ),
    Mutant(
        "one-look-for-all-tenants",
        "one tenant's slow read keeps the pages of all other tenants waiting",
        "api/live.py",
        "kind = who.tenant, who.role",
        'kind = "default", who.role',
        (f"{_READS}::test_one_tenants_slow_look_delays_no_others_page",),
    ),
)
