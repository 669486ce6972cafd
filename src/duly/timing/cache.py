"""The next-occurrence cache: (schedule, previous occurrence) → next occurrence.

Half a million daily jobs at midnight ask a few hundred distinct questions. Schedules compare by meaning, so all jobs
with equal schedules share an answer, whatever their own bounds and jitter. Intervals and one-offs are arithmetic and
are not cached: they would only evict answers that cost more. "Too costly" is cached too: it costs the most to find.
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

# Entries in a cache of schedules or answers. A few hundred are usual, but a client that may preview can fill any cache.
# Entries for short schedules take up to 5 KB each, for long ones up to 70 KB: each has a cache of its own.
SIZE = 4_096
LONG_SIZE = 128
SHORT = 200  # characters; a longer schedule is a long one


class _Outcome(Enum):
    TOO_COSTLY = 1


_TOO_COSTLY: Final = _Outcome.TOO_COSTLY


def next_occurrence(schedule: Schedule, after: datetime, fuel: Fuel | None = None) -> datetime | None:
    """`schedule.next(after)`, cached where that pays. Without `fuel` it is a question of its own."""
    if schedule.kind == "cron" or schedule.kind == "rrule":
        remembered = _remembered if len(schedule.canonical) <= SHORT else _remembered_of_long
        if fuel is None:
            found = remembered(schedule, after)
        else:
            fuel.burn()
            token = LENT.set(fuel)
            try:
                found = remembered(schedule, after)
            finally:
                LENT.reset(token)
        if found is _TOO_COSTLY:
            raise TooCostly
        return found
    return schedule.next(after, fuel)


def _ask(schedule: Schedule, after: datetime) -> datetime | _Outcome | None:
    fuel = LENT.get()
    if fuel is not None:
        # Running out of lent fuel says nothing about this question: earlier ones burnt from it too. Not cached.
        return schedule.next(after, fuel)
    try:
        return schedule.next(after, Fuel())
    except TooCostly:
        return _TOO_COSTLY


_remembered = lru_cache(maxsize=SIZE)(_ask)
_remembered_of_long = lru_cache(maxsize=LONG_SIZE)(_ask)


when_forgotten(_remembered.cache_clear)
when_forgotten(_remembered_of_long.cache_clear)
