"""Runs of tasks that a worker lacks: old and new workers side by side, and tasks that no worker has any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
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
async def newer_worker(bench: Workbench, **options: Any) -> AsyncIterator[Worker]:
    app = Duly(settings=bench.settings)

    @app.task()
    async def fresh(ctx: Context) -> None: ...

    @app.task()
    async def known(ctx: Context) -> None: ...

    async with running_worker(bench.pool, app.tasks, bench.settings, **options) as worker:
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

    async def counted(*args: object, **named: Any) -> cluster.Offer:
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
    async def unavailable(*args: object, **named: Any) -> cluster.Offer:
        raise StoreUnavailable("gone for a moment")

    monkeypatch.setattr(cluster, "offer_of", unavailable)
    await submit_fresh(bench, 5)
    async with bench.working():

        async def back() -> bool:
            return await count(pool, "runs", "attempt = 0 and run_at > scheduled_at") == 5

        await eventually(back)
    assert await count(pool, "attempts") == 0


async def test_runs_for_a_queue_that_only_workers_without_the_task_serve_wait_and_hold_up_no_other(
    bench: Workbench, pool: Pool
) -> None:
    """The live worker with the task serves another queue, so it will not take them: they are no dead letters either."""
    bench.settings = bench.settings.model_copy(update={"missing_task_seconds": 0})
    # More than a claim that leaves tasks to others looks at.
    await submit_fresh(bench, 1_200)
    mine = await bench.submit("known")
    async with newer_worker(bench, queues=["reports"]), bench.working():
        assert (await bench.end_of(mine, seconds=25)).status == "succeeded"

        async def all_back() -> bool:
            return await count(pool, "runs", "attempt = 0") == 1_200

        await eventually(all_back)
    assert await count(pool, "dead_letters") == 0
    assert await count(pool, "attempts") == 0


async def test_a_run_that_nobody_can_run_is_claimed_at_most_once_a_second_and_ever_less_often(
    bench: Workbench, pool: Pool
) -> None:
    await submit_fresh(bench, 1)
    started = pool.clock.now()
    async with bench.working():

        async def claimed_thrice() -> bool:
            return bench.ended.qsize() >= 3

        await eventually(claimed_thrice)
        # Sent back at 0, 1 and 2 seconds.
        assert pool.clock.now() - started >= timedelta(seconds=1.9)

        async def back() -> bool:
            return await count(pool, "runs") == 1

        await eventually(back)
        await pool.query(
            "update duly.runs set scheduled_at = scheduled_at - interval '200 seconds', run_at = duly.now()"
        )
        await eventually(lambda: bench.ended.qsize() >= 4)

        async def waits() -> bool:
            return await count(pool, "runs", "run_at > duly.now() + interval '45 seconds' and attempt = 0") == 1

        await eventually(waits)
    assert {type(outcome).__name__ for _, outcome in [bench.ended.get_nowait() for _ in range(4)]} == {"Requeued"}


@pytest.mark.parametrize(
    "handler", [{"type": "command", "argv": ["true"]}, {"type": "http", "url": "https://example.org/"}]
)
async def test_targets_that_no_worker_calls_are_never_buried(
    bench: Workbench, pool: Pool, handler: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without the extra for HTTP, or without permission for commands, however old the run."""

    async def none(*_: object, **__: object) -> dict[str, Any]:
        return {}

    monkeypatch.setattr("duly.node.make_targets", none)
    bench.settings = bench.settings.model_copy(update={"missing_task_seconds": 0})
    job_id = await bench.submit(handler, max_retries=0)
    await pool.query("update duly.runs set scheduled_at = scheduled_at - interval '1 day'")
    async with bench.working():

        async def waits() -> bool:
            return await count(pool, "runs", "run_at > duly.now() + interval '50 seconds' and attempt = 0") == 1

        await eventually(waits)
    assert await count(pool, "dead_letters") == 0
    (stuck,) = (await bench.operations.cluster.status()).unrunnable
    assert (str(stuck.job_id), stuck.kind, stuck.runs) == (job_id, handler["type"], 1)


async def test_a_long_backlog_of_another_application_holds_up_no_run_of_ours(bench: Workbench, pool: Pool) -> None:
    """Two applications share a queue; the other one is slow, and all its runs lie before ours."""
    await submit_fresh(bench, 2_000)
    amid = await bench.submit("known")
    await submit_fresh(bench, 1_000)
    await pool.query("update duly.runs set run_at = run_at - interval '1 minute'")
    async with newer_worker(bench) as newer:
        await newer.claimer.stop()
        async with bench.working() as older:
            await eventually(lambda: older._offers.elsewhere() == ["fresh"])
            assert (await bench.end_of(amid, seconds=20)).status == "succeeded"
            for _ in range(3):
                mine = await bench.submit("known")
                assert (await bench.end_of(mine, seconds=20)).status == "succeeded"
        assert await count(pool, "runs", "attempt = 0") == 3_000
