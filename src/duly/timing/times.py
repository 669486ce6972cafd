"""Times of day as the product of hours, minutes and seconds: searched and counted without ever being listed.

A rule can name 86,400 times of day in a few hundred characters; the product stays three short tuples.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

TimeOfDay = tuple[int, int, int]


class TimesOfDay:
    """Every (hour, minute, second) of the three sets, in order."""

    __slots__ = ("_hour_set", "_minute_set", "hours", "minutes", "seconds", "size")

    def __init__(self, hours: Iterable[int], minutes: Iterable[int], seconds: Iterable[int]) -> None:
        self.hours = tuple(sorted(set(hours)))
        self.minutes = tuple(sorted(set(minutes)))
        self.seconds = tuple(sorted(set(seconds)))
        self.size = len(self.hours) * len(self.minutes) * len(self.seconds)
        self._hour_set = frozenset(self.hours)
        self._minute_set = frozenset(self.minutes)

    def __len__(self) -> int:
        return self.size

    @property
    def first(self) -> TimeOfDay:
        return self.hours[0], self.minutes[0], self.seconds[0]

    def nth(self, index: int) -> TimeOfDay:
        """The time at a position, counted from 0."""
        rest, second = divmod(index, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return self.hours[hour], self.minutes[minute], self.seconds[second]

    def after(self, hour: int, minute: int, second: int) -> TimeOfDay | None:
        """The first time strictly after the given one, on the same day."""
        if hour in self._hour_set:
            if minute in self._minute_set:
                at = bisect_right(self.seconds, second)
                if at < len(self.seconds):
                    return hour, minute, self.seconds[at]
            at = bisect_right(self.minutes, minute)
            if at < len(self.minutes):
                return hour, self.minutes[at], self.seconds[0]
        at = bisect_right(self.hours, hour)
        if at < len(self.hours):
            return self.hours[at], self.minutes[0], self.seconds[0]
        return None

    def count_through(self, hour: int, minute: int, second: int) -> int:
        """The number of times not later than the given one."""
        count = bisect_left(self.hours, hour) * len(self.minutes) * len(self.seconds)
        if hour in self._hour_set:
            count += bisect_left(self.minutes, minute) * len(self.seconds)
            if minute in self._minute_set:
                count += bisect_right(self.seconds, second)
        return count
