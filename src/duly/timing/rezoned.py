"""Where a plan goes when the rules of its zone change between the plan and its time.

A plan is an instant by the rules of then. What it stands for is a local time, which by the rules of now is another
instant: that is where it goes. So each local occurrence comes once: not at eight, which was to be nine, and then at
nine again.
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

# Plans lie in the future, most of them near; a rule without an end shows within a few years.
_BACK, _AHEAD = timedelta(days=370), timedelta(days=6 * 366)
_TZID = re.compile(r"TZID=([^:;\s]+)")


def is_rezoned(kind: ScheduleKind, schedule: str, timezone: str) -> bool:
    """Whether a job's plan may be by other rules than those of now."""
    if changed_since() is None or kind == "interval":
        return False
    return any(before(zone) is not None for zone in _zones(schedule, timezone))


def carried(
    definition: Definition, job_id: UUID, expected: datetime, *, planned: datetime | None, now: datetime
) -> datetime:
    """Where the plan for `expected` goes; `expected` itself where it is by the rules of now, or not by any.

    `planned` is when the plan was made: the last run, or the last change of the job. A plan that was made since the
    rules changed is by the new ones, unless it is no occurrence by them and was one by the old: then whoever made it
    had not heard of the change.
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
    # What lies before the plan is answered for, and so is what has run.
    bounds = [expected - MICROSECOND]
    if planned is not None and planned < expected:
        bounds.append(planned)
    if timetable.schedule.on_elapsed_time:
        # It goes on with the time: an hour more on the clock is no hour of silence.
        bounds = [min(bounds[0], now), *bounds[1:]]
    elif timetable.schedule.start_local == old.schedule.start_local:
        bounds = [_same_local(bound, old, timetable, definition.policy.dst_fold) for bound in bounds] + bounds[1:]
    # Else the rules say another time of day for the moment at which the job was made: its instants stay.
    return timetable.next(max(bounds), fuel) or expected


def differing(old: Mapping[str, bytes], new: Mapping[str, bytes], around: datetime) -> dict[str, bytes]:
    """Those of the old rules that say something else than the new ones about the years around a moment.

    By what they say: the same rules can be written in several ways.
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
