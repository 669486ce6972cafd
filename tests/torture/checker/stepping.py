"""Finds the expected occurrences by a dumb scan: every minute and second of a span is compared with the schedule.

Shares neither code nor method with the product: no search for the next occurrence, no closed form. Understands only
the schedules of the workload: cron with 5 or 6 fields in UTC, `every …`, ISO times and `now`. For any other schedule
there is no grid (`None`); it is not checked, and the figures list it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from .records import micros, micros_or_none

SECOND = 1_000_000
MINUTE = 60 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES = {
    name: str(number)
    for names, first in (("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC", 1), ("SUN MON TUE WED THU FRI SAT", 0))
    for number, name in enumerate(names.split(), start=first)
}
_LENGTHS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_ISO_PIECE = re.compile(r"(\d+)([SMH])")
_PIECE = re.compile(r"(\d+)\s*(s|m|h|d|w)[a-z]*\s*")
# A scan for the next occurrence gives up after this many minutes.
_FARTHEST = 400 * 1440


@dataclass(frozen=True)
class Grid:
    """The occurrences of one schedule within its bounds. Times are microseconds since 1970."""

    text: str
    start_at: int | None
    end_at: int | None
    anchor: int

    @property
    def once(self) -> bool:
        return False

    def between(self, first: int, last: int) -> list[int]:
        """All occurrences from first to last, both included."""
        low = first if self.start_at is None else max(first, self.start_at)
        high = last if self.end_at is None else min(last, self.end_at)
        return self._scan(low, high) if low <= high else []

    def holds(self, at: int) -> bool:
        return self.between(at, at) == [at]

    def first_after(self, at: int) -> int | None:
        low, step = at + 1, 60 * MINUTE
        if self.start_at is not None:
            low = max(low, self.start_at)
        until = low + _FARTHEST * MINUTE
        while low < until:
            if found := self.between(low, low + step - 1):
                return found[0]
            if self.end_at is not None and low > self.end_at:
                return None
            low += step
        return None

    def _scan(self, first: int, last: int) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Interval(Grid):
    period: int

    def _scan(self, first: int, last: int) -> list[int]:
        found = []
        # A walk from the anchor would be even simpler, but too slow for a job that is a year old.
        at = self.anchor + max(0, (first - self.anchor) // self.period - 1) * self.period
        while at <= last:
            if at >= first:
                found.append(at)
            at += self.period
        return found


@dataclass(frozen=True)
class Cron(Grid):
    def _scan(self, first: int, last: int) -> list[int]:
        found = []
        minute = first // MINUTE
        while minute * MINUTE <= last:
            for second in _seconds_of(self.text, minute):
                at = minute * MINUTE + second * SECOND
                if first <= at <= last:
                    found.append(at)
            minute += 1
        return found


@dataclass(frozen=True)
class Once(Grid):
    at: int | None

    @property
    def once(self) -> bool:
        return True

    def _scan(self, first: int, last: int) -> list[int]:
        return [self.at] if self.at is not None and first <= self.at <= last else []


def grid_of(job: dict[str, Any]) -> Grid | None:
    """The grid of a row of `jobs`, or None if the scan does not understand its schedule."""
    policy = job.get("policy") or {}
    if policy.get("jitter_seconds"):
        return None
    local = (job.get("timezone") or "UTC") not in ("UTC", "Etc/UTC")
    if local and (job.get("kind") == "rrule" or not _is_same_everywhere(str(job["schedule"]))):
        return None
    start_at, end_at = micros_or_none(job.get("start_at")), micros_or_none(job.get("end_at"))
    return make_grid(str(job["schedule"]), start_at, end_at, micros(job["created_at"]))


@lru_cache(maxsize=20_000)
def make_grid(schedule: str, start_at: int | None, end_at: int | None, created_at: int) -> Grid | None:
    anchor = created_at if start_at is None else start_at
    bounds = (start_at, end_at, anchor)
    text = schedule.strip()
    if text.lower() == "now":
        return Once(text, None, None, anchor, None)
    if text.lower().startswith("every "):
        length = _length(text[6:].lower())
        return None if length is None else Interval(text, *bounds, length)
    if re.fullmatch(r"PT(\d+[SMH])+", text):
        length = sum(int(number) * _LENGTHS[unit.lower()] for number, unit in _ISO_PIECE.findall(text)) * SECOND
        return Interval(text, *bounds, length) if length else None
    if re.match(r"\d{4}-\d\d-\d\dT", text):
        return Once(text, None, None, anchor, micros(text))
    fields = text.split()
    if len(fields) not in (5, 6):
        return None
    try:
        _read(" ".join(fields))
    except ValueError:
        return None
    return Cron(" ".join(fields), *bounds)


def _is_same_everywhere(schedule: str) -> bool:
    """Whether the schedule means the same in every time zone: intervals, instants, cron that restricts seconds only."""
    text = schedule.strip()
    if text.lower().startswith("every ") or text.startswith("PT") or text.lower() == "now":
        return True
    if re.match(r"\d{4}-", text):
        return text.endswith("Z") or re.search(r"[+-]\d\d:\d\d$", text) is not None
    return text.split()[1:] == ["*"] * 5


def same_times(asked: str, stored: str) -> bool:
    """Whether two spellings mean the same times: `PT60S` may be stored as `every 1m`."""
    one, other = make_grid(asked, None, None, 0), make_grid(stored, None, None, 0)
    match one, other:
        case Interval(), Interval():
            return one.period == other.period
        case Once(), Once():
            # A submitted `now` is stored as the moment of the submit.
            return one.at is None or one.at == other.at
        case Cron(), Cron():
            mine, theirs = _read(one.text), _read(other.text)
            # A star matters only in the two day fields: it decides whether one of them must fit or both.
            days = [field[1] for field in (mine[3], mine[5])] == [field[1] for field in (theirs[3], theirs[5])]
            return days and [field[0] for field in mine] == [field[0] for field in theirs]
        case None, None:
            return asked.strip().lower() == stored.strip().lower()
        case _:
            return False


def _length(text: str) -> int | None:
    at = total = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            return None
        total += int(piece[1]) * _LENGTHS[piece[2]]
        at = piece.end()
    return total * SECOND or None


_Field = tuple[frozenset[int], bool]


@lru_cache(maxsize=2_000)
def _read(text: str) -> tuple[_Field, ...]:
    """(second, minute, hour, day, month, weekday): the values of each, and whether it begins with a star."""
    fields = text.split()
    if len(fields) == 5:
        fields = ["0", *fields]
    ranges = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
    return tuple(_read_field(field, low, high) for field, (low, high) in zip(fields, ranges, strict=True))


def _read_field(text: str, low: int, high: int) -> _Field:
    values: set[int] = set()
    for part in text.upper().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = int(_NAMES.get(first, first))
            end = int(_NAMES.get(last, last)) if dash else (high if step else begin)
        if not low <= begin <= end <= high:
            raise ValueError(text)
        values.update(range(begin, end + 1, int(step or 1)))
    return frozenset(values), text.startswith("*")


@lru_cache(maxsize=500_000)
def _seconds_of(text: str, minute_number: int) -> tuple[int, ...]:
    """The seconds of this minute (counted since 1970) that the expression names."""
    second, minute, hour, day, month, weekday = _read(text)
    local = _EPOCH + timedelta(minutes=minute_number)
    if local.minute not in minute[0] or local.hour not in hour[0] or local.month not in month[0]:
        return ()
    week = local.isoweekday()
    in_week = week in weekday[0] or (week == 7 and 0 in weekday[0])
    in_month = local.day in day[0]
    # If both day fields are restricted, one of them must fit; otherwise both.
    fits = (in_month or in_week) if not (day[1] or weekday[1]) else (in_month and in_week)
    return tuple(sorted(second[0])) if fits else ()
