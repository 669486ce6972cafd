"""Pauses that end by themselves (`migrations/0010_pauses.sql`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.model import DULY
from duly.store.jobs import TimingRow
from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class DuePause(TimingRow):
    """A pause whose time is over. `ours`: the job was not paused, resumed or cancelled anew since."""

    change_id: int
    version: int
    last_run_at: datetime | None
    dealt_with_until: datetime | None
    ours: bool


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    """The job goes on at `next_run_at`; None: it has ended. `problem`: why it cannot be planned."""

    pause: DuePause
    next_run_at: datetime | None
    problem: str | None = None


async def seconds_to_next(store: Querier) -> float | None:
    """Seconds until the next pause ends, negative if it should have; None: no pause ends by itself."""
    row = await store.row("pauses/wait")
    assert row is not None
    seconds: float | None = row["seconds"]
    return seconds


async def due(store: Querier, *, page: int) -> list[DuePause]:
    return [DuePause(**row) for row in await store.fetch("pauses/due", page)]


async def finish(store: Querier, ends: Sequence[PlannedEnd], *, void: Sequence[DuePause] = ()) -> list[UUID]:
    """Ends pauses, and forgets those that are no longer in force. Returns the jobs that changed. Any number of nodes
    may do so at once, and again: a pause ends once."""
    rows = await store.fetch(
        "pauses/finish",
        [one.pause.job_id for one in ends],
        [one.pause.change_id for one in ends],
        [one.pause.version for one in ends],
        [one.next_run_at for one in ends],
        [one.problem for one in ends],
        [one.job_id for one in void],
        [one.change_id for one in void],
        DULY.note(),
    )
    return [row["job_id"] for row in rows]
