"""The worker of a test: the product's claimer, executor and completer, each doing one pass when told to.

Leases are not extended, because no time passes while a claim is held, so none can expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from uuid import UUID, uuid4

from duly.clock import Clock
from duly.config import Settings
from duly.model import Claim, ClaimedRun
from duly.store.pool import Pool
from duly.worker.claimer import Claimer
from duly.worker.completer import Completer
from duly.worker.execution import Execution, StopReason
from duly.worker.executor import Executor, Outcome, Report
from duly.worker.handler.task import Task

_CONCURRENCY = 100
_STOP_SECONDS = 5.0


class SteppedWorker:
    """Serves every queue that holds work, unlike a real worker, which is given its queues when it starts."""

    def __init__(self, pool: Pool, tasks: Mapping[str, Task], settings: Settings) -> None:
        self.worker_id: UUID = uuid4()
        self._pool = pool
        self._settings = settings
        #: The errors that handlers raised, in order.
        self.errors: list[Exception] = []
        self._executor = _RememberingExecutor(tasks, pool.clock, self._ended, errors=self.errors)
        self._completer = Completer(pool, self._recorded)
        self._queues = {"default"}
        self._claimer = self._claim_from(self._queues)
        self._idle = asyncio.Event()

    async def work(self, queues: Collection[str]) -> None:
        """Claims once, runs the handlers of that claim, and records their outcomes."""
        if not self._queues.issuperset(queues):
            self._queues.update(queues)
            self._claimer = self._claim_from(self._queues)
        await self._claimer.run_once()
        if len(self._executor):
            self._idle.clear()
            await self._idle.wait()
        # Not by the completer's own loop, which retries for ever: a test must see the error of a failed record.
        while await self._completer.run_once() == 0.0:
            pass

    async def close(self) -> None:
        if len(self._executor):  # only if the test itself was interrupted
            self._idle.clear()
            self._executor.stop_all(StopReason.SHUTDOWN)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._idle.wait()
        self._executor.close()

    def _claim_from(self, queues: Collection[str]) -> Claimer:
        return Claimer(
            self._pool,
            self._pool.clock,
            worker_id=self.worker_id,
            queues=sorted(queues),
            lease_seconds=self._settings.worker_lease_seconds,
            poll_seconds=self._settings.poll_seconds,
            concurrency=_CONCURRENCY,
            room=lambda: _CONCURRENCY,
            started=self._claimed,
        )

    def _claimed(self, claim: Claim, sent: float) -> None:
        assert claim.claim_id is not None
        self._completer.hold(claim.claim_id, len(claim.runs))
        for run in claim.runs:
            self._executor.start(run)

    def _ended(self, run: ClaimedRun, outcome: Outcome | None) -> None:
        assert outcome is not None  # None would mean a lost lease
        self._completer.add(outcome)
        if not len(self._executor):
            self._idle.set()

    def _recorded(self, count: int) -> None:
        self._completer.take_emptied()  # there is no lease to release


class _RememberingExecutor(Executor):
    """Keeps the exceptions themselves: the outcome of a run holds its error only as text."""

    def __init__(self, tasks: Mapping[str, Task], clock: Clock, report: Report, *, errors: list[Exception]) -> None:
        super().__init__(tasks, clock, report, threads=_CONCURRENCY)
        self._errors = errors

    def _failed(self, execution: Execution, error: BaseException) -> Outcome:
        if isinstance(error, Exception):
            self._errors.append(error)
        else:  # sys.exit() or a cancellation: raised in the test, it would end more than the test
            wrapped = RuntimeError(f"the handler raised {error!r}")
            wrapped.__cause__ = error
            self._errors.append(wrapped)
        return super()._failed(execution, error)

    def _stopped(self, execution: Execution, error: asyncio.CancelledError) -> Outcome | None:
        if execution.stop is StopReason.TIMEOUT:
            seconds = execution.run.policy.timeout_seconds
            self._errors.append(TimeoutError(f"the attempt did not end within {seconds:g} s"))
        return super()._stopped(execution, error)
