"""Writes outcomes, many runs in one statement.

A flush writes the outcomes that came in during the flush before it. After a large flush the next one waits a little for
more: a lone outcome is written at once, a flood in batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast
from uuid import UUID

from duly.errors import DataRefused, DulyError
from duly.figures import Figures, Histogram
from duly.model import Buried, ClaimedRun, Expired, Recorded, Requeued, Succeeded, make_run_id, to_micros
from duly.service import Service
from duly.store import runs
from duly.store.pool import Pool
from duly.store.sifting import Apart, Sifting, without_the_bad
from duly.worker.executor import Outcome
from duly.worker.handler.errors import error_text
from duly.worker.pings import Pings

log = logging.getLogger("duly.worker")

# Outcomes per flush.
MAX_BATCH = 2_000
# Wait 0.25 ms per outcome of the last flush, at most 20 ms, as a claimer does; flush at once from 200 outcomes on.
GATHER_SECONDS_PER_OUTCOME = 0.000_25
MAX_GATHER_SECONDS = 0.02
FLUSH_AT = 200
# Up to this many outcomes that are set apart do not count against the worker's concurrency.
MAX_APART = 1_000
# Number of runs from which the sum of their lags is estimated if all lie in one bucket.
LARGE = 50
End = TypeVar("End", Succeeded, Requeued, Buried, Expired)


class Completer(Service):
    """Records every outcome given to it, or finds that the store refuses it; `recorded` is called in both cases."""

    interval = 60.0
    backoff = (0.05, 2.0)

    def __init__(
        self,
        pool: Pool,
        recorded: Callable[[int], None],
        *,
        may_gather: Callable[[], bool] = lambda: False,
        pings: Pings | None = None,
        figures: Figures | None = None,
    ) -> None:
        """`may_gather`: whether the worker has room to spare, so that no claim waits for this flush."""
        super().__init__()
        self._pool = pool
        self._recorded = recorded
        self._figures = figures or Figures("worker")
        self._may_gather = may_gather
        self._pings = pings
        self._gather_timer: asyncio.TimerHandle | None = None
        self._outcomes: list[Outcome] = []
        # Number of unrecorded runs per claim; a claim without any can be closed.
        self._unrecorded: dict[UUID, int] = {}
        # Empty claims that the next flush closes.
        self._to_close: list[UUID] = []
        # Empty claims since `take_emptied` was last called.
        self._emptied: list[UUID] = []
        # Claims with a run that was given up here without an outcome: its lease is lost or no longer trusted, or its
        # outcome could not be written even without its text. Such a claim is never closed, because it may still exist
        # and hold the run: rescue takes the run back when the lease, which this worker no longer extends, has ended.
        self._left_to_rescue: set[UUID] = set()
        # Outcomes that cannot be written now and would block others. Giving them up would run their handlers again, so
        # their claims stay held and their leases are extended.
        self._apart: Apart[tuple[UUID, int], Outcome] = Apart()
        self.succeeded = 0

    def hold(self, claim_id: UUID, count: int) -> None:
        self._unrecorded[claim_id] = count

    def add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if self._gather_timer is None or len(self._outcomes) >= FLUSH_AT or not self._may_gather():
            self.wake()

    def forget(self, run: ClaimedRun) -> None:
        """Drops a run whose lease is lost: there is nothing to write."""
        self._left_to_rescue.add(run.claim_id)
        self._remove_runs(run.claim_id, 1)
        if self._pings:
            self._pings.forget(run)
        self._figures.lease_lost += 1
        self._recorded(1)

    @property
    def lost(self) -> int:
        """Number of runs for which nothing was recorded, because they were no longer this worker's."""
        return self._figures.lease_lost

    @property
    def apart(self) -> int:
        """Number of outcomes set apart: their runs do not count against the worker's concurrency."""
        return min(len(self._apart), MAX_APART)

    def take_emptied(self) -> list[UUID]:
        """Claims that became empty since the last call: their leases need not be extended any more."""
        emptied, self._emptied = self._emptied, []
        return emptied

    def _gather(self, seconds: float) -> None:
        """Lets outcomes gather for this time: they do not wake the flush one by one."""
        self._gather_timer = asyncio.get_running_loop().call_later(seconds, self._gathered)

    def _gathered(self) -> None:
        self._gather_timer = None
        if self._outcomes:
            self.wake()

    async def run_once(self) -> float | None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        time = asyncio.get_running_loop().time
        again = [outcome for _, outcome in self._apart.take(time())]
        if self._outcomes or self._to_close or again:
            batch, self._outcomes = self._outcomes[:MAX_BATCH] + again, self._outcomes[MAX_BATCH:]
            await self._send(batch)
            if len(self._outcomes) < FLUSH_AT and not self.stopping and self._may_gather():
                self._gather(min(MAX_GATHER_SECONDS, GATHER_SECONDS_PER_OUTCOME * len(batch)))
                # Outcomes that came in during the flush wait as well.
                self._wake.clear()
            elif self._outcomes:
                return 0.0
        return self._apart.seconds_to_next(time())

    async def _send(self, batch: Sequence[Outcome]) -> None:
        """Writes a batch. An outcome that blocks others is set apart; outcomes that were not reached are kept."""
        split = self._apart.splitting
        siftings = [self._sifting(kind, split=split) for kind in _by_kind(batch)]
        try:
            for sifting in siftings:
                await sifting.through(self._flush_alone if split else self._flush)
            if self._to_close:
                await (self._close_each() if split else self._flush(()))
            self._apart.passed()
        except BaseException as error:
            self._apart.failed(error, fruitful=any(sifting.fruitful for sifting in siftings))
            raise
        finally:
            # An outcome that was written although its answer was lost is recognised when it is sent again.
            left = [outcome for sifting in siftings for outcome in sifting.left]
            self._outcomes[:0] = left
            alone = [one for sifting in siftings for one in sifting.alone]
            for outcome, reason in alone:
                self._set_apart(outcome, reason)
            if len(left) < len(batch):
                self._recorded(len(batch) - len(left) - len(alone))

    def _sifting(self, outcomes: Sequence[Outcome], *, split: bool) -> Sifting[Outcome]:
        if not self._apart:
            return Sifting(outcomes, split=split)
        known = [outcome for outcome in outcomes if _key(outcome) in self._apart]
        others = [outcome for outcome in outcomes if _key(outcome) not in self._apart]
        return Sifting(others, known=known, split=split)

    def _set_apart(self, outcome: Outcome, reason: DulyError) -> None:
        if self._apart.put(_key(outcome), outcome, asyncio.get_running_loop().time()):
            run_id = make_run_id(outcome.run.job_id, outcome.run.scheduled_at)
            log.error("the outcome of run %s cannot be stored now; it is tried again by itself: %s", run_id, reason)

    async def _flush(self, outcomes: Sequence[Outcome]) -> None:
        """Writes outcomes of one kind and closes the claims that are empty then."""
        await self._record(outcomes, close=True)

    async def _flush_alone(self, outcomes: Sequence[Outcome]) -> None:
        """Writes outcomes without closing claims, because the closing may be at fault."""
        await self._record(outcomes, close=False)

    async def _record(self, outcomes: Sequence[Outcome], *, close: bool) -> None:
        closing: list[UUID] = []
        leaving = Counter([outcome.run.claim_id for outcome in outcomes])
        if outcomes and type(outcomes[0]) is Requeued:
            await self._write(runs.requeue, [one for one in outcomes if type(one) is Requeued])
        elif outcomes and type(outcomes[0]) is Buried:
            await self._write(runs.bury, [one for one in outcomes if type(one) is Buried])
        elif outcomes and type(outcomes[0]) is Expired:
            await self._write(runs.expire, [one for one in outcomes if type(one) is Expired])
        else:
            # A `Recorded` success was written by the handler's own transaction; it only leaves its claim.
            succeeded = [one for one in outcomes if type(one) is Succeeded]
            closing = self._claims_to_close(leaving) if close else []
            if succeeded or closing:
                await self._write(runs.complete, succeeded, closing)
            if len(succeeded) < len(outcomes):
                self._note_recorded([one for one in outcomes if type(one) is Recorded])
            self.succeeded += len(outcomes)
        if self._pings:
            for outcome in outcomes:
                self._pings.recorded(outcome)
        for claim_id, count in leaving.items():
            self._remove_runs(claim_id, count)
        if self._apart:
            for outcome in outcomes:
                self._apart.forget(_key(outcome))
        if closing:
            closed = set(closing)
            self._to_close = [claim_id for claim_id in self._to_close if claim_id not in closed]

    async def _close_each(self) -> None:
        """Closes claims, one by one if need be. Rescue finds a claim that cannot be closed; no run of it is left."""

        async def close(claims: Sequence[UUID]) -> None:
            await runs.complete(self._pool, [], claims)

        if refused := await without_the_bad(self._to_close, close):
            log.error("%d claims could not be closed, and are left to rescue: %s", len(refused), refused[0][1])
        self._to_close = []

    def _claims_to_close(self, leaving: Mapping[UUID, int]) -> list[UUID]:
        """Claims to close once this many runs of each have left, unless one of their runs was left to rescue."""
        emptied = [claim_id for claim_id, count in leaving.items() if self._unrecorded.get(claim_id) == count]
        return [claim_id for claim_id in emptied + self._to_close if claim_id not in self._left_to_rescue]

    def _remove_runs(self, claim_id: UUID, count: int) -> None:
        remaining = self._unrecorded.get(claim_id, 0) - count
        if remaining > 0:
            self._unrecorded[claim_id] = remaining
        elif self._unrecorded.pop(claim_id, None) is not None:
            if claim_id in self._left_to_rescue:
                self._left_to_rescue.remove(claim_id)
            else:
                self._to_close.append(claim_id)
            self._emptied.append(claim_id)

    async def _write(
        self, write: Callable[..., Awaitable[int]], ends: Sequence[End], close: Sequence[UUID] = ()
    ) -> None:
        """Writes outcomes; one that is refused for its data does not keep the others out. `close` is for `complete`.

        Any other error of the database is not held against the outcomes: they are kept and written later.
        """
        closing = [claim_id for claim_id in close if claim_id not in self._left_to_rescue]
        try:
            accepted = await (write(self._pool, ends, closing) if closing else write(self._pool, ends))
        except DataRefused as error:
            if not ends:
                raise
            if len(ends) > 1:
                half = len(ends) // 2
                await self._write(write, ends[:half])
                await self._write(write, ends[half:], close)
                return
            accepted = await self._write_plainly(write, ends, error)
            if closing := [claim_id for claim_id in closing if claim_id not in self._left_to_rescue]:
                await runs.complete(self._pool, [], closing)
        if accepted == len(ends):
            self._note_recorded(ends)
        else:
            mine = await self._account_for_refused([end.run for end in ends], accepted)
            if type(ends[0]) is Requeued:
                self._note_recorded(ends[:accepted])  # history does not tell which
            else:
                self._note_recorded([end for end in ends if (end.run.job_id, end.run.scheduled_at) in mine])

    def _note_recorded(self, ends: Sequence[Outcome]) -> None:
        """Counts outcomes of one kind that were recorded. A success costs 0.1 µs here, where it costs 20 µs in all."""
        if not ends:
            return
        figures, kind = self._figures, type(ends[0])
        if kind is Expired:
            figures.runs["missed"] += len(ends)
            figures.missed += len(ends)
            return
        if kind is Requeued:
            ends = [end for end in ends if type(end) is Requeued and end.state == "retrying"]
            figures.retries += len(ends)
        elif kind is Buried:
            for end in ends:
                figures.runs[end.status if type(end) is Buried else "dead"] += 1
        else:
            figures.runs["succeeded"] += len(ends)
        if kind is Requeued or kind is Buried:
            ends = [end for end in ends if end.started_us is not None]
        begun = cast("Sequence[Succeeded]", ends)  # all have the times of one
        figures.run_duration.observe([end.finished_us - end.started_us for end in begun])
        if firsts := [end for end in begun if end.run.attempt == 1]:
            _observe_lags(figures.schedule_lag, firsts)

    async def _write_plainly(
        self, write: Callable[..., Awaitable[int]], ends: Sequence[End], error: DataRefused
    ) -> int:
        """Writes an outcome whose result or error the database refuses: keeps the outcome, drops its text."""
        log.error("an outcome could not be stored as it was", exc_info=error)
        end: Outcome = ends[0]
        cause = type(error.__cause__ or error).__name__
        plain = error_text("Unstorable", f"the handler's result or error could not be stored: {cause}")
        if isinstance(end, Succeeded):
            end = Succeeded(end.run, end.started_us, end.finished_us, plain, end.flags, end.key)
        elif isinstance(end, Requeued):
            end = Requeued(end.run, end.state, end.delay, end.started_us, end.finished_us, plain, end.refund, end.flags)
        elif isinstance(end, Buried):
            end = Buried(end.run, end.started_us, end.finished_us, plain, end.status)
        try:
            return await write(self._pool, [end])
        except DataRefused as again:
            # The other outcomes must still be written.
            if self._pings:
                self._pings.forget(end.run)
            log.error("an outcome could not be stored at all; the run is left to rescue", exc_info=again)
            self._left_to_rescue.add(end.run.claim_id)
            return 0

    async def _account_for_refused(self, ended: Sequence[ClaimedRun], accepted: int) -> set[tuple[UUID, datetime]]:
        """Returns the runs that history has from this worker."""
        # Either the lease was lost, or this is the second sending after a lost answer. History tells for runs that
        # ended; a requeue that went through the first time looks lost, and in either case the run is no longer this
        # worker's. Or the first sending reached an old primary that lives on beside the new one, which has the claim:
        # so a run that is not in history does not count as ended, and its claim is not closed.
        mine = await runs.settled(self._pool, ended)
        self._left_to_rescue.update(run.claim_id for run in ended if (run.job_id, run.scheduled_at) not in mine)
        if self._pings:
            for run in ended:
                if (run.job_id, run.scheduled_at) not in mine:
                    self._pings.forget(run)
        if lost := len(ended) - max(accepted, len(mine)):
            self._figures.lease_lost += lost
            log.warning("%d runs were no longer this worker's when they ended; nothing was recorded for them", lost)
        return mine


def _observe_lags(histogram: Histogram, ends: Sequence[Succeeded]) -> None:
    """Counts the time from the scheduled moment to the start of each run."""
    scheduled = [end.run.scheduled_at for end in ends]
    first = min(scheduled)
    first_us = to_micros(first)
    if len(ends) >= LARGE:
        # To convert each moment would take half of the time that is spent here; most large batches lie in one bucket.
        started = [end.started_us for end in ends]
        last_us = to_micros(max(scheduled))
        sum_us = sum(started) - len(ends) * (first_us + last_us) / 2
        if histogram.observe_alike(min(started) - last_us, max(started) - first_us, len(ends), sum_us):
            return
    # From one run's time to the others': a span of fifty years takes Python three times as long to convert.
    histogram.observe(
        [
            end.started_us - first_us - (at - first).total_seconds() * 1e6
            for end, at in zip(ends, scheduled, strict=True)
        ]
    )


def _key(outcome: Outcome) -> tuple[UUID, int]:
    return outcome.run.claim_id, outcome.run.ordinal


def _by_kind(batch: Sequence[Outcome]) -> list[Sequence[Outcome]]:
    """One statement per kind, in this order: when one fails, the kinds before it are not sent again."""
    if set(map(type, batch)) == {Succeeded}:
        return [batch]
    requeued: list[Outcome] = []
    buried: list[Outcome] = []
    expired: list[Outcome] = []
    succeeded: list[Outcome] = []
    kinds: dict[type, list[Outcome]] = {Requeued: requeued, Buried: buried, Expired: expired}
    for outcome in batch:
        kinds.get(type(outcome), succeeded).append(outcome)
    return [kind for kind in (requeued, buried, expired, succeeded) if kind]
