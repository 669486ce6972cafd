"""A schedule within one job's own bounds and with its jitter: the scheduler plans with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from uuid import UUID

from duly.errors import TooCostly
from duly.model import Occurrence

from .cache import next_occurrence
from .fuel import Fuel
from .schedule import MICROSECOND, Schedule

NO_OFFSET = timedelta(0)
_MAX_OFFSET = timedelta(days=1)  # the maximum of jitter_seconds
# The note of the last occurrence of a list that had to end early.
TOO_FAR = "the list ends here: later occurrences take too long to compute"


@dataclass(frozen=True, slots=True)
class Timetable:
    """The occurrences of one job: `schedule`'s own ("nominal") times in [start_at, end_at], each plus `offset`.

    The bounds apply to the nominal time: a job that ends at midnight still has its midnight run, jittered past it.
    As with a schedule, a caller that needs several answers for one question passes the fuel that they share.
    """

    schedule: Schedule
    start_at: datetime | None = None
    end_at: datetime | None = None
    offset: timedelta = NO_OFFSET

    def next(self, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        """The first occurrence strictly after `after`, or None if there is never another one."""
        nominal = next_occurrence(self.schedule, self._nominal(after), fuel)
        if nominal is None or (self.end_at is not None and nominal > self.end_at):
            return None
        return self._jittered(nominal) if self.offset else nominal

    def walk(self, after: datetime, fuel: Fuel | None = None) -> Iterator[Occurrence]:
        """Occurrences strictly after `after`, dropped ones included, each with its note."""
        for occurrence in self.schedule.walk(self._nominal(after), fuel or Fuel()):
            if self.end_at is not None and occurrence.scheduled_at > self.end_at:
                return
            if self._jittered(occurrence.scheduled_at) is None:
                return
            yield self._shifted(occurrence)

    def listed(self, after: datetime, count: int, fuel: Fuel | None = None) -> list[Occurrence]:
        """The next `count` occurrences after `after`, and the dropped ones between them, which do not count.

        Raises `TooCostly` if the first one cannot be found in time. If a later one cannot, the list ends early and the
        note of its last occurrence says why.
        """
        fuel = fuel or Fuel.for_list(count)
        found: list[Occurrence] = []
        left = count
        try:
            for occurrence in self.walk(after, fuel):
                # The second bound is for a schedule that hits only the gap: years may pass with nothing but drops.
                if left <= 0 or len(found) >= 2 * count + 10:
                    break
                found.append(occurrence)
                left -= not occurrence.dropped
                if left <= 0:
                    break
        except TooCostly:
            if not found:
                raise
            note = "; ".join(filter(None, (found[-1].note, TOO_FAR)))
            found[-1] = dataclasses.replace(found[-1], note=note)
        return found

    def of_nominal(self, nominal: datetime) -> datetime | None:
        """The occurrence for the nominal time `nominal`; None if that is not a time of the schedule."""
        moment = self._jittered(nominal)
        return moment if moment is not None and self.occurs_at(moment) else None

    def answered(self, fired: datetime) -> datetime:
        """The end of the time that is already covered if the job's last run was at `fired`.

        That run may have had another jitter, or none: its nominal time counts. So a job that ran at nine and gets
        eight minutes of jitter at five past does not run again at eight past.
        """
        if not self.offset:
            return fired
        nominal, fuel = fired - self.offset, Fuel()
        if next_occurrence(self.schedule, nominal - MICROSECOND, fuel) != nominal:
            nominal = self._newest(fired, fuel)
        return max(fired, self._jittered(nominal) or fired)

    def _newest(self, until: datetime, fuel: Fuel) -> datetime:
        """The latest nominal time not after `until`, by bisection."""
        first = next_occurrence(self.schedule, until - _MAX_OFFSET, fuel)
        if first is None or first > until:
            return until - _MAX_OFFSET
        newest, high = first, until
        while newest < high:
            middle = newest + (high - newest) // 2
            found = next_occurrence(self.schedule, middle, fuel)
            if found is not None and found <= until:
                newest = found
            else:
                high = middle
        return newest

    def occurs_at(self, moment: datetime, fuel: Fuel | None = None) -> bool:
        """Whether `moment` is one of the occurrences."""
        return self.next(moment - MICROSECOND, fuel) == moment

    def count(self, after: datetime, until: datetime, limit: int, fuel: Fuel | None = None) -> int:
        """The number of occurrences in (after, until]. A schedule that has to walk stops at `limit`."""
        last = until - self.offset
        if self.end_at is not None:
            last = min(last, self.end_at)
        return self.schedule.count(self._nominal(after), last, limit, fuel)

    def dropped(self, after: datetime, until: datetime, fuel: Fuel | None = None) -> list[Occurrence]:
        """The occurrences that `dst_gap="skip"` dropped in (after, until], oldest first."""
        last = until - self.offset
        if self.end_at is not None:
            last = min(last, self.end_at)
        return [self._shifted(occurrence) for occurrence in self.schedule.dropped(self._nominal(after), last, fuel)]

    def _nominal(self, after: datetime) -> datetime:
        """The time to search the schedule from."""
        nominal = after - self.offset if self.offset else after
        if self.start_at is not None and nominal < self.start_at:
            return self.start_at - MICROSECOND
        return nominal

    def _jittered(self, nominal: datetime) -> datetime | None:
        try:
            return nominal + self.offset
        except OverflowError:  # past the year 9999
            return None

    def _shifted(self, occurrence: Occurrence) -> Occurrence:
        if not self.offset:
            return occurrence
        moment = occurrence.scheduled_at + self.offset
        return dataclasses.replace(occurrence, scheduled_at=moment, local=moment.astimezone(occurrence.local.tzinfo))


def jitter_offset(job_id: UUID, jitter_seconds: int) -> timedelta:
    """A job's own offset: always the same, spread evenly over [0, jitter_seconds), in whole milliseconds."""
    if jitter_seconds <= 0:
        return NO_OFFSET
    digest = blake2b(job_id.bytes, digest_size=8).digest()
    return timedelta(milliseconds=int.from_bytes(digest) % (jitter_seconds * 1000))
