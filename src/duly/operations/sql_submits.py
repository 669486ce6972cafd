"""Checks and plans jobs that were submitted by SQL, by the rules of every other submit."""

from __future__ import annotations

import dataclasses
import logging

from duly.config import Settings
from duly.errors import InvalidInput
from duly.model import Job, JobRequest
from duly.operations.preparing import prepare
from duly.store.sql_submits import PlannedSubmit

log = logging.getLogger("duly.maintenance")


def plan_sql_submit(job: Job, settings: Settings) -> PlannedSubmit:
    """Plans the job as of the moment when SQL stored it: occurrences due since then are late, not lost."""
    assert job.shard is not None
    fields = {
        field.name: getattr(job, field.name) for field in dataclasses.fields(JobRequest) if field.name != "chosen"
    }
    fields["name"] = job.name or None
    try:
        if job.unreadable is not None:
            raise InvalidInput("job", job.unreadable)
        planned = prepare(
            job.job_id, JobRequest(**fields), job.created_at, tenant=job.tenant, settings=settings, shard=job.shard
        )
    except InvalidInput as error:
        return PlannedSubmit(job.job_id, job.version, reason=f"refused when it was to be planned: {error}"[:500])
    except Exception as error:
        # A fault of Duly itself fails only this job: the other jobs are planned.
        log.exception("job %s that came in through SQL cannot be planned", job.job_id)
        reason = f"could not be planned: {type(error).__name__}: {error}"
        return PlannedSubmit(job.job_id, job.version, reason=reason[:500])
    return PlannedSubmit(
        job.job_id,
        job.version,
        kind=planned.kind,
        schedule=planned.schedule,
        target=planned.target,
        next_run_at=job.created_at if planned.immediate else planned.next_run_at,
        name=None if job.name else planned.name,
    )
