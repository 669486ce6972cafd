"""Runs handlers and decides the outcome of each run, as a value; the completer writes it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

from duly.clock import Clock
from duly.errors import MAX_DELAY_SECONDS, InvalidInput, Permanent, Snooze, StoreUnavailable, Unable
from duly.logs import current_run
from duly.masking import make_mask, payload_secrets, target_secrets
from duly.model import (
    DEFAULT_KEY_TEMPLATE,
    DEFAULT_POLICY,
    Buried,
    ClaimedRun,
    Expired,
    Recorded,
    Requeued,
    Succeeded,
    policy_from_stored,
    to_micros,
)
from duly.states import RunFlag
from duly.worker.blocking import Blocking
from duly.worker.drivers import Drivers
from duly.worker.execution import NO_DEADLINE, Execution, Host, NotHeld, StopReason, TooLate
from duly.worker.handler.context import Context
from duly.worker.handler.errors import Elsewhere, error_text, exception_text, isinstance_of, message_of, result_text
from duly.worker.handler.ledger import Ledger
from duly.worker.handler.task import Task
from duly.worker.offers import Offers
from duly.worker.pings import Pings
from duly.worker.retry import next_attempt_in
from duly.worker.targets import Isolated, Target
from duly.worker.threads import Threads

if TYPE_CHECKING:
    from duly.tracing.otel import ClaimTrace, Tracing

log = logging.getLogger("duly.worker")

Outcome = Succeeded | Requeued | Buried | Expired
Report = Callable[[ClaimedRun, Outcome | None], None]

# Pause between checks for timeouts. One timer serves all running handlers; one per run would cost more than many
# handlers do.
_WATCH_SECONDS = 0.1
# A check that comes this late was held up: by a handler that blocked the loop, or by a machine that stood still.
_LATE_SECONDS = 0.05
# A handler that ignores its stop is abandoned after this long: its run must not wait for it.
ABANDON_SECONDS = 5.0
# A run that this worker cannot execute starts again after a quarter of its age, within these bounds.
_MIN_UNABLE_SECONDS = 1.0
_MAX_UNABLE_SECONDS = 60.0
# Delay of a run that another worker can execute.
_ELSEWHERE_SECONDS = 0.5
_BEGUN = int(RunFlag.BEGUN)


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
        spare_threads: bool = False,
        pings: Pings | None = None,
    ) -> None:
        """`offers` decides about runs of missing tasks; without it there is no other worker, and such a run fails."""
        self._tasks = tasks
        self._offers = offers
        self._blocking = blocking
        self._host = host
        self._ledger = ledger
        self._targets = targets or {}
        self._isolated = isolated
        self._pings = pings
        self._clock = clock
        self._report = report
        self.threads = Threads(threads, threads_changed, spares=spare_threads)
        # Executions that were started and not reported yet, whether their handler has been called or not.
        self._running: set[Execution] = set()
        self._drivers = Drivers(self._take_turn, self._begin_drive)
        #: The way to make spans, once this process has one.
        self.spans: Tracing | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._lenient = False
        self._time: Callable[[], float] = time.monotonic

    def __len__(self) -> int:
        return len(self._running)

    def start(self, run: ClaimedRun, traced: ClaimTrace | None = None) -> None:
        """`traced`: the claim that brought the run, in a process that makes spans."""
        execution = Execution(run, self._host)
        if traced is not None and run.trace is not None:
            execution.span = traced.of(run)
        self._running.add(execution)
        self._drivers.add(execution)
        if self._watch is None:
            loop = asyncio.get_running_loop()
            self._time = loop.time
            self._watch = loop.call_later(_WATCH_SECONDS, self._check_deadlines)
            if self._blocking is not None:
                self._blocking.turned(busy=True)

    def stop_run(self, claim_id: UUID, ordinal: int, why: StopReason) -> None:
        for execution in list(self._running):
            if execution.run.ordinal == ordinal and execution.run.claim_id == claim_id:
                self._stop(execution, why)

    def stop_claim(self, claim_id: UUID, why: StopReason) -> None:
        for execution in list(self._running):
            if execution.run.claim_id == claim_id:
                self._stop(execution, why)

    def stop_all(self, why: StopReason) -> None:
        for execution in list(self._running):
            self._stop(execution, why)

    def close(self) -> None:
        self.threads.close()
        if self._watch is not None:
            self._watch.cancel()

    def _stop(self, execution: Execution, why: StopReason) -> None:
        if execution.stop is None:
            execution.stop = why
            if execution.task is not None:  # else it is queued, and its stop is seen when its turn comes
                execution.task.cancel()
            asyncio.get_running_loop().call_later(ABANDON_SECONDS, self._abandon, execution)

    def _abandon(self, execution: Execution) -> None:
        run = execution.run
        if execution in self._running:
            why = "lost" if execution.stop is None else execution.stop.value
            log.warning("run of %s was told to stop (%s) and goes on: it is given up", run.name, why)
            execution.abandoned = True
            self._end(execution, self._stopped(execution, asyncio.CancelledError()))

    def _begin_drive(self) -> None:
        if self.spans is not None:
            self.spans.unsampled()

    async def _take_turn(self, execution: Execution) -> None:
        if execution.stop is None:
            if execution.span is None:
                await self._execute(execution)
            else:
                token = execution.span.enter()
                try:
                    await self._execute(execution)
                finally:
                    execution.span.leave(token)
        elif not execution.abandoned:
            # The run was stopped before its turn came.
            self._end(execution, self._stopped(execution, asyncio.CancelledError()))

    async def _execute(self, execution: Execution) -> None:
        outcome: Outcome | None = None
        error: BaseException | None = None
        token = current_run.set(execution)
        try:
            execution.started_us = self._clock.now_us()
            outcome = self._returned(execution, await self._call(execution))
        except GeneratorExit as raised:
            if not _is_running(execution):
                raise  # the event loop has been closed: nothing drives this coroutine any more
            error = raised
        except BaseException as raised:  # noqa: BLE001 - a handler may raise anything: sys.exit() fails its run, not the worker
            error = raised
        if error is not None:
            # Not while the error is handled: a log that cannot be written shows that error, which may raise again.
            outcome = self._raised(execution, error)
            error = None  # it refers to this frame
        current_run.reset(token)
        if not execution.abandoned:
            self._end(execution, outcome)

    def _returned(self, execution: Execution, result: Any) -> Outcome | None:
        """The outcome of a handler that returned."""
        if execution.stop is StopReason.TIMEOUT or execution.stop is StopReason.LEASE_LOST:
            # The handler went on after its stop: its result no longer counts.
            return self._stopped(execution, asyncio.CancelledError())
        assert execution.started_us is not None
        text = None if result is None else result_text(result, execution.mask)
        return Succeeded(execution.run, execution.started_us, self._clock.now_us(), text, 0, execution.ledger_key)

    def _raised(self, execution: Execution, error: BaseException) -> Outcome | None:
        """The outcome of a handler that raised. `isinstance_of` looks at the class alone: an error may lie."""
        if isinstance_of(error, asyncio.CancelledError):
            return self._stopped(execution, error)
        if isinstance_of(error, NotHeld):
            return None
        if isinstance_of(error, TooLate) and execution.is_late is not None:
            seconds = execution.run.policy.start_within_seconds
            assert seconds is not None
            return Expired(execution.run, self._clock.now_us(), seconds)
        if isinstance_of(error, Snooze):
            return self._snoozed(execution, error)
        if isinstance_of(error, Unable):
            return self._unable(execution, error)
        if isinstance_of(error, _AlreadyDone):
            now_us = self._clock.now_us()
            return Succeeded(execution.run, now_us, now_us, None, int(RunFlag.DEDUPLICATED))
        return self._failed(execution, error)

    def _end(self, execution: Execution, outcome: Outcome | None) -> None:
        run = execution.run
        execution.over = True
        if execution.log is not None and self._host is not None:
            self._host.log_ended(execution)
        self._running.discard(execution)
        if execution.recorded:
            # The handler's own transaction has recorded the success: nothing that came after it changes that.
            if outcome is not None and type(outcome) is not Succeeded:
                log.warning("run of %s completed in its transaction; its later result or error is ignored", run.name)
            assert execution.started_us is not None
            outcome = Recorded(run, execution.started_us, self._clock.now_us())
        if execution.span is not None:
            execution.span.end(outcome)
        self._report(run, outcome)

    async def _call(self, execution: Execution) -> Any:
        run = execution.run
        if run.policy_text is not None:
            # Before the task is looked up: a run that expired ends here, whoever could have executed it.
            self._heed_expiry(execution)
            if self._pings is not None and self._pings.expect(run):
                execution.announce = partial(self._pings.started, run)
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
        if run.policy_text is not None:
            _check_policy(run)
            if run.policy.idempotency_key_template != DEFAULT_KEY_TEMPLATE:
                execution.ledger_key = execution.idempotency_key
        execution.deadline = self._time() + _timeout(run)
        if self._ledger is not None and execution.ledger_key is not None:
            await self._check_ledger(run, execution.ledger_key)
        execution.ensure_startable()
        if target is not None:
            called = json.loads(run.target or "{}")
            execution.mask = make_mask(chain(target_secrets(called), _payload_secrets(run)))
            return await target.call(execution, called, run.payload)
        assert task is not None
        if run.policy_text is not None:
            execution.mask = make_mask(_payload_secrets(run))
        arguments = task.check_payload({} if run.payload == "{}" else json.loads(run.payload))
        if task.isolation == "process":
            if self._isolated is None:
                raise Unable("this worker has no child processes")
            return await self._isolated.call(task, execution, arguments)
        if task.is_async:
            execution.mark_begun()
            return await _call_function(task, execution, arguments)
        # Waiting for a thread does not count as the handler's time.
        execution.deadline = NO_DEADLINE
        work: Callable[[], Any] = partial(_call_in_thread, task, execution, arguments)
        if execution.span is not None:
            work = execution.span.around(work)
        elif self.spans is not None:
            work = self.spans.around_unsampled(work)
        return await self.threads.call(task.name, lambda: self._begin(execution), work)

    def _heed_expiry(self, execution: Execution) -> None:
        """Raises `TooLate` for a run that no worker has started within its job's `start_within_seconds`."""
        run = execution.run
        seconds = run.policy.start_within_seconds
        if seconds is not None and run.attempt == 1 and not run.flags & _BEGUN:
            last_us = to_micros(run.scheduled_at) + seconds * 1_000_000
            execution.is_late = lambda: self._clock.now_us() > last_us
            execution.ensure_startable()

    def _begin(self, execution: Execution) -> None:
        """Starts the attempt's clock, once its handler has a thread."""
        execution.mark_begun()
        execution.started_us = self._clock.now_us()
        execution.deadline = self._time() + _timeout(execution.run)

    async def _check_ledger(self, run: ClaimedRun, key: str) -> None:
        assert self._ledger is not None
        try:
            done = await self._ledger.holds(run, key)
        except StoreUnavailable as error:
            raise Unable(f"the ledger cannot be asked: {error}") from error
        if done:
            raise _AlreadyDone

    def _snoozed(self, execution: Execution, signal: Snooze) -> Outcome:
        try:
            delay = _waitable(signal.seconds)
        except BaseException as broken:  # noqa: BLE001 - a kind of the user's own may have lost its seconds
            return self._failed(execution, broken)
        return Requeued(execution.run, "queued", delay, None, None, refund=1, flags=_begun(execution))

    def _unable(self, execution: Execution, error: Unable) -> Outcome:
        run = execution.run
        if isinstance_of(error, Elsewhere):
            log.debug("a run of %s goes back to the queue: %s", run.name, error)
            return Requeued(run, "queued", _ELSEWHERE_SECONDS, None, None, refund=1)
        log.info(
            "a run of %s goes back to the queue for another worker: %s", run.name, message_of(error, execution.mask)
        )
        age = (self._clock.now_us() - to_micros(run.scheduled_at)) / 1e6
        delay = min(_MAX_UNABLE_SECONDS, max(_MIN_UNABLE_SECONDS, age / 4))
        return Requeued(run, "queued", delay, None, None, refund=1, flags=_begun(execution))

    def _failed(self, execution: Execution, error: BaseException) -> Outcome:
        run = execution.run
        text = exception_text(error, execution.mask)
        if execution.stop is StopReason.CANCELLED:
            # The handler stopped as it was told, with an error of its own: the run is not retried.
            return self._cancelled(execution, text)
        try:
            delay = next_attempt_in(run.policy, run.attempt, error)
            delay = None if delay is None else _waitable(delay)
        except BaseException:  # noqa: BLE001 - an error may lie about its class, or about when to try again
            delay = next_attempt_in(run.policy, run.attempt, None)
        return self._retry_or_bury(execution, text, delay)

    def _retry_or_bury(self, execution: Execution, error: str, delay: float | None) -> Outcome:
        finished_us = self._clock.now_us()
        if delay is None:
            return Buried(execution.run, execution.started_us, finished_us, error)
        return Requeued(execution.run, "retrying", delay, execution.started_us, finished_us, error)

    def _cancelled(self, execution: Execution, error: str) -> Outcome:
        return Buried(execution.run, execution.started_us, self._clock.now_us(), error, status="cancelled")

    def _stopped(self, execution: Execution, error: asyncio.CancelledError) -> Outcome | None:
        run = execution.run
        match execution.stop:
            case StopReason.LEASE_LOST:
                return None
            case StopReason.SHUTDOWN:
                return Requeued(run, "queued", 0.0, None, None, refund=1, flags=_begun(execution))
            case StopReason.CANCELLED:
                text = error_text("Cancelled", "the run was cancelled while it was running")
                return self._cancelled(execution, text)
            case StopReason.TIMEOUT:
                seconds = run.policy.timeout_seconds
                text = error_text("timeout", f"the attempt did not end within {seconds:g} s")
                return self._retry_or_bury(execution, text, next_attempt_in(run.policy, run.attempt, None))
            case None:
                # The handler cancelled itself.
                return self._failed(execution, error)

    def _check_deadlines(self) -> None:
        """Stops handlers whose time is up, and sets the timer again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        assert self._watch is not None
        # While the loop was held up, handlers may have ended in time, or had no chance to: they have until the next
        # check, which is lenient no more.
        self._lenient = not self._lenient and now - self._watch.when() >= _LATE_SECONDS
        if not self._lenient:
            for execution in [execution for execution in self._running if execution.deadline <= now]:
                self._stop(execution, StopReason.TIMEOUT)
        self._watch = loop.call_later(_WATCH_SECONDS, self._check_deadlines) if self._running else None
        if self._blocking is not None:
            self._blocking.turned(busy=self._watch is not None)


def _call_function(task: Task, execution: Execution, arguments: Mapping[str, Any]) -> Any:
    return task.function(Context(execution), **arguments) if task.takes_context else task.function(**arguments)


def _call_in_thread(task: Task, execution: Execution, arguments: Mapping[str, Any]) -> Any:
    execution.ensure_startable()  # the run may have waited for the thread
    token = current_run.set(execution)
    try:
        return _call_function(task, execution, arguments)
    finally:
        current_run.reset(token)


def _begun(execution: Execution) -> int:
    """The flag of a run whose handler has been called, if that matters to it: it no longer expires."""
    return _BEGUN if execution.begun and execution.is_late is not None else 0


def _payload_secrets(run: ClaimedRun) -> Iterator[str]:
    if paths := run.policy.secret_fields:
        yield from payload_secrets(json.loads(run.payload), paths)


def _timeout(run: ClaimedRun) -> float:
    return (DEFAULT_POLICY if run.policy_text is None else run.policy).timeout_seconds


def _is_running(execution: Execution) -> bool:
    try:
        return asyncio.current_task() is execution.task
    except RuntimeError:
        return False


def _waitable(seconds: float) -> float:
    """A delay as a non-negative number of seconds, at most `MAX_DELAY_SECONDS`."""
    seconds = float(seconds)
    if not seconds <= MAX_DELAY_SECONDS:
        raise ValueError(f"{seconds} s is not a valid delay")
    return max(0.0, seconds)


class _AlreadyDone(Exception):
    """The ledger holds the run's key: the handler is not called."""


def _check_policy(run: ClaimedRun) -> None:
    """Ends a run whose stored policy is unreadable, with the reason."""
    try:
        policy_from_stored(run.policy_text)
    except InvalidInput as error:
        raise Permanent(f"the job cannot be run: {error}") from error
