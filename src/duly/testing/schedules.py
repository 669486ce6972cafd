"""The occurrences of a schedule, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.checks import check_moment, plan_schedule
from duly.errors import InvalidInput
from duly.model import DstFold, DstGap, JobRequest, Policy
from duly.timing import EACH, Definition, Fuel

# More than one per second for a week: far beyond what a test reads, far below what fills a machine's memory.
MAX_OCCURRENCES = 1_000_000
# Only jitter depends on a job's id, and there is none here.
_ANY_JOB = UUID(int=0)


def occurrences(
    schedule: str,
    *,
    timezone: str = "UTC",
    start: datetime | None = None,
    end: datetime | None = None,
    dst_gap: DstGap = "shift",
    dst_fold: DstFold = "first",
) -> list[datetime]:
    """The times, in UTC, at which a job with this schedule, submitted at `start`, occurs until `end` (included).

    `start` defaults to now, `end` to 365 days later. The schedule is read and planned as by a submit, so a schedule
    that a submit refuses is refused here with the same error.
    """
    begin = check_moment("start", start) or datetime.now(UTC)
    last = check_moment("end", end) or begin + timedelta(days=365)
    if last < begin:
        raise InvalidInput("end", f"must not be before start ({begin.isoformat()})")
    policy = Policy(dst_gap=dst_gap, dst_fold=dst_fold)
    request = JobRequest("occurrences", schedule=schedule, timezone=timezone, policy=policy)
    plan = plan_schedule(request, now=begin, job_id=_ANY_JOB, created_at=begin)
    if plan.kind == "once":
        only = plan.first or begin
        return [only] if only <= last else []
    timetable = Definition(plan.kind, plan.canonical, timezone, None, None, begin, policy).timetable(_ANY_JOB)
    found: list[datetime] = []
    moment, fuel = plan.first, Fuel()
    while moment is not None and moment <= last:
        if len(found) == MAX_OCCURRENCES:
            raise InvalidInput(
                "end", f"is too far away: there would be more than {MAX_OCCURRENCES:,} occurrences before it"
            )
        found.append(moment)
        moment = timetable.next(moment, fuel)
        # Each occurrence adds its own budget, so that the length of the list does not exhaust it.
        fuel.left += EACH
    return found
