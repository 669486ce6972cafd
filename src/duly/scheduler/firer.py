"""Takes what the near future says is due, plans it, and fires it: one transaction per shard and batch."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from duly.clock import Clock
from duly.cluster.coordinator import Term
from duly.errors import DulyError
from duly.model import to_micros
from duly.scheduler.near_future import NearFuture
from duly.scheduler.planner import plan_batch
from duly.service import Service
from duly.store import fires
from duly.store.fires import DueJob
from duly.store.pool import Pool

log = logging.getLogger("duly.scheduler")

# Larger batches gain little (78,000 jobs/s at 5,000) and hold the shard's row longer.
BATCH = 2_000
# Two connections keep the database busy while Python plans; more only wait for its cores.
AT_ONCE = 2
# A node that was early looks again after this long: well below what anyone notices, well above a busy loop.
_EARLY_PAUSE = 0.002


class Firer(Service):
    """Cost follows what is due: an idle pass looks at the wheel and sleeps until its next entry."""

    interval = 1.0
    jitter = 0.0

    def __init__(self, pool: Pool, clock: Clock, future: NearFuture, *, misfire_grace: timedelta) -> None:
        super().__init__()
        self._pool = pool
        self._clock = clock
        self._future = future
        self._misfire_grace = misfire_grace
        self._terms: dict[int, Term] = {}
        self._backlog: dict[int, deque[tuple[bytes, int]]] = {}
        self._early: list[tuple[int, UUID, int]] = []
        self.fired = 0

    def lead(self, term: Term) -> None:
        self._terms[term.shard] = term

    def drop(self, shard: int) -> None:
        self._terms.pop(shard, None)
        self._backlog.pop(shard, None)

    async def run_once(self) -> float | None:
        while True:
            self._collect()
            if not self._backlog:
                break
            shards = list(self._backlog)[:AT_ONCE]
            results = await asyncio.gather(*(self._fire_next(shard) for shard in shards), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        if self._early:
            await self._wait_for_the_database()
            return _EARLY_PAUSE
        wait = self._future.seconds_to_next()
        return None if wait is None else min(wait, self.interval)

    async def _wait_for_the_database(self) -> None:
        """This node's idea of the time is ahead of the database's: correct it, and look at those jobs again."""
        early, self._early = self._early, []
        for shard, job_id, due_us in early:
            self._future.add(shard, job_id, due_us)
        await self._pool.measure_clock()

    def _collect(self) -> None:
        for shard, entries in self._future.take_due():
            if shard in self._terms:
                self._backlog.setdefault(shard, deque()).extend(entries)

    async def _fire_next(self, shard: int) -> None:
        """One batch of one shard; it goes back to the backlog if the store cannot be asked."""
        backlog = self._backlog[shard]
        term = self._terms[shard]
        entries = [backlog.popleft() for _ in range(min(BATCH, len(backlog)))]
        # To the end of the line, so that a shard with a wall of work does not hold up the others.
        del self._backlog[shard]
        if backlog:
            self._backlog[shard] = backlog
        try:
            await self._fire(term, dict(entries))
        except DulyError:
            if self._terms.get(shard) is term:
                self._backlog.setdefault(shard, deque()).extendleft(reversed(entries))
            raise

    async def _fire(self, term: Term, dues: dict[bytes, int]) -> None:
        jobs = await fires.due(self._pool, shard=term.shard, job_ids=[UUID(bytes=raw) for raw in dues])
        ready = []
        for job in jobs:
            if job.due:
                ready.append(job)
            elif to_micros(job.next_run_at) == dues[job.job_id.bytes]:
                self._early.append((term.shard, job.job_id, to_micros(job.next_run_at)))
            # Else somebody moved it, and whoever did has announced it.
        if ready:
            await self._fire_jobs(term, ready)

    async def _fire_jobs(self, term: Term, jobs: Sequence[DueJob]) -> None:
        """Plan and fire. A job that the planner or the database chokes on is parked; it never sinks its shard."""
        batch = plan_batch(jobs, now=self._clock.now(), misfire_grace=self._misfire_grace)
        if batch.parked:
            await self._park(term, batch.parked)
        fire = batch.fire
        if not fire.job_ids:
            return
        try:
            done = await fires.fire(self._pool, shard=term.shard, epoch=term.epoch, batch=fire)
        except DulyError:
            raise
        except Exception as error:  # noqa: BLE001 - whichever job it is about, the others must fire
            if len(jobs) == 1:
                await self._park(term, [(jobs[0].job_id, jobs[0].next_run_at, f"cannot be fired: {error}"[:500])])
                return
            half = len(jobs) // 2
            await self._fire_jobs(term, jobs[:half])
            await self._fire_jobs(term, jobs[half:])
            return
        self.fired += done.live
        for job_id, next_run_at in zip(fire.job_ids, fire.next_run_at, strict=True):
            if next_run_at is not None and job_id in done.moved:
                self._future.add(term.shard, job_id, to_micros(next_run_at))

    async def _park(self, term: Term, jobs: Sequence[tuple[UUID, datetime, str]]) -> None:
        parked = await fires.park(self._pool, shard=term.shard, epoch=term.epoch, jobs=jobs)
        for job_id, _, reason in jobs:
            if job_id in parked:
                log.error("job %s is paused: %s", job_id, reason)
