"""The next-occurrence cache: (schedule, previous occurrence) → next occurrence.

Half a million daily jobs at midnight are a few hundred distinct questions. Schedules compare by meaning, so the answer
is shared by all jobs that say the same, whatever their own bounds and jitter are. Intervals and one-offs are
arithmetic and never enter it: they would only push out what is dear. That a question costs too much is an answer as
well, and the dearest of all.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Final

from duly.errors import TooCostly

from .fuel import LENT, Fuel
from .schedule import Schedule
from .zones import when_forgotten

_SIZE = 32_768  # about 10 MB when full


class _Outcome(Enum):
    TOO_COSTLY = 1


_TOO_COSTLY: Final = _Outcome.TOO_COSTLY


def next_occurrence(schedule: Schedule, after: datetime, fuel: Fuel | None = None) -> datetime | None:
    """`schedule.next(after)`, remembered where that is worth it. Without fuel it is a question of its own."""
    if schedule.kind == "cron" or schedule.kind == "rrule":
        if fuel is None:
            found = _remembered(schedule, after)
        else:
            fuel.burn()
            token = LENT.set(fuel)
            try:
                found = _remembered(schedule, after)
            finally:
                LENT.reset(token)
        if found is _TOO_COSTLY:
            raise TooCostly
        return found
    return schedule.next(after, fuel)


@lru_cache(maxsize=_SIZE)
def _remembered(schedule: Schedule, after: datetime) -> datetime | _Outcome | None:
    fuel = LENT.get()
    if fuel is not None:
        # An empty tank says nothing about this question: others burnt from it before.
        return schedule.next(after, fuel)
    try:
        return schedule.next(after, Fuel())
    except TooCostly:
        return _TOO_COSTLY


def cache_info() -> tuple[int, int, int]:
    """(hits, misses, entries) since the start or the last `forget_zones`."""
    info = _remembered.cache_info()
    return info.hits, info.misses, info.currsize


when_forgotten(_remembered.cache_clear)
