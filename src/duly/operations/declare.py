"""Jobs that an application's code declares: submitted once, and brought up to date with the code at every deploy.

A deploy meets a job at any moment of its life. So it changes the job as a client's edit does (`JobOperations.rewrite`):
only fields that differ, the plan only if the timing differs, and nothing that a fire has decided meanwhile.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from duly.errors import Conflict, InvalidInput
from duly.model import Job, JobRequest
from duly.operations.core import Core
from duly.operations.jobs import JobOperations
from duly.operations.preparing import check_rights
from duly.operations.revising import redefine
from duly.operations.rights import EVERYTHING
from duly.operations.submits import SubmitOperations
from duly.store import jobs
from duly.store.jobs import ChangedJob


class DeclareOperations:
    """Declared jobs of one tenant."""

    def __init__(self, core: Core, tenant: str, *, jobs: JobOperations, submits: SubmitOperations) -> None:
        self._core = core
        self._pool = core.pool
        self._tenant = tenant
        self._jobs = jobs
        self._submits = submits

    async def declare(self, request: JobRequest) -> UUID:
        """Create the job of the request's dedupe_key, or change it to what the request says. Returns its id.

        A paused job stays paused, a cancelled one stays cancelled.
        """
        check_rights(request, EVERYTHING, await self._core.bounds(self._tenant))
        now = self._core.now()
        row = self._submits.prepare(request, now)
        if row.dedupe_key is None:
            raise InvalidInput("dedupe_key", "is required: a declared job is identified by it")
        if row.immediate:
            raise InvalidInput("schedule", "of a declared job must be a time or recurring, not now")

        def redefined(job: Job, now: datetime) -> ChangedJob | None:
            return None if job.status == "cancelled" else redefine(job, request, row, now=now)

        def retimes(job: Job) -> bool:
            change = redefined(job, self._core.now())
            return change is not None and change.planned_anew

        for _ in range(10):
            if await jobs.submit(self._pool, [row], created_at=now):
                return row.job_id
            existing = await jobs.find_duplicates(self._pool, [(self._tenant, row.dedupe_key)])
            if (found := existing.get((self._tenant, row.dedupe_key))) is None:
                continue
            job_id, fingerprint = found
            if fingerprint == row.fingerprint:
                return job_id
            job, changed = await self._jobs.rewrite(job_id, redefined, retimes=retimes)
            if changed or (job is not None and job.status == "cancelled"):
                return job_id
            # The job already is what the code says: an edit or another node of this deploy changed it.
            if job is not None and await jobs.agree(self._pool, job, fingerprint=row.fingerprint):
                return job_id
        raise Conflict(f"job {request.name or request.handler!r} is being redefined by others; try again")
