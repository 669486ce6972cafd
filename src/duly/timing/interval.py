"""Intervals: anchor + n × period on the time line itself, so that no change of any clock and no slow run moves them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import ClassVar
from zoneinfo import ZoneInfo

from duly.errors import InvalidSchedule
from duly.formats import quote
from duly.model import ScheduleKind

from .fuel import Fuel
from .schedule import Schedule

_MAX_CHARS = 100
_UNITS = {
    "w": 604_800, "week": 604_800, "weeks": 604_800,
    "d": 86_400, "day": 86_400, "days": 86_400,
    "h": 3_600, "hr": 3_600, "hrs": 3_600, "hour": 3_600, "hours": 3_600,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
}  # fmt: skip
_ISO_DATE_UNITS = {"W": 604_800, "D": 86_400}
_ISO_TIME_UNITS = {"H": 3_600, "M": 60, "S": 1}
_PIECE = re.compile(r"\s*(\d{0,10})\s*([a-z]+)\s*", re.ASCII)
_ISO_PIECE = re.compile(r"(\d{1,10})([A-Z])", re.ASCII)
_MAX_SECONDS = 36_500 * 86_400  # a hundred years, so that no sum of pieces leaves the calendar's range
_EXAMPLES = "use for example every 15m, every 1h30m, PT15M or rate(5 minutes)"


@dataclass(frozen=True, slots=True, eq=False)
class IntervalSchedule(Schedule):
    """The n-th occurrence is anchor + n × period, n from 0."""

    kind: ClassVar[ScheduleKind] = "interval"

    canonical: str
    zone: ZoneInfo
    anchor: datetime
    period: timedelta

    @property
    def identity(self) -> tuple[object, ...]:
        return "interval", self.canonical, self.zone.key, self.anchor

    def next(self, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        if after < self.anchor:
            return self.anchor
        try:
            return self.anchor + ((after - self.anchor) // self.period + 1) * self.period
        except OverflowError:  # past the year 9999
            return None

    def count(self, after: datetime, until: datetime, limit: int, fuel: Fuel | None = None) -> int:
        through_until = max(-1, (until - self.anchor) // self.period)
        through_after = max(-1, (after - self.anchor) // self.period)
        return max(0, through_until - through_after)


def is_interval(text: str) -> bool:
    """Whether the text is meant as an interval, valid or not."""
    lowered = text[:8].lower()
    return (
        lowered.startswith(("every ", "every\t", "rate("))
        or lowered == "every"
        or re.match(r"P[0-9T]", text) is not None
    )


def make_interval(text: str, zone: ZoneInfo, anchor: datetime) -> IntervalSchedule:
    seconds, canonical = read_interval(text)
    return IntervalSchedule(canonical, zone, anchor.astimezone(UTC), timedelta(seconds=seconds))


@lru_cache(maxsize=1024)
def read_interval(text: str) -> tuple[int, str]:
    """(seconds, canonical text) of an interval in any spelling, or `InvalidSchedule`."""
    if len(text) > _MAX_CHARS:
        raise _error(f"an interval of {len(text)} characters, {_EXAMPLES}")
    if text.startswith("P"):
        seconds = _read_iso(text)
    elif text[:5].lower() == "rate(":
        if not text.endswith(")"):
            raise _error("rate( without its ), use for example rate(5 minutes)")
        seconds = _read_words(text[5:-1])
    else:
        seconds = _read_words(text[5:])
    if seconds < 1:
        raise _error("an interval of nothing, the shortest is 1 second")
    if seconds > _MAX_SECONDS:
        raise _error("an interval of more than a hundred years, use less")
    return seconds, _spell(seconds)


def _read_words(text: str) -> int:
    lowered = text.lower()
    if "." in lowered:
        raise _error(f"{quote(text.strip())} has a fraction, use whole numbers such as every 1h30m")
    total, at = 0, 0
    seen: set[int] = set()
    while at < len(lowered):
        piece = _PIECE.match(lowered, at)
        if piece is None:
            raise _error(f"{quote(lowered[at:].strip())} is not an interval, {_EXAMPLES}")
        number, word = piece.groups()
        unit = _UNITS.get(word)
        if unit is None:
            raise _error(f"{quote(word)} is not a unit, use s, m, h, d or w")
        if unit in seen:
            raise _error(f"the unit {word} is there twice")
        if not number and len(lowered.split()) != 1:  # "every hour" is one hour; "every 1h m" is a mistake
            raise _error(f"no number before {word}, {_EXAMPLES}")
        seen.add(unit)
        total += unit * int(number or 1)
        at = piece.end()
    if not seen:
        raise _error(f"no length, {_EXAMPLES}")
    return total


def _read_iso(text: str) -> int:
    date_part, has_time, time_part = text[1:].partition("T")
    if "Y" in date_part or "M" in date_part:
        raise _error("months and years have no fixed length, use cron or an RRULE for them")
    if has_time and not time_part:
        raise _error(f"{quote(text)} has nothing after T, use for example PT15M")
    total = 0
    for part, units in ((date_part, _ISO_DATE_UNITS), (time_part, _ISO_TIME_UNITS)):
        at = 0
        order = list(units)
        while at < len(part):
            piece = _ISO_PIECE.match(part, at)
            if piece is None or piece[2] not in order:
                raise _error(f"{quote(text)} is not an ISO 8601 duration in whole numbers, use for example PT1H30M")
            order = order[order.index(piece[2]) + 1 :]
            total += int(piece[1]) * units[piece[2]]
            at = piece.end()
    return total


def _spell(seconds: int) -> str:
    """One spelling per length. Days only when there are several: `every 24h` says that it is not a calendar day."""
    if seconds % 86_400 == 0 and seconds > 86_400:
        return f"every {seconds // 86_400}d"
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    pieces = ((hour, "h"), (minute, "m"), (second, "s"))
    return "every " + "".join(f"{number}{unit}" for number, unit in pieces if number)


def _error(message: str) -> InvalidSchedule:
    return InvalidSchedule(f"interval: {message}", part="interval")
