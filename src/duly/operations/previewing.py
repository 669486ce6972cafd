"""Previews the occurrences of a schedule, without a job and without a database."""

from __future__ import annotations

from datetime import UTC, datetime

from duly import checks
from duly.model import DstFold, DstGap, Preview
from duly.timing import Fuel, Timetable, anchor_of, parse_schedule
from duly.timing.schedule import DAWN

MAX_COUNT = 1000


def preview(
    schedule: str | None,
    *,
    timezone: str = "UTC",
    dst_gap: DstGap = "shift",
    dst_fold: DstFold = "first",
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    after: datetime | None = None,
    count: int = 10,
) -> Preview:
    """The next `count` occurrences strictly after `after` (default: now), for a job created at that moment.

    Occurrences that DST drops do not count towards `count`, so the next real occurrence is always in the list. If
    computing more takes too long, the list ends early and the note of its last occurrence says so.
    """
    after = checks.check_moment("after", after) or datetime.now(UTC)
    start_at, end_at = checks.check_span(start_at, end_at)
    checks.check_integer("count", count, 1, MAX_COUNT)
    checks.check_text("timezone", timezone, longest=100)
    # Parsing the text and computing the list share one fuel: they are one question.
    fuel = Fuel.for_list(count)
    parsed = parse_schedule(
        schedule,
        now=after,
        timezone=timezone,
        dst_gap=dst_gap,
        dst_fold=dst_fold,
        anchor=anchor_of(start_at, after),
        starts=start_at is not None,
        fuel=fuel,
    )
    checks.check_bounds(parsed.kind, start_at=start_at, end_at=end_at, max_runs=None)
    timetable = Timetable(parsed, start_at, end_at)
    # A one-off is shown even if its time is before `after`.
    occurrences = timetable.listed(DAWN if parsed.kind == "once" else after, count, fuel)
    return Preview(parsed.kind, parsed.canonical, occurrences)
