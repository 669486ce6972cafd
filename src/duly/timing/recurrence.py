"""Where an RRULE's own local times are: jumping, not stepping.

A rule is a grid (every INTERVAL-th period from DTSTART) and filters (the BY parts). The search alternates between the
two: the next day the filter allows, then the next one on the grid from there, until one is both. Nothing is listed and
nothing is walked from DTSTART, so a rule costs the same in its first year and its thousandth. A search whose grid and
filter hardly ever meet ends when its `Fuel` does; what the calendar and the clock rule out altogether is known before
the first jump.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from datetime import date, datetime, time, timedelta
from math import gcd

from .calendar_days import DayFilter
from .rrule_text import RuleParts
from .schedule import MICROSECOND
from .times import TimesOfDay

_TANK = 2_000  # jumps; about 4 ms
_COUNT_TANK = 5_000  # to find where COUNT ends, once per rule
_PERIOD = 2  # what looking at all days of a period costs, in jumps
_DAY = 86_400
_UNITS = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
_LAST_DAY = date.max.toordinal()


class CountTooLarge(Exception):
    """COUNT cannot be followed to its end in bounded time."""


class Fuel:
    """How many jumps a search may still make."""

    __slots__ = ("left",)

    def __init__(self, jumps: int = _TANK) -> None:
        self.left = jumps

    def burn(self, jumps: int = 1) -> bool:
        self.left -= jumps
        return self.left >= 0


class Recurrence(ABC):
    """The local times of one rule from its start on. All times are naive."""

    __slots__ = ()

    start: datetime

    @abstractmethod
    def next_local(self, after: datetime, fuel: Fuel) -> datetime | None:
        """The first of them strictly after `after`; None if there is none, or none that the fuel reaches."""

    def nth(self, count: int) -> datetime | None:
        """The `count`-th of them, or None if there are fewer."""
        fuel = Fuel(_COUNT_TANK)
        moment = self.next_local(self.start - MICROSECOND, fuel)
        for _ in range(1, count):
            if moment is None:
                break
            if not fuel.burn():
                raise CountTooLarge
            moment = self.next_local(moment, fuel)
        if moment is None and fuel.left < 0:
            raise CountTooLarge
        return moment


def make_recurrence(parts: RuleParts, start: datetime) -> Recurrence:
    """The recurrence of a rule that begins at a naive local time. What the rule leaves open, the start decides."""
    if parts.freq in _UNITS:
        return ByClock(parts, start)
    return ByDay(parts, start)


class ByDay(Recurrence):
    """YEARLY, MONTHLY, WEEKLY and DAILY: a grid of periods, the days in them, the times of each day."""

    __slots__ = ("_days", "_grid", "_positions", "_times", "start")

    def __init__(self, parts: RuleParts, start: datetime) -> None:
        self.start = start
        self._grid = _Grid(parts, start)
        self._days = _day_filter(parts, start)
        self._positions = tuple(parts.bysetpos)
        self._times = TimesOfDay(
            parts.byhour or (start.hour,), parts.byminute or (start.minute,), parts.bysecond or (start.second,)
        )

    def next_local(self, after: datetime, fuel: Fuel) -> datetime | None:
        after = max(after, self.start - MICROSECOND)
        if self._positions:
            return self._next_position(after, fuel)
        today = after.toordinal()
        day = self._next_day(today, fuel)
        if day == today:
            clock = self._times.after(after.hour, after.minute, after.second)
            if clock is not None:
                return datetime.combine(after.date(), time(*clock))
            day = self._next_day(today + 1, fuel)
        return None if day is None else _at(day, self._times.first)

    def nth(self, count: int) -> datetime | None:
        if self._positions:
            return super().nth(count)
        # Whole days at a time; the times of the first day before the start itself do not count.
        fuel = Fuel(_COUNT_TANK)
        today = self.start.toordinal()
        day = self._next_day(today, fuel)
        left = count
        if day == today:
            left += self._times.count_through(self.start.hour, self.start.minute, self.start.second - 1)
        if self._grid.daily and self._days.allows_all:
            days, index = divmod(left - 1, len(self._times))
            day = today + days * self._grid.interval
            return None if day > _LAST_DAY else _at(day, self._times.nth(index))
        while day is not None and left > len(self._times):
            left -= len(self._times)
            day = self._next_day(day + 1, fuel)
        if day is None:
            if fuel.left < 0:
                raise CountTooLarge
            return None
        return _at(day, self._times.nth(left - 1))

    def _next_day(self, day: int, fuel: Fuel) -> int | None:
        """The first day from `day` on that is on the grid and allowed."""
        while fuel.burn():
            aligned = self._grid.align(day)
            if aligned is None:
                return None
            allowed = self._days.next(aligned)
            if allowed is None or allowed == aligned:
                return allowed
            day = allowed
        return None

    def _next_position(self, after: datetime, fuel: Fuel) -> datetime | None:
        """With BYSETPOS: of all times of one period, in order, only those at the given places."""
        # The period is looked at from its beginning: places count from there, even if DTSTART is in its middle.
        day = self._next_day(max(1, self._grid.bounds(after.toordinal())[0]), fuel)
        while day is not None and fuel.burn(_PERIOD):
            first, last = self._grid.bounds(day)
            first = max(1, first)
            for moment in self._chosen(first, self._days.between(first, last)):
                if moment > after:
                    return moment
            day = self._next_day(last + 1, fuel)
        return None

    def _chosen(self, first: int, days: int) -> list[datetime]:
        """The times at the given places, out of all times of the days whose bits are set, counted from `first`."""
        total = days.bit_count() * len(self._times)
        places = sorted({place - 1 if place > 0 else total + place for place in self._positions})
        places = [place for place in places if 0 <= place < total]
        if not places:
            return []
        listed = [first + at for at in range(days.bit_length()) if days >> at & 1]
        return [_at(listed[place // len(self._times)], self._times.nth(place % len(self._times))) for place in places]


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
        # Below the unit a part does not filter but expand: it becomes the unit's tails.
        self._minutes = tuple(parts.byminute) if self._unit <= 60 else ()
        self._seconds = tuple(parts.bysecond) if self._unit == 1 else ()
        self._tails = self._make_tails(parts)
        self._never = not self._tails or not self._clock_can_match()

    def next_local(self, after: datetime, fuel: Fuel) -> datetime | None:
        if self._never:
            return None
        after = max(after, self.start - MICROSECOND)
        # The last whole second not later than `after`; everything lies on whole seconds.
        now = _seconds(after)
        position = now // self._unit * self._unit
        found = self._search(position, fuel)
        if found is None:
            return None
        if found == position:
            at = bisect_right(self._tails, now - position)
            if at < len(self._tails):
                return _moment(position + self._tails[at])
            found = self._search(position + self._unit, fuel)
        return None if found is None else _moment(found + self._tails[0])

    def nth(self, count: int) -> datetime | None:
        if self._never or not self._days.allows_all or self._hours or self._minutes or self._seconds:
            return super().nth(count)
        before = bisect_right(self._tails, _seconds(self.start) - self._base - 1)
        units, index = divmod(count - 1 + before, len(self._tails))
        return _moment(self._base + units * self._step + self._tails[index])

    def _search(self, position: int, fuel: Fuel) -> int | None:
        """The first unit from `position` on that is on the grid and passes every filter."""
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        while fuel.burn():
            position += (self._base - position) % self._step
            day, clock = divmod(position, _DAY)
            allowed = self._days.next(day)
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
        return None

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
            places = {place - 1 if place > 0 else len(tails) + place for place in parts.bysetpos}
            tails = [tails[place] for place in sorted(places) if 0 <= place < len(tails)]
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


def _at(day: int, clock: tuple[int, int, int]) -> datetime:
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
