"""Reading runs, live or ended, and cancelling one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from duly import checks
from duly.errors import Conflict, InvalidInput, NotFound
from duly.model import Actor, Job, Page, Run, parse_run_id
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core, check_reason, to_job_id
from duly.states import ENDED_STATES
from duly.store import history, jobs, runs
from duly.timing import render_key


class RunOperations:
    """The runs of one tenant's jobs."""

    def __init__(self, core: Core, tenant: str, actor: Actor) -> None:
        self._pool = core.pool
        self._tenant = tenant
        self._actor = actor

    async def page(self, job_id: str, *, cursor: str | None = None, limit: int = 100) -> Page[Run]:
        """Live and ended runs of one job, newest first."""
        job = await jobs.get(self._pool, job_id=to_job_id(job_id), tenant=self._tenant)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        limit = checks.check_integer("limit", limit, 1, MAX_PAGE)
        before = checks.LAST_MOMENT
        if cursor is not None:
            try:
                before = checks.check_moment("cursor", datetime.fromisoformat(cursor)) or checks.LAST_MOMENT
            except ValueError as error:
                raise InvalidInput("cursor", INVALID_CURSOR) from error
        moments = await history.job_run_times(self._pool, job_id=job.job_id, before=before, limit=limit + 1)
        found = await history.runs_page(self._pool, job_id=job.job_id, moments=moments[:limit])
        items = [with_key(run, job) for run in found]
        more = bool(items) and items[-1].scheduled_at != moments[-1]
        return Page(items, items[-1].scheduled_at.isoformat() if more else None)

    async def get(self, run_id: str) -> Run:
        """One run, live or ended, with all of its attempts."""
        parsed = parse_run_id(run_id)
        job = None if parsed is None else await jobs.get(self._pool, job_id=parsed[0], tenant=self._tenant)
        if parsed is not None and job is not None:
            for _ in range(3):  # a statement may see a moving run neither where it was nor where it goes
                run = await history.get_run(self._pool, job_id=parsed[0], scheduled_at=parsed[1])
                if run is not None:
                    return with_key(run, job)
        raise NotFound(f"there is no run {run_id[:100]!r}", kind="run", sought=run_id)

    async def recent(self, *, limit: int = 50) -> list[Run]:
        """The runs of all jobs that ended last."""
        return await history.recent_runs(
            self._pool, tenant=self._tenant, limit=checks.check_integer("limit", limit, 1, 500)
        )

    async def cancel(self, run_id: str, *, reason: str | None = None) -> Run:
        """Cancel a run. A waiting run ends at once; an executing one is told to stop, and ends as its handler does."""
        check_reason(reason)
        run = await self.get(run_id)
        note = self._actor.note(reason=reason, tenant=self._tenant, object=run.run_id)
        for _ in range(10):
            if run.status in ENDED_STATES:
                raise Conflict(f"run {run_id} cannot be cancelled: it is {run.status}")
            became = await runs.cancel(
                self._pool, job_id=run.job_id, scheduled_at=run.scheduled_at, tenant=self._tenant, note=note
            )
            run = await self.get(run_id)
            if became is not None:
                return run
            # The run was claimed, retried or ended meanwhile: read it again.
        raise Conflict(f"run {run_id} could not be cancelled; try again")


def with_key(run: Run, job: Job) -> Run:
    """The run with the idempotency key that its handler gets; without one if a manual write spoilt the template."""
    try:
        key = render_key(
            job.policy.idempotency_key_template,
            job_id=job.job_id,
            name=job.name,
            scheduled_at=run.scheduled_at,
            timezone=job.timezone,
        )
    except InvalidInput:
        key = None
    return replace(run, idempotency_key=key, job_name=job.name)
