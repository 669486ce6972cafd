"""`Schedule`: the interface that every kind (once, cron, interval, RRULE) implements.

Instants are aware UTC datetimes everywhere; a `local` time is in the schedule's own zone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar
from zoneinfo import ZoneInfo

from duly.model import Occurrence, ScheduleKind

from .fuel import Fuel

MICROSECOND = timedelta(microseconds=1)
LAST = datetime(9999, 12, 31, 23, 59, 59)  # noqa: DTZ001 - naive local time
# Earlier than any schedule starts, and far enough from datetime.min that no zone's offset leads below it.
DAWN = datetime(2, 1, 1, tzinfo=UTC)


class Schedule(ABC):
    """A schedule is immutable, hashable and compared by meaning. `parse_schedule(s.canonical)` with the same zone,
    policies and anchor returns an equal one.

    Every method burns from `fuel`, that of the question it is a part of, or from fuel of its own if none is given, and
    raises `TooCostly` when it is used up.
    """

    __slots__ = ()

    kind: ClassVar[ScheduleKind]
    # Whether `count` is a closed form, whose cost does not depend on the time counted over; otherwise it walks.
    counts_fast: ClassVar[bool] = True

    canonical: str
    zone: ZoneInfo

    @property
    def local_zone(self) -> ZoneInfo:
        """The zone whose clocks decide when the schedule occurs."""
        return self.zone

    @property
    def on_elapsed_time(self) -> bool:
        """Whether the schedule follows elapsed time, and not the wall clock, when the clocks change."""
        return False

    @property
    def start_local(self) -> datetime | None:
        """The local time of the schedule's start, if the occurrences depend on it."""
        return None

    @property
    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """The values by which schedules are compared."""

    @abstractmethod
    def next(self, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        """The first occurrence strictly after `after`, or None if there is never another one."""

    @abstractmethod
    def count(self, after: datetime, until: datetime, limit: int, fuel: Fuel | None = None) -> int:
        """The number of occurrences in (after, until]. A kind that has to walk stops at `limit`."""

    def walk(self, after: datetime, fuel: Fuel | None = None) -> Iterator[Occurrence]:
        """Occurrences strictly after `after`, dropped ones included, each with its note."""
        fuel = fuel or Fuel()
        moment = self.next(after, fuel)
        while moment is not None:
            fuel.burn()
            yield Occurrence(moment, moment.astimezone(self.zone))
            moment = self.next(moment, fuel)

    def dropped(self, after: datetime, until: datetime, fuel: Fuel | None = None) -> list[Occurrence]:
        """The occurrences that `dst_gap="skip"` dropped in (after, until], oldest first."""
        return []

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Schedule) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def count_by_walking(schedule: Schedule, after: datetime, until: datetime, limit: int, fuel: Fuel) -> int:
    """`Schedule.count` for kinds without a closed form."""
    count = 0
    moment = schedule.next(after, fuel)
    while count < limit and moment is not None and moment <= until:
        count += 1
        moment = schedule.next(moment, fuel)
    return count
