"""Mutants of the audit trail."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "trail-of-a-repeated-revoke",
        "a key that is revoked twice has two entries",
        "store/sql/keys/revoke.sql",
        "    where before.revoked_at is null\n",
        "",
        ("operations/test_audit.py::test_keys_tenants_and_roles",),
    ),
    Mutant(
        "trail-of-a-repeated-stop",
        "a run that is asked to stop twice has two entries",
        "store/sql/runs/cancel.sql",
        "where not running.cancelled and exists",
        "where exists",
        ("operations/test_audit.py::test_a_running_run_that_is_asked_to_stop_twice_is_one_entry",),
    ),
    Mutant(
        "trail-of-one-offs",
        "one-offs are noted like recurring jobs, and the trail grows with the traffic",
        "store/sql/jobs/submit.sql",
        "        where item.kind operator(pg_catalog.<>) 'once' or item.handler operator(pg_catalog.=) 'command'\n",
        "",
        ("operations/test_audit.py::test_a_bulk_submit_of_recurring_jobs_is_one_entry",),
    ),
    Mutant(
        "trail-shows-secret-headers",
        "the trail shows the headers of a target that was changed",
        "operations/revising.py",
        'new["handler"] = handler if isinstance(handler, str) else shown_target(handler)',
        'new["handler"] = handler',
        ("operations/test_audit.py::test_no_entry_holds_a_secret",),
    ),
    Mutant(
        "anybody-names-the-actor",
        "any key may name somebody else as the one who acts",
        "api/access.py",
        'if who.anybody or not holds(who.role, "operator"):',
        "if False:",
        ("api/test_audit.py::test_a_front_end_names_the_person_only_with_a_key_that_may",),
    ),
    Mutant(
        "addresses-for-everyone",
        "a reader of the trail sees the addresses of callers",
        "api/routes/audit.py",
        'if who.role == "admin" else',
        "if True else",
        ("api/test_audit.py::test_who_may_read_what",),
    ),
    Mutant(
        "trail-without-the-table",
        "a store that is not migrated yet takes no change of a job",
        "store/statements.py",
        "if len(args) < number or args[-1] is None or not has_audit(AUDIT_STEP):",
        "if len(args) < number or args[-1] is None:",
        ("operations/test_audit.py::test_a_store_without_the_table_takes_every_change",),
    ),
    Mutant(
        "trail-of-other-tenants",
        "a tenant reads what others did",
        "store/sql/audit/page.sql",
        "where tenant = $1 and at",
        "where $1::text is not null and at",
        ("operations/test_audit.py::test_pages_and_filters",),
    ),
    Mutant(
        "pause-ends-a-later-one",
        "a leader that was stopped for a while ends a later pause",
        "store/sql/pauses/finish.sql",
        "where job_id = f.job_id and version = f.version and status = 'paused'",
        "where job_id = f.job_id and status = 'paused'",
        (
            "maintenance/test_pauses.py::test_two_leaders_and_a_lost_answer_end_it_once",
            "maintenance/test_pauses.py::test_an_older_self_that_wakes_up_ends_no_later_pause",
        ),
    ),
    Mutant(
        "pause-forgets-a-later-end",
        "the end of a later pause is forgotten with that of an earlier one",
        "store/sql/pauses/finish.sql",
        "where p.job_id = over.job_id and p.change_id = over.change_id",
        "where p.job_id = over.job_id",
        ("maintenance/test_pauses.py::test_an_older_self_that_wakes_up_ends_no_later_pause",),
    ),
    Mutant(
        "pause-without-an-end-ends",
        "a job that a person has paused for good since goes on by itself",
        "store/sql/pauses/due.sql",
        "where c.job_id = p.job_id and c.change_id > p.change_id",
        "where c.job_id = p.job_id and c.change_id > p.change_id and false",
        ("maintenance/test_pauses.py::test_what_a_person_does_before_counts",),
    ),
    Mutant(
        "pause-waits-for-a-stranger",
        "one locked job keeps all other pauses from ending",
        "store/sql/pauses/finish.sql",
        "for no key update skip locked",
        "for no key update",
        ("maintenance/test_pauses.py::test_a_locked_job_is_left_for_the_next_look",),
    ),
)
