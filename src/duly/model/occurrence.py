"""Occurrences of a schedule, and the lists made of them: `Preview` of one schedule, `Forecast` of all jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from duly.model.job import ScheduleKind


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One moment at which a schedule fires, or would fire if daylight saving time did not drop it.

    `scheduled_at` of a dropped occurrence is the end of the gap: the instant it would have been moved to.
    `note` is a sentence if a change of the clocks moved, dropped or doubled the occurrence.
    """

    scheduled_at: datetime
    local: datetime
    note: str | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """A schedule as Duly reads it, and its next occurrences, including the ones that DST drops (`dropped`)."""

    kind: ScheduleKind
    canonical: str
    occurrences: list[Occurrence]


@dataclass(frozen=True, slots=True)
class Expected:
    """The number of `fires` in the minute that begins at `minute`."""

    minute: datetime
    queue: str
    handler: str
    fires: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected fires per minute. `estimated`: extrapolated from some shards. `cut`: complete only up to
    `complete_until`."""

    start: datetime
    until: datetime
    items: list[Expected]
    estimated: bool
    cut: bool
    complete_until: datetime

    @property
    def total(self) -> int:
        return sum(item.fires for item in self.items)
