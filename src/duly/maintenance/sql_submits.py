"""Plans jobs that came in through SQL: the function `duly.submit` stores a job, but cannot read its schedule.

`NOTIFY duly_submitted` announces such a job at the caller's commit, and a look every few seconds finds missed ones. An
invalid job stays paused with the reason; so does a job that was not planned yet, for lack of a scheduler.

When this node begins to lead, it also stores the settings that `duly.submit` has to respect.
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

# Jobs per pass.
PAGE = 500
# Pause while a job is locked or being changed; without it the service would look again without end.
TOUCHED_SECONDS = 0.1


class SqlSubmits(LeaderService):
    """Checks and plans the jobs of `duly.submit`."""

    def __init__(
        self,
        pool: Pool,
        *,
        plan: Callable[[Job], PlannedSubmit],
        notified: bool,
        tenant_max_jobs: int | None = None,
        payload_max_bytes: int = 256 * 1024,
    ) -> None:
        """`plan` checks and plans a job as the other interfaces do. `notified`: notifications reach this node."""
        super().__init__()
        self._pool = pool
        self._plan = plan
        self._tenant_max_jobs = tenant_max_jobs
        self._payload_max_bytes = payload_max_bytes
        self._remembered = False
        self.interval = 5.0 if notified else 1.0

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
        # A job that was changed meanwhile, or is locked, is still to be planned.
        return TOUCHED_SECONDS if len(written) < len(jobs) else None
