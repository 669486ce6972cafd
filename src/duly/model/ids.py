"""A run's id, derived from (job, scheduled_at) and never stored, and microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 in UTC: exact, unlike `timestamp()`."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def make_run_id(job_id: UUID, scheduled_at: datetime) -> str:
    # Offset by 2**62 so that times before 1970 stay non-negative and ids sort by time within a job.
    return f"{job_id}-{to_micros(scheduled_at) + (1 << 62):016x}"


def parse_run_id(run_id: str) -> tuple[UUID, datetime] | None:
    """The (job, scheduled_at) behind a run id, or None if it is not one."""
    job_text, _, micros_text = run_id.rpartition("-")
    if len(micros_text) != 16:
        return None
    try:
        return UUID(job_text), from_micros(int(micros_text, 16) - (1 << 62))
    except (ValueError, OverflowError):
        return None
