"""Ends pauses at the time that was given with them: the job goes on with its next future occurrence, as when a person
resumes it.

The leader looks when the next pause is due, and every few seconds for new ones. What it writes is fenced by the version
of the job's row: a look of another leader, or of this one before it was stopped for a while, ends no later pause.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from duly.errors import TooCostly
from duly.maintenance.leader import LeaderService
from duly.maintenance.unparker import shown_refusals
from duly.model import policy_from_stored
from duly.store import pauses
from duly.store.jobs import PAUSES_STEP
from duly.store.pauses import DuePause, PlannedEnd
from duly.store.pool import Pool
from duly.store.sifting import without_the_bad
from duly.timing import Definition, forget_zones, plan_resume
from duly.turns import Turns

log = logging.getLogger("duly.maintenance")

PAGE = 500
#: Seconds after which a job that is locked, or whose end was refused, is tried again.
AGAIN_SECONDS = 1.0
REFUSED_SECONDS = 60.0


class Pauses(LeaderService):
    """Resumes jobs whose pause is over."""

    interval = 5.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    async def work(self) -> float | None:
        if not self._pool.has_step(PAUSES_STEP):
            return None
        wait = await pauses.seconds_to_next(self._pool)
        if wait is None or wait > 0:
            return self.interval if wait is None else min(wait, self.interval)
        found = await pauses.due(self._pool, page=PAGE)
        ends, turns = list[PlannedEnd](), Turns()
        # The zones cached in this process may be older than the time-zone data on disk.
        forget_zones()
        for pause in found:
            await turns.give()
            if pause.ours:
                ends.append(self._planned(pause))
        void = [pause for pause in found if not pause.ours]
        resumed: list[UUID] = []

        async def finish(some: Sequence[PlannedEnd]) -> None:
            resumed.extend(await pauses.finish(self._pool, some))

        async def forget(some: Sequence[DuePause]) -> None:
            await pauses.finish(self._pool, (), void=some)

        # A job that the database refuses stays paused, and the others go on.
        refused = [(one.pause.job_id, error) for one, error in await without_the_bad(ends, finish)]
        refused += [(one.job_id, error) for one, error in await without_the_bad(void, forget)]
        if resumed:
            log.info("the pauses of %d jobs have ended", len(resumed))
        if refused:
            log.error("jobs whose pauses cannot be ended (%d): %s", len(refused), shown_refusals(refused))
            return REFUSED_SECONDS
        return 0.0 if len(resumed) + len(void) == PAGE else AGAIN_SECONDS

    def _planned(self, pause: DuePause) -> PlannedEnd:
        now = max(self._pool.clock.now(), pause.dealt_with_until or self._pool.clock.now())
        try:
            timetable = Definition.of(pause, policy_from_stored(pause.policy)).timetable(pause.job_id)
            return PlannedEnd(pause, plan_resume(timetable, now=now, fired=pause.last_run_at))
        except TooCostly as error:
            return PlannedEnd(pause, None, f"too costly: {error}"[:500])
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one job, it is parked with the reason
            return PlannedEnd(pause, None, f"cannot be planned: {error}"[:500])
