"""Runs handlers. The executor decides what became of a run, as a value; the completer writes it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import Any
from uuid import UUID

from duly.clock import Clock
from duly.errors import LONGEST_DELAY, InvalidInput, Permanent, Snooze, StoreUnavailable, Unable
from duly.masking import Mask, make_mask, payload_secrets, target_secrets
from duly.model import DEFAULT_KEY_TEMPLATE, DEFAULT_POLICY, policy_from_stored, to_micros
from duly.states import RunFlag
from duly.store.runs import Buried, ClaimedRun, Recorded, Requeued, Succeeded
from duly.worker.blocking import Blocking
from duly.worker.drivers import Drivers
from duly.worker.handler.context import Context, Host, NotHeld, key_of
from duly.worker.handler.errors import Elsewhere, error_text, exception_text, isinstance_of, message_of, result_text
from duly.worker.handler.task import Task
from duly.worker.offers import Offers
from duly.worker.retry import next_attempt_in
from duly.worker.targets import Isolated, Target
from duly.worker.threads import Threads

log = logging.getLogger("duly.worker")

Outcome = Succeeded | Requeued | Buried
Report = Callable[[ClaimedRun, Outcome | None], None]

# How late a timeout may be noticed. One timer looks after all running handlers; one per run would cost more than
# many handlers do.
_WATCH_SECONDS = 0.1
# A handler that was told to stop and goes on all the same is left to itself after this long: its run must not wait.
ABANDON_SECONDS = 5.0
# A run that this worker cannot run comes back to the queue after a quarter of its age, within these bounds.
_UNABLE_SECONDS = (1.0, 60.0)
# And after this, where another worker can run it.
_ELSEWHERE_SECONDS = 0.5

#: Whether a run's idempotency key is one that a run has already completed with.
Ledger = Callable[[ClaimedRun, str], Awaitable[bool]]


class Stop(Enum):
    """Why a running handler was told to stop."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"


_NO_DEADLINE = float("inf")


class _Running:
    __slots__ = ("abandoned", "context", "deadline", "run", "started_us", "stop", "task")

    def __init__(self, run: ClaimedRun) -> None:
        self.run = run
        self.context: Context | None = None
        self.started_us: int | None = None
        self.stop: Stop | None = None
        self.abandoned = False
        self.deadline = _NO_DEADLINE
        self.task: asyncio.Task[None] | None = None


class Executor:
    """Executes runs side by side and reports exactly one outcome for each; None for a run whose lease is lost."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        clock: Clock,
        report: Report,
        *,
        threads: int,
        host: Host | None = None,
        ledger: Ledger | None = None,
        targets: Mapping[str, Target] | None = None,
        isolated: Isolated | None = None,
        offers: Offers | None = None,
        threads_changed: Callable[[], None] = lambda: None,
        blocking: Blocking | None = None,
    ) -> None:
        """`offers`: who else may have a task; without, there is no other worker, and a task that is not here fails."""
        self._tasks = tasks
        self._offers = offers
        self._blocking = blocking
        self._host = host
        self._ledger = ledger
        self._targets = targets or {}
        self._isolated = isolated
        self._clock = clock
        self._report = report
        self.threads = Threads(threads, threads_changed)
        # All that were started and have not been reported, whether their handler has begun or not.
        self._running: set[_Running] = set()
        self._drivers = Drivers(self._take_turn)
        self._watch: asyncio.TimerHandle | None = None
        self._time: Callable[[], float] = time.monotonic

    def __len__(self) -> int:
        return len(self._running)

    def start(self, run: ClaimedRun) -> None:
        running = _Running(run)
        self._running.add(running)
        self._drivers.add(running)
        if self._watch is None:
            loop = asyncio.get_running_loop()
            self._time = loop.time
            self._watch = loop.call_later(_WATCH_SECONDS, self._check_deadlines)
            if self._blocking is not None:
                self._blocking.turned(busy=True)

    def stop_run(self, claim_id: UUID, ordinal: int, why: Stop) -> None:
        for running in list(self._running):
            if running.run.ordinal == ordinal and running.run.claim_id == claim_id:
                self._stop(running, why)

    def stop_claim(self, claim_id: UUID, why: Stop) -> None:
        for running in list(self._running):
            if running.run.claim_id == claim_id:
                self._stop(running, why)

    def stop_all(self, why: Stop) -> None:
        for running in list(self._running):
            self._stop(running, why)

    def close(self) -> None:
        self.threads.close()
        if self._watch is not None:
            self._watch.cancel()

    def _stop(self, running: _Running, why: Stop) -> None:
        if running.stop is None:
            running.stop = why
            if running.context is not None:
                running.context._cancel()
            if running.task is not None:  # else it stands in line, and finds this when its turn comes
                running.task.cancel()
            asyncio.get_running_loop().call_later(ABANDON_SECONDS, self._abandon, running)

    def _abandon(self, running: _Running) -> None:
        run = running.run
        if running in self._running:
            why = "lost" if running.stop is None else running.stop.value
            log.warning("run of %s was told to stop (%s) and goes on: it is given up", run.name, why)
            running.abandoned = True
            self._end(running, self._stopped(running, asyncio.CancelledError()))

    async def _take_turn(self, running: _Running) -> None:
        if running.stop is None:
            await self._execute(running)
        elif not running.abandoned:
            # It was told to stop while it stood in line.
            self._end(running, self._stopped(running, asyncio.CancelledError()))

    async def _execute(self, running: _Running) -> None:
        run = running.run
        outcome: Outcome | None
        try:
            running.started_us = started_us = self._clock.now_us()
            result = await self._call(running, started_us)
            if running.stop is None or running.stop is Stop.SHUTDOWN or running.stop is Stop.CANCELLED:
                text = None if result is None else result_text(result, _mask_of(running))
                outcome = Succeeded(run, running.started_us, self._clock.now_us(), text)
            else:
                # It went on after its time was up, or after its lease was lost: what it says no longer counts.
                outcome = self._stopped(running, asyncio.CancelledError())
        except asyncio.CancelledError as error:
            outcome = self._stopped(running, error)
        except NotHeld:
            outcome = None
        except Snooze as signal:
            outcome = self._snoozed(running, signal)
        except Unable as error:
            outcome = self._unable(running, error)
        except _AlreadyDone:
            now_us = self._clock.now_us()
            outcome = Succeeded(run, now_us, now_us, None, int(RunFlag.DEDUPLICATED))
        except GeneratorExit as error:
            if not _is_running(running):
                raise  # nobody drives this any more: the loop has been closed
            outcome = self._failed(running, error)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            # Also what is no Exception: one that calls sys.exit() fails, and does not end the worker.
            outcome = self._failed(running, error)
        if not running.abandoned:
            self._end(running, outcome)

    def _end(self, running: _Running, outcome: Outcome | None) -> None:
        run = running.run
        self._running.discard(running)
        if run.policy_text is not None:
            outcome = self._with_key(running, outcome)
        if (context := running.context) is not None and context._recorded:
            # The handler's own transaction has completed it: whatever came after that changes nothing.
            if outcome is not None and type(outcome) is not Succeeded:
                log.warning("run of %s had completed in its transaction; what followed is ignored", run.name)
            outcome = Recorded(run, context._started_us, self._clock.now_us())
        self._report(run, outcome)

    async def _call(self, running: _Running, started_us: int) -> Any:
        run = running.run
        task = target = None
        if run.target is None:
            task = self._tasks.get(run.handler)
            if task is None:
                if self._offers is not None:
                    await self._offers.refuse(run)
                raise LookupError(f"there is no task {run.handler!r}")
        else:
            target = self._targets.get(run.handler)
            if target is None:
                raise Unable(f"this worker does not call {run.handler} targets")
        running.context = context = Context(run, self._host, started_us)
        if run.policy_text is not None:
            _check_policy(run)
        running.deadline = self._time() + _timeout(run)
        if self._ledger is not None and run.policy_text is not None and _has_own_key(run):
            await self._check_ledger(run)
        context._must_be_held()
        if target is not None:
            called = json.loads(run.target or "{}")
            context._mask = make_mask(chain(target_secrets(called), _payload_secrets(run)))
            return await target.call(context, called, run.payload)
        assert task is not None
        if run.policy_text is not None:
            context._mask = make_mask(_payload_secrets(run))
        arguments = task.check_payload({} if run.payload == "{}" else json.loads(run.payload))
        if task.isolation == "process":
            if self._isolated is None:
                raise Unable("this worker has no child processes")
            return await self._isolated.call(task, context, arguments)
        if task.is_async:
            return await (task.function(context, **arguments) if task.takes_context else task.function(**arguments))
        # It may stand in line for a thread: that is not its own time.
        running.deadline = _NO_DEADLINE
        return await self.threads.call(
            task.name, lambda: self._begins(running, context), lambda: _call_in_thread(task, context, arguments)
        )

    def _begins(self, running: _Running, context: Context) -> None:
        """There is a thread for it: its time begins now."""
        running.started_us = context._started_us = self._clock.now_us()
        running.deadline = self._time() + _timeout(running.run)

    async def _check_ledger(self, run: ClaimedRun) -> None:
        assert self._ledger is not None
        try:
            done = await self._ledger(run, key_of(run))
        except StoreUnavailable as error:
            raise Unable(f"the ledger cannot be asked: {error}") from error
        if done:
            raise _AlreadyDone

    def _with_key(self, running: _Running, outcome: Outcome | None) -> Outcome | None:
        """A success under a key of the job's own goes to the ledger with it."""
        run = running.run
        if type(outcome) is Succeeded and not outcome.flags and _has_own_key(run):
            return Succeeded(run, outcome.started_us, outcome.finished_us, outcome.result, key=key_of(run))
        return outcome

    def _snoozed(self, running: _Running, signal: Snooze) -> Outcome:
        try:
            delay = _waitable(signal.seconds)
        except BaseException as broken:  # noqa: BLE001 - a kind of the user's own may have lost its seconds
            return self._failed(running, broken)
        return Requeued(running.run, "queued", delay, None, None, refund=1)

    def _unable(self, running: _Running, error: Unable) -> Outcome:
        run = running.run
        if isinstance_of(error, Elsewhere):
            log.debug("a run of %s goes back to the queue: %s", run.name, error)
            return Requeued(run, "queued", _ELSEWHERE_SECONDS, None, None, refund=1)
        log.info(
            "a run of %s goes back to the queue for another worker: %s", run.name, message_of(error, _mask_of(running))
        )
        age = (self._clock.now_us() - to_micros(run.scheduled_at)) / 1e6
        shortest, longest = _UNABLE_SECONDS
        return Requeued(run, "queued", min(longest, max(shortest, age / 4)), None, None, refund=1)

    def _failed(self, running: _Running, error: BaseException) -> Outcome:
        run = running.run
        text = exception_text(error, _mask_of(running))
        if running.stop is Stop.CANCELLED:
            # It was told to stop and did, with an error of its own: nobody wants it tried again.
            return self._cancelled(running, text)
        try:
            delay = next_attempt_in(run.policy, run.attempt, error)
            delay = None if delay is None else _waitable(delay)
        except BaseException:  # noqa: BLE001 - an error may lie about its class, or about when to try again
            delay = next_attempt_in(run.policy, run.attempt, None)
        return self._retry_or_bury(running, text, delay)

    def _retry_or_bury(self, running: _Running, error: str, delay: float | None) -> Outcome:
        finished_us = self._clock.now_us()
        if delay is None:
            return Buried(running.run, running.started_us, finished_us, error)
        return Requeued(running.run, "retrying", delay, running.started_us, finished_us, error)

    def _cancelled(self, running: _Running, error: str) -> Outcome:
        return Buried(running.run, running.started_us, self._clock.now_us(), error, status="cancelled")

    def _stopped(self, running: _Running, error: asyncio.CancelledError) -> Outcome | None:
        run = running.run
        match running.stop:
            case Stop.LEASE_LOST:
                return None
            case Stop.SHUTDOWN:
                return Requeued(run, "queued", 0.0, None, None, refund=1)
            case Stop.CANCELLED:
                text = error_text("Cancelled", "the run was cancelled while it was running")
                return self._cancelled(running, text)
            case Stop.TIMEOUT:
                seconds = run.policy.timeout_seconds
                text = error_text("timeout", f"the attempt did not end within {seconds:g} s")
                return self._retry_or_bury(running, text, next_attempt_in(run.policy, run.attempt, None))
            case None:
                # The handler cancelled itself.
                return self._failed(running, error)

    def _check_deadlines(self) -> None:
        """One timer looks after all running handlers."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for running in [running for running in self._running if running.deadline <= now]:
            self._stop(running, Stop.TIMEOUT)
        self._watch = loop.call_later(_WATCH_SECONDS, self._check_deadlines) if self._running else None
        if self._blocking is not None:
            self._blocking.turned(busy=self._watch is not None)


def _call_in_thread(task: Task, context: Context, arguments: Mapping[str, Any]) -> Any:
    context._must_be_held()  # it may have stood in line for a thread
    return task.function(context, **arguments) if task.takes_context else task.function(**arguments)


def _mask_of(running: _Running) -> Mask | None:
    return None if running.context is None else running.context._mask


def _payload_secrets(run: ClaimedRun) -> Iterator[str]:
    if paths := run.policy.secret_fields:
        yield from payload_secrets(json.loads(run.payload), paths)


def _timeout(run: ClaimedRun) -> float:
    return (DEFAULT_POLICY if run.policy_text is None else run.policy).timeout_seconds


def _is_running(running: _Running) -> bool:
    try:
        return asyncio.current_task() is running.task
    except RuntimeError:
        return False


def _waitable(seconds: float) -> float:
    """Seconds that somebody can wait for."""
    seconds = float(seconds)
    if not seconds <= LONGEST_DELAY:
        raise ValueError(f"{seconds} s are no delay")
    return max(0.0, seconds)


class _AlreadyDone(Exception):
    """The ledger holds the run's key: the handler is not called."""


def _check_policy(run: ClaimedRun) -> None:
    """A run whose policy somebody has made unreadable ends, and says so."""
    try:
        policy_from_stored(run.policy_text)
    except InvalidInput as error:
        raise Permanent(f"the job cannot be run: {error}") from error


def _has_own_key(run: ClaimedRun) -> bool:
    return run.policy.idempotency_key_template != DEFAULT_KEY_TEMPLATE
