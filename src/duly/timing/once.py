"""One-off schedules: at an instant, or at a local time that the zone's rules turn into one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar
from zoneinfo import ZoneInfo

from duly.errors import InvalidSchedule
from duly.formats import quote
from duly.model import DstFold, DstGap, Occurrence, ScheduleKind

from .dst import exists, gap_text, next_instant, walk_instants
from .fuel import Fuel
from .schedule import DAWN, Schedule, count_by_walking

_MAX_CHARS = 40
_DATE = re.compile(r"\d{4}-?\d\d-?\d\d(?:[Tt ]|$)|\d{4}-?[Ww]\d\d|\d{4}-", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class OnceSchedule(Schedule):
    """One instant."""

    kind: ClassVar[ScheduleKind] = "once"

    canonical: str
    zone: ZoneInfo
    at: datetime

    @property
    def identity(self) -> tuple[object, ...]:
        return "once", self.zone.key, self.at

    def next(self, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        return self.at if self.at > after else None

    def count(self, after: datetime, until: datetime, limit: int, fuel: Fuel | None = None) -> int:
        return int(after < self.at <= until)


@dataclass(frozen=True, slots=True, eq=False)
class LocalOnceSchedule(Schedule):
    """One local time. It fires once: if the time occurs twice and `dst_fold` is `both`, at the first."""

    kind: ClassVar[ScheduleKind] = "once"

    canonical: str
    zone: ZoneInfo
    local: datetime
    dst_gap: DstGap
    dst_fold: DstFold

    @property
    def identity(self) -> tuple[object, ...]:
        return "once", self.zone.key, self.local, self.dst_gap, self.dst_fold

    def next(self, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        return next_instant(self._next_local, after, self.zone, self.dst_gap, self._fold, fuel or Fuel())

    def walk(self, after: datetime, fuel: Fuel | None = None) -> Iterator[Occurrence]:
        return walk_instants(self._next_local, after, self.zone, self.dst_gap, self._fold, fuel or Fuel())

    def count(self, after: datetime, until: datetime, limit: int, fuel: Fuel | None = None) -> int:
        return count_by_walking(self, after, until, limit, fuel or Fuel())

    @property
    def _fold(self) -> DstFold:
        return "first" if self.dst_fold == "both" else self.dst_fold

    def _next_local(self, after: datetime, fuel: Fuel) -> datetime | None:
        return self.local if self.local > after else None


def is_once(text: str) -> bool:
    """Whether the text is meant as a date or time, valid or not."""
    return _DATE.match(text) is not None


def make_once_at(moment: datetime, zone: ZoneInfo) -> OnceSchedule:
    moment = moment.astimezone(UTC)
    return OnceSchedule(moment.isoformat().replace("+00:00", "Z"), zone, moment)


def make_once_now(zone: ZoneInfo) -> OnceSchedule:
    """The schedule of a stored `now`: it was due when the job was created, and has no later occurrence."""
    return OnceSchedule("now", zone, DAWN)


def make_once(text: str, zone: ZoneInfo, dst_gap: DstGap, dst_fold: DstFold) -> Schedule:
    """Parses ISO 8601: an instant if it has an offset, otherwise a local time."""
    try:
        if len(text) > _MAX_CHARS or not text.isascii():
            raise ValueError(text)
        moment = datetime.fromisoformat(text.upper())
        if moment.tzinfo is not None:
            return make_once_at(moment, zone)
        schedule = LocalOnceSchedule(moment.isoformat(), zone, moment, dst_gap, dst_fold)
        if schedule.next(DAWN) is not None:
            return schedule
        missing = not exists(moment, zone)
    except (ValueError, OverflowError) as error:
        raise InvalidSchedule(
            f"{quote(text)} is not an ISO 8601 time, use for example 2026-03-08T09:30:00Z or 2026-03-08T09:30",
            part="time",
        ) from error
    if missing:
        raise InvalidSchedule(f"{text} does not exist: {gap_text(moment, zone)}; choose another time", part="time")
    raise InvalidSchedule(f"{text} is outside the years that can be scheduled", part="time")
