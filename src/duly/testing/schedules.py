"""When a schedule occurs, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.checks import check_moment, plan_schedule
from duly.errors import InvalidInput
from duly.model import DstFold, DstGap, JobRequest, Policy
from duly.timing import EACH, Definition, Fuel

# More than every second for a week: far beyond what a test looks at, far below what fills a machine's memory.
LIMIT = 1_000_000
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
    """When a job with this schedule, submitted at `start`, occurs until `end` (which is included), in UTC.

    Without `start` from now on; without `end` for 365 days. The schedule is read and planned as a submit would do it,
    so what a submit refuses is refused here, with the same error.
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
        if len(found) == LIMIT:
            raise InvalidInput("end", f"is too far away: there are more than {LIMIT:,} occurrences before it")
        found.append(moment)
        moment = timetable.next(moment, fuel)
        # However many there are, each of them is as dear as one of an ordinary rule at most.
        fuel.left += EACH
    return found
