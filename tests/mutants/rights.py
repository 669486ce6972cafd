"""Mutants of rights: commands, tenants, workers."""

from __future__ import annotations

from mutants.mutant import Mutant

_BOUNDS = "operations/test_tenant_bounds.py::"
_COMMANDS = "worker/targets/test_command_rights.py::"
_PRUNE = "cli/test_prune.py::"
_PROGRAMS = "worker/targets/test_programs.py::"

MUTANTS = (
    Mutant(
        "worker-can-be-looked-into",
        "a command of the worker's account reads the store's password in /proc",
        "cli/commands/worker.py",
        "    conceal()\n    lifeline",
        "    lifeline",
        (f"{_COMMANDS}test_a_command_of_the_workers_own_account_cannot_look_into_worker_or_guard",),
    ),
    Mutant(
        "guard-can-be-looked-into",
        "a command reads other jobs' secrets in the memory of the process that starts them",
        "worker/processes/guard_process.py",
        "self._prctl(_PR_SET_DUMPABLE, 0)",
        "self._prctl(_PR_SET_DUMPABLE, 1)",
        (f"{_COMMANDS}test_a_command_of_the_workers_own_account_cannot_look_into_worker_or_guard",),
    ),
    Mutant(
        "guard-inherits-everything",
        "a command reads the worker's environment in that of its parent process",
        "worker/processes/guard.py",
        'for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ',
        "for name in os.environ",
        (f"{_COMMANDS}test_the_process_that_starts_commands_has_none_of_the_workers_environment",),
    ),
    Mutant(
        "command-inherits-everything",
        "PGPASSWORD and cloud keys reach every command",
        "worker/account.py",
        'if name in names or name.startswith("LC_")',
        'if not name.startswith("DULY_")',
        (f"{_COMMANDS}test_a_command_gets_the_variables_on_the_list_and_its_jobs_own",),
    ),
    Mutant(
        "command-keeps-groups",
        "a command of another account keeps root's groups",
        "worker/processes/guard_process.py",
        "    os.setgroups([])\n",
        "    os.setgroups([0])\n",
        (f"{_COMMANDS}test_a_command_runs_as_the_account_it_is_given",),
    ),
    Mutant(
        "command-begins-where-the-worker-is",
        "a command of another account reads below folders that are closed to it",
        "worker/processes/guard_process.py",
        "elif account is not None:\n                _go_home",
        "elif account == []:\n                _go_home",
        (f"{_COMMANDS}test_a_command_runs_as_the_account_it_is_given",),
    ),
    Mutant(
        "programs-begin-like-allowed-ones",
        "a worker that may start /opt/b also starts /opt/bc",
        "worker/targets/programs.py",
        'if pattern.endswith("*") else program == pattern',
        "if True else program == pattern",
        (f"{_PROGRAMS}test_what_a_pattern_is_compared_with",),
    ),
    Mutant(
        "programs-by-any-path",
        "a job's own /tmp/backup runs on a worker that allows the name backup",
        "worker/targets/programs.py",
        'named = "/" not in name or program == leads_to',
        "named = True",
        (f"{_PROGRAMS}test_a_job_puts_no_other_program_in_the_place_of_an_allowed_one",),
    ),
    Mutant(
        "programs-started-as-written",
        "a path is compared without its `..`, and the name is looked up again when it is started",
        "worker/targets/programs.py",
        '"/" + posixpath.normpath(joined).lstrip("/")',
        "joined",
        (f"{_PROGRAMS}test_a_job_puts_no_other_program_in_the_place_of_an_allowed_one",),
    ),
    Mutant(
        "programs-load-other-code",
        "a job's PATH or LD_PRELOAD turns an allowed program into another",
        "worker/targets/programs.py",
        "if name in _LOADING_NAMES or name.startswith(_LOADING):",
        "if False:",
        (f"{_PROGRAMS}test_a_job_puts_no_other_program_in_the_place_of_an_allowed_one",),
    ),
    Mutant(
        "programs-of-the-list-only-for-one",
        "workers under a supervisor with a list of programs run every program",
        "cli/supervised.py",
        'arguments += ["--allow-command", program]',
        'arguments += ["--allow-commands"]',
        ("cli/test_worker_processes.py::test_the_workers_of_a_supervisor_run_the_programs_of_its_list_only",),
    ),
    Mutant(
        "prune-of-other-tables",
        "a prune cancels the jobs of another table",
        "cli/pruning.py",
        "elif source not in sources:",
        "elif False:",
        (f"{_PRUNE}test_another_tables_jobs_stay_and_a_line_of_both_goes_with_the_last",),
    ),
    Mutant(
        "prune-of-shared-lines",
        "a prune cancels a job whose line another table still has",
        "cli/pruning.py",
        "elif len(sources) > 1:",
        "elif False:",
        (f"{_PRUNE}test_another_tables_jobs_stay_and_a_line_of_both_goes_with_the_last",),
    ),
    Mutant(
        "prune-by-label-alone",
        "a prune cancels a job that was made by hand",
        "cli/pruning.py",
        ' and (job.dedupe_key or "").startswith("crontab:")',
        "",
        (f"{_PRUNE}test_lines_that_are_gone_or_edited_are_shown_and_cancelled",),
    ),
    Mutant(
        "prune-of-a-truncated-table",
        "half a crontab empties the schedule",
        "cli/pruning.py",
        "return len(self.cancelled) > _HANDFUL and",
        "return False and",
        (f"{_PRUNE}test_a_truncated_table_does_not_empty_the_schedule",),
    ),
    Mutant(
        "prune-revives",
        "an import brings back a job that somebody cancelled by hand",
        "cli/pruning.py",
        'job.status == "cancelled" and PRUNED in job.labels',
        'job.status == "cancelled"',
        (f"{_PRUNE}test_a_line_that_comes_back_runs_again_unless_somebody_cancelled_it",),
    ),
    Mutant(
        "prune-before-submit",
        "an import that is killed leaves neither the old job of a line nor the new one",
        "cli/commands/import_.py",
        "    results = await _submit(operations, requests, source)\n    if plan",
        "    for gone in plan.cancelled if plan is not None else ():\n"
        "        await operations.jobs.cancel(str(gone.job.job_id))\n"
        "    results = await _submit(operations, requests, source)\n    if plan",
        (f"{_PRUNE}test_a_kill_between_leaves_both_and_the_next_import_finishes",),
    ),
    Mutant(
        "bounds-of-nobody",
        "a tenant's bounds are not checked when its jobs are submitted",
        "operations/preparing.py",
        "if bounds is not None:",
        "if False:",
        (f"{_BOUNDS}test_what_is_out_of_bounds_is_refused_by_its_field",),
    ),
    Mutant(
        "nobody-may-be-refused",
        "a batch of jobs is stored whatever the tenant's bounds and the caller's rights are",
        "operations/preparing.py",
        "return bounds is not None or not rights.commands",
        "return False",
        (f"{_BOUNDS}test_what_is_out_of_bounds_is_refused_by_its_field",),
    ),
    Mutant(
        "commands-by-the-batch",
        "a caller without the right to commands submits them together with another job",
        "operations/preparing.py",
        "return bounds is not None or not rights.commands",
        "return bounds is not None",
        ("operations/test_bulk_submit.py::test_commands_without_the_right_are_refused_whatever_is_beside_them",),
    ),
    Mutant(
        "change-out-of-bounds",
        "a job moves to a queue that its tenant may not use",
        "operations/jobs.py",
        'changes.get("queue", job.queue))',
        "job.queue)",
        (f"{_BOUNDS}test_over_http_it_is_403_and_names_the_field",),
    ),
    Mutant(
        "api-tells-who-has-it",
        "another tenant learns from a 404 that an id exists, and whose it is",
        "operations/jobs.py",
        """        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return job

    async def find""",
        """        if job is None:
            from duly.operations.neighbours import NeighbourOperations

            missing = NotFound(f"there is no job {job_id}", kind="job", sought=job_id)
            raise NotFound(f"{missing}; {await NeighbourOperations(self._core).of_missing(missing, self._tenant)}")
        return job

    async def find""",
        ("api/test_access.py::test_a_404_says_nothing_about_the_tenant_that_has_it",),
    ),
    Mutant(
        "remote-tenant-is-dropped",
        "duly --tenant b with an API works on the key's tenant and says nothing",
        "cli/invocation.py",
        "if address is not None and self.tenant is not None:",
        "if False:",
        ("cli/test_own_tenant.py::test_through_an_api_the_key_decides",),
    ),
    Mutant(
        "workers-forget-the-tenant",
        "the workers of a supervisor declare another tenant's jobs",
        "cli/supervised.py",
        '"--tenant", settings.tenant]',
        '"--tenant", "default"]',
        ("cli/test_own_tenant.py::test_a_worker_declares_the_jobs_of_the_tenant_that_is_named",),
    ),
    Mutant(
        "transaction-forgets-the-tenant",
        "a submit in the caller's transaction goes to the default tenant",
        "app.py",
        "CallerTransaction(self.settings, self.tenant,",
        'CallerTransaction(self.settings, "default",',
        ("test_app.py::test_an_application_is_of_the_tenant_of_its_code_else_of_the_settings",),
    ),
    Mutant(
        "worker-serves-everybody",
        "a worker for one tenant starts another tenant's run",
        "store/sql/runs/claim_served.sql",
        "            and (\n                select (j.target is not null or j.handler <> all ($7::text[]))\n"
        "                    and ($8::text[] is null or j.tenant",
        "            and (\n                select (j.target is not null or j.handler <> all ($7::text[]))\n"
        "                    and ($8::text[] is not null or j.tenant",
        ("worker/test_served_tenants.py::test_a_run_that_was_rescued_is_still_for_its_own_tenants_workers",),
    ),
    Mutant(
        "walk-never-goes-on",
        "many runs of other tenants keep a tenant's worker from the tenant's own runs",
        "worker/floors.py",
        "self._floors[lane] = end + timedelta(microseconds=1)",
        "pass",
        ("worker/test_served_tenants.py::test_a_crowd_of_others_runs_is_passed_over_once",),
    ),
)
