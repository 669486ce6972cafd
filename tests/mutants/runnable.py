"""Mutants of the question who can run what: the survey, its readers, and runs of tasks that a worker lacks."""

from __future__ import annotations

from mutants.mutant import Mutant

_SURVEY = "maintenance/test_survey.py"
_RUNNABLE = "operations/test_runnable.py"
_NOTICES = "api/test_notices.py"
_MISSING = "worker/test_missing_tasks.py"

MUTANTS = (
    Mutant(
        "survey-without-lock",
        "two nodes count the same page, and jobs are counted twice",
        "store/sql/demands/survey.sql",
        "from duly.survey for update",
        "from duly.survey",
        (f"{_SURVEY}::test_two_nodes_at_once_count_no_job_twice",),
    ),
    Mutant(
        "survey-from-the-start",
        "a walk over many jobs never comes to its second page",
        "store/sql/demands/survey.sql",
        "else last.job_id end,",
        "else at.after end,",
        (f"{_SURVEY}::test_a_walk_counts_every_active_job_once_page_by_page",),
    ),
    Mutant(
        "survey-forgets-what-is-left",
        "while a walk goes on, jobs that it has not come to are not named",
        "store/sql/demands/survey.sql",
        "d.walk < at.walk - 1",
        "d.walk < at.walk",
        (f"{_SURVEY}::test_a_walk_counts_every_active_job_once_page_by_page",),
    ),
    Mutant(
        "survey-remembers-for-ever",
        "a task that was removed long ago is named for ever",
        "store/sql/demands/surveyed.sql",
        "where d.walk >= s.walk - 1",
        "where d.walk <= s.walk",
        (f"{_SURVEY}::test_what_no_active_job_demands_any_more_is_forgotten",),
    ),
    Mutant(
        "survey-of-long-keys",
        "one row with an endless name stops the survey",
        "store/sql/demands/survey.sql",
        " and octet_length(tenant) + octet_length(queue) + octet_length(handler) < 1500",
        "",
        (f"{_SURVEY}::test_a_row_that_others_wrote_does_not_stop_it",),
    ),
    Mutant(
        "survey-claims-to-know-all",
        "with more demands than are kept, a missing one counts as looked at",
        "store/demands.py",
        "surveyed_at = None  # there may be more than are kept",
        "pass",
        (f"{_SURVEY}::test_it_keeps_a_bounded_number_of_demands",),
    ),
    Mutant(
        "can-run-in-any-queue",
        "a worker counts that serves other queues only",
        "operations/runnable.py",
        "demand.queue in ability.queues and ability.has(demand)",
        "ability.has(demand)",
        (f"{_RUNNABLE}::test_a_worker_needs_the_queue_and_the_handler",),
    ),
    Mutant(
        "can-run-for-any-tenant",
        "a worker counts that serves other tenants only",
        "operations/runnable.py",
        "return self.tenants is None or tenant in self.tenants",
        "return True",
        (f"{_RUNNABLE}::test_a_worker_of_some_tenants_runs_no_others_jobs",),
    ),
    Mutant(
        "can-run-when-dead",
        "a worker that is gone counts",
        "operations/runnable.py",
        'if node.kind == "worker" and node.alive)',
        'if node.kind == "worker")',
        (f"{_RUNNABLE}::test_only_live_workers_count",),
    ),
    Mutant(
        "can-run-any-command",
        "a worker counts that does not allow the program",
        "operations/runnable.py",
        'demand.kind != "command" or self.programs is None or may_start',
        "True or may_start",
        (f"{_RUNNABLE}::test_a_command_needs_a_worker_that_allows_its_program",),
    ),
    Mutant(
        "cluster-names-others-jobs",
        "a key reads names of other tenants' jobs",
        "api/documents.py",
        " if one.tenant == jobs_of",
        "",
        (f"{_NOTICES}::test_a_tenant_sees_its_own_jobs_that_nobody_can_run_and_nothing_of_others",),
    ),
    Mutant(
        "page-names-others-jobs",
        "the live page shows names of other tenants' jobs",
        "api/live.py",
        "for one in status.unrunnable if one.tenant == tenant)",
        "for one in status.unrunnable)",
        (f"{_NOTICES}::test_a_tenant_sees_its_own_jobs_that_nobody_can_run_and_nothing_of_others",),
    ),
    Mutant(
        "notice-of-an-operators-pause",
        "the page asks about a job that an operator has paused",
        "store/sql/declarations/list_all.sql",
        "j.status_reason = d.reason",
        "true",
        (f"{_NOTICES}::test_a_job_that_an_operator_has_paused_is_no_notice",),
    ),
    Mutant(
        "leave-to-other-queues",
        "runs of a task that live workers have for other queues hold up every other run of their queue",
        "store/sql/cluster/offer_of.sql",
        "n.info -> 'queues' ?| $2::text[] and not n.info ? 'tenants'",
        "$2::text[] is not null and not n.info ? 'tenants'",
        (f"{_MISSING}::test_runs_for_a_queue_that_only_workers_without_the_task_serve_wait_and_hold_up_no_other",),
    ),
    Mutant(
        "wait-behind-others",
        "a long backlog of one application holds up another one in the same queue",
        "worker/floors.py",
        "            if end is None:\n",
        "            if True:\n",
        (f"{_MISSING}::test_a_long_backlog_of_another_application_holds_up_no_run_of_ours",),
    ),
)
