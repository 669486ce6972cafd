"""Moves a planned occurrence when the rules of its zone change between the plan and its time.

A plan is an instant computed by the rules of its day. It stands for a local time, which is another instant by the
current rules: the plan moves there. So each local occurrence fires once, and not at eight (the old instant of nine
o'clock) and then at nine again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from duly.model import DstFold, ScheduleKind

from .definition import Definition
from .dst import instant_of, shifts_between
from .fuel import Fuel
from .schedule import DAWN, MICROSECOND
from .timetable import Timetable
from .zones import before, changed_since

# Plans are in the future, most of them near; rules that differ for good do so within a few years.
_BACK, _AHEAD = timedelta(days=370), timedelta(days=6 * 366)
_TZID = re.compile(r"TZID=([^:;\s]+)")


def is_rezoned(kind: ScheduleKind, schedule: str, timezone: str) -> bool:
    """Whether a job's plan may have been made by other rules than the current ones."""
    if changed_since() is None or kind == "interval":
        return False
    return any(before(zone) is not None for zone in _zones(schedule, timezone))


def carried(
    definition: Definition, job_id: UUID, expected: datetime, *, planned: datetime | None, now: datetime
) -> datetime:
    """The new time of a plan for `expected`; `expected` itself if it follows the current rules, or no rules at all.

    `planned` is when the plan was made: the last run, or the last change of the job. A plan made after the rules
    changed follows the new ones, unless `expected` is an occurrence by the old rules only: then the node that made it
    did not know of the change yet.
    """
    schedule, timezone = definition.schedule, definition.timezone
    if not is_rezoned(definition.kind, schedule, timezone):
        return expected
    fuel = Fuel()
    since, timetable = changed_since(), definition.timetable(job_id, fuel)
    old = definition._replace(
        schedule=_TZID.sub(lambda one: f"TZID={before(one[1]) or one[1]}", schedule),
        timezone=before(timezone) or timezone,
    ).timetable(job_id, fuel)
    if not old.occurs_at(expected, fuel):
        return expected
    if planned is not None and since is not None and planned >= since and timetable.occurs_at(expected, fuel):
        return expected
    if definition.kind == "once":
        return timetable.next(DAWN, fuel) or expected
    # Everything before the plan, and everything that has run, is already covered.
    bounds = [expected - MICROSECOND]
    if planned is not None and planned < expected:
        bounds.append(planned)
    if timetable.schedule.on_elapsed_time:
        # The schedule follows elapsed time: a clock that moves forward an hour must not cause an hour without runs.
        bounds = [min(bounds[0], now), *bounds[1:]]
    elif timetable.schedule.start_local == old.schedule.start_local:
        bounds = [_same_local(bound, old, timetable, definition.policy.dst_fold) for bound in bounds] + bounds[1:]
    # Otherwise the rules give the job's start another time of day: its instants stay.
    return timetable.next(max(bounds), fuel) or expected


def differing(old: Mapping[str, bytes], new: Mapping[str, bytes], around: datetime) -> dict[str, bytes]:
    """The old rules of those zones whose rules differ in the years around a moment.

    Compared by meaning: equal rules can be written in several ways.
    """
    first, last = around - _BACK, around + _AHEAD
    found = {}
    for name, data in old.items():
        if name in new and data != new[name]:
            zones = [ZoneInfo.from_file(io.BytesIO(one), key=name) for one in (data, new[name])]
            changes = [[(one.at, one.after) for one in shifts_between(first, last, zone)] for zone in zones]
            if changes[0] != changes[1] or len({first.astimezone(zone).utcoffset() for zone in zones}) > 1:
                found[name] = data
    return found


def _zones(schedule: str, timezone: str) -> Iterator[str]:
    yield timezone
    yield from _TZID.findall(schedule)


def _same_local(moment: datetime, old: Timetable, new: Timetable, fold: DstFold) -> datetime:
    """The instant at which the clocks of the schedule's zone show by the new rules what they showed by the old ones."""
    local = (moment - old.offset).astimezone(old.schedule.local_zone)
    second = fold == "second" or local.fold == 1
    return instant_of(local.replace(tzinfo=None, fold=0), new.schedule.local_zone, second=second) + new.offset
