"""Which tests run when: `make test-fast` while working, `make test` before every landing.

A test is named here by its path from `tests/`, a file or a folder; `conftest.py` turns that into markers. A single test
says `@pytest.mark.alone`, `waits`, `search` or `slow` itself, in a file that is named in MARKED.
"""

from __future__ import annotations

#: Measures absolute time or fills the machine: runs with nothing beside it.
ALONE = (
    "api/test_growth.py",
    "api/test_speed.py",
    "bench/test_drain_ratio.py",
    "cli/test_siege.py",
    "cluster/test_upgrade.py",
    "scheduler/test_planner_speed.py",
    "store/test_analytics.py",
    "store/test_claim_depth.py",
    "timing/test_speed.py",
    "timing/test_wheel.py",
    "worker/test_priorities.py",
)

#: Has moments to keep and computes little: real processes whose leases run out, or links that fall silent. These run
#: beside each other, two at a time, and not beside tests that compute.
PACED = (
    "cluster/test_failover.py",
    "cluster/test_idle.py",
)

#: Starts real processes, or waits for leases, outages and time-outs in real time. More of these run at once than there
#: are cores, because most of the time they sleep.
WAITS = (
    "cli/test_health.py",
    "cli/test_leaks_and_hangs.py",
    "cli/test_recycling.py",
    "cluster/test_churn.py",
    "cluster/test_clocks.py",
    "cluster/test_coordinator_contract.py",
    "cluster/test_coordinator_setting.py",
    "cluster/test_deploys.py",
    "cluster/test_exactly_once.py",
    "cluster/test_processes.py",
    "cluster/test_registries.py",
    "cluster/test_run_logs.py",
    "cluster/test_schemas.py",
    "maintenance/test_deadman.py",
    "maintenance/test_alarms_survive.py",
    "maintenance/test_long_readers.py",
    "monitoring/test_alerting.py",
    "scheduler/test_outages.py",
    "store/test_giving_up.py",
    "store/test_hanging_store.py",
    "store/test_lost_answers.py",
    "store/test_pgbouncer.py",
    "store/test_silent_links.py",
    "store/test_strangers_locks.py",
    "torture/test_world.py",
    "worker/test_lease_trust.py",
    "tracing/test_traces.py",
    "worker/test_leases.py",
    "worker/test_outages.py",
    "worker/test_run_logs.py",
    "worker/test_split_brain.py",
)

#: Tries another input or another order of events each time, so a second run that passes excuses nothing (steady.py).
#: Property tests of hypothesis are recognised by themselves.
SEARCH = (
    "api/test_contract.py",
    "cli/test_leaks_and_hangs.py",
    "cluster/test_churn.py",
    "cluster/test_deploys.py",
    "cluster/test_exactly_once.py",
    "cluster/test_fight.py",
    "policies/",
    "simulation/",
    "sql/test_same_as_python.py",
    "store/test_overlap.py",
    "store/test_strangers_locks.py",
    "timing/test_oracle.py",
    "timing/test_rezoned.py",
    "torture/test_torture.py",
    "worker/test_hostile_handlers.py",
)

#: Takes many seconds of a core, or starts servers and interpreters of its own: not part of `make test-fast`.
SLOW = (
    "api/test_promises.py",
    "bench/",
    "cli/test_api_memory.py",
    "cli/test_doctor_server.py",
    "cli/test_errors.py",
    "cli/test_migrate.py",
    "cli/test_readme.py",
    "cli/test_schema.py",
    "cli/test_secrets.py",
    "cli/test_text.py",
    "cli/test_up.py",
    "cli/test_worker_processes.py",
    "maintenance/test_guardian.py",
    "monitoring/",
    "scheduler/test_missed.py",
    "store/test_catalogue.py",
    "store/test_embedded.py",
    "store/test_held_snapshots.py",
    "store/test_plans.py",
    "store/test_script.py",
    "test_alembic.py",
    "test_steady.py",
    "testing/",
    "timing/test_budget.py",
    "timing/test_dst.py",
    "torture/",
    "worker/processes/",
    "worker/test_threads.py",
)

#: Files in which single tests are marked `alone`, `paced` or `waits`.
MARKED = (
    "timing/test_budget.py",
    "torture/test_torture.py",
)

#: The longest first: whole files go to whichever process is free, and none should be left over at the end.
LONGEST_FIRST = (
    "simulation/", "testing/", "store/test_overlap.py", "store/test_embedded.py", "cluster/test_processes.py",
    "monitoring/test_alerting.py", "torture/test_world.py", "cluster/test_coordinator_contract.py",
    "cluster/test_churn.py",
    "scheduler/test_outages.py",
    "timing/test_oracle.py", "timing/test_budget.py", "scheduler/test_missed.py", "policies/", "cli/test_up.py",
    "api/test_contract.py", "bench/", "store/test_foreign_connections.py", "sql/test_sql_submit.py",
    "store/test_server_errors.py",
)  # fmt: skip


def markers(path: str) -> list[str]:
    """The markers of every test in this file."""
    lists = {"alone": ALONE, "paced": PACED, "waits": WAITS, "search": SEARCH, "slow": SLOW}
    return [name for name, paths in lists.items() if path.startswith(paths)]


def rank(path: str) -> int:
    """Files with the lower rank begin first."""
    return next((place for place, start in enumerate(LONGEST_FIRST) if path.startswith(start)), len(LONGEST_FIRST))
