"""Resumes parked jobs: when a zone is back in the time-zone data, its jobs go on.

Occurrences during the time parked are not caught up, as with any pause; a one-off that never fired fires now. A job
parked because its plan costs too much stays parked: only a change of the job helps, and trying costs as much again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from duly.errors import InvalidInput
from duly.maintenance.leader import LeaderService
from duly.model import policy_from_stored
from duly.store import maintenance
from duly.store.maintenance import Parked
from duly.store.pool import Pool
from duly.store.sifting import without_the_bad
from duly.timing import Definition, forget_zones, plan_resume
from duly.turns import Turns

log = logging.getLogger("duly.maintenance")

# Jobs per page.
PAGE = 1_000
# Refusals in one log line.
_MAX_SHOWN = 10


class Unparker(LeaderService):
    """Plans parked jobs again, and resumes those that can be planned."""

    interval = 300.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    async def work(self) -> float | None:
        if not await maintenance.any_parked(self._pool):
            return None
        # The zones cached in this process may be older than the time-zone data on disk.
        forget_zones()
        missing: set[str] = set()
        turns = Turns()
        after, count, kept = None, 0, list[tuple[UUID, Exception]]()

        async def resume(able: Sequence[tuple[Parked, datetime | None]]) -> None:
            nonlocal count
            count += await maintenance.unpark(self._pool, able=able, touched=())

        async def forget(touched: Sequence[UUID]) -> None:
            await maintenance.unpark(self._pool, able=(), touched=touched)

        while page := await maintenance.parked(self._pool, after=after, page=PAGE):
            after = page[-1].job_id
            now = self._pool.clock.now()
            able: list[tuple[Parked, datetime | None]] = []
            for job in page:
                await turns.give()
                if job.ours and job.timezone not in missing:
                    try:
                        able.append((job, resumed_at(job, now)))
                    except InvalidInput as error:
                        if error.field == "timezone":
                            missing.add(job.timezone)
                    except Exception:
                        # A bug, but of one job's data: the job stays parked, and the others go on.
                        log.exception("job %s stays parked", job.job_id)
            touched = [job.job_id for job in page if not job.ours]
            # A job that the database refuses stays parked, and the others go on.
            kept += [(job.job_id, error) for (job, _), error in await without_the_bad(able, resume)]
            kept += await without_the_bad(touched, forget)
        if kept:
            log.error("jobs that cannot be resumed stay parked (%d): %s", len(kept), shown_refusals(kept))
        if count:
            log.warning("%d parked jobs continue", count)
        if missing:
            log.info("still parked because their zone is missing: jobs in %s", ", ".join(sorted(missing)))
        return None


def shown_refusals(refused: Sequence[tuple[object, Exception]]) -> str:
    """The first few refusals, each with the database's message."""
    more = "; …" if len(refused) > _MAX_SHOWN else ""
    return "; ".join(f"{one}: {error}" for one, error in refused[:_MAX_SHOWN]) + more


def resumed_at(job: Parked, now: datetime) -> datetime | None:
    """The time at which a parked job goes on: its next future occurrence; now for a one-off that never fired.

    It lies after `dealt_with_until`, which is in the future if the database's clock has gone back.
    """
    now = max(now, job.dealt_with_until or now)
    timetable = Definition.of(job, policy_from_stored(job.policy)).timetable(job.job_id)
    return plan_resume(timetable, now=now)
