"""Fires the jobs of the backlog: reads them, plans them and sends them to the store, one transaction per batch.

An occurrence is fired a little ahead of its time, as a run that may not start before it, so that the store's latency
does not delay the start. Pausing, changing or cancelling a job takes back the runs fired ahead
(store/sql/jobs/retract.sql). A job with an unfinished earlier run is kept until its due time: only then can its overlap
be decided.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from duly.cluster.coordinator import Term
from duly.errors import DataRefused, DulyError
from duly.figures import Figures
from duly.model import to_micros
from duly.scheduler.backlog import Backlog, DueBatch
from duly.scheduler.governor import Governor
from duly.scheduler.near_future import NearFuture
from duly.scheduler.planner import DEFERRED, BatchPlan, plan_batch
from duly.service import Service
from duly.states import RunFlag
from duly.store import fires, zones
from duly.store.fires import DueJob, Fired, Fires, SimpleFires
from duly.store.pool import Pool, may_be_one_rows
from duly.store.sifting import Sifting
from duly.store.zones import Move
from duly.tracing import FiredRun, tracing

log = logging.getLogger("duly.scheduler")

# Pause of a node that was ahead of the database's clock: too short to be noticed, too long for a busy loop.
_EARLY_PAUSE_SECONDS = 0.002
# Number of late occurrences in one pass from which the report is a warning.
_MANY_LATE = 100


@dataclass(slots=True)
class LateCounts:
    """Late occurrences that one pass recorded. A plan refused by the fence counts nothing."""

    late: int = 0
    deferred: int = 0
    dropped: int = 0

    def add(self, asked: Fires, done: Fired) -> None:
        for job_id, flags in zip(asked.run_job_ids, asked.run_flags, strict=True):
            self.late += job_id in done.moved and bool(flags & RunFlag.MISSED)
        for job_id, count, reason in zip(asked.drop_job_ids, asked.drop_count, asked.drop_reason, strict=True):
            if job_id not in done.moved:
                continue
            if reason == DEFERRED:
                self.late += count
                self.deferred += count
            else:
                self.dropped += count


class Firer(Service):
    """The cost follows the number of due jobs: an idle pass looks at the wheel and sleeps until its next entry."""

    interval = 1.0
    jitter = 0.0

    def __init__(
        self,
        pool: Pool,
        future: NearFuture,
        *,
        misfire_grace: timedelta,
        ahead: timedelta = timedelta(0),
        catch_up_window_seconds: int | None = None,
        governor: Governor | None = None,
        deferred: Callable[[], None] = lambda: None,
        doubted: Callable[[int], None] = lambda _: None,
        figures: Figures | None = None,
    ) -> None:
        """`deferred` is called when late runs were held back.
        `doubted` is called with a shard when the answer to a fire was lost: its jobs may have moved to an unknown time.
        """
        super().__init__()
        self._pool = pool
        self._future = future
        self.backlog = Backlog(future, misfire_grace=misfire_grace, ahead=ahead)
        self._misfire_grace = misfire_grace
        self._catch_up_window_seconds = catch_up_window_seconds
        self._governor = governor
        self._deferred = deferred
        self._doubted = doubted
        self._figures = figures or Figures("scheduler")
        self._too_early: list[tuple[int, UUID, int]] = []
        """Jobs (shard, id, due time) that are due by this node's clock and not yet by the database's."""
        self._late_counts = LateCounts()
        self.fired = 0

    def lead(self, term: Term) -> None:
        self.backlog.lead(term)

    def drop(self, shard: int) -> None:
        self.backlog.drop(shard)

    @property
    def taken(self) -> int:
        """The number of jobs taken from the near future: fired, or in the backlog."""
        return self.fired + len(self.backlog)

    async def run_once(self) -> float | None:
        try:
            await self._fire_backlog()
        except DulyError:
            self.backlog.unsort()
            raise
        finally:
            self._report()
        if self._too_early:
            await self._wait_for_the_database()
            return _EARLY_PAUSE_SECONDS
        return self.backlog.seconds_to_next(self.interval)

    async def _fire_backlog(self) -> None:
        while True:
            self.backlog.collect()
            batches = self.backlog.next_batches()
            if not batches:
                self.backlog.apart.passed()
                return
            results = await asyncio.gather(*map(self._fire_batch, batches), return_exceptions=True)
            errors = [result for result in results if isinstance(result, BaseException)]
            if errors:
                error = next((one for one in errors if isinstance(one, DulyError) and may_be_one_rows(one)), errors[0])
                self.backlog.apart.failed(error, fruitful=any(batch.fruitful for batch in batches))
                raise errors[0]

    async def _wait_for_the_database(self) -> None:
        """Corrects this node's clock, which is ahead of the database's, and returns the jobs to the near future."""
        early, self._too_early = self._too_early, []
        for shard, job_id, due_us in early:
            self._future.add(shard, job_id, due_us)
        await self._pool.measure_clock()

    async def _fire_batch(self, batch: DueBatch) -> None:
        """Fires a batch. Jobs not reached go back to their queue; a job that makes the batch fail is set apart."""
        backlog = self.backlog
        known = [raw for raw in batch.dues if raw in backlog.apart] if backlog.apart else []
        others = [raw for raw in batch.dues if raw not in backlog.apart] if known else list(batch.dues)
        sifting = Sifting(others, known=known, split=backlog.apart.splitting)
        try:
            await sifting.through(lambda raws: self._fire_part(batch, raws))
        finally:
            batch.fruitful = sifting.fruitful
            backlog.put_back(batch, sifting.left)
            for raw, error in sifting.alone:
                if backlog.set_apart(batch, raw):
                    log.error("job %s cannot be fired now; it is tried again by itself: %s", UUID(bytes=raw), error)

    async def _fire_part(self, batch: DueBatch, raws: Sequence[bytes]) -> None:
        if len(raws) < len(batch.dues):
            batch = replace(batch, dues={raw: batch.dues[raw] for raw in raws})
        due = await self._read_due(batch)
        left = await self._fire_jobs(batch.terms, due, batch.on_time_from) if due else []
        self.backlog.put_back(batch, left)
        if self.backlog.apart:
            for raw in batch.dues.keys() - set(left):
                self.backlog.apart.forget(raw)

    async def _read_due(self, batch: DueBatch) -> list[DueJob]:
        """The jobs of a batch that are due by the database's clock, as they are now."""
        due = []
        for job in await fires.due(self._pool, job_ids=[UUID(bytes=raw) for raw in batch.dues]):
            if job.shard != batch.shards[job.job_id.bytes]:
                continue  # the row has another shard than when it was read: the leader of that one reads it there
            if job.due_within(batch.ahead):
                due.append(job)
            elif to_micros(job.next_run_at) == batch.dues[job.job_id.bytes]:
                self._too_early.append((job.shard, job.job_id, to_micros(job.next_run_at)))
            # Otherwise the job was moved, and its new time announced.
        return due

    async def _fire_jobs(
        self, terms: Mapping[int, Term], jobs: Sequence[DueJob], on_time_from: datetime | None
    ) -> list[bytes]:
        """Plans jobs and sends the plan. Returns the jobs that the plan did not reach.

        A job whose data the store refuses is parked, so that it does not hold up its shard. No other error of the store
        is blamed on the jobs: they are fired when it works again.
        """
        plan = self._plan(jobs, on_time_from)
        await self._set_aside(terms, plan)
        spans = tracing()
        began_ns = 0 if spans is None else time.time_ns()
        left = [job.job_id.bytes for job in jobs[plan.planned :]]
        try:
            fired = await self._send(terms, plan)
        except DataRefused as error:
            # Nothing of that part was done because of one of its jobs: find it by halves, so that the others are fired.
            if plan.planned == 1:
                await self._park(terms, [(jobs[0], f"cannot be fired: {error}"[:500])])
                return left
            half = plan.planned // 2
            left += await self._fire_jobs(terms, jobs[:half], on_time_from)
            left += await self._fire_jobs(terms, jobs[half : plan.planned], on_time_from)
            return left
        except DulyError as error:
            if not may_be_one_rows(error):  # else the store has answered: nothing of that part was done
                for shard in {job.shard for job in jobs[: plan.planned]}:
                    self._doubted(shard)
            raise
        if spans is not None:
            spans.fired(_traced(jobs[: plan.planned], fired), began_ns=began_ns)
        if plan.deferred:
            self._deferred()
        return left

    def _plan(self, jobs: Sequence[DueJob], on_time_from: datetime | None) -> BatchPlan:
        # The database's time, not this node's: it also decides which later occurrences are due by now.
        now = max(job.now for job in jobs)
        grace = self._misfire_grace if on_time_from is None else max(self._misfire_grace, now - on_time_from)
        return plan_batch(
            jobs,
            now=now,
            misfire_grace=grace,
            catch_up_window_seconds=self._catch_up_window_seconds,
            governor=self._governor,
        )

    async def _set_aside(self, terms: Mapping[int, Term], plan: BatchPlan) -> None:
        """Parks, moves or holds the jobs that the plan does not fire."""
        if plan.costly:
            # First of all, and even if this node no longer leads: no node may plan them again.
            await self._park_costly(plan.costly)
        if plan.parked:
            await self._park(terms, plan.parked)
        if plan.rezoned:
            await self._move(plan.rezoned)
        for job in plan.undecided:
            due_us = to_micros(job.next_run_at)
            if due_us > self._future.now_us:
                self.backlog.keep_until_due(job.shard, job.job_id, due_us)
            else:
                # Due by this node's clock and not by the database's: to keep the job would be to ask without a pause.
                self._too_early.append((job.shard, job.job_id, due_us))

    async def _send(self, terms: Mapping[int, Term], plan: BatchPlan) -> list[tuple[Fires | SimpleFires, Fired]]:
        epochs = {shard: terms[shard].epoch for shard in set(plan.simple.shards)}
        parts: list[tuple[dict[int, int], Fires | SimpleFires]] = [(epochs, plan.simple)] if epochs else []
        parts += [({shard: terms[shard].epoch}, part) for shard, part in plan.fires.items()]
        sent = []
        for asked, part in parts:
            done = await fires.fire(self._pool, epochs=asked, batch=part)
            self._account(asked, part, done)
            sent.append((part, done))
        return sent

    def _account(self, epochs: Mapping[int, int], asked: Fires | SimpleFires, done: Fired) -> None:
        """Counts the runs, and puts the next occurrence of each job into the near future."""
        self.fired += done.live
        self._count(asked, done)
        if isinstance(asked, Fires):
            self._late_counts.add(asked, done)
        shards = asked.shards if isinstance(asked, SimpleFires) else list(epochs) * len(asked.job_ids)
        columns = zip(asked.job_ids, asked.expected, asked.next_run_at, shards, strict=True)
        for job_id, expected, next_run_at, shard in columns:
            if job_id in done.moved:
                if next_run_at is not None:
                    self._future.add(shard, job_id, to_micros(next_run_at))
            elif shard in done.led:
                self.backlog.retry(shard, job_id, expected)

    def _count(self, asked: Fires | SimpleFires, done: Fired) -> None:
        figures, now_us, moved = self._figures, self._pool.clock.now_us(), done.moved
        if isinstance(asked, SimpleFires):
            fired = zip(asked.job_ids, asked.expected, strict=True)
        else:
            fired = zip(asked.run_job_ids, asked.run_scheduled_at, strict=True)
            for job_id, count, reason in zip(asked.drop_job_ids, asked.drop_count, asked.drop_reason, strict=True):
                if job_id in moved and reason != DEFERRED:
                    figures.missed += count
                    figures.runs["missed"] += 1
        lags_us = [now_us - scheduled_at.timestamp() * 1e6 for job_id, scheduled_at in fired if job_id in moved]
        # Those that did not become runs were skipped: their jobs' overlap was decided by the statement.
        figures.runs["skipped"] += len(lags_us) - done.live
        figures.claim_conflicts += len(asked.job_ids) - len(moved) if done.led else 0
        figures.fire_lag.observe(lags_us)

    async def _park(self, terms: Mapping[int, Term], jobs: Sequence[tuple[DueJob, str]]) -> None:
        for shard in {job.shard for job, _ in jobs}:
            own = [(job, reason) for job, reason in jobs if job.shard == shard]
            asked = [(job.job_id, job.next_run_at, reason) for job, reason in own]
            parked = await fires.park(self._pool, shard=shard, epoch=terms[shard].epoch, jobs=asked)
            self._account_parked(own, set(parked))

    async def _park_costly(self, jobs: Sequence[tuple[DueJob, str]]) -> None:
        self._account_parked(jobs, set(await fires.park_costly(self._pool, jobs=jobs)))

    def _account_parked(self, jobs: Sequence[tuple[DueJob, str]], parked: Collection[UUID]) -> None:
        for job, reason in jobs:
            if job.job_id in parked:
                log.error("job %s is paused: %s", job.job_id, reason)
            else:
                self.backlog.retry(job.shard, job.job_id, job.next_run_at)

    async def _move(self, jobs: Sequence[tuple[DueJob, datetime]]) -> None:
        """Moves jobs that were planned by earlier rules of their zones to the times of the present rules, unfired."""
        moves = [Move(job.job_id, job.version, job.next_run_at, moment) for job, moment in jobs]
        moved = await zones.move(self._pool, moves)
        for job, moment in jobs:
            if job.job_id in moved:
                self._future.add(job.shard, job.job_id, to_micros(moment))
            else:
                self.backlog.retry(job.shard, job.job_id, job.next_run_at)

    def _report(self) -> None:
        """Logs the late occurrences of this pass, in one line however many jobs they belong to."""
        found = self._late_counts
        if found.late or found.dropped:
            self._late_counts = LateCounts()
            log.log(
                logging.WARNING if found.late + found.dropped >= _MANY_LATE else logging.INFO,
                "catching up: %d late occurrences run (%d of them wait for their turn), %d are dropped as missed",
                found.late, found.deferred, found.dropped,
            )  # fmt: skip


def _traced(jobs: Sequence[DueJob], sent: Sequence[tuple[Fires | SimpleFires, Fired]]) -> Iterator[FiredRun]:
    """The runs that were fired, of jobs that a trace may name."""
    known = {job.job_id: (job.trace, job.queue) for job in jobs if job.trace is not None}
    for part, done in sent:
        columns = (
            (part.job_ids, part.expected)
            if isinstance(part, SimpleFires)
            else (part.run_job_ids, part.run_scheduled_at)
        )
        for job_id, scheduled_at in zip(*columns, strict=True):
            if job_id in done.moved and (found := known.get(job_id)) is not None:
                yield FiredRun(job_id, scheduled_at, *found)
