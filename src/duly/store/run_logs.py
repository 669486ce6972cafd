"""The lines that handlers log and print, kept with their runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from duly.model import LogLine, from_micros
from duly.store.pool import Querier

#: The step of the migrations that brought the table. Without it, nothing is kept.
STEP = 9
#: The part with the latest lines of a log that is longer than what is kept.
LAST_PART = 2**31 - 1
# Seconds after the end of a run after which no more lines are expected.
_LATE_SECONDS = 3.0
_NO_CLAIM = UUID(int=0)


class Part(NamedTuple):
    """What one flush found of one attempt. `lines` is JSON: [number, microseconds, level, source, text] each."""

    job_id: UUID
    scheduled_at: datetime
    claim_id: UUID
    part: int
    attempt: int
    last_line: int
    ended: bool
    lines: str


class Position(NamedTuple):
    """The place of a line in a run's log."""

    claim_id: UUID
    number: int


START = Position(_NO_CLAIM, 0)


async def write(store: Querier, parts: Sequence[Part]) -> None:
    """Stores parts, each at most once per call. Sending them again has no effect."""
    await store.fetch("run_logs/write", *map(list, zip(*parts, strict=True)))


async def read(
    store: Querier, *, job_id: UUID, scheduled_at: datetime, after: Position, attempt: int | None, limit: int
) -> tuple[list[tuple[Position, LogLine]], bool]:
    """Lines after a position, in order, from at most `limit` parts; and whether there may be more."""
    rows = await store.fetch("run_logs/read", job_id, scheduled_at, *after, attempt, limit)
    return _lines(rows, after), len(rows) == limit


async def read_last(
    store: Querier, *, job_id: UUID, scheduled_at: datetime, attempt: int | None, limit: int
) -> list[tuple[Position, LogLine]]:
    """The lines of the last `limit` parts, in order."""
    rows = await store.fetch("run_logs/read_last", job_id, scheduled_at, attempt, limit)
    return _lines(rows[::-1], None)


def _lines(rows: Sequence[Any], after: Position | None) -> list[tuple[Position, LogLine]]:
    """The lines of these parts beyond a position. A gap in the numbers says how many were left out before a line.

    Without a position the first part may be from the middle of an attempt: nothing is said of what is before it.
    """
    found = []
    claim_id, number = (None, None) if after is None else (after.claim_id, after.number)
    for row in rows:
        if row["claim_id"] != claim_id:
            number = 0 if claim_id is not None else None
            claim_id = row["claim_id"]
        for line, micros, level, source, text in json.loads(row["lines"]):
            if number is not None and line <= number:
                continue
            left_out = 0 if number is None else line - number - 1
            number = line
            at = from_micros(micros)
            found.append((Position(claim_id, line), LogLine(row["attempt"], line, at, level, source, text, left_out)))
    return found


async def is_complete(store: Querier, *, job_id: UUID, scheduled_at: datetime) -> bool:
    """Whether the run has ended and no more lines of it will come."""
    row = await store.row("run_logs/is_complete", job_id, scheduled_at, _LATE_SECONDS)
    return row is not None and bool(row["complete"])


async def prune(store: Querier, *, retention_seconds: float, limit: int) -> int:
    if not store.has_step(STEP):
        return 0
    row = await store.row("run_logs/prune", retention_seconds, limit)
    return int(row["gone"]) if row else 0
