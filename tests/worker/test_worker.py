"""A worker in this process against a real store: the handlers and the records of their runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import duly.worker.blocking
import isolated_tasks
from duly import Context, RetryAfter, Snooze
from duly.errors import DataRefused
from duly.model import JobRequest, Succeeded
from duly.store import maintenance, runs
from duly.store.pool import Pool
from harness.store import count, rescue_from_the_living
from harness.waiting import eventually
from harness.worker import Workbench, wait_idle


async def test_an_async_handler_gets_its_payload_and_its_result_is_kept(bench: Workbench) -> None:
    @bench.app.task()
    async def add(ctx: Context, a: int, b: int = 1) -> dict[str, int]:
        return {"sum": a + b}

    job_id = await bench.submit(add, {"a": 41})
    async with bench.working():
        run = await bench.attempt_of(job_id)
    assert (run.status, run.attempt, run.result) == ("succeeded", 1, {"sum": 42})
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.scheduled_at <= run.started_at <= run.finished_at
    assert (await bench.operations.jobs.get(job_id)).status == "completed"


async def test_no_run_seems_to_start_before_it_was_due(bench: Workbench) -> None:
    @bench.app.task()
    async def nothing(ctx: Context) -> None: ...

    job_id = await bench.submit(nothing)
    async with bench.working():
        await bench.attempt_of(job_id)
        # The clock was measured badly, as on a busy machine: it is 2 s behind, within an error of 3 s.
        bench.pool.clock._offset_us -= 2_000_000
        bench.pool.clock._error_us = 3_000_000
        await bench.operations.jobs.trigger(job_id)
        run = await bench.attempt_of(job_id)
    assert run.started_at is not None
    assert run.started_at >= run.scheduled_at


async def test_a_worker_that_the_store_has_forgotten_joins_again(bench: Workbench, pool: Pool) -> None:
    """As after the promotion of a standby that did not know of the worker yet."""

    @bench.app.task()
    async def nothing(ctx: Context) -> None: ...

    async with bench.working() as worker:
        await pool.query("truncate duly.nodes, duly.handlers")

        async def known() -> bool:
            rows = await pool.query("select node_id from duly.nodes where kind = 'worker' and lease_until > duly.now()")
            handlers = await count(pool, "handlers", "name = 'nothing'")
            return [row["node_id"] for row in rows] == [worker.worker_id] and handlers == 1

        await eventually(known)
        assert (await bench.attempt_of(await bench.submit(nothing))).status == "succeeded"


async def test_a_sync_handler_runs_in_a_thread_of_its_own(bench: Workbench) -> None:
    @bench.app.task()
    def where(ctx: Context) -> str:
        return threading.current_thread().name

    job_id = await bench.submit(where)
    async with bench.working():
        run = await bench.attempt_of(job_id)
    assert run.status == "succeeded"
    assert run.result.startswith("duly-handler")


async def test_the_context_says_which_run_this_is(bench: Workbench) -> None:
    seen: dict[str, Any] = {}

    @bench.app.task()
    async def look(ctx: Context) -> None:
        for name in ("job_id", "run_id", "attempt", "scheduled_at", "idempotency_key", "fencing_token", "missed",
                     "payload_ref", "cancelled", "job_name"):  # fmt: skip
            seen[name] = getattr(ctx, name)

    job_id = await bench.submit(look, name="looking", payload_ref="s3://bucket/key")
    async with bench.working():
        run = await bench.attempt_of(job_id)
    assert seen["job_id"] == job_id
    assert seen["run_id"] == run.run_id
    assert seen["attempt"] == 1
    assert seen["scheduled_at"] == run.scheduled_at
    assert seen["idempotency_key"] == run.idempotency_key == f"{job_id}:{run.scheduled_at.timestamp():f}"
    assert len(seen["fencing_token"]) == 36
    assert (seen["missed"], seen["cancelled"], seen["payload_ref"]) == (False, False, "s3://bucket/key")
    assert seen["job_name"] == "looking"


async def test_a_failing_handler_is_retried_with_the_same_key_and_each_error_is_kept(bench: Workbench) -> None:
    keys: list[str] = []

    @bench.app.task(max_retries=3, retry_backoff="immediate")
    async def flaky(ctx: Context) -> str:
        keys.append(ctx.idempotency_key)
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}\x00")
        return "at last"

    job_id = await bench.submit(flaky)
    async with bench.working():
        run = await bench.attempt_of(job_id, attempts=3)
    assert (run.status, run.attempt, run.result) == ("succeeded", 3, "at last")
    assert [attempt.error and attempt.error.message for attempt in run.attempts] == [
        "attempt 1\ufffd",
        "attempt 2\ufffd",
        None,
    ]
    assert run.attempts[0].error is not None
    assert "ValueError" in (run.attempts[0].error.traceback or "")
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_a_handler_that_never_succeeds_ends_in_the_dead_letters(bench: Workbench, pool: Pool) -> None:
    @bench.app.task(max_retries=1, retry_backoff="immediate")
    async def broken(ctx: Context, n: int) -> None:
        raise RuntimeError("always")

    job_id = await bench.submit(broken, {"n": 1})
    async with bench.working():
        run = await bench.attempt_of(job_id, attempts=2)
    assert (run.status, run.attempt) == ("dead", 2)
    assert run.error is not None
    assert (run.error.type, run.error.message) == ("RuntimeError", "always")
    assert [attempt.attempt for attempt in run.attempts] == [1, 2]
    assert await count(pool, "dead_letters", "payload = '{\"n\": 1}'") == 1


@pytest.mark.parametrize(("payload", "words"), [({"n": 1, "x": 1}, "'x'"), ({}, "'n'"), ([1], "object")])
async def test_a_payload_that_does_not_fit_is_a_permanent_failure(bench: Workbench, payload: Any, words: str) -> None:
    @bench.app.task()
    async def picky(ctx: Context, n: int) -> None: ...

    job_id = await bench.submit(picky, payload)
    async with bench.working():
        run = await bench.attempt_of(job_id)
    assert (run.status, run.attempt) == ("dead", 1)
    assert run.error is not None
    assert words in run.error.message
    assert run.error.traceback is None, "the message is enough without a traceback"


@pytest.mark.parametrize(
    ("handler", "isolation"),
    [
        (isolated_tasks.no_such_customer, "thread"),
        (isolated_tasks.no_such_customer_async, "thread"),
        (isolated_tasks.no_such_customer, "process"),
        (isolated_tasks.no_such_customer_async, "process"),
    ],
)
async def test_permanent_errors_are_not_tried_again_and_tell_where_they_were_raised(
    bench: Workbench, handler: Any, isolation: Any
) -> None:
    job_id = await bench.submit(bench.app.task(isolation=isolation)(handler))
    async with bench.working():
        run = await bench.attempt_of(job_id)
    assert (run.status, run.attempt) == ("dead", 1)
    assert run.error is not None
    assert (run.error.type, run.error.message) == ("Permanent", "no such customer")
    lines = (run.error.traceback or "").splitlines()
    # The traceback shows no frame between the worker and its handler.
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{isolated_tasks.__file__}", line ')
    assert lines[1].endswith(f"in {handler.__name__}")
    assert sum(line.startswith("  File ") for line in lines) == 1


async def test_retry_after_is_honoured(bench: Workbench) -> None:
    @bench.app.task()
    async def later(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RetryAfter(3600)

    job_id = await bench.submit(later)
    async with bench.working():
        run = await bench.attempt_of(job_id)
    assert run.status == "retrying"
    assert run.run_at is not None
    # Up to a minute is added, so that many runs do not come back together; some time has passed since.
    assert 3500 < (run.run_at - bench.operations.now()).total_seconds() <= 3660


async def test_a_snooze_does_not_count_as_an_attempt(bench: Workbench) -> None:
    calls: list[int] = []

    @bench.app.task(max_retries=0)
    async def not_yet(ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise Snooze(0)

    job_id = await bench.submit(not_yet)
    async with bench.working():
        run = await bench.attempt_of(job_id, attempts=3)
    assert (run.status, calls) == ("succeeded", [1, 1, 1])


async def test_an_attempt_that_takes_too_long_fails_with_timeout(bench: Workbench) -> None:
    stopped = asyncio.Event()

    @bench.app.task(timeout_seconds=0.05, max_retries=0)
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    job_id = await bench.submit(slow)
    async with bench.working():
        run = await bench.attempt_of(job_id)
    assert run.status == "dead"
    assert run.error is not None
    assert run.error.type == "timeout"
    assert stopped.is_set()


async def test_a_sync_handler_that_takes_too_long_is_told_through_its_context(bench: Workbench) -> None:
    told = threading.Event()

    @bench.app.task(timeout_seconds=0.05, max_retries=0)
    def slow(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)
        told.set()

    job_id = await bench.submit(slow)
    async with bench.working():
        run = await bench.attempt_of(job_id)
        assert await asyncio.to_thread(told.wait, 5)
    assert run.error is not None
    assert run.error.type == "timeout"


async def test_sys_exit_in_a_handler_fails_the_run_and_not_the_worker(bench: Workbench) -> None:
    @bench.app.task(max_retries=0)
    async def leave(ctx: Context) -> None:
        raise SystemExit(3)

    @bench.app.task()
    async def fine(ctx: Context) -> None: ...

    first = await bench.submit(leave)
    async with bench.working():
        assert (await bench.attempt_of(first)).status == "dead"
        second = await bench.submit(fine)
        assert (await bench.attempt_of(second)).status == "succeeded"


async def test_cancelling_a_job_stops_what_runs_when_asked_to(bench: Workbench) -> None:
    started = asyncio.Event()

    @bench.app.task()
    async def endless(ctx: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    job_id = await bench.submit(endless)
    async with bench.working():
        async with asyncio.timeout(10):
            await started.wait()
        asked = time.monotonic()
        await bench.operations.jobs.cancel(job_id, running=True)
        run = await bench.attempt_of(job_id)
        assert time.monotonic() - asked < 2
    assert run.status == "cancelled"


async def test_at_shutdown_unfinished_runs_go_back_at_once_and_do_not_count(bench: Workbench, pool: Pool) -> None:
    started = asyncio.Event()

    @bench.app.task()
    async def endless(ctx: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    job_id = await bench.submit(endless)
    bench.settings = bench.settings.model_copy(update={"shutdown_grace_seconds": 0.0})
    async with bench.working():
        async with asyncio.timeout(10):
            await started.wait()
    run = await bench.run_of(job_id)
    assert (run.status, run.attempt) == ("queued", 0)
    assert await count(pool, "claims") == 0


async def test_at_shutdown_running_handlers_may_finish_within_the_grace(bench: Workbench) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    @bench.app.task()
    async def busy(ctx: Context) -> str:
        started.set()
        await finish.wait()
        return "finished"

    job_id = await bench.submit(busy)
    async with bench.working() as worker:
        async with asyncio.timeout(10):
            await started.wait()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        finish.set()
        await stopping
    assert (await bench.run_of(job_id)).result == "finished"


async def test_a_handler_that_blocks_the_event_loop_for_three_leases_loses_nothing(
    bench: Workbench, pool: Pool
) -> None:
    lease = 0.6
    bench.settings = bench.settings.model_copy(update={"worker_lease_seconds": lease})
    rescued: list[int] = []

    @bench.app.task()
    async def block(ctx: Context) -> str:
        # Not asyncio.sleep: nothing else on this loop runs meanwhile.
        time.sleep(3 * lease)  # noqa: ASYNC251
        return "still mine"

    def rescue_elsewhere() -> None:
        async def rescuing() -> None:
            other = await Pool.connect(pool.url, size=1)
            deadline = time.monotonic() + 3 * lease
            while time.monotonic() < deadline:
                rescued.append((await maintenance.rescue(other)).claims)
                await asyncio.sleep(0.05)
            await other.close()

        asyncio.run(rescuing())

    job_id = await bench.submit(block)
    thread = threading.Thread(target=rescue_elsewhere)
    async with bench.working():
        thread.start()
        run = await bench.attempt_of(job_id)
        await asyncio.to_thread(thread.join)
    assert (run.status, run.attempt, run.result) == ("succeeded", 1, "still mine")
    assert sum(rescued) == 0


async def test_an_async_handler_that_blocks_the_loop_is_named_once(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duly.worker.blocking, "BLOCKED_SECONDS", 0.3)

    @bench.app.task()
    async def block(ctx: Context) -> None:
        time.sleep(1.0)  # noqa: ASYNC251

    @bench.app.task()
    async def wait(ctx: Context) -> None:
        await asyncio.sleep(1.0)

    async with bench.working():
        for _ in range(2):
            assert (await bench.attempt_of(await bench.submit(wait))).status == "succeeded"
            assert (await bench.attempt_of(await bench.submit(block))).status == "succeeded"
    said = [line for line in caplog.messages if "blocked the event loop" in line]
    assert len(said) == 1
    assert "the async task block has" in said[0]
    assert __file__ in said[0]


async def test_a_worker_whose_claim_was_rescued_is_told_and_records_nothing(bench: Workbench, pool: Pool) -> None:
    started, told = asyncio.Event(), asyncio.Event()

    @bench.app.task()
    async def endless(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.set()

    job_id = await bench.submit(endless)
    async with bench.working() as worker:
        async with asyncio.timeout(10):
            await started.wait()
        await worker.claimer.stop()
        await rescue_from_the_living(pool)
        worker.leases.poke()
        async with asyncio.timeout(5):
            await told.wait()
            await wait_idle(worker)
        assert worker.completer.lost == 1
    run = await bench.run_of(job_id)
    assert (run.status, run.attempt) == ("queued", 1)


@pytest.mark.parametrize("behind", ["coroutine", "thread", "child"])
async def test_what_stands_in_line_when_the_lease_runs_out_is_not_begun(
    bench: Workbench, pool: Pool, tmp_path: Path, behind: str
) -> None:
    """This holds from the loop's first step after a long stop, even before the heartbeat's thread has run."""
    begun: list[str] = []

    @bench.app.task()
    async def sleep_past_the_lease(ctx: Context) -> None:
        begun.append("first")
        with worker.leases._lock:
            worker.leases._trusted_until = dict.fromkeys(worker.leases._trusted_until, 0.0)

    @bench.app.task()
    async def coroutine(ctx: Context) -> None:
        begun.append("coroutine")

    @bench.app.task()
    def thread(ctx: Context) -> None:
        begun.append("thread")

    bench.app.task(name="child", isolation="process")(leave_a_file)
    payload = {"path": str(tmp_path / "begun")} if behind == "child" else None
    await bench.submit(sleep_past_the_lease, priority=9)
    await bench.submit(behind, payload)
    async with bench.working() as worker:
        ended = {run.handler: outcome for run, outcome in [await bench.ended.get() for _ in range(2)]}
        assert ended[behind] is None
        assert begun == ["first"]
        assert not (tmp_path / "begun").exists()
        # The worker has left the claim to rescue and sends no heartbeats for it.
        assert await count(pool, "claims") == 1
        assert not worker.leases._trusted_until


async def test_nothing_is_held_once_nobody_beats_for_it(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def beat(_: Pool) -> None:
        """Does not ask the store, which knows of no such claim."""

    async with bench.working() as worker:
        monkeypatch.setattr(worker.leases, "_beat", beat)
        claim_id = uuid4()
        assert worker.leases.hold(claim_id, time.monotonic())
        await worker.leases.stop()
        assert not worker.leases.holds(claim_id)


def leave_a_file(ctx: Context, path: str) -> None:
    Path(path).touch()


async def test_a_worker_holds_no_more_than_it_has_room_for(bench: Workbench, pool: Pool) -> None:
    running, most = 0, 0
    release = asyncio.Event()

    @bench.app.task()
    async def hold(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    await bench.operations.submit_many([JobRequest("hold") for _ in range(50)], allow_unknown_handler=True)
    async with bench.working(concurrency=8):
        await eventually(lambda: running >= 8)
        assert await count(pool, "runs") == 42
        release.set()
        async with asyncio.timeout(20):
            for _ in range(50):
                await bench.ended.get()
    assert most == 8
    assert await count(pool, "history") == 50


async def test_an_outcome_that_cannot_be_written_at_all_is_left_to_rescue_and_blocks_nobody(
    bench: Workbench, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.app.task()
    async def fine(ctx: Context, n: int) -> int:
        return n

    real = runs.complete

    async def refuse(store: Pool, ended: Sequence[Succeeded], close: Sequence[UUID] = ()) -> int:
        if any(end.run.payload == '{"n": 7}' for end in ended):
            raise DataRefused("not in any words")
        return await real(store, ended, close)

    monkeypatch.setattr(runs, "complete", refuse)
    await bench.operations.submit_many(
        [JobRequest("fine", payload={"n": n}) for n in range(1, 21)], allow_unknown_handler=True
    )
    async with bench.working() as worker:
        async with asyncio.timeout(20):
            for _ in range(20):
                await bench.ended.get()
            await wait_idle(worker)
    assert await count(pool, "history", "status = 'succeeded'") == 19
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    assert (await maintenance.rescue(pool)).requeued == 1


async def test_an_outcome_the_database_refuses_does_not_sink_the_others(
    bench: Workbench, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.app.task()
    async def fine(ctx: Context, n: int) -> int:
        return n

    # A result that slips past the cleaning: text that is not JSON at all.
    monkeypatch.setattr(
        "duly.worker.executor.result_text", lambda result, mask: "{not json" if result == 7 else str(result)
    )
    await bench.operations.submit_many(
        [JobRequest("fine", payload={"n": n}) for n in range(1, 21)], allow_unknown_handler=True
    )
    async with bench.working() as worker:
        async with asyncio.timeout(20):
            for _ in range(20):
                await bench.ended.get()
            await wait_idle(worker)
    assert await count(pool, "history", "status = 'succeeded'") == 20
    assert await count(pool, "history", "result ->> 'type' = 'Unstorable'") == 1
