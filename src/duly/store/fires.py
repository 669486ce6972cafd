"""Due jobs and the fire transaction: the scheduler's side of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from duly.model import ScheduleKind
from duly.store.pool import LARGE, Executor

_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
_FIRST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class DueJob:
    """What the planner needs to know of a job. `now` is the database's time when it was read."""

    job_id: UUID
    next_run_at: datetime
    kind: ScheduleKind
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    run_count: int
    policy: str | None
    created_at: datetime
    now: datetime
    since: datetime | None = None
    """When it last fired or was last changed: what lies before that has been answered for."""

    @property
    def due(self) -> bool:
        return self.next_run_at <= self.now


@dataclass(slots=True)
class Fire:
    """One batch of one shard, column by column as `fires/fire.sql` takes it."""

    job_ids: list[UUID] = field(default_factory=list)
    expected: list[datetime] = field(default_factory=list)
    next_run_at: list[datetime | None] = field(default_factory=list)
    overlap: list[str] = field(default_factory=list)
    max_queued: list[int] = field(default_factory=list)
    run_job_ids: list[UUID] = field(default_factory=list)
    run_scheduled_at: list[datetime] = field(default_factory=list)
    run_flags: list[int] = field(default_factory=list)
    run_place: list[int] = field(default_factory=list)
    drop_job_ids: list[UUID] = field(default_factory=list)
    drop_first: list[datetime] = field(default_factory=list)
    drop_last: list[datetime] = field(default_factory=list)
    drop_count: list[int] = field(default_factory=list)
    drop_reason: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Late occurrences of a job that wait for their turn: all of its timetable from `first_at` to `last_at`."""

    job_id: UUID
    shard: int
    first_at: datetime
    last_at: datetime
    count: int
    status: str
    kind: ScheduleKind
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    policy: str | None
    created_at: datetime


@dataclass(slots=True)
class Release:
    """Late runs of one shard, column by column as `fires/release.sql` takes it."""

    job_ids: list[UUID] = field(default_factory=list)
    last_at: list[datetime] = field(default_factory=list)
    expected: list[datetime] = field(default_factory=list)
    first_at: list[datetime | None] = field(default_factory=list)
    overlap: list[str] = field(default_factory=list)
    max_queued: list[int] = field(default_factory=list)
    run_job_ids: list[UUID] = field(default_factory=list)
    run_scheduled_at: list[datetime] = field(default_factory=list)
    run_flags: list[int] = field(default_factory=list)
    run_place: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fired:
    """What a fire transaction did. A job that is not in `moved` was not where the caller thought it was."""

    moved: frozenset[UUID]
    live: int
    skipped: int


async def load(
    store: Executor, *, shard: int, horizon: datetime, after: tuple[datetime, UUID] | None, page: int
) -> list[tuple[UUID, datetime]]:
    """One page of what falls due in a shard up to `horizon`."""
    last_due, last_id = after or (_LONG_AGO, _FIRST_ID)
    rows = await store.fetch("fires/load", shard, horizon, last_due, last_id, page)
    return [(row["job_id"], row["next_run_at"]) for row in rows]


async def due(store: Executor, *, shard: int, job_ids: Sequence[UUID]) -> list[DueJob]:
    """The jobs as they are now; one that was paused, ended or deleted meanwhile is not among them."""
    rows = await store.fetch("fires/due", job_ids, shard)
    return [DueJob(*row) for row in rows]


async def fire(store: Executor, *, shard: int, epoch: int, batch: Fire) -> Fired:
    """Turn due occurrences into runs and move their jobs on, all or nothing, if the epoch still stands."""
    fetch = store.fetch_planned if len(batch.job_ids) >= LARGE else store.fetch
    rows = await fetch(
        "fires/fire",
        shard,
        epoch,
        batch.job_ids,
        batch.expected,
        batch.next_run_at,
        batch.overlap,
        batch.max_queued,
        batch.run_job_ids,
        batch.run_scheduled_at,
        batch.run_flags,
        batch.run_place,
        batch.drop_job_ids,
        batch.drop_first,
        batch.drop_last,
        batch.drop_count,
        batch.drop_reason,
    )
    row = rows[0]
    return Fired(frozenset(row["moved"] or ()), row["live"], row["skipped"])


async def catch_ups(store: Executor, *, shards: Sequence[int], limit: int) -> list[CatchUp]:
    """Who is next among those whose late runs wait for their turn."""
    return [CatchUp(*row) for row in await store.fetch("fires/catch_ups", shards, limit)]


async def release(store: Executor, *, shard: int, epoch: int, batch: Release) -> int:
    """Let late runs go, if the epoch still stands. Returns how many."""
    row = await store.row(
        "fires/release",
        shard,
        epoch,
        batch.job_ids,
        batch.last_at,
        batch.expected,
        batch.first_at,
        batch.overlap,
        batch.max_queued,
        batch.run_job_ids,
        batch.run_scheduled_at,
        batch.run_flags,
        batch.run_place,
    )
    assert row is not None
    return int(row["live"])


async def abandon(store: Executor, *, shard: int, epoch: int, waiting: Sequence[CatchUp]) -> None:
    """Record as missed what waited for its turn when its job was paused or cancelled."""
    await store.fetch(
        "fires/abandon",
        shard,
        epoch,
        [one.job_id for one in waiting],
        [one.last_at for one in waiting],
        [one.status for one in waiting],
    )


async def park(store: Executor, *, shard: int, epoch: int, jobs: Sequence[tuple[UUID, datetime, str]]) -> list[UUID]:
    """Pause jobs that cannot be planned, each with its reason."""
    rows = await store.fetch(
        "jobs/park", shard, epoch, [job[0] for job in jobs], [job[1] for job in jobs], [job[2] for job in jobs]
    )
    return [row["job_id"] for row in rows]
