"""Which jobs no live worker can run, why, and what to do about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from duly.maintenance.survey import Survey
from duly.model import NodeStatus, Unrunnable
from duly.operations import StoreOperations
from duly.operations.runnable import Ability, can_run, unrunnable
from duly.store import cluster
from duly.store.demands import Demand
from duly.store.pool import Pool
from harness.store import due_job, put, put_now

NOW = datetime(2026, 3, 6, tzinfo=UTC)
JOB = UUID(int=7)


def demand(handler: str = "report", kind: str = "task", **fields: Any) -> Demand:
    known: dict[str, Any] = {
        "tenant": "default", "queue": "default", "jobs": 2, "runs": 0, "at_least": False, "job_name": "weekly",
    }  # fmt: skip
    return Demand(kind=kind, handler=handler, job_id=JOB, **(known | fields))


def worker(*, alive: bool = True, kind: str = "worker", **info: Any) -> NodeStatus:
    said = {"queues": ["default"], "tasks": ["report"], "targets": ["http"], **info}
    return NodeStatus(uuid4(), kind, "w", "0", NOW, NOW, None, said, alive, 0, 0)


def only(wanted: Demand, *workers: NodeStatus) -> Unrunnable | None:
    found = unrunnable([wanted], workers)
    return found[0] if found else None


@pytest.mark.parametrize(
    ("wanted", "able"),
    [
        (demand(), True),
        (demand("other"), False),
        (demand(queue="reports"), False),
        (demand("", "http"), True),
        (demand("", "http", queue="reports"), False),
        (demand("/bin/true", "command"), False),
        (demand("x", "strange"), False),
        (demand("command"), False),
    ],
)
def test_a_worker_needs_the_queue_and_the_handler(wanted: Demand, able: bool) -> None:
    assert can_run(wanted, [Ability.of(worker().info)]) is able
    assert (only(wanted, worker()) is None) is able


def test_one_worker_must_have_all_of_it() -> None:
    with_the_task = worker(queues=["reports"])
    with_the_queue = worker(tasks=[])
    assert only(demand(), with_the_task, with_the_queue) is not None
    assert only(demand(), with_the_task, with_the_queue, worker()) is None


@pytest.mark.parametrize(
    ("info", "able"),
    [
        ({"targets": ["command"]}, True),  # a worker of 0.1.0
        ({"targets": ["command"], "commands": True}, True),
        ({"targets": ["command"], "commands": False}, False),
        ({"targets": ["command"], "commands": ["rsync"]}, True),
        ({"targets": ["command"], "commands": ["/usr/bin/*"]}, True),
        ({"targets": ["command"], "commands": ["/opt/*", "backup"]}, False),
        ({"targets": ["command"], "commands": []}, False),
        ({"targets": ["http"], "commands": True}, False),
    ],
)
def test_a_command_needs_a_worker_that_allows_its_program(info: dict[str, Any], able: bool) -> None:
    assert can_run(demand("/usr/bin/rsync", "command"), [Ability.of(worker(**info).info)]) is able


def test_a_worker_of_some_tenants_runs_no_others_jobs() -> None:
    found = only(demand(), worker(tenants=["acme"]))
    assert found is not None
    assert "acme" not in found.message
    assert "serves other tenants only" in found.message
    assert found.next_step == "start one that serves all tenants"
    assert only(demand(tenant="acme"), worker(tenants=["acme"])) is None
    assert only(demand(), worker(tenants=["acme"]), worker()) is None


def test_only_live_workers_count() -> None:
    found = only(demand(), worker(alive=False), worker(kind="scheduler"))
    assert found is not None
    assert found.message.endswith("cannot run: no worker is alive")


def test_the_message_says_how_many_which_and_why_and_the_next_step() -> None:
    assert only(demand("other", queue="reports", runs=1), worker()) == Unrunnable(
        "default", "reports", "task", "other", 2, 1, False, JOB, "weekly",
        f"2 active jobs and 1 waiting run of queue 'reports' (such as 'weekly', {JOB}) cannot run: no live worker has "
        "the task 'other'",
        "start one whose app has it: duly worker --app module:app --queue reports",
    )  # fmt: skip
    found = only(demand(jobs=1, at_least=True), worker(queues=["reports", "b", "c", "a"]))
    assert found is not None
    assert found.message.startswith("at least 1 active job of queue")
    assert found.message.endswith("a live worker has the task 'report', but only for the queues a, b, c, …")
    assert found.next_step.startswith("start one with --queue default")
    endpoint, command = only(demand("", "http"), worker(targets=[])), only(demand("/bin/x", "command"), worker())
    assert endpoint is not None
    assert "duly[http]" in endpoint.next_step
    assert command is not None
    assert "'/bin/x'" in command.message
    assert command.next_step == "start one that allows it: duly worker --allow-command /bin/x"
    for program in ("bin/x", "x*y", "*"):  # no pattern of a worker names it alone
        command = only(demand(program, "command"), worker())
        assert command is not None
        assert command.next_step == "start one that allows it: duly worker --allow-commands"


def test_those_of_most_jobs_come_first() -> None:
    found = unrunnable([demand("a", jobs=1), demand("b", jobs=9), demand("c", jobs=0, runs=4)], [worker()])
    assert [one.handler for one in found] == ["b", "c", "a"]


@pytest.fixture
async def joined(pool: Pool) -> UUID:
    node = uuid4()
    info = {"queues": ["default"], "tasks": ["noop"], "targets": ["http"]}
    await cluster.join(
        pool, node_id=node, kind="worker", name="w", version="0", lease_seconds=60, info=info
    )  # fmt: skip
    return node


async def found(store: StoreOperations) -> list[tuple[str, int, int]]:
    store.cluster._demands = (0.0, store.cluster._demands[1])  # as after a few seconds
    return [(one.handler, one.jobs, one.runs) for one in (await store.cluster.status()).unrunnable]


async def test_it_is_found_before_its_run_waits_and_ends_when_a_worker_comes(
    pool: Pool, store_operations: StoreOperations, joined: UUID
) -> None:
    later = pool.clock.now() + timedelta(days=300)
    await put(pool, due_job(pool, later), due_job(pool, later, handler="yearly"))
    assert await found(store_operations) == [("yearly", 1, 0)]
    await cluster.leave(pool, node_id=joined)
    assert await found(store_operations) == [("noop", 1, 0), ("yearly", 1, 0)]
    info = {"queues": ["default"], "tasks": ["noop", "yearly"]}
    await cluster.join(
        pool, node_id=uuid4(), kind="worker", name="w", version="0", lease_seconds=60, info=info
    )  # fmt: skip
    assert await found(store_operations) == []


async def test_an_old_job_among_many_is_found_by_the_survey(
    pool: Pool, store_operations: StoreOperations, joined: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.store.demands._LATEST", (200, 50, 0, 3))
    later = pool.clock.now() + timedelta(days=300)
    await put(pool, *(due_job(pool, later, handler="old") for _ in range(2)))
    await put(pool, *(due_job(pool, later) for _ in range(20)))
    assert await found(store_operations) == []
    survey = Survey(pool)
    survey.lead(True)
    await survey.run_once()
    assert await found(store_operations) == [("old", 2, 0)]


async def test_runs_that_wait_now_are_counted_also_of_jobs_that_have_ended(
    pool: Pool, store_operations: StoreOperations, joined: UUID
) -> None:
    await put_now(pool, 3, handler="fresh")
    await put_now(pool, 2)
    # Behind its pause for another worker, too.
    await pool.query("update duly.runs set run_at = run_at + interval '50 seconds'")
    assert await found(store_operations) == [("fresh", 0, 3)]


async def test_a_changed_job_is_found_among_many(
    pool: Pool, store_operations: StoreOperations, joined: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.store.demands._LATEST", (200, 50, 0, 3))
    later = pool.clock.now() + timedelta(days=300)
    first = due_job(pool, later)
    await put(pool, first, *(due_job(pool, later) for _ in range(20)))
    survey = Survey(pool)
    survey.lead(True)
    await survey.run_once()
    operations = store_operations.for_tenant("default")
    await operations.jobs.change(str(first.job_id), {"queue": "nobody"})
    assert [(one.queue, one.jobs) for one in (await store_operations.cluster.status()).unrunnable] == [("nobody", 1)]
