"""Sync handlers that hang, or that outnumber the threads: no other run suffers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import duly.worker.threads
import duly.worker.worker
from duly import Context
from duly.config import Settings
from duly.operations import Operations
from duly.store.pool import Pool
from duly.worker.wear import Limits, Wear, Worn
from harness.store import count
from harness.waiting import eventually
from harness.worker import Workbench


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """The event that hanging handlers wait for. It is set at the end of the test, even if the test fails."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def bench(
    pool: Pool, settings: Settings, operations: Operations, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Workbench]:
    monkeypatch.setattr(duly.worker.threads, "MAX_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(duly.worker.threads, "CROWDED_SECONDS", 0.2)
    monkeypatch.setattr(duly.worker.threads, "HANG_SECONDS", 0.1)
    monkeypatch.setattr(duly.worker.worker, "REPORT_SECONDS", 0.01)
    bench = Workbench(pool, settings, operations)

    @bench.app.task(timeout_seconds=0.3, max_retries=0)
    def hang(ctx: Context) -> None:
        release.wait(60)

    @bench.app.task(timeout_seconds=0.3, max_retries=1)
    def quick(ctx: Context) -> str:
        return "ran"

    @bench.app.task()
    async def on_the_loop(ctx: Context) -> str:
        return "ran"

    yield bench
    release.set()
    await bench.app.close()


async def submit_many(bench: Workbench, task: str, number: int, **options: Any) -> None:
    requests = [bench.app.request(task, **options) for _ in range(number)]
    await bench.operations.submit_many(requests, allow_unknown_handler=True)


async def ended(bench: Workbench, status: str, handler: str) -> int:
    of_handler = "job_id in (select job_id from duly.jobs where handler = $2)"
    return await count(bench.pool, "history", f"status = $1 and {of_handler}", status, handler)


async def until_ended(bench: Workbench, number: int, status: str, handler: str, *, seconds: float = 20) -> None:
    async def all_of_them() -> bool:
        return await ended(bench, status, handler) == number

    try:
        await eventually(all_of_them, seconds=seconds)
    except TimeoutError:
        left = await bench.pool.query("select state, attempt, run_at - duly.now() as due_in from duly.runs limit 5")
        failed = await bench.pool.query("select attempt, error from duly.attempts where error is not null limit 5")
        raise AssertionError(f"left: {[dict(row) for row in left]}; errors: {[dict(row) for row in failed]}") from None


async def test_a_worker_that_will_be_replaced_makes_up_for_threads_that_hang(
    bench: Workbench, release: threading.Event
) -> None:
    told: list[Worn] = []
    await submit_many(bench, "hang", 4)
    async with bench.working(concurrency=4, wear=Wear(Limits(), told.append)) as worker:
        await until_ended(bench, 4, "dead", "hang")
        await eventually(lambda: worker.executor.threads.hanging == 4)
        assert [(one.why, one.hanging, one.threads) for one in told] == [("threads", 2, 4)]
        await submit_many(bench, "quick", 40)
        await until_ended(bench, 40, "succeeded", "quick")
        # As many again, and no more.
        await submit_many(bench, "hang", 4)
        await until_ended(bench, 8, "dead", "hang")
        await eventually(lambda: worker.executor.threads.hanging == 8)
        assert worker.executor.threads.crowded
        release.set()
        await eventually(lambda: worker.executor.threads.hanging == 0)
        await eventually(lambda: worker.executor.threads.free == 4)
        await submit_many(bench, "quick", 40)
        await until_ended(bench, 80, "succeeded", "quick")


@pytest.mark.parametrize(("concurrency", "threads"), [(4, 4), (100, 64)])
async def test_a_worker_whose_threads_all_hang_leaves_sync_runs_alone_and_says_so(
    bench: Workbench, release: threading.Event, caplog: pytest.LogCaptureFixture, concurrency: int, threads: int
) -> None:
    await submit_many(bench, "hang", threads)
    async with bench.working(concurrency=concurrency) as worker:
        await until_ended(bench, threads, "dead", "hang")
        await submit_many(bench, "quick", 2 * threads)
        await submit_many(bench, "on_the_loop", 20)
        # Runs that need no thread go on.
        await until_ended(bench, 20, "succeeded", "on_the_loop")
        await eventually(lambda: worker.executor.threads.hanging == threads)

        async def told() -> bool:
            rows = await bench.pool.query("select info ->> 'hanging_threads' as hanging from duly.nodes")
            return [row["hanging"] for row in rows] == [str(threads)]

        await eventually(told)
        assert any(f"all {threads} handler threads of this worker hang" in line for line in caplog.messages)
        # The other runs wait, and none of their attempts has counted.
        assert await count(bench.pool, "runs", "attempt = 0 and state = 'queued'") == 2 * threads
        assert await count(bench.pool, "attempts", "attempt > 1") == 0

        # Another worker, with free threads, executes them.
        async with bench.working(concurrency=concurrency):
            await until_ended(bench, 2 * threads, "succeeded", "quick")

        # When its threads come back, the first worker goes on.
        release.set()
        await eventually(lambda: worker.executor.threads.overdue == 0)
        await submit_many(bench, "quick", 2 * threads)
        await until_ended(bench, 4 * threads, "succeeded", "quick")

        async def told_again() -> bool:
            rows = await bench.pool.query("select from duly.nodes where info ? 'hanging_threads'")
            return not rows

        await eventually(told_again)
    assert await count(bench.pool, "history", "status = 'dead'") == threads
    assert await count(bench.pool, "history", "status = 'succeeded' and attempt > 1") == 0


async def test_a_thread_that_comes_back_brings_work_without_a_poll(
    bench: Workbench, release: threading.Event, settings: Settings
) -> None:
    bench.settings = settings.model_copy(update={"poll_seconds": 3600.0})
    await submit_many(bench, "hang", 2)
    async with bench.working(concurrency=2) as worker:
        await until_ended(bench, 2, "dead", "hang")
        await submit_many(bench, "quick", 3)
        await eventually(lambda: worker.claimer._narrowed)
        release.set()
        await until_ended(bench, 3, "succeeded", "quick")


async def test_with_some_threads_hanging_the_others_do_all_the_work(bench: Workbench) -> None:
    await submit_many(bench, "hang", 3)
    async with bench.working(concurrency=4):
        await until_ended(bench, 3, "dead", "hang")
        await submit_many(bench, "quick", 30)
        await until_ended(bench, 30, "succeeded", "quick")
    assert await count(bench.pool, "history", "status = 'succeeded' and attempt > 1") == 0


async def test_more_slow_sync_handlers_than_threads_take_turns_and_none_times_out(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's timeout begins when it has a thread, not while it waits for one."""
    running, most = 0, 0
    lock = threading.Lock()

    monkeypatch.setattr(duly.worker.threads, "MAX_WAIT_SECONDS", 20)

    @bench.app.task(timeout_seconds=2, max_retries=0)
    def slow(ctx: Context) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(1.1)
        with lock:
            running -= 1

    await submit_many(bench, "slow", 100)
    async with bench.working(concurrency=100):
        await until_ended(bench, 100, "succeeded", "slow")
    assert most <= 64
    rows = await bench.pool.query(
        "select max(finished_at - started_at) as took, max(attempt) as attempt from duly.history"
    )
    assert rows[0]["took"].total_seconds() < 2, "a run's time began before it had a thread"
    assert rows[0]["attempt"] == 1


async def test_what_waits_too_long_for_a_thread_goes_back_uncounted_for_another_worker(
    bench: Workbench, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    @bench.app.task(timeout_seconds=30)
    def long(ctx: Context) -> None:
        loop.call_soon_threadsafe(began.set)
        release.wait(60)

    monkeypatch.setattr(duly.worker.worker, "MAX_THREADS", 1)
    await submit_many(bench, "long", 1)
    async with bench.working(concurrency=10):
        await began.wait()
        await submit_many(bench, "quick", 5)

        async def back() -> bool:
            return await count(bench.pool, "runs", "attempt = 0 and state = 'queued' and run_at > scheduled_at") == 5

        await eventually(back)
        # The first worker does not claim them again while it has no thread for them.
        async with bench.working(concurrency=10):
            await until_ended(bench, 5, "succeeded", "quick")
        release.set()
        await until_ended(bench, 1, "succeeded", "long")
    assert await count(bench.pool, "history", "attempt > 1") == 0


async def test_a_cancelled_wait_for_a_thread_gives_its_place_up(release: threading.Event) -> None:
    threads = duly.worker.threads.Threads(1)
    began = threading.Event()

    def wait() -> str:
        began.set()
        release.wait(60)
        return "done"

    first = asyncio.create_task(threads.call("first", lambda: None, wait))
    await asyncio.to_thread(began.wait, 10)
    waiting = [asyncio.create_task(threads.call("next", lambda: None, lambda: "next")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await asyncio.wait(waiting[:2])
    release.set()
    assert await first == "done"
    assert await waiting[2] == "next"
    assert (threads.free, threads.overdue, len(threads._waiting)) == (1, 0, 0)
    threads.close()
