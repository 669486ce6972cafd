"""Mutants of declared jobs: deploys, renames, and jobs that no deploy declares."""

from __future__ import annotations

from mutants.mutant import Mutant

_TESTS = "operations/test_deploys.py"

MUTANTS = (
    Mutant(
        "older-deploy-wins",
        "an old process that starts flips the schedule back",
        "store/sql/declarations/take.sql",
        "where d.rank <= excluded.rank",
        "where d.rank is not null",
        (f"{_TESTS}::TestOlderAndNewer::test_an_older_deploy_changes_nothing_and_says_so",),
    ),
    Mutant(
        "declare-for-another-app",
        "two applications with a task of one name redefine each other's job",
        "store/sql/declarations/take.sql",
        "d.owner in ('', excluded.owner) or",
        "true or",
        (f"{_TESTS}::TestOlderAndNewer::test_a_job_of_another_live_application_is_left_to_it",),
    ),
    Mutant(
        "orphan-of-an-older-duly",
        "a job that a live worker of an older Duly declares is paused",
        "store/sql/declarations/orphans.sql",
        "not l.knows and l.tasks ? j.handler",
        "not l.knows and false",
        (f"{_TESTS}::TestNoLongerDeclared::test_nothing_happens_while_nobody_lives_or_an_older_duly_has_the_task",),
    ),
    Mutant(
        "orphan-of-a-stranger",
        "applications without a name pause each other's jobs",
        "store/sql/declarations/orphans.sql",
        "(d.owner <> '' or l.keys ?| d.beside)",
        "true",
        (f"{_TESTS}::TestNoLongerDeclared::test_applications_without_a_name_do_not_pause_each_others_jobs",),
    ),
    Mutant(
        "orphan-declared-meanwhile",
        "a job that was declared since the look is paused",
        "store/sql/declarations/undeclare.sql",
        "rank = $3 and undeclared_at",
        "$3::text is not null and undeclared_at",
        (f"{_TESTS}::TestNoLongerDeclared::test_a_declaration_that_comes_between_the_look_and_the_pause_wins",),
    ),
    Mutant(
        "orphan-rank-stays",
        "an old process that starts once more resumes a job that the newer deploy has removed",
        "store/sql/declarations/undeclare.sql",
        "deploy = $4, rank = $5",
        "deploy = $4, rank = coalesce(rank, $5)",
        (f"{_TESTS}::TestNoLongerDeclared::test_it_is_paused_when_only_newer_deploys_live",),
    ),
    Mutant(
        "declare-resumes-a-pause",
        "an operator's pause ends with a deploy",
        "operations/declare.py",
        'current.status == "paused" and current.status_reason == taken.reason',
        'current.status == "paused"',
        (f"{_TESTS}::TestNoLongerDeclared::test_an_operators_pause_stays_one",),
    ),
    Mutant(
        "rename-without-a-trace",
        "an old process that still declares the old name makes a second job",
        "operations/declare.py",
        "        await declarations.rename(within, tenant=self._tenant, key=old_key, job_id=job_id, renamed_to=key)\n",
        "",
        (f"{_TESTS}::TestRenamed",),
    ),
    Mutant(
        "restore-any-job",
        "a cancelled job that nobody declares comes back",
        "store/sql/declarations/restore.sql",
        "exists (select from duly.declarations d where d.job_id = j.job_id)",
        "true",
        (f"{_TESTS}::TestCancelled::test_another_job_stays_cancelled",),
    ),
    Mutant(
        "change-into-a-command",
        "a caller without the right to submit commands makes a job one",
        "operations/jobs.py",
        "            rights.check_handler(handler)\n",
        "",
        (f"{_TESTS}::TestHandlerOfAChange::test_a_job_becomes_a_command_only_with_the_right_to_submit_one",),
    ),
)
