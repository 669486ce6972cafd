"""The next-occurrence cache: (schedule, previous occurrence) → next occurrence.

Half a million daily jobs at midnight are a few hundred distinct questions. Schedules compare by meaning, so the answer
is shared by all jobs that say the same, whatever their own bounds and jitter are. Intervals and one-offs are
arithmetic and never enter it: they would only push out what is dear.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from .schedule import Schedule
from .zones import when_forgotten

_SIZE = 32_768  # about 10 MB when full


def next_occurrence(schedule: Schedule, after: datetime) -> datetime | None:
    """`schedule.next(after)`, remembered where that is worth it."""
    if schedule.kind == "cron" or schedule.kind == "rrule":
        return _remembered(schedule, after)
    return schedule.next(after)


@lru_cache(maxsize=_SIZE)
def _remembered(schedule: Schedule, after: datetime) -> datetime | None:
    return schedule.next(after)


def cache_info() -> tuple[int, int, int]:
    """(hits, misses, entries) since the start or the last `forget_zones`."""
    info = _remembered.cache_info()
    return info.hits, info.misses, info.currsize


when_forgotten(_remembered.cache_clear)
