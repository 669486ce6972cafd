"""The fields of a job that decide when it occurs, as one value, and the timetable that follows from them."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Protocol, Self
from uuid import UUID

from duly.model import DstFold, DstGap, Policy, ScheduleKind

from .cache import LONG_SIZE, SHORT, SIZE
from .fuel import LENT, Fuel
from .interval import make_interval
from .parse import read_schedule
from .schedule import DAWN, MICROSECOND, Schedule
from .timetable import NO_OFFSET, Timetable, jitter_offset
from .zones import load_zone, when_forgotten


class Timed(Protocol):
    """A value that has a job's timing fields, except for the policy, which some hold as stored text."""

    @property
    def kind(self) -> ScheduleKind: ...
    @property
    def schedule(self) -> str: ...
    @property
    def timezone(self) -> str: ...
    @property
    def start_at(self) -> datetime | None: ...
    @property
    def end_at(self) -> datetime | None: ...
    @property
    def created_at(self) -> datetime: ...


def anchor_of(start_at: datetime | None, created_at: datetime) -> datetime:
    """The moment from which an interval, or a rule without DTSTART, counts."""
    return start_at or created_at


class Definition(NamedTuple):
    """The timing of one job. Of the policy, `dst_gap`, `dst_fold` and `jitter_seconds` matter."""

    kind: ScheduleKind
    schedule: str
    """The canonical text."""
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    created_at: datetime
    policy: Policy

    @classmethod
    def of(cls, job: Timed, policy: Policy) -> Self:
        return cls(job.kind, job.schedule, job.timezone, job.start_at, job.end_at, job.created_at, policy)

    def __str__(self) -> str:
        return self.schedule if self.kind == "interval" else f"{self.schedule} {self.timezone}"

    def timetable(self, job_id: UUID, fuel: Fuel | None = None) -> Timetable:
        """The occurrences of the job with this id, which decides its jitter.

        Half a million jobs with a few hundred distinct schedules parse a few hundred times, and jobs that differ in
        nothing but their id get the very same object, which is what lets the scheduler plan them together.
        Raises `InvalidInput` on `timezone` when the zone is gone from the time-zone data.
        """
        kind, schedule, timezone, start_at, end_at, created_at, policy = self
        anchor = anchor_of(start_at, created_at)
        offset = jitter_offset(job_id, policy.jitter_seconds) if policy.jitter_seconds else NO_OFFSET
        starts = start_at is not None
        if offset and start_at is None and kind != "once":
            # Jitter must not pull in an occurrence from before the job was there.
            start_at = anchor + MICROSECOND
        if kind == "interval":
            # Each job has its own anchor, so there is nothing to share but the reading of the text.
            return Timetable(make_interval(schedule, load_zone(timezone), anchor), start_at, end_at, offset)
        if kind == "once":
            one_off = read_schedule(schedule, timezone, policy.dst_gap, policy.dst_fold, anchor)
            # A stored `now` stands for a moment that is over: jitter would move it behind what searches begin with.
            return Timetable(one_off, start_at, end_at, NO_OFFSET if one_off.canonical == "now" else offset)
        anchored = kind == "rrule" and "DTSTART" not in schedule
        key = (schedule, timezone, policy.dst_gap, policy.dst_fold, anchor if anchored else None, starts)
        token = None if fuel is None else LENT.set(fuel)
        try:
            short = len(schedule) <= SHORT
            if offset:
                parsed = _parsed(*key) if short else _parsed_long(*key)
                return Timetable(parsed, start_at, end_at, offset)
            return _shared(*key, start_at, end_at) if short else _shared_long(*key, start_at, end_at)
        finally:
            if token is not None:
                LENT.reset(token)


def _parse(
    text: str, timezone: str, dst_gap: DstGap, dst_fold: DstFold, anchor: datetime | None, starts: bool
) -> Schedule:
    anchor = DAWN if anchor is None else anchor
    return read_schedule(text, timezone, dst_gap, dst_fold, anchor, starts=starts, fuel=LENT.get())


_parsed = lru_cache(maxsize=SIZE)(_parse)
_parsed_long = lru_cache(maxsize=LONG_SIZE)(_parse)


def _share(
    text: str,
    timezone: str,
    dst_gap: DstGap,
    dst_fold: DstFold,
    anchor: datetime | None,
    starts: bool,
    start_at: datetime | None,
    end_at: datetime | None,
) -> Timetable:
    parsed = _parsed if len(text) <= SHORT else _parsed_long
    return Timetable(parsed(text, timezone, dst_gap, dst_fold, anchor, starts), start_at, end_at)


_shared = lru_cache(maxsize=SIZE)(_share)
_shared_long = lru_cache(maxsize=LONG_SIZE)(_share)

for _cache in (_parsed, _parsed_long, _shared, _shared_long):
    when_forgotten(_cache.cache_clear)
