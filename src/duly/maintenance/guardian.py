"""Repairs states that should never occur, and counts the repairs: one above zero is a bug, or a change by hand.

| wrong | repair |
| --- | --- |
| an active job with nothing planned | planned anew from its next future occurrence; parked if it cannot be |
| a run in neither queue, lease nor history | back into the queue, with the attempts it has had |
| a lease far ahead that no worker extends | ended; the rescuer takes its runs back |
| a shard without a row | the row comes back with the last epoch it had |

(A run that waits although no run is before it is a race, not a fault, and the rescuer lets it go.)

The first two are found by walking over all jobs in the order of their ids, one page per minute: no index is kept for a
state that never occurs. A page is a 720th of the jobs, between 5,000 and 20,000 of them: a small store is checked whole
every minute, ten million jobs twice a day, at 13 µs per job.

Nothing is repaired at first sight. A suspect is checked again after the grace, by the statement that repairs it and
under the lock that a fire or change of the job takes; so a run is never duplicated.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from duly.errors import InvalidInput, TooCostly
from duly.figures import Figures
from duly.maintenance.leader import LeaderService
from duly.maintenance.unparker import resumed_at, shown_refusals
from duly.store import maintenance
from duly.store.fires import COSTLY
from duly.store.maintenance import Parked, Suspect
from duly.store.pool import Pool
from duly.store.sifting import without_the_bad
from duly.turns import Turns

log = logging.getLogger("duly.maintenance")

# Jobs per page, at least and at most, and pages per walk over all jobs.
PAGE = (5_000, 20_000)
PAGES = 720
# Repairs per pass.
MAX_REPAIRS = 500
# Ids in one log line.
_MAX_SHOWN = 10


class Guardian(LeaderService):
    """Finds suspects and repairs those that are still wrong after the grace."""

    interval = 60.0

    def __init__(self, pool: Pool, *, grace_seconds: float = 30.0, figures: Figures | None = None) -> None:
        super().__init__()
        self._figures = figures or Figures("scheduler")
        self._pool = pool
        self._grace = grace_seconds
        self._after: UUID | None = None
        # When each suspect was first seen, by this machine's monotonic clock.
        self._suspects: dict[Suspect, float] = {}
        self._unattended: dict[tuple[UUID, datetime], float] = {}
        #: Number of repairs since the start, by kind.
        self.repaired: Counter[str] = Counter()

    async def run_once(self) -> float | None:
        # On every node: a shard without a row has no leader, and that may be the shard whose leader does the upkeep.
        shards = await maintenance.restore_shards(self._pool)
        self._count("shard", "repaired: shards without a row (%d): %s", shards)
        return await super().run_once() if self.leading else None

    async def work(self) -> float | None:
        await self._repair_jobs()
        await self._repair_claims()
        await self._walk()
        return None

    async def _walk(self) -> None:
        found, self._after = await maintenance.suspects(
            self._pool, after=self._after, grace_seconds=self._grace, page=PAGE, pages=PAGES
        )
        for suspect in found:
            self._suspects.setdefault(suspect, time.monotonic())

    def _ripe(self) -> list[Suspect]:
        """Removes and returns the suspects first seen before the grace. Their repair checks them as they are now."""
        latest = time.monotonic() - self._grace
        ripe = [suspect for suspect, seen in self._suspects.items() if seen <= latest][:MAX_REPAIRS]
        for suspect in ripe:
            del self._suspects[suspect]
        return ripe

    async def _repair_jobs(self) -> None:
        ripe = self._ripe()
        stalled = [suspect.job_id for suspect in ripe if suspect.problem == "stalled"]
        if stalled:
            jobs, turns = [], Turns()
            for job in await maintenance.stalled(self._pool, job_ids=stalled):
                jobs.append(_plan(job, self._pool.clock.now()))
                await turns.give()
            replanned: list[UUID] = []

            async def replan(jobs: Sequence[tuple[Parked, datetime | None, str | None]]) -> None:
                replanned.extend(await maintenance.replan(self._pool, jobs))

            # A job that the database refuses stays as it is and is found again; the others are repaired.
            refused = [(job.job_id, error) for (job, _, _), error in await without_the_bad(jobs, replan)]
            self._count("stalled", "repaired: active jobs with nothing planned (%d), planned anew: %s", replanned)
            if refused:
                log.error(
                    "active jobs with nothing planned, and not repaired (%d): %s", len(refused), shown_refusals(refused)
                )
        lost = [(suspect.job_id, suspect.scheduled_at) for suspect in ripe if suspect.scheduled_at is not None]
        if lost:
            restored: list[tuple[UUID, datetime]] = []

            async def restore(lost: Sequence[tuple[UUID, datetime]]) -> None:
                restored.extend(await maintenance.restore_runs(self._pool, lost))

            given_up = [(_shown(*run), error) for run, error in await without_the_bad(lost, restore)]
            shown = [_shown(*run) for run in restored]
            self._count("lost", "repaired: runs in neither queue nor claim (%d), queued again: %s", shown)
            if given_up:
                log.error("runs in no table, and not restored (%d): %s", len(given_up), shown_refusals(given_up))

    async def _repair_claims(self) -> None:
        now = time.monotonic()
        found = await maintenance.unattended_claims(self._pool, ahead_seconds=self._grace, limit=MAX_REPAIRS)
        # A claim that was extended since it was seen has another lease now, and counts as new.
        before, self._unattended = self._unattended, {key: self._unattended.get(key, now) for key in found.items()}
        ripe = dict([key for key in found.items() if key in before and before[key] <= now - self._grace])
        if ripe:
            expired = await maintenance.expire_claims(self._pool, ripe)
            self._count("claim", "repaired: leases of workers that are gone (%d), ended: %s", expired)

    def _count(self, what: str, message: str, repaired: Sequence[object]) -> None:
        if repaired:
            self.repaired[what] += len(repaired)
            self._figures.guardian_repairs += len(repaired)
            more = ", …" if len(repaired) > _MAX_SHOWN else ""
            log.warning(message, len(repaired), ", ".join(str(one) for one in repaired[:_MAX_SHOWN]) + more)


def _shown(job_id: UUID, scheduled_at: datetime) -> str:
    return f"{job_id}@{scheduled_at.isoformat()}"


def _plan(job: Parked, now: datetime) -> tuple[Parked, datetime | None, str | None]:
    try:
        return job, resumed_at(job, now), None
    except TooCostly as error:
        return job, None, f"{COSTLY}: {error}"
    except InvalidInput as error:
        return job, None, f"cannot be planned: {error}"[:500]
    except Exception as error:
        # A bug, but of one job's data: the others are repaired.
        log.exception("job %s cannot be planned", job.job_id)
        return job, None, f"cannot be planned: {type(error).__name__}: {error}"[:500]
