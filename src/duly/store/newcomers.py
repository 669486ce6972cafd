"""Jobs that the SQL function `duly.submit` has stored and Python has yet to check and plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.errors import DataRefused
from duly.model import Job, ScheduleKind
from duly.store.jobs import to_job
from duly.store.pool import Executor


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of a newcomer: its plan, or the `reason` why there is none."""

    job_id: UUID
    version: int
    kind: ScheduleKind | None = None
    schedule: str | None = None
    target: str | None = None
    next_run_at: datetime | None = None
    reason: str | None = None
    name: str | None = None
    """Only if it was submitted without one."""


async def remember_settings(store: Executor, *, tenant_max_jobs: int | None, payload_max_bytes: int) -> None:
    """What `duly.submit` is to heed from now on."""
    await store.fetch("newcomers/settings", tenant_max_jobs, payload_max_bytes)


async def read(store: Executor, *, page: int) -> tuple[list[Job], list[UUID]]:
    """Jobs to plan, and the ids of those that need no plan any more. The name of one submitted without any is empty."""
    rows = await store.fetch("newcomers/read", page)
    jobs = [to_job({**row, "name": ""} if row["unnamed"] else row) for row in rows if row["kind"] is not None]
    return jobs, [row["newcomer"] for row in rows if row["kind"] is None]


async def adopt(store: Executor, adoptions: Sequence[Adoption], *, gone: Sequence[UUID]) -> dict[UUID, str | None]:
    """Write plans and refusals. Returns those that were written, each with its reason if it was refused."""
    try:
        return await _adopt(store, adoptions, gone)
    except DataRefused as error:
        # One of them is at fault, and the others must not pay for it.
        if len(adoptions) > 1:
            half = len(adoptions) // 2
            return await adopt(store, adoptions[:half], gone=gone) | await adopt(store, adoptions[half:], gone=())
        if not adoptions or adoptions[0].reason is not None:
            raise
        one = adoptions[0]
        reason = f"its plan cannot be stored: {error}"[:500]
        return await _adopt(store, [Adoption(one.job_id, one.version, reason=reason)], gone)


async def _adopt(store: Executor, adoptions: Sequence[Adoption], gone: Sequence[UUID]) -> dict[UUID, str | None]:
    rows = await store.fetch(
        "newcomers/adopt",
        [one.job_id for one in adoptions],
        [one.version for one in adoptions],
        [one.kind for one in adoptions],
        [one.schedule for one in adoptions],
        [one.target for one in adoptions],
        [one.next_run_at for one in adoptions],
        [one.reason for one in adoptions],
        gone,
        [one.name for one in adoptions],
    )
    return {row["job_id"]: row["reason"] for row in rows}
