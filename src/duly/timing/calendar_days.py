"""The days of a year that a rule matches, as one bit mask per kind of year.

The days depend only on the weekday on which the year begins and on whether it and its neighbours are leap years (the
neighbours own the weeks at its edges). That makes at most 28 kinds of year, so after 28 masks even a rule that matches
no day at all is known to match none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date

from .fuel import Fuel

_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EVERY_SEVENTH = sum(1 << 7 * week for week in range(54))
_LAST_YEAR = 9999
_WEEKS = 53  # the maximum number of days of one weekday in a year
_CYCLE = 400  # years after which the calendar repeats, weekdays included


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


class DayFilter:
    """The days that every given part allows; a part not given allows all. Days are proleptic ordinals.

    `numbered` holds (weekday, n): the n-th of its month, or of its year if `within_year`.
    """

    __slots__ = (
        "_masks", "_month_days", "_months", "_numbered", "_week_numbers", "_week_start", "_weekdays",
        "_within_year", "_year", "_year_days", "allows_all",
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
        self.allows_all = not (months or month_days or year_days or weekdays or numbered or week_numbers)
        self._months = tuple(months)
        # However long the lists are, the mask of a year is computed from these few numbers.
        self._month_days = _Numbered.of(month_days, 31) if month_days else None
        self._year_days = _Numbered.of(year_days, 366) if year_days else None
        self._weekdays = tuple(weekdays)
        self._numbered = {
            day: _Numbered.of([number for one, number in numbered if one == day], _WEEKS, step=7)
            for day in {day for day, _ in numbered}
        }
        self._within_year = within_year
        self._week_numbers = frozenset(week_numbers)
        self._week_start = week_start
        self._masks: dict[tuple[int, bool, bool, bool], int] = {}
        # The last year looked at: the next question is mostly about the same one.
        self._year = (1, 0, 0)

    def next(self, day: int, fuel: Fuel) -> int | None:
        """The first allowed day from `day` on, or None up to the end of the year 9999."""
        if self.allows_all:
            return day if day <= _LAST_DAY else None
        first, last, bits = self._year
        if not first <= day <= last:
            if day > _LAST_DAY:
                return None
            first, last, bits = self._year = self._year_of(day)
        mask = bits >> (day - first)
        if mask:
            return day + (mask & -mask).bit_length() - 1
        year = date.fromordinal(first).year
        for later in range(year + 1, min(year + _CYCLE, _LAST_YEAR) + 1):
            fuel.burn()
            mask = self._mask(later)
            if mask:
                return date(later, 1, 1).toordinal() + (mask & -mask).bit_length() - 1
        return None

    def nth_from(self, day: int, index: int) -> int:
        """The allowed day at a position, counted from 0 at `day`; it lies in the same year."""
        first, _, bits = self._year_of(day)
        return day + nth_bit(bits >> (day - first), index)

    def count_from(self, day: int) -> int:
        """The number of allowed days from `day` to the end of its year."""
        first, _, bits = self._year_of(day)
        return (bits >> (day - first)).bit_count()

    def _year_of(self, day: int) -> tuple[int, int, int]:
        """The first and last day of the year that holds `day`, and its mask."""
        year = date.fromordinal(day).year
        first = date(year, 1, 1).toordinal()
        return first, first + 364 + is_leap(year), self._mask(year)

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
        if self._month_days is not None:
            mask &= sum(self._month_days.bits(month_length) << start for start, month_length in months)
        if self._year_days is not None:
            mask &= self._year_days.bits(length)
        if self._weekdays or self._numbered:
            bits = 0
            for day in self._weekdays:
                bits |= _EVERY_SEVENTH << (day - weekday) % 7
            mask &= bits | self._numbered_bits(weekday, length, months)
        if self._week_numbers:
            mask &= self._week_bits(weekday, length, leap_before, leap_after)
        return mask

    def _numbered_bits(self, weekday: int, year_length: int, months: list[tuple[int, int]]) -> int:
        bits = 0
        for start, length in [(0, year_length)] if self._within_year else months:
            for day, numbers in self._numbered.items():
                first = (day - weekday - start) % 7
                # Every seventh day from its first one on is the same weekday.
                weeks = (length - first + 6) // 7
                bits |= numbers.bits(weeks) << (start + first)
        return bits

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
            # and the days after the last week to the first week of the next year
            bits &= (1 << edge) - 1
            last_week = (weekday + length + length_after) % 7
            weeks_after = (length_after + self._first_week(last_week) - first_after) // 7
            if 1 in wanted or -weeks_after in wanted:
                bits |= ((1 << length) - 1) >> edge << edge
        return bits

    def _first_week(self, weekday: int) -> int:
        """The start of week 1, from -3 to 3, in a year that begins on `weekday`: it has at least four of its days."""
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


def nth_bit(bits: int, index: int) -> int:
    """The position of the set bit with this index, from 0; more than `index` bits are set."""
    low, high = 0, bits.bit_length()
    while high - low > 1:
        middle = (low + high) // 2
        if (bits & ((1 << middle) - 1)).bit_count() <= index:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Numbers from 1, or from -1 backwards, as bits: number n is bit (n - 1) × step."""

    ahead: int
    back: int  # as if there were `most` of them
    most: int
    step: int

    @classmethod
    def of(cls, numbers: Iterable[int], most: int, step: int = 1) -> _Numbered:
        ahead = back = 0
        for number in numbers:
            if number > 0:
                ahead |= 1 << (number - 1) * step
            else:
                back |= 1 << (most + number) * step
        return cls(ahead, back, most, step)

    def bits(self, length: int) -> int:
        """The bits of the named numbers among `length`."""
        return (self.ahead | self.back >> (self.most - length) * self.step) & ((1 << length * self.step) - 1)
