"""Plans what came in through SQL: the function `duly.submit` stores, and cannot read a schedule.

It is told by `NOTIFY duly_submitted` at the caller's commit, and looks for itself now and then. A job that is wrong
stays paused and says why; so does one that nobody has planned yet, for want of a scheduler.

When it begins to lead it also writes down those settings of Python's side that `duly.submit` is to heed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from duly.maintenance.leader import LeaderService
from duly.model import Job
from duly.store import sql_submits
from duly.store.pool import Pool
from duly.store.sql_submits import PlannedSubmit
from duly.turns import Turns

log = logging.getLogger("duly.maintenance")

PAGE = 500
# To look again at once would be to look without pause, as long as somebody keeps one locked.
TOUCHED_PAUSE = 0.1


class SqlSubmits(LeaderService):
    def __init__(
        self,
        pool: Pool,
        *,
        plan: Callable[[Job], PlannedSubmit],
        told: bool,
        tenant_max_jobs: int | None = None,
        payload_max_bytes: int = 256 * 1024,
    ) -> None:
        """`plan` is what checks and plans jobs of the other interfaces. `told`: notifications reach this node."""
        super().__init__()
        self._pool = pool
        self._plan = plan
        self._tenant_max_jobs = tenant_max_jobs
        self._payload_max_bytes = payload_max_bytes
        self._remembered = False
        self.interval = 5.0 if told else 1.0

    def lead(self, leading: bool) -> None:
        self._remembered = False
        super().lead(leading)

    async def work(self) -> float | None:
        if not self._remembered:
            await sql_submits.remember_settings(
                self._pool, tenant_max_jobs=self._tenant_max_jobs, payload_max_bytes=self._payload_max_bytes
            )
            self._remembered = True
        jobs, gone = await sql_submits.read(self._pool, page=PAGE)
        if not jobs and not gone:
            return None
        plans, turns = list[PlannedSubmit](), Turns()
        for one in jobs:
            plans.append(self._plan(one))
            await turns.give()
        written = await sql_submits.write_plans(self._pool, plans, gone=gone)
        for job_id, reason in written.items():
            if reason is not None:
                log.warning("job %s that came in through SQL is paused: %s", job_id, reason)
        if len(jobs) + len(gone) == PAGE and (written or gone):
            return 0.0
        # One that somebody has changed meanwhile, or keeps locked, is still there.
        return TOUCHED_PAUSE if len(written) < len(jobs) else None
