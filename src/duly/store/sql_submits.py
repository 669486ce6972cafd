"""Jobs that the SQL function `duly.submit` has stored and Python has yet to check and plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.errors import DataRefused
from duly.model import DULY, Job, ScheduleKind
from duly.store.jobs import to_job
from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class PlannedSubmit:
    """The plan of a job that duly.submit stored, or the `reason` why there is none."""

    job_id: UUID
    version: int
    kind: ScheduleKind | None = None
    schedule: str | None = None
    target: str | None = None
    next_run_at: datetime | None = None
    reason: str | None = None
    name: str | None = None
    """Only if the job was submitted without one."""


async def remember_settings(store: Querier, *, tenant_max_jobs: int | None, payload_max_bytes: int) -> None:
    """Stores the settings that `duly.submit` obeys from now on."""
    await store.fetch("sql_submits/remember_settings", tenant_max_jobs, payload_max_bytes)


async def read(store: Querier, *, page: int) -> tuple[list[Job], list[UUID]]:
    """Jobs to plan, and the ids of those that no longer need a plan. A job submitted without a name has an empty
    one."""
    rows = await store.fetch("sql_submits/read", page)
    jobs = [to_job({**row, "name": ""} if row["unnamed"] else row) for row in rows if row["kind"] is not None]
    return jobs, [row["submitted"] for row in rows if row["kind"] is None]


async def write_plans(
    store: Querier, plans: Sequence[PlannedSubmit], *, gone: Sequence[UUID]
) -> dict[UUID, str | None]:
    """Writes plans and refusals. Returns the jobs written, each with its reason if it was refused."""
    try:
        return await _write(store, plans, gone)
    except DataRefused as error:
        # One plan is at fault, and the others must not suffer for it.
        if len(plans) > 1:
            half = len(plans) // 2
            return await write_plans(store, plans[:half], gone=gone) | await write_plans(store, plans[half:], gone=())
        if not plans or plans[0].reason is not None:
            raise
        one = plans[0]
        reason = f"its plan cannot be stored: {error}"[:500]
        return await _write(store, [PlannedSubmit(one.job_id, one.version, reason=reason)], gone)


async def _write(store: Querier, plans: Sequence[PlannedSubmit], gone: Sequence[UUID]) -> dict[UUID, str | None]:
    rows = await store.fetch(
        "sql_submits/write_plans",
        [one.job_id for one in plans],
        [one.version for one in plans],
        [one.kind for one in plans],
        [one.schedule for one in plans],
        [one.target for one in plans],
        [one.next_run_at for one in plans],
        [one.reason for one in plans],
        gone,
        [one.name for one in plans],
        DULY.note(),
    )
    return {row["job_id"]: row["reason"] for row in rows}
