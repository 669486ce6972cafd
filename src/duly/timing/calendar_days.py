"""Which days of which years a rule matches, as one bit mask per kind of year.

What a rule says about days depends only on the weekday a year begins with and on whether it and its neighbours are
leap years (the neighbours own the weeks at its edges). That is at most 28 kinds of year, so even a rule that matches
nothing at all is known to do so after 28 masks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date

_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EVERY_SEVENTH = sum(1 << 7 * week for week in range(54))
_LAST_YEAR = 9999
_CYCLE = 400  # years after which the calendar repeats, weekdays included


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


class DayFilter:
    """The days that every given part allows; a part not given allows all. Days are proleptic ordinals.

    `numbered` holds (weekday, n): the n-th of its month, or of its year if `within_year`.
    """

    __slots__ = (
        "_masks", "_month_days", "_months", "_numbered", "_week_numbers", "_week_start", "_weekdays", "_within_year",
        "_year_days",
    )  # fmt: skip

    def __init__(
        self,
        *,
        months: Collection[int] = (),
        month_days: Collection[int] = (),
        year_days: Collection[int] = (),
        weekdays: Collection[int] = (),
        numbered: Collection[tuple[int, int]] = (),
        within_year: bool = False,
        week_numbers: Collection[int] = (),
        week_start: int = 0,
    ) -> None:
        self._months = tuple(months)
        self._month_days = tuple(month_days)
        self._year_days = tuple(year_days)
        self._weekdays = tuple(weekdays)
        self._numbered = tuple(numbered)
        self._within_year = within_year
        self._week_numbers = frozenset(week_numbers)
        self._week_start = week_start
        self._masks: dict[tuple[int, bool, bool, bool], int] = {}

    @property
    def allows_all(self) -> bool:
        return not (
            self._months
            or self._month_days
            or self._year_days
            or self._weekdays
            or self._numbered
            or self._week_numbers
        )

    def next(self, day: int) -> int | None:
        """The first allowed day from `day` on, or None up to the end of the year 9999."""
        if day > _LAST_DAY:
            return None
        year = date.fromordinal(day).year
        first = date(year, 1, 1).toordinal()
        mask = self._mask(year) >> (day - first)
        if mask:
            return day + (mask & -mask).bit_length() - 1
        for later in range(year + 1, min(year + _CYCLE, _LAST_YEAR) + 1):
            mask = self._mask(later)
            if mask:
                return date(later, 1, 1).toordinal() + (mask & -mask).bit_length() - 1
        return None

    def between(self, first: int, last: int) -> int:
        """The allowed days in [first, last], at most a year, as bits counted from `first`."""
        year = date.fromordinal(first).year
        start = date(year, 1, 1).toordinal()
        bits = self._mask(year) >> (first - start)
        if year < _LAST_YEAR:
            # A week may reach into the next year.
            bits |= self._mask(year + 1) << (date(year + 1, 1, 1).toordinal() - first)
        return bits & ((1 << (last - first + 1)) - 1)

    def _mask(self, year: int) -> int:
        kind = (date(year, 1, 1).weekday(), is_leap(year), is_leap(year - 1), is_leap(year + 1))
        mask = self._masks.get(kind)
        if mask is None:
            mask = self._masks[kind] = self._make_mask(*kind)
        return mask

    def _make_mask(self, weekday: int, leap: bool, leap_before: bool, leap_after: bool) -> int:
        """Bit d is set when day d of the year, from 0, is allowed."""
        length = 366 if leap else 365
        mask = (1 << length) - 1
        months = _months_of(leap)
        if self._months:
            mask &= sum(((1 << months[month - 1][1]) - 1) << months[month - 1][0] for month in self._months)
        if self._month_days:
            mask &= self._month_day_bits(months)
        if self._year_days:
            mask &= _bits(number - 1 if number > 0 else length + number for number in self._year_days)
        if self._weekdays or self._numbered:
            bits = 0
            for day in self._weekdays:
                bits |= _EVERY_SEVENTH << (day - weekday) % 7
            mask &= bits | self._numbered_bits(weekday, length, months)
        if self._week_numbers:
            mask &= self._week_bits(weekday, length, leap_before, leap_after)
        return mask

    def _month_day_bits(self, months: list[tuple[int, int]]) -> int:
        return _bits(
            start + (number - 1 if number > 0 else length + number)
            for start, length in months
            for number in self._month_days
            if abs(number) <= length
        )

    def _numbered_bits(self, weekday: int, year_length: int, months: list[tuple[int, int]]) -> int:
        spans = [(0, year_length)] if self._within_year else months
        found = []
        for start, length in spans:
            for day, number in self._numbered:
                if number > 0:
                    at = (day - weekday - start) % 7 + 7 * (number - 1)
                else:
                    last = length - 1 - (weekday + start + length - 1 - day) % 7
                    at = last + 7 * (number + 1)
                if 0 <= at < length:
                    found.append(start + at)
        return _bits(found)

    def _week_bits(self, weekday: int, length: int, leap_before: bool, leap_after: bool) -> int:
        wanted = self._week_numbers
        length_before, length_after = 365 + leap_before, 365 + leap_after
        first = self._first_week((weekday) % 7)
        first_after = self._first_week((weekday + length) % 7)
        weeks = (length + first_after - first) // 7
        bits = 0
        for number in wanted:
            week = number if number > 0 else weeks + 1 + number
            if 1 <= week <= weeks:
                start = first + 7 * (week - 1)
                bits |= 0x7F << start if start >= 0 else 0x7F >> -start
        if first > 0:  # the days before the first week belong to the last week of the year before
            weeks_before = (length_before + first - self._first_week((weekday - length_before) % 7)) // 7
            if weeks_before in wanted or -1 in wanted:
                bits |= (1 << first) - 1
        edge = first + 7 * weeks
        if edge <= length:
            # and the days behind the last week to the first week of the year after
            bits &= (1 << edge) - 1
            last_week = (weekday + length + length_after) % 7
            weeks_after = (length_after + self._first_week(last_week) - first_after) // 7
            if 1 in wanted or -weeks_after in wanted:
                bits |= ((1 << length) - 1) >> edge << edge
        return bits

    def _first_week(self, weekday: int) -> int:
        """Where week 1 of a year that begins on `weekday` starts, from -3 to 3: it has at least four of its days."""
        start = (self._week_start - weekday) % 7
        return start if start < 4 else start - 7


_LAST_DAY = date(_LAST_YEAR, 12, 31).toordinal()


def _months_of(leap: bool) -> list[tuple[int, int]]:
    """(first day in the year from 0, length) of each month."""
    months = []
    start = 0
    for number, length in enumerate(_LENGTHS, 1):
        if leap and number == 2:
            length = 29
        months.append((start, length))
        start += length
    return months


def _bits(days: Iterable[int]) -> int:
    bits = 0
    for day in days:
        if day >= 0:
            bits |= 1 << day
    return bits
