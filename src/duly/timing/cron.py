"""Cron: the search for the next matching local time, day by day through month masks, and its mapping to instants.

A month's matching days depend only on its length and the weekday of its first day: 28 shapes. Each shape becomes one
bit mask, made when first needed, so a search looks at one integer per month and never at a day that does not match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from typing import ClassVar
from zoneinfo import ZoneInfo

from duly.errors import InvalidSchedule
from duly.model import DstFold, DstGap, Occurrence, ScheduleKind

from .calendar_days import is_leap
from .cron_text import CronFields, read_cron
from .dst import Gap, count_instants, dropped_instants, next_instant, walk_instants
from .fuel import Fuel
from .schedule import Schedule

# Years. The calendar repeats after 400 of them, weekdays included: a date not found in them never comes.
_CYCLE = 400
_CYCLE_MONTHS = 12 * _CYCLE
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def month_shape(year: int, month: int) -> tuple[int, int]:
    """(days in the month, weekday of its first day with Monday = 0)."""
    length = _LENGTHS[month]
    if month == 2 and is_leap(year):
        length = 29
    return length, date(year, month, 1).weekday()


class CronPattern:
    """A cron expression as a set of naive local times, without a zone."""

    __slots__ = ("_masks", "_years", "fields")

    def __init__(self, fields: CronFields) -> None:
        self.fields = fields
        self._masks: dict[tuple[int, int], int] = {}
        self._years: dict[tuple[bool, int], int] = {}
        self._refuse_if_never()

    def next_local(self, after: datetime, fuel: Fuel) -> datetime | None:
        """The first matching local time strictly after a naive one, or None up to the end of the year 9999."""
        year, month, day = after.year, after.month, after.day
        months, times = self.fields.months, self.fields.times
        fuel.burn()
        mask = self._mask(year, month) if month in months else 0
        if mask >> day & 1:
            clock = times.after(after.hour, after.minute, after.second)
            if clock is not None:
                return datetime(year, month, day, *clock)  # noqa: DTZ001 - naive local time
        mask = mask >> (day + 1) << (day + 1)
        for looked in range(_CYCLE_MONTHS + 1):
            if looked & 7 == 7:
                fuel.burn(3)
            if mask:
                day = (mask & -mask).bit_length() - 1
                return datetime(year, month, day, *times.first)  # noqa: DTZ001 - naive local time
            month += 1
            if month == 13:
                year, month = year + 1, 1
                if year > 9999:
                    return None
            mask = self._mask(year, month) if month in months else 0
        return None

    def count_local(self, first: datetime, last: datetime, fuel: Fuel) -> int:
        """The number of matching local times in (first, last]."""
        days = self._count_days(first.date(), last.date(), fuel)
        return self._count_through(last) - self._count_through(first) + days * len(self.fields.times)

    def _count_through(self, moment: datetime) -> int:
        """The number of matches on the day of `moment`, up to and including `moment`."""
        if moment.month not in self.fields.months or not self._mask(moment.year, moment.month) >> moment.day & 1:
            return 0
        return self.fields.times.count_through(moment.hour, moment.minute, moment.second)

    def _count_days(self, first: date, last: date, fuel: Fuel) -> int:
        """The number of matching days in [first, last): whole years at once, and the months at the edges one by one."""
        fuel.burn(3)
        if first.year == last.year:
            return self._count_months(first, last)
        days = self._count_months(first, first.replace(month=12, day=31)) + self._matches(
            first.replace(month=12, day=31)
        )
        years = last.year - first.year - 1
        cycles, years = divmod(years, _CYCLE)
        fuel.burn(years + (_CYCLE if cycles else 0))
        if cycles:
            days += cycles * sum(self._count_year(year) for year in range(first.year + 1, first.year + 1 + _CYCLE))
        days += sum(self._count_year(year) for year in range(last.year - years, last.year))
        return days + self._count_months(last.replace(month=1, day=1), last)

    def _count_year(self, year: int) -> int:
        kind = is_leap(year), date(year, 1, 1).weekday()
        count = self._years.get(kind)
        if count is None:
            count = self._count_months(date(year, 1, 1), date(year, 12, 31)) + self._matches(date(year, 12, 31))
            self._years[kind] = count
        return count

    def _matches(self, day: date) -> int:
        return self._mask(day.year, day.month) >> day.day & 1 if day.month in self.fields.months else 0

    def _count_months(self, first: date, last: date) -> int:
        """The number of matching days in [first, last), both in one year."""
        days = 0
        for month in range(first.month, last.month + 1):
            if month in self.fields.months:
                mask = self._mask(first.year, month)
                if month == first.month:
                    mask = mask >> first.day << first.day
                if month == last.month:
                    mask &= (1 << last.day) - 1
                days += mask.bit_count()
        return days

    def _mask(self, year: int, month: int) -> int:
        shape = month_shape(year, month)
        mask = self._masks.get(shape)
        if mask is None:
            mask = self._masks[shape] = self._mask_of(*shape)
        return mask

    def _mask_of(self, length: int, first_weekday: int) -> int:
        """Bit d is set when day d of a month of this shape matches."""
        fields = self.fields
        mask = 0
        for day in range(1, length + 1):
            weekday = (first_weekday + day - 1) % 7
            by_date = (
                day in fields.days
                or (fields.last_day and day == length)
                or (fields.last_weekday and day == _last_weekday(length, first_weekday))
            )
            by_weekday = (
                weekday in fields.weekdays
                or (weekday in fields.last_of and day + 7 > length)
                or (weekday, (day + 6) // 7) in fields.nth_of
            )
            if (by_date and by_weekday) if fields.both_days else (by_date or by_weekday):
                mask |= 1 << day
        return mask

    def _refuse_if_never(self) -> None:
        for month in self.fields.months:
            lengths = (28, 29) if month == 2 else (_LENGTHS[month],)
            if any(self._mask_of(length, weekday) for length in lengths for weekday in range(7)):
                return
        raise InvalidSchedule(
            f"{self.fields.canonical} can never fire: no month it names has such a day", part="day of month"
        )


def _last_weekday(length: int, first_weekday: int) -> int:
    """The last day from Monday to Friday in a month."""
    weekday = (first_weekday + length - 1) % 7
    return length - max(0, weekday - 4)


@dataclass(frozen=True, slots=True, eq=False)
class CronSchedule(Schedule):
    """A cron expression in a zone. If its hour or minute is a wildcard, it runs on elapsed time: every instant at which
    the wall clock matches, so both passes of a doubled hour and nothing in a gap."""

    kind: ClassVar[ScheduleKind] = "cron"

    canonical: str
    zone: ZoneInfo
    dst_gap: DstGap
    dst_fold: DstFold
    pattern: CronPattern
    identity: tuple[object, ...] = field(init=False)
    _gap: Gap = field(init=False)
    _fold: DstFold = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        elapsed = self.pattern.fields.elapsed
        object.__setattr__(self, "identity", ("cron", self.canonical, self.zone.key, self.dst_gap, self.dst_fold))
        object.__setattr__(self, "_gap", "vanish" if elapsed else self.dst_gap)
        object.__setattr__(self, "_fold", "both" if elapsed else self.dst_fold)
        object.__setattr__(self, "_hash", hash(self.identity))

    @property
    def on_elapsed_time(self) -> bool:
        return self.pattern.fields.elapsed

    def next(self, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        return next_instant(self.pattern.next_local, after, self.zone, self._gap, self._fold, fuel or Fuel())

    def walk(self, after: datetime, fuel: Fuel | None = None) -> Iterator[Occurrence]:
        return walk_instants(self.pattern.next_local, after, self.zone, self._gap, self._fold, fuel or Fuel())

    def count(self, after: datetime, until: datetime, limit: int, fuel: Fuel | None = None) -> int:
        times = self.pattern.count_local, self.pattern.next_local
        return count_instants(*times, after, until, self.zone, self._gap, self._fold, fuel or Fuel())

    def dropped(self, after: datetime, until: datetime, fuel: Fuel | None = None) -> list[Occurrence]:
        if self._gap != "skip":
            return []
        return dropped_instants(self.pattern.next_local, after, until, self.zone, fuel or Fuel())

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=4096)
def cron_pattern(text: str) -> CronPattern:
    """The pattern of a cron expression, shared by all zones and policies so that its masks are made once."""
    return CronPattern(read_cron(text))


def make_cron(text: str, zone: ZoneInfo, dst_gap: DstGap, dst_fold: DstFold) -> CronSchedule:
    pattern = cron_pattern(text)
    return CronSchedule(pattern.fields.canonical, zone, dst_gap, dst_fold, pattern)
