"""Releases the late runs that the governor held back: a share for each job, the least recently served job first.

Deferred occurrences are one row per job and outage in the store, from the first to the last of them. Nothing is kept in
memory, so the next leader of the shard goes on where this one stopped.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from duly.cluster.coordinator import Term
from duly.errors import InvalidInput, TooCostly
from duly.figures import Figures
from duly.model import DEFAULT_POLICY, Policy, policy_from_stored
from duly.scheduler.governor import Governor
from duly.scheduler.planner import run_flags
from duly.service import Service
from duly.store import fires
from duly.store.fires import CatchUp, Release
from duly.store.pool import Pool
from duly.timing import Definition, Fuel
from duly.turns import Turns

log = logging.getLogger("duly.scheduler")

# Jobs served, and runs released, in one pass.
MAX_JOBS = 500
MAX_RUNS = 2_000
# Pause before a job whose row was locked is tried again.
LOCKED_PAUSE_US = 500_000


class CatchingUp(Service):
    """Idle until a term begins or a fire defers runs. The interval is for a fire whose answer was lost."""

    interval = 60.0

    def __init__(self, pool: Pool, governor: Governor, *, figures: Figures | None = None) -> None:
        super().__init__()
        self._pool = pool
        self._governor = governor
        self._figures = figures or Figures("scheduler")
        self._terms: dict[int, Term] = {}
        self._passed_over: dict[UUID, int] = {}
        """Locked jobs, and until when to pass over them: otherwise they would come first in each pass and fill it."""
        self.released = 0

    def lead(self, term: Term) -> None:
        self._terms[term.shard] = term
        self.wake()

    def drop(self, shard: int) -> None:
        self._terms.pop(shard, None)

    async def run_once(self) -> float | None:
        if not self._terms:
            return None
        allowed = self._governor.take(MAX_RUNS)
        if allowed == 0:
            return self._governor.pause
        used = 0
        now_us = self._pool.clock.now_us()
        self._passed_over = {
            job_id: until for job_id, until in self._passed_over.items() if now_us < until <= now_us + LOCKED_PAUSE_US
        }
        passed_over = len(self._passed_over)
        try:
            waiting = await fires.catch_ups(
                self._pool, shards=list(self._terms), limit=min(allowed, MAX_JOBS), passing_over=self._passed_over
            )
            share = max(1, allowed // max(1, len(waiting)))
            by_shard: dict[int, list[CatchUp]] = defaultdict(list)
            for one in waiting:
                by_shard[one.shard].append(one)
            for shard, catch_ups in by_shard.items():
                if (term := self._terms.get(shard)) is not None:
                    used += await self._serve(term, catch_ups, share)
        finally:
            self._governor.give_back(allowed - used)
        if len(self._passed_over) > passed_over:
            return 0.0  # other jobs get the share of those that were locked
        return self._governor.pause if waiting or self._passed_over else None

    async def _serve(self, term: Term, catch_ups: Sequence[CatchUp], share: int) -> int:
        gone = [one for one in catch_ups if one.status not in ("active", "ended")]
        if gone:
            await self._abandon(term, gone)
        batch, turns, costly = Release(), Turns(), list[CatchUp]()
        for one in catch_ups:
            if one.status in ("active", "ended") and not _add(batch, one, share):
                costly.append(replace(one, status="too_costly"))
            await turns.give()
        if costly:
            # Their late occurrences are recorded as missed: another try would cost as much again.
            log.error("jobs too costly to plan do not catch up: %s", ", ".join(str(one.job_id) for one in costly[:10]))
            await self._abandon(term, costly)
        if not batch.job_ids:
            return 0
        released, served = await fires.release(self._pool, shard=term.shard, epoch=term.epoch, batch=batch)
        self.released += released
        now_us = self._pool.clock.now_us()
        runs = zip(batch.run_job_ids, batch.run_scheduled_at, strict=True)
        lags_us = [now_us - scheduled_at.timestamp() * 1e6 for job_id, scheduled_at in runs if job_id in served]
        self._figures.fire_lag.observe(lags_us)
        self._figures.runs["skipped"] += len(lags_us) - released
        until = self._pool.clock.now_us() + LOCKED_PAUSE_US
        self._passed_over.update((job_id, until) for job_id in batch.job_ids if job_id not in served)
        log.info("shard %d: released %d late runs of %d jobs", term.shard, released, len(batch.job_ids))
        return sum(job_id in served for job_id in batch.run_job_ids)

    async def _abandon(self, term: Term, waiting: Sequence[CatchUp]) -> None:
        """Records late occurrences as missed."""
        abandoned = await fires.abandon(self._pool, shard=term.shard, epoch=term.epoch, waiting=waiting)
        self._figures.runs["missed"] += len(abandoned)
        self._figures.missed += sum(abandoned)


def _add(batch: Release, one: CatchUp, share: int) -> bool:
    """Adds the next `share` occurrences of a job. Returns False if planning them costs too much.

    A job that cannot be planned now keeps its occurrences until it can. It never gets more runs than were counted when
    they were deferred: a job redefined meanwhile may have a busier schedule.
    """
    share = min(share, one.count)
    policy = DEFAULT_POLICY
    moments: list[datetime] = []
    following: datetime | None = one.first_at
    try:
        policy = policy_from_stored(one.policy)
        moments, following = _next_late(one, policy, share)
    except TooCostly:
        return False
    except InvalidInput as error:
        log.warning("job %s cannot catch up: %s", one.job_id, error)
    except Exception:
        # A bug of ours, but it concerns one job only: the others go on.
        log.exception("job %s cannot catch up", one.job_id)
    batch.job_ids.append(one.job_id)
    batch.last_at.append(one.last_at)
    batch.expected.append(one.first_at)
    batch.first_at.append(following)
    batch.overlap.append(policy.overlap)
    batch.max_queued.append(policy.max_queued)
    for number, scheduled_at in enumerate(moments, start=1):
        batch.run_job_ids.append(one.job_id)
        batch.run_scheduled_at.append(scheduled_at)
        batch.run_flags.append(run_flags(policy, missed=True, alone=False))
        batch.run_number.append(number)
    return True


def _next_late(one: CatchUp, policy: Policy, share: int) -> tuple[list[datetime], datetime | None]:
    """The next `share` late occurrences, and the first of the rest; None if nothing is left."""
    moments = [one.first_at]
    if one.first_at >= one.last_at:
        return moments, None
    timetable = Definition.of(one, policy).timetable(one.job_id)
    fuel = Fuel.for_list(share)
    following = timetable.next(one.first_at, fuel)
    try:
        while len(moments) < share and following is not None and following <= one.last_at:
            moments.append(following)
            following = timetable.next(following, fuel)
    except TooCostly:  # release the ones found so far: the next pass goes on from the last of them
        following = moments.pop()
    if following is not None and (following > one.last_at or len(moments) >= one.count):
        following = None
    return moments, following
