"""The local times of an RRULE, found by jumping instead of stepping.

A rule is a grid (every INTERVAL-th period from DTSTART) and filters (the BY parts). The search alternates between the
two: the next day that the filter allows, then the next one on the grid from there, until a day is both. No list is
made and no walk starts at DTSTART, so a rule costs the same in its first year and its thousandth. If grid and filter
hardly ever meet, the search ends in `TooCostly` when its fuel is used up; a combination that the calendar and the clock
rule out altogether is found before the first jump.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from datetime import date, datetime, time, timedelta
from math import gcd

from .calendar_days import DayFilter, nth_bit
from .fuel import Fuel
from .rrule_text import RuleParts
from .schedule import LAST, MICROSECOND
from .times import TimeOfDay, TimesOfDay

_JUMP = 2  # fuel units for a jump, and for the positions of a period
_PERIOD = 1
_DAY = 86_400
_UNITS = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
_LAST_DAY = date.max.toordinal()


class Recurrence(ABC):
    """The local times of one rule from its start on. All times are naive."""

    __slots__ = ()

    start: datetime

    @abstractmethod
    def next_local(self, after: datetime, fuel: Fuel, until: datetime = LAST) -> datetime | None:
        """The first time strictly after `after`; None if there is none. The search need not go beyond `until`: a result
        there is ignored."""

    def nth(self, count: int, fuel: Fuel) -> datetime | None:
        """The `count`-th time, or None if there are fewer."""
        moment = self.next_local(self.start - MICROSECOND, fuel)
        for _ in range(1, count):
            if moment is None:
                break
            moment = self.next_local(moment, fuel)
        return moment


def make_recurrence(parts: RuleParts, start: datetime) -> Recurrence:
    """The recurrence of a rule that begins at a naive local time, which also supplies the parts that the rule omits."""
    if parts.freq in _UNITS:
        return ByClock(parts, start)
    return ByDay(parts, start)


class ByDay(Recurrence):
    """YEARLY, MONTHLY, WEEKLY and DAILY: a grid of periods, the days in them, the times of each day."""

    __slots__ = ("_days", "_grid", "_period", "_positions", "_times", "start")

    def __init__(self, parts: RuleParts, start: datetime) -> None:
        self.start = start
        self._grid = _Grid(parts, start)
        self._days = _day_filter(parts, start)
        self._positions = _Positions(parts.bysetpos) if parts.bysetpos else None
        # The last period looked at, with its days: the next question is mostly about the same one.
        self._period = (1, 0, 0)
        self._times = TimesOfDay(
            parts.byhour or (start.hour,), parts.byminute or (start.minute,), parts.bysecond or (start.second,)
        )

    def next_local(self, after: datetime, fuel: Fuel, until: datetime = LAST) -> datetime | None:
        after = max(after, self.start - MICROSECOND)
        last = until.toordinal()
        if self._positions is not None:
            return self._next_position(self._positions, after, last, fuel)
        today = after.toordinal()
        clock = self._times.after(after.hour, after.minute, after.second)
        day = self._next_day(today if clock is not None else today + 1, last, fuel)
        if day is None:
            return None
        return _at(day, clock if clock is not None and day == today else self._times.first)

    def nth(self, count: int, fuel: Fuel) -> datetime | None:
        if self._positions is not None:
            return self._nth_position(self._positions, count, fuel)
        # Whole days at a time; the times of the first day before the start itself do not count.
        today = self.start.toordinal()
        day = self._next_day(today, _LAST_DAY, fuel)
        left = count
        if day == today:
            left += self._times.count_through(self.start.hour, self.start.minute, self.start.second - 1)
        days, index = divmod(left - 1, self._times.size)
        if self._grid.daily and self._days.allows_all:
            day = today + days * self._grid.interval
        elif self._grid.interval == 1:
            day = self._skip_years(day, days, fuel)
        else:
            for _ in range(days):
                if day is None:
                    break
                day = self._next_day(day + 1, _LAST_DAY, fuel)
        return None if day is None or day > _LAST_DAY else _at(day, self._times.nth(index))

    def _skip_years(self, day: int | None, days: int, fuel: Fuel) -> int | None:
        """The allowed day that follows `days` others from `day` on: whole years at a time, as every day is on the
        grid."""
        while day is not None:
            fuel.burn()
            here = self._days.count_from(day)
            if days < here:
                return self._days.nth_from(day, days)
            days -= here
            year = date.fromordinal(day).year
            day = date(year + 1, 1, 1).toordinal() if year < date.max.year else None
        return None

    def _next_day(self, day: int, last: int, fuel: Fuel) -> int | None:
        """The first day from `day` on that is on the grid and allowed."""
        while True:
            fuel.burn(_JUMP)
            aligned = self._grid.align(day)
            if aligned is None or aligned > last:
                return None
            allowed = self._days.next(aligned, fuel)
            if allowed is None or allowed == aligned:
                return allowed
            day = allowed

    def _next_position(self, positions: _Positions, after: datetime, until: int, fuel: Fuel) -> datetime | None:
        """With BYSETPOS: of all times of one period, in order, only those at the given positions."""
        today = after.toordinal()
        for first, days in self._periods(today, until, fuel):
            position = positions.next(self._passed(after, today - first, days), days.bit_count() * self._times.size)
            if position is not None:
                return self._time_at(first, days, position)
        return None

    def _nth_position(self, positions: _Positions, count: int, fuel: Fuel) -> datetime | None:
        after = self.start - MICROSECOND
        today = after.toordinal()
        for first, days in self._periods(today, _LAST_DAY, fuel):
            total, passed = days.bit_count() * self._times.size, self._passed(after, today - first, days)
            here = positions.count(passed, total, fuel)
            if count <= here:
                position = positions.next(passed, total)
                for _ in range(1, count):
                    fuel.burn()
                    position = None if position is None else positions.next(position + 1, total)
                return None if position is None else self._time_at(first, days, position)
            count -= here
        return None

    def _periods(self, day: int, until: int, fuel: Fuel) -> Iterator[tuple[int, int]]:
        """Each period from that of `day` on: its first day, and bits for the allowed days, counted from there."""
        # Positions count from the beginning of the period, even if DTSTART is in its middle.
        first, last, days = self._period
        if first <= day <= last:
            fuel.burn(_PERIOD)
            yield first, days
            day = last + 1
        else:
            day = max(1, self._grid.bounds(day)[0])
        while (found := self._next_day(day, until, fuel)) is not None:
            fuel.burn(_PERIOD)
            first, last = self._grid.bounds(found)
            first = max(1, first)
            days = self._days.between(first, last)
            self._period = first, last, days
            yield first, days
            day = last + 1

    def _passed(self, after: datetime, today: int, days: int) -> int:
        """The number of times of a period not later than `after`, which is on its day `today`, counted from 0."""
        if today < 0:
            return 0
        passed = (days & ((1 << today) - 1)).bit_count() * self._times.size
        if days >> today & 1:
            passed += self._times.count_through(after.hour, after.minute, after.second)
        return passed

    def _time_at(self, first: int, days: int, position: int) -> datetime:
        """The time at a position among all times of the days whose bits are set, counted from `first`."""
        day, index = divmod(position, self._times.size)
        return _at(first + nth_bit(days, day), self._times.nth(index))


class _Positions:
    """The positions of BYSETPOS, in order: from the beginning of a period, and from its end."""

    __slots__ = ("_ahead", "_back", "_counts")

    def __init__(self, positions: Collection[int]) -> None:
        self._ahead = tuple(sorted(position - 1 for position in positions if position > 0))
        self._back = tuple(sorted(position for position in positions if position < 0))
        self._counts: tuple[int, int] = (-1, 0)

    def next(self, passed: int, total: int) -> int | None:
        """The first position of a period with `total` times that is not among the first `passed` ones."""
        at, back = bisect_left(self._ahead, passed), bisect_left(self._back, passed - total)
        ahead = self._ahead[at] if at < len(self._ahead) else total
        position = min(ahead, total + self._back[back] if back < len(self._back) else total)
        return position if position < total else None

    def count(self, passed: int, total: int, fuel: Fuel) -> int:
        """The number of positions after those that have passed."""
        if passed == 0 and self._counts[0] == total:
            return self._counts[1]
        fuel.burn((len(self._ahead) + len(self._back)) // 16)
        both = {position for position in self._ahead if passed <= position < total}
        both.update(total + position for position in self._back if total + position >= passed)
        if passed == 0:
            self._counts = total, len(both)
        return len(both)


class ByClock(Recurrence):
    """HOURLY, MINUTELY and SECONDLY: a grid of seconds, filtered by day and clock, with the times in each unit."""

    __slots__ = ("_base", "_days", "_hours", "_minutes", "_never", "_seconds", "_step", "_tails", "_unit", "start")

    def __init__(self, parts: RuleParts, start: datetime) -> None:
        self.start = start
        self._unit = _UNITS[parts.freq]
        self._step = self._unit * parts.interval
        self._base = _seconds(start) // self._unit * self._unit
        self._days = _day_filter(parts, start)
        self._hours = tuple(parts.byhour)
        # A part below the unit does not filter but expand: it becomes the tails of the unit.
        self._minutes = tuple(parts.byminute) if self._unit <= 60 else ()
        self._seconds = tuple(parts.bysecond) if self._unit == 1 else ()
        self._tails = self._make_tails(parts)
        self._never = not self._tails or not self._clock_can_match()

    def next_local(self, after: datetime, fuel: Fuel, until: datetime = LAST) -> datetime | None:
        if self._never:
            return None
        after = max(after, self.start - MICROSECOND)
        # The last whole second not later than `after`; everything lies on whole seconds.
        now = _seconds(after)
        position = now // self._unit * self._unit
        last = _seconds(until)
        found = self._search(position, last, fuel)
        if found is None:
            return None
        if found == position:
            at = bisect_right(self._tails, now - position)
            if at < len(self._tails):
                return _moment(position + self._tails[at])
            found = self._search(position + self._unit, last, fuel)
        return None if found is None else _moment(found + self._tails[0])

    def nth(self, count: int, fuel: Fuel) -> datetime | None:
        if self._never or not self._days.allows_all or self._hours or self._minutes or self._seconds:
            return super().nth(count, fuel)
        before = bisect_right(self._tails, _seconds(self.start) - self._base - 1)
        units, index = divmod(count - 1 + before, len(self._tails))
        return _moment(self._base + units * self._step + self._tails[index])

    def _search(self, position: int, last: int, fuel: Fuel) -> int | None:
        """The first unit from `position` on that is on the grid and passes every filter."""
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        while True:
            fuel.burn(_JUMP)
            position += (self._base - position) % self._step
            if position > last:
                return None
            day, clock = divmod(position, _DAY)
            allowed = self._days.next(day, fuel)
            if allowed is None:
                return None
            if allowed != day:
                position = allowed * _DAY
            elif hours and clock // 3600 not in hours:
                position = day * _DAY + _following(hours, clock // 3600, 24) * 3600
            elif minutes and clock // 60 % 60 not in minutes:
                position = position // 3600 * 3600 + _following(minutes, clock // 60 % 60, 60) * 60
            elif seconds and clock % 60 not in seconds:
                position = position // 60 * 60 + _following(seconds, clock % 60, 60)
            else:
                return position

    def _make_tails(self, parts: RuleParts) -> tuple[int, ...]:
        """The seconds into a unit at which it fires."""
        seconds = parts.bysecond or (self.start.second,)
        if self._unit == 1:
            tails = [0]
        elif self._unit == 60:
            tails = list(seconds)
        else:
            tails = [60 * minute + second for minute in parts.byminute or (self.start.minute,) for second in seconds]
        if parts.bysetpos:
            positions = {position - 1 if position > 0 else len(tails) + position for position in parts.bysetpos}
            tails = [tails[position] for position in sorted(positions) if 0 <= position < len(tails)]
        return tuple(tails)

    def _clock_can_match(self) -> bool:
        """Whether the grid ever meets the clock filters: it meets a time of day only in its own residue class."""
        common = gcd(self._step, _DAY)
        residue = self._base % common
        # Within an hour or a minute only the residue counts, so at most 24 × 60 questions.
        wanted = {second % common for second in self._seconds or range(60)} if self._unit == 1 else {0}
        return any(
            (residue - 3600 * hour - 60 * minute) % common in wanted
            for hour in self._hours or range(24)
            for minute in (self._minutes or range(60) if self._unit <= 60 else (0,))
        )


class _Grid:
    """Every INTERVAL-th year, month, week or day from the start's own."""

    __slots__ = ("_first", "_freq", "_week", "interval")

    def __init__(self, parts: RuleParts, start: datetime) -> None:
        self._freq = parts.freq
        self.interval = parts.interval
        today = start.toordinal()
        self._week = today - (start.weekday() - parts.wkst) % 7
        if parts.freq == "YEARLY":
            self._first = start.year
        elif parts.freq == "MONTHLY":
            self._first = start.year * 12 + start.month
        else:
            self._first = today

    @property
    def daily(self) -> bool:
        return self._freq == "DAILY"

    def align(self, day: int) -> int | None:
        """The first day from `day` on that lies in a period of the grid, or None past the year 9999."""
        if day > _LAST_DAY:
            return None
        if self._freq == "DAILY":
            day += (self._first - day) % self.interval
        elif self._freq == "WEEKLY":
            weeks = (day - self._week) // 7
            if weeks % self.interval:
                day = self._week + 7 * (weeks + -weeks % self.interval)
        elif self._freq == "MONTHLY":
            here = date.fromordinal(day)
            behind = (self._first - here.year * 12 - here.month) % self.interval
            if behind:
                year, month = divmod(here.year * 12 + here.month + behind - 1, 12)
                return date(year, month + 1, 1).toordinal() if year <= 9999 else None
        else:
            year = date.fromordinal(day).year
            behind = (self._first - year) % self.interval
            if behind:
                return date(year + behind, 1, 1).toordinal() if year + behind <= 9999 else None
        return day if day <= _LAST_DAY else None

    def bounds(self, day: int) -> tuple[int, int]:
        """The first and last day of the period that holds `day`."""
        if self._freq == "DAILY":
            return day, day
        if self._freq == "WEEKLY":
            first = day - (day - self._week) % 7
            return first, first + 6
        here = date.fromordinal(day)
        if self._freq == "MONTHLY":
            first = here.replace(day=1).toordinal()
            last = (here.replace(day=28).toordinal() + 4) if here < date(9999, 12, 1) else _LAST_DAY + 1
            return first, date.fromordinal(last).replace(day=1).toordinal() - 1 if last <= _LAST_DAY else _LAST_DAY
        return date(here.year, 1, 1).toordinal(), date(here.year, 12, 31).toordinal()


def _day_filter(parts: RuleParts, start: datetime) -> DayFilter:
    months, month_days = parts.bymonth, parts.bymonthday
    weekdays = [day for day, number in parts.byday if not number]
    if not (parts.byday or parts.bymonthday or parts.byyearday):
        if parts.byweekno or parts.freq == "WEEKLY":
            weekdays = [start.weekday()]
        elif parts.freq in ("YEARLY", "MONTHLY"):
            month_days = (start.day,)
            if parts.freq == "YEARLY":
                months = months or (start.month,)
    return DayFilter(
        months=months,
        month_days=month_days,
        year_days=parts.byyearday,
        weekdays=weekdays,
        numbered=[(day, number) for day, number in parts.byday if number],
        within_year=parts.freq == "YEARLY" and not parts.bymonth,
        week_numbers=parts.byweekno,
        week_start=parts.wkst,
    )


def _at(day: int, clock: TimeOfDay) -> datetime:
    return datetime.combine(date.fromordinal(day), time(*clock))


def _seconds(moment: datetime) -> int:
    return moment.toordinal() * _DAY + moment.hour * 3600 + moment.minute * 60 + moment.second


def _moment(seconds: int) -> datetime | None:
    day, clock = divmod(seconds, _DAY)
    if day > _LAST_DAY:
        return None
    return datetime.combine(date.fromordinal(day), time()) + timedelta(seconds=clock)


def _following(values: tuple[int, ...], value: int, wrap: int) -> int:
    """The first of the sorted values after `value`, or `wrap`, which is the start of the next larger unit."""
    at = bisect_right(values, value)
    return values[at] if at < len(values) else wrap
