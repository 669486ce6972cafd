"""The outcome of a run whose handler was stopped, for each reason; no store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from duly.clock import DatabaseClock
from duly.model import Buried, ClaimedRun, Requeued, Succeeded
from duly.worker.execution import StopReason
from duly.worker.executor import Executor, Outcome
from duly.worker.handler.task import Task
from harness.waiting import eventually


def run_of(handler: str, **fields: Any) -> ClaimedRun:
    run = ClaimedRun()
    values: dict[str, Any] = {
        "claim_id": uuid4(), "ordinal": 1, "job_id": uuid4(), "scheduled_at": datetime.now(UTC), "attempt": 1,
        "flags": 0, "name": "n", "handler": handler, "target": None, "payload": "{}", "payload_ref": None,
        "timezone": "UTC", "policy_text": None,
    }  # fmt: skip
    for name, value in (values | fields).items():
        setattr(run, name, value)
    return run


class Bench:
    """An executor with one handler, which waits until it is stopped."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.outcomes: asyncio.Queue[Outcome | None] = asyncio.Queue()
        self.stubborn = False

        async def handler() -> str:
            self.begun.set()
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if self.stubborn:
                        return "all the same"
                    raise

        self.executor = Executor(
            {"wait": Task("wait", handler)},
            DatabaseClock(),
            lambda _, outcome: self.outcomes.put_nowait(outcome),
            threads=1,
        )

    async def stopped(
        self, why: StopReason, *, stubborn: bool = False, begun: bool = True, **fields: Any
    ) -> Outcome | None:
        self.stubborn = stubborn
        run = run_of("wait", **fields)
        async with asyncio.timeout(10):
            self.executor.start(run)
            if begun:
                await self.begun.wait()
            self.executor.stop_run(run.claim_id, run.ordinal, why)
            return await self.outcomes.get()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.executor.close()


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_lost_lease_leaves_nothing_to_say(bench: Bench, begun: bool, stubborn: bool) -> None:
    assert await bench.stopped(StopReason.LEASE_LOST, begun=begun, stubborn=stubborn) is None


@pytest.mark.parametrize("begun", [False, True])
async def test_at_shutdown_it_goes_back_and_no_attempt_counts(bench: Bench, begun: bool) -> None:
    outcome = await bench.stopped(StopReason.SHUTDOWN, begun=begun)
    assert isinstance(outcome, Requeued)
    assert (outcome.state, outcome.delay, outcome.refund, outcome.error) == ("queued", 0.0, 1, None)


async def test_a_cancelled_run_ends_as_cancelled(bench: Bench) -> None:
    outcome = await bench.stopped(StopReason.CANCELLED)
    assert isinstance(outcome, Buried)
    assert outcome.status == "cancelled"


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_timeout_is_a_failed_attempt_whatever_the_handler_says_then(bench: Bench, stubborn: bool) -> None:
    outcome = await bench.stopped(StopReason.TIMEOUT, stubborn=stubborn)
    assert isinstance(outcome, Requeued)
    assert (outcome.state, outcome.refund) == ("retrying", 0)
    assert "timeout" in str(outcome.error)
    last = await bench.stopped(StopReason.TIMEOUT, stubborn=stubborn, attempt=1000)
    assert isinstance(last, Buried)
    assert last.status == "dead"


@pytest.mark.parametrize("why", [StopReason.SHUTDOWN, StopReason.CANCELLED])
async def test_a_handler_that_finished_although_it_was_told_to_stop_has_finished(bench: Bench, why: StopReason) -> None:
    outcome = await bench.stopped(why, stubborn=True)
    assert isinstance(outcome, Succeeded)
    assert outcome.result == '"all the same"'


@pytest.fixture
async def blocked() -> AsyncIterator[tuple[Executor, dict[str, Outcome | None]]]:
    """An executor with handlers that block the loop, and some whose time is short, and the outcomes by handler."""
    outcomes: dict[str, Outcome | None] = {}

    async def blocks() -> None:
        time.sleep(0.5)  # noqa: ASYNC251 - this is what the test is about

    async def blocks_again_and_again() -> None:
        while "endless" not in outcomes:
            time.sleep(0.2)  # noqa: ASYNC251
            await asyncio.sleep(0)

    async def sleeps() -> None:
        await asyncio.sleep(0.05)

    def has_a_thread() -> None:
        time.sleep(0.05)

    async def endless() -> None:
        await asyncio.Event().wait()

    handlers: list[Callable[..., Any]] = [blocks, blocks_again_and_again, sleeps, has_a_thread, endless]
    executor = Executor(
        {handler.__name__: Task(handler.__name__, handler) for handler in handlers},
        DatabaseClock(),
        lambda run, outcome: outcomes.__setitem__(run.handler, outcome),
        threads=1,
    )
    yield executor, outcomes
    executor.close()


_SHORT = '{"timeout_seconds": 0.3}'


async def test_handlers_that_ended_in_time_while_the_loop_was_blocked_have_ended(
    blocked: tuple[Executor, dict[str, Outcome | None]],
) -> None:
    """The machine may stand still, or another handler block the loop, for longer than a handler has time."""
    executor, outcomes = blocked
    for handler in ("sleeps", "has_a_thread", "endless"):
        executor.start(run_of(handler, policy_text=_SHORT))
    executor.start(run_of("blocks"))
    await eventually(lambda: len(outcomes) == 4)
    kinds = {handler: type(outcome) for handler, outcome in outcomes.items()}
    assert kinds == {"sleeps": Succeeded, "has_a_thread": Succeeded, "blocks": Succeeded, "endless": Requeued}


async def test_a_loop_that_is_blocked_again_and_again_keeps_no_handler_from_its_timeout(
    blocked: tuple[Executor, dict[str, Outcome | None]],
) -> None:
    executor, outcomes = blocked
    executor.start(run_of("endless", policy_text=_SHORT))
    executor.start(run_of("blocks_again_and_again"))
    await eventually(lambda: len(outcomes) == 2)
    assert isinstance(outcomes["endless"], Requeued)
