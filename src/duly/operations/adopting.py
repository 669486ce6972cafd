"""Checking and planning jobs that came in through SQL, by the rules of every other submit."""

from __future__ import annotations

import dataclasses

from duly.config import Settings
from duly.errors import InvalidInput
from duly.model import Job, JobRequest
from duly.operations.submitting import prepare
from duly.store.newcomers import Adoption


def plan_newcomer(job: Job, settings: Settings) -> Adoption:
    """As if it had been submitted at the moment when SQL stored it: what was due since then is late, not lost."""
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(JobRequest)}
    request = JobRequest(**fields)
    try:
        planned = prepare(job.job_id, request, job.created_at, settings=settings, shard=job.shard)
    except InvalidInput as error:
        return Adoption(job.job_id, job.version, reason=f"refused when it was to be planned: {error}"[:500])
    return Adoption(
        job.job_id,
        job.version,
        kind=planned.kind,
        schedule=planned.schedule,
        target=planned.target,
        next_run_at=job.created_at if planned.immediate else planned.next_run_at,
    )
