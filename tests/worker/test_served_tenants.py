"""Workers that serve some tenants: they begin no other tenant's run, and are not held up by a crowd of such runs."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from duly import Context
from duly.api.documents import cluster_document
from duly.model import Claim, JobRequest, Policy
from duly.operations import StoreOperations
from duly.store import maintenance, runs
from duly.store.pool import Pool
from duly.store.runs import Served
from duly.worker import floors
from duly.worker.claimer import Claimer
from duly.worker.floors import MAX_STRETCH, MIN_STRETCH, SLACK, Walk
from harness.store import ALL_PRIORITIES, count, put_now
from harness.waiting import eventually
from harness.worker import Workbench, wait_idle

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LANES = (["default"] * 10, ALL_PRIORITIES)


@pytest.fixture
def bench(bench: Workbench) -> Workbench:
    began: list[str] = []

    @bench.app.task()
    async def note(ctx: Context, whose: str) -> None:
        began.append(whose)
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")

    bench.began = began  # type: ignore[attr-defined]
    return bench


async def submit(bench: Workbench, tenant: str, number: int) -> None:
    requests = [
        JobRequest(handler="note", payload={"whose": tenant}, policy=Policy(retry_delay_seconds=0.05))
        for _ in range(number)
    ]
    operations = (await StoreOperations.open(bench.pool, bench.settings)).for_tenant(tenant)
    await operations.submit_many(requests, allow_unknown_handler=True)


async def claim(pool: Pool, *tenants: str, floors: Any = None, stretch: int = 1000, limit: int = 100) -> Claim:
    return await runs.claim(
        pool,
        worker_id=uuid4(),
        lease_seconds=60,
        limit=limit,
        lanes=LANES,
        floors=floors,
        served=Served(tenants, stretch),
    )


async def test_a_worker_for_one_tenant_begins_no_others_run_and_the_others_still_begin(bench: Workbench) -> None:
    for _ in range(3):
        await submit(bench, "a", 5)
        await submit(bench, "b", 5)
    began: list[str] = bench.began  # type: ignore[attr-defined]

    async def ended(number: int) -> bool:
        return await count(bench.pool, "history", "status = 'succeeded'") == number

    async with bench.working(tenants=["b"]):
        await eventually(lambda: ended(15), seconds=30)
    assert set(began) == {"b"}
    assert len(began) == 30  # each run was retried
    assert await count(bench.pool, "runs") == 15
    async with bench.working():
        await eventually(lambda: ended(30), seconds=30)
    assert began.count("a") == 30


async def test_a_run_that_was_rescued_is_still_for_its_own_tenants_workers(pool: Pool) -> None:
    await put_now(pool, 3, tenant="a")
    (own,) = await put_now(pool, 1, tenant="b")
    lost = await runs.claim(pool, worker_id=uuid4(), lease_seconds=0, limit=10, lanes=LANES)
    assert len(lost.runs) == 4

    async def is_back() -> bool:
        await maintenance.rescue(pool)
        return await count(pool, "runs") == 4

    await eventually(is_back)
    await pool.query("update duly.runs set run_at = duly.now()")
    assert [run.job_id for run in (await claim(pool, "b")).runs] == [own.job_id]
    assert (await claim(pool, "b")).runs == []
    assert len((await claim(pool, "a", "c")).runs) == 3


async def test_what_comes_next_is_told_of_these_tenants_only(pool: Pool) -> None:
    soon, later = pool.clock.now() + timedelta(seconds=30), pool.clock.now() + timedelta(seconds=60)
    await put_now(pool, 2, tenant="a")
    await put_now(pool, 1, tenant="b")
    await _retime(pool, "a", soon)
    await _retime(pool, "b", later)
    assert (await claim(pool, "b")).next_run_at == later
    assert (await claim(pool, "a")).next_run_at == soon
    assert (await claim(pool, "c")).next_run_at is None


async def test_a_crowd_of_others_runs_is_passed_over_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims walk over the crowd stretch by stretch and then stay at its end: the next claim finds a new run."""
    crowd = 6 * MIN_STRETCH
    # No single claim reads far enough to pass all of them.
    monkeypatch.setattr(floors, "MAX_STRETCH", 2 * MIN_STRETCH)
    await put_now(pool, crowd, tenant="a")
    await pool.query("update duly.runs set run_at = duly.now() - interval '1 hour' + shard * interval '1 second'")
    (own,) = await put_now(pool, 1, tenant="b")
    found: list[Any] = []
    claimer = Claimer(
        pool,
        pool.clock,
        worker_id=uuid4(),
        queues=["default"],
        lease_seconds=60,
        poll_seconds=1,
        concurrency=10,
        room=lambda: 10,
        started=lambda claim, _: found.extend(claim.runs),
        tenants=["b"],
    )
    walk = claimer._walk
    looks = 0
    while True:
        looks += 1
        assert looks <= 8
        if await claimer.run_once() != 0.0:
            break
    assert looks >= 3
    assert [run.job_id for run in found] == [own.job_id]
    # The walk is at its end. Its rest is set here, because on a quick machine the walk would not have been slow enough.
    walk._rest_until = time.monotonic() + 60
    (new,) = await put_now(pool, 1, tenant="b")
    await claimer.run_once()
    assert [run.job_id for run in found] == [own.job_id, new.job_id]
    assert all(floor is not None for floor in walk.of(LANES, time.monotonic(), None))
    # A run that appears before the walk's position is found by the next walk.
    (late,) = await put_now(pool, 1, tenant="b")
    await _retime(pool, "b", pool.clock.now() - timedelta(minutes=30))
    await claimer.run_once()
    assert len(found) == 2
    walk._rest_until = 0.0
    while await claimer.run_once() == 0.0:
        pass
    assert found[-1].job_id == late.job_id
    assert await count(pool, "runs") == crowd


def found_at(*ends: datetime | None, took: float = 0.001, lanes: int = 2, at: datetime = NOW) -> Claim:
    return Claim(None, [], None, lanes, at, NOW, took, ends)


def test_a_quick_walk_begins_at_the_beginning_every_time() -> None:
    walk, lanes = Walk(), (["a", "b"], [5, 5])
    for moment in range(3):
        assert walk.of(lanes, moment, None) == [None, None]
        assert not walk.learn(lanes, found_at(None, None), moment, full=False)


def test_a_slow_one_rests_and_looks_at_what_is_new() -> None:
    walk, lanes = Walk(), (["a", "b"], [5, 5])
    walk.of(lanes, 0, None)
    end = NOW - timedelta(hours=1)
    assert walk.learn(lanes, found_at(end, None, took=0.1), 0, full=False)
    assert walk.stretch == 2 * MIN_STRETCH
    assert walk.of(lanes, 1, None) == [end + timedelta(microseconds=1), NOW - SLACK]
    assert not walk.learn(lanes, found_at(None, None, took=0.1), 1, full=False)
    assert walk.stretch == MIN_STRETCH
    assert walk.of(lanes, 2, None) == [NOW - SLACK, NOW - SLACK]
    assert walk.of(lanes, 1 + 30 * 0.2 + 0.1, None) == [None, None]


def test_a_full_claim_goes_on_where_it_ended_and_another_choice_of_tasks_begins_anew() -> None:
    walk, lanes = Walk(), (["a", "b"], [5, 5])
    walk.of(lanes, 0, ["x"])
    at = NOW - timedelta(minutes=1)
    assert walk.learn(lanes, found_at(None, None, lanes=1, at=at), 0, full=True)
    assert walk.of(lanes, 0, ["x"]) == [at, None]
    assert walk.of(lanes, 0, None) == [None, None]


def test_stretches_grow_to_a_bound() -> None:
    walk, lanes = Walk(), (["a", "b"], [5, 5])
    for _ in range(10):
        walk.of(lanes, 0, None)
        walk.learn(lanes, found_at(NOW, NOW), 0, full=False)
    assert walk.stretch == MAX_STRETCH


async def test_the_cluster_says_whom_a_worker_serves_and_names_no_other_tenant(bench: Workbench) -> None:
    async with bench.working(tenants=["b", "c", "b"]):
        status = await bench.operations.cluster.status()
        (worker,) = cluster_document(status)["workers"]
        assert worker["tenants"] == ["b", "c"]
        assert cluster_document(status, tenant="b")["workers"][0]["tenants"] == ["b"]
        assert cluster_document(status, tenant="a")["workers"][0]["tenants"] == []
    async with bench.working():
        status = await bench.operations.cluster.status()
    assert [worker["tenants"] for worker in cluster_document(status)["workers"] if worker["alive"]] in ([None], [])


async def test_a_task_that_only_a_worker_for_others_has_is_no_dead_letter(bench: Workbench) -> None:
    """The run may be for the worker that has the task and is only busy, so the run waits."""
    bench.settings = bench.settings.model_copy(update={"missing_task_seconds": 0})
    other = Workbench(bench.pool, bench.settings, bench.operations)
    async with bench.working(tenants=["b"]):
        job_id = await bench.submit("note", {"whose": "default"})
        async with other.working() as worker:
            await eventually(lambda: bool(worker._offers._lacking))
            await asyncio.wait_for(wait_idle(worker), 10)
        assert (await bench.run_of(job_id)).status in ("queued", "retrying")
    await other.app.close()


async def _retime(pool: Pool, tenant: str, at: datetime) -> None:
    async with pool.transaction() as transaction:
        await transaction.connection.execute(
            "update duly.runs r set run_at = $1 from duly.jobs j where j.job_id = r.job_id and j.tenant = $2",
            at,
            tenant,
        )
