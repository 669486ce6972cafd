"""Runs of tasks that a worker lacks: old and new workers side by side, and tasks that no worker has any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

import duly.worker.offers
from duly import Context, Duly
from duly.errors import StoreUnavailable
from duly.node import running_worker
from duly.store import cluster
from duly.store.pool import Pool
from duly.worker.worker import Worker
from harness.store import count
from harness.waiting import eventually
from harness.worker import Workbench

RUNS = 200


@pytest.fixture
def bench(bench: Workbench) -> Workbench:
    @bench.app.task()
    async def known(ctx: Context) -> None: ...

    return bench


@asynccontextmanager
async def newer_worker(bench: Workbench) -> AsyncIterator[Worker]:
    app = Duly(settings=bench.settings)

    @app.task()
    async def fresh(ctx: Context) -> None: ...

    @app.task()
    async def known(ctx: Context) -> None: ...

    async with running_worker(bench.pool, app.tasks, bench.settings) as worker:
        yield worker
    await app.close()


async def submit_fresh(bench: Workbench, number: int = RUNS) -> None:
    requests = [bench.app.request("fresh", max_retries=0) for _ in range(number)]
    await bench.operations.submit_many(requests, allow_unknown_handler=True)


async def succeeded(bench: Workbench, number: int) -> None:
    async def all_of_them() -> bool:
        return await count(bench.pool, "history", "status = 'succeeded'") == number

    await eventually(all_of_them)


async def test_old_and_new_workers_side_by_side_lose_nothing(
    bench: Workbench, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = cluster.offer_of

    async def counted(*args: object, **named: str) -> cluster.Offer:
        nonlocal looks
        looks += 1
        return await look(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "offer_of", counted)
    async with bench.working(), bench.working(), bench.working():
        await submit_fresh(bench, 20)
        # The old workers have met the task before any worker has it.
        await eventually(lambda: looks >= 1)
        async with newer_worker(bench):
            await submit_fresh(bench)
            await succeeded(bench, RUNS + 20)
    assert await count(pool, "history", "attempt > 1") == 0
    assert await count(pool, "attempts") == 0
    assert looks <= 12, "the store must be asked per task, not per run"


async def test_runs_of_a_task_that_another_worker_has_are_left_to_it_at_once(bench: Workbench, pool: Pool) -> None:
    """The pause of a run that goes back does not grow with its age while another worker has its task."""
    bench.settings = bench.settings.model_copy(update={"poll_seconds": 3600.0})
    await submit_fresh(bench)
    age = "scheduled_at = scheduled_at - interval '20 minutes', run_at = run_at - interval '20 minutes'"
    await pool.query(f"update duly.runs set {age}")
    await pool.query("update duly.jobs set last_run_at = last_run_at - interval '20 minutes'")
    async with newer_worker(bench) as newer:
        await newer.claimer.stop()
        async with bench.working() as older:
            await eventually(lambda: older._offers.elsewhere() == ["fresh"])

            async def back() -> bool:
                return await count(pool, "runs", "attempt = 0") == RUNS

            await eventually(back)
            late = await count(pool, "runs", "run_at > duly.now() + interval '1 second'")
            assert late == 0
            # The older worker does its own work meanwhile, past 200 runs that it leaves alone.
            mine = await bench.submit("known")
            assert (await bench.end_of(mine)).status == "succeeded"
            await newer.claimer.start()
            await succeeded(bench, RUNS + 1)


async def test_a_task_that_nobody_has_waits_uncounted_and_is_buried_when_nobody_had_it_for_long(
    bench: Workbench, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.worker.offers, "FRESH_SECONDS", 0.0)
    await submit_fresh(bench, 1)
    async with bench.working() as worker:

        async def back() -> bool:
            return await count(pool, "runs", "attempt = 0 and run_at > scheduled_at + interval '0.9 seconds'") == 1

        await eventually(back)
        assert await count(pool, "dead_letters") == 0
        # The worker has known for an hour that it lacks the task, and the run is an hour old.
        worker._offers._lacking["fresh"].noticed_us -= 3_600_000_000
        await pool.query("update duly.runs set scheduled_at = scheduled_at - interval '1 hour', run_at = duly.now()")
        # But another worker had the task a minute ago, and may come back.
        had = {"tasks": ["fresh"]}
        await cluster.join(
            pool, node_id=uuid4(), kind="worker", name="gone", version="0", lease_seconds=-60, info=had
        )  # fmt: skip
        worker.claimer.wake()

        async def again() -> bool:
            return await count(pool, "runs", "attempt = 0 and run_at > duly.now() + interval '20 seconds'") == 1

        await eventually(again)
        assert await count(pool, "dead_letters") == 0
        await pool.query("update duly.nodes set lease_until = lease_until - interval '1 hour' where name = 'gone'")
        await pool.query("update duly.runs set run_at = duly.now()")
        worker.claimer.wake()

        async def buried() -> bool:
            return await count(pool, "dead_letters") == 1

        await eventually(buried)
    rows = await pool.query("select error ->> 'type' as type, error ->> 'message' as message from duly.history")
    assert rows[0]["type"] == "NoSuchTask"
    assert "'fresh'" in rows[0]["message"]
    assert "redrive" in rows[0]["message"]


async def test_the_store_that_cannot_say_who_has_a_task_costs_no_attempt(
    bench: Workbench, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*args: object, **named: str) -> cluster.Offer:
        raise StoreUnavailable("gone for a moment")

    monkeypatch.setattr(cluster, "offer_of", unavailable)
    await submit_fresh(bench, 5)
    async with bench.working():

        async def back() -> bool:
            return await count(pool, "runs", "attempt = 0 and run_at > scheduled_at") == 5

        await eventually(back)
    assert await count(pool, "attempts") == 0
