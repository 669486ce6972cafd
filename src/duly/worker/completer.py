"""Writes outcomes, many runs in one statement.

A flush takes whatever has gathered while the one before it was under way, and a little longer if that one had much to
write: a lone outcome is written at once, a flood in batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from duly.errors import DataRefused, DulyError
from duly.model import Buried, ClaimedRun, Requeued, Succeeded, make_run_id
from duly.service import Service
from duly.store import runs as store
from duly.store.pool import Pool
from duly.store.sifting import Apart, Sifting, without_the_bad
from duly.worker.executor import Outcome
from duly.worker.handler.errors import error_text

log = logging.getLogger("duly.worker")

BATCH = 2_000
# So much longer for each outcome of the last flush, up to the longest, as a claimer does; but not once so many wait.
GATHER_SECONDS, LONGEST_GATHER = 0.000_25, 0.02
ENOUGH = 200
# So many outcomes that are set apart take no place from runs to come.
MOST_APART = 1_000
End = TypeVar("End", Succeeded, Requeued, Buried)


class Completer(Service):
    """Every outcome given to it is either recorded or found to be refused; `recorded` is called for both."""

    interval = 60.0
    backoff = (0.05, 2.0)

    def __init__(
        self, pool: Pool, recorded: Callable[[int], None], *, may_gather: Callable[[], bool] = lambda: False
    ) -> None:
        """`may_gather`: nothing waits for what a flush would set free."""
        super().__init__()
        self._pool = pool
        self._recorded = recorded
        self._may_gather = may_gather
        self._gathering: asyncio.TimerHandle | None = None
        self._outcomes: list[Outcome] = []
        # Runs of each claim that have not left it yet; at none, the claim can be closed.
        self._held: dict[UUID, int] = {}
        # Emptied without a flush that closed them: closed with the next one.
        self._closable: list[UUID] = []
        self._emptied: list[UUID] = []
        # Claims with a run that was given up here and has no outcome: its lease is lost or no longer to be trusted, or
        # its outcome could not be written in any words. Such a claim is never closed, for it may still be there and
        # hold the run: rescue takes it back when the lease, which nobody extends any more, has run out.
        self._left: set[UUID] = set()
        # Outcomes that cannot be written now and would keep others from it. They are not given up, for that would be to
        # run again what has run; their claims are held, and so are their leases.
        self._apart: Apart[tuple[UUID, int], Outcome] = Apart()
        self.succeeded = 0
        self.lost = 0

    def hold(self, claim_id: UUID, count: int) -> None:
        self._held[claim_id] = count

    def add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if self._gathering is None or len(self._outcomes) >= ENOUGH or not self._may_gather():
            self.wake()

    def forget(self, run: ClaimedRun) -> None:
        """The run's lease is lost: there is nothing to write."""
        self._left.add(run.claim_id)
        self._leave(run.claim_id, 1)
        self.lost += 1
        self._recorded(1)

    @property
    def apart(self) -> int:
        """How many outcomes are set apart: what is over and cannot be written now takes no place from what can."""
        return min(len(self._apart), MOST_APART)

    def take_emptied(self) -> list[UUID]:
        """Claims that hold nothing more since this was last asked: nobody needs to keep their lease."""
        emptied, self._emptied = self._emptied, []
        return emptied

    def _gather(self, seconds: float) -> None:
        """Outcomes that come within this time do not ask for a flush of their own."""
        self._gathering = asyncio.get_running_loop().call_later(seconds, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        if self._outcomes:
            self.wake()

    async def run_once(self) -> float | None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        time = asyncio.get_running_loop().time
        again = [outcome for _, outcome in self._apart.take(time())]
        if self._outcomes or self._closable or again:
            batch, self._outcomes = self._outcomes[:BATCH] + again, self._outcomes[BATCH:]
            await self._send(batch)
            if len(self._outcomes) < ENOUGH and not self.stopping and self._may_gather():
                self._gather(min(LONGEST_GATHER, GATHER_SECONDS * len(batch)))
                # What came during the flush waits as well.
                self._wake.clear()
            elif self._outcomes:
                return 0.0
        return self._apart.seconds_to_next(time())

    async def _send(self, batch: Sequence[Outcome]) -> None:
        """Write a batch. One that keeps others from being written is set apart; what was not come to is kept."""
        split = self._apart.splitting
        siftings = [self._sifting(kind, split=split) for kind in _by_kind(batch)]
        try:
            for sifting in siftings:
                await sifting.through(self._flush_alone if split else self._flush)
            if self._closable:
                await (self._close_each() if split else self._flush(()))
            self._apart.passed()
        except BaseException as error:
            self._apart.failed(error, fruitful=any(sifting.fruitful for sifting in siftings))
            raise
        finally:
            # What was in fact written finds itself already there when it is sent again.
            left = [outcome for sifting in siftings for outcome in sifting.left]
            self._outcomes[:0] = left
            alone = [one for sifting in siftings for one in sifting.alone]
            for outcome, said in alone:
                self._set_apart(outcome, said)
            if len(left) < len(batch):
                self._recorded(len(batch) - len(left) - len(alone))

    def _sifting(self, outcomes: Sequence[Outcome], *, split: bool) -> Sifting[Outcome]:
        if not self._apart:
            return Sifting(outcomes, split=split)
        known = [outcome for outcome in outcomes if _key(outcome) in self._apart]
        others = [outcome for outcome in outcomes if _key(outcome) not in self._apart]
        return Sifting(others, known=known, split=split)

    def _set_apart(self, outcome: Outcome, said: DulyError) -> None:
        if self._apart.put(_key(outcome), outcome, asyncio.get_running_loop().time()):
            run_id = make_run_id(outcome.run.job_id, outcome.run.scheduled_at)
            log.error("the outcome of run %s cannot be stored now; it is tried again by itself: %s", run_id, said)

    async def _flush(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes of one kind, and close what is empty then."""
        await self._record(outcomes, close=True)

    async def _flush_alone(self, outcomes: Sequence[Outcome]) -> None:
        """Without closing anything: that may be what fails."""
        await self._record(outcomes, close=False)

    async def _record(self, outcomes: Sequence[Outcome], *, close: bool) -> None:
        closing: list[UUID] = []
        leaving = Counter([outcome.run.claim_id for outcome in outcomes])
        if outcomes and type(outcomes[0]) is Requeued:
            await self._write(store.requeue, [one for one in outcomes if type(one) is Requeued])
        elif outcomes and type(outcomes[0]) is Buried:
            await self._write(store.bury, [one for one in outcomes if type(one) is Buried])
        else:
            # What is `Recorded` was written by its own transaction; it only leaves its claim.
            succeeded = [one for one in outcomes if type(one) is Succeeded]
            closing = self._closing(leaving) if close else []
            if succeeded or closing:
                await self._write(store.complete, succeeded, closing)
            self.succeeded += len(outcomes)
        for claim_id, count in leaving.items():
            self._leave(claim_id, count)
        if self._apart:
            for outcome in outcomes:
                self._apart.forget(_key(outcome))
        if closing:
            closed = set(closing)
            self._closable = [claim_id for claim_id in self._closable if claim_id not in closed]

    async def _close_each(self) -> None:
        """A claim that cannot be closed is empty all the same: nobody keeps its lease, and rescue finds it."""

        async def close(claims: Sequence[UUID]) -> None:
            await store.complete(self._pool, [], claims)

        if refused := await without_the_bad(self._closable, close):
            log.error("%d claims could not be closed, and are left to rescue: %s", len(refused), refused[0][1])
        self._closable = []

    def _closing(self, leaving: Mapping[UUID, int]) -> list[UUID]:
        """Claims that hold nothing more once so many of their runs have left."""
        emptied = [claim_id for claim_id, count in leaving.items() if self._held.get(claim_id) == count]
        return [claim_id for claim_id in emptied + self._closable if claim_id not in self._left]

    def _leave(self, claim_id: UUID, count: int) -> None:
        left = self._held.get(claim_id, 0) - count
        if left > 0:
            self._held[claim_id] = left
        elif self._held.pop(claim_id, None) is not None:
            if claim_id in self._left:
                self._left.remove(claim_id)
            else:
                self._closable.append(claim_id)
            self._emptied.append(claim_id)

    async def _write(
        self, write: Callable[..., Awaitable[int]], ends: Sequence[End], close: Sequence[UUID] = ()
    ) -> None:
        """Write them all; should one be refused for what it is, the others still are. `close` is for `complete`.

        Whatever else the database answers is not held against them: they are kept, and written when it can.
        """
        closing = [claim_id for claim_id in close if claim_id not in self._left]
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
            if closing := [claim_id for claim_id in closing if claim_id not in self._left]:
                await store.complete(self._pool, [], closing)
        if accepted < len(ends):
            await self._account_for_refused([end.run for end in ends], accepted)

    async def _write_plainly(
        self, write: Callable[..., Awaitable[int]], ends: Sequence[End], error: DataRefused
    ) -> int:
        """An outcome the database will not take as it is: keep the outcome, drop its words."""
        log.error("an outcome could not be stored as it was", exc_info=error)
        end: Succeeded | Requeued | Buried = ends[0]
        cause = type(error.__cause__ or error).__name__
        plain = error_text("Unstorable", f"what the handler gave could not be stored: {cause}")
        if isinstance(end, Succeeded):
            end = Succeeded(end.run, end.started_us, end.finished_us, plain, end.flags, end.key)
        elif isinstance(end, Requeued):
            end = Requeued(end.run, end.state, end.delay, end.started_us, end.finished_us, plain, end.refund)
        else:
            end = Buried(end.run, end.started_us, end.finished_us, plain, end.status)
        try:
            return await write(self._pool, [end])
        except DataRefused as again:
            # This one must not keep all the others from being written.
            log.error("an outcome could not be stored at all; the run is left to rescue", exc_info=again)
            self._left.add(end.run.claim_id)
            return 0

    async def _account_for_refused(self, runs: Sequence[ClaimedRun], accepted: int) -> None:
        # Either the lease was lost, or this is the second sending after a lost answer. History tells for what ended;
        # a requeue that went through the first time looks lost, and is somebody else's now in either case. Or it was
        # said to an old primary that lives on beside the new one, where the claim is: so whatever is not in history is
        # not taken for ended, and its claim is not closed.
        mine = await store.settled(self._pool, runs)
        self._left.update(run.claim_id for run in runs if (run.job_id, run.scheduled_at) not in mine)
        if lost := len(runs) - max(accepted, len(mine)):
            self.lost += lost
            log.warning("%d runs were no longer this worker's when they ended; nothing was recorded for them", lost)


def _key(outcome: Outcome) -> tuple[UUID, int]:
    return outcome.run.claim_id, outcome.run.ordinal


def _by_kind(batch: Sequence[Outcome]) -> list[Sequence[Outcome]]:
    """Each kind is a statement, in this order: what one has written the failure of the next does not send again."""
    if set(map(type, batch)) == {Succeeded}:
        return [batch]
    requeued: list[Outcome] = []
    buried: list[Outcome] = []
    succeeded: list[Outcome] = []
    for outcome in batch:
        (requeued if type(outcome) is Requeued else buried if type(outcome) is Buried else succeeded).append(outcome)
    return [kind for kind in (requeued, buried, succeeded) if kind]
