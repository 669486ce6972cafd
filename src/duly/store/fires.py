"""Reads due jobs and fires them: the scheduler's side of the store."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.model import DULY, from_micros, to_micros
from duly.store.jobs import TimingRow
from duly.store.pool import LARGE, Querier

# Prefix of the reason of a job paused because its plan costs too much: nothing retries it.
COSTLY = "too costly to plan"
LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
_2000_US = to_micros(datetime(2000, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class DueJob(TimingRow):
    """The fields of a job that the planner needs. `now` is the database's time when it was read."""

    next_run_at: datetime
    max_runs: int | None
    run_count: int
    now: datetime
    since: datetime | None = None
    """When the job last fired or was last changed; earlier occurrences are already recorded."""
    ctid: tuple[int, int] | None = None
    version: int = 0
    """The version of the row: a fire moves this very row or none."""
    busy: bool = True
    """Whether an earlier run may be unfinished."""
    shard: int = 0
    trace: str | None = None
    queue: str | None = None
    """As for a run that is claimed (`ClaimedRun`)."""

    @property
    def due(self) -> bool:
        return self.next_run_at <= self.now

    def due_within(self, ahead: timedelta) -> bool:
        return self.next_run_at <= self.now + ahead


@dataclass(slots=True)
class SimpleFires:
    """Jobs with one run each, on time, column by column as `fires/on_time.sql` takes them."""

    ctids: list[tuple[int, int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    job_ids: list[UUID] = field(default_factory=list)
    expected: list[datetime] = field(default_factory=list)
    next_run_at: list[datetime | None] = field(default_factory=list)
    run_flags: list[int] = field(default_factory=list)
    shards: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Fires:
    """One batch of one shard, column by column as `fires/fire.sql` takes it."""

    job_ids: list[UUID] = field(default_factory=list)
    expected: list[datetime] = field(default_factory=list)
    next_run_at: list[datetime | None] = field(default_factory=list)
    overlap: list[str] = field(default_factory=list)
    max_queued: list[int] = field(default_factory=list)
    run_job_ids: list[UUID] = field(default_factory=list)
    run_scheduled_at: list[datetime] = field(default_factory=list)
    run_flags: list[int] = field(default_factory=list)
    run_number: list[int] = field(default_factory=list)
    drop_job_ids: list[UUID] = field(default_factory=list)
    drop_first: list[datetime] = field(default_factory=list)
    drop_last: list[datetime] = field(default_factory=list)
    drop_count: list[int] = field(default_factory=list)
    drop_reason: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CatchUp(TimingRow):
    """Late occurrences of a job that still wait to run: all of its timetable from `first_at` to `last_at`."""

    shard: int
    first_at: datetime
    last_at: datetime
    count: int
    status: str


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
    run_number: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fired:
    """The result of a fire transaction. A job that is not in `moved` has changed since it was read.

    `led`: the shards whose epoch is still current. A job of theirs that was not moved should be read again: it may have
    been changed at this very moment.
    """

    moved: frozenset[UUID]
    led: frozenset[int]
    live: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of a shard's future: after one time, up to another."""

    shard: int
    after: datetime
    upto: datetime


@dataclass(frozen=True, slots=True)
class SlicePage:
    """The jobs due in a slice, soonest first: 16 bytes of id for each due time in microseconds since 1970.

    `rest` is the part of the slice after this page; None at its end.
    """

    shard: int
    job_ids: bytes
    dues_us: array[int]
    rest: Slice | None


async def load(store: Querier, *, slices: Sequence[Slice], page: int) -> list[SlicePage]:
    """The first `page` jobs of each slice, and all jobs due at the time of the last. Empty slices are left out."""
    rows = await store.fetch(
        "fires/load", [one.shard for one in slices], [one.after for one in slices], [one.upto for one in slices], page
    )
    pages = []
    for row in rows:
        asked = slices[row["number"] - 1]
        since_2000 = array("q", row["dues"])
        if sys.byteorder == "little":
            since_2000.byteswap()
        dues_us = array("q", [due + _2000_US for due in since_2000])
        rest = replace(asked, after=from_micros(dues_us[-1])) if len(dues_us) >= page else None
        pages.append(SlicePage(asked.shard, row["job_ids"], dues_us, rest))
    return pages


async def load_range(store: Querier, *, after: UUID, upto: UUID, page: int) -> list[tuple[UUID, int, datetime | None]]:
    """Jobs between two ids: id, shard and due time."""
    return [tuple(row) for row in await store.fetch("fires/load_range", after, upto, page)]


async def due(store: Querier, *, job_ids: Sequence[UUID]) -> list[DueJob]:
    """Reads these jobs as they are now, without those that were paused, ended or deleted meanwhile."""
    rows = await store.fetch("fires/due", job_ids)
    return [DueJob(*row) for row in rows]


async def fire(store: Querier, *, epochs: Mapping[int, int], batch: Fires | SimpleFires) -> Fired:
    """Turns due occurrences into runs and moves their jobs on: in one transaction, where the epoch is still current.

    `epochs`: of the leader's terms, by shard. `Fires` are of one shard, `SimpleFires` of any number.
    """
    if isinstance(batch, SimpleFires):
        return await _send_simple_fires(store, epochs, batch)
    ((shard, epoch),) = epochs.items()
    return await _send_fires(store, shard, epoch, batch)


async def _send_simple_fires(store: Querier, epochs: Mapping[int, int], batch: SimpleFires) -> Fired:
    rows = await store.fetch(
        "fires/on_time",
        list(epochs),
        list(epochs.values()),
        batch.ctids,
        batch.versions,
        batch.job_ids,
        batch.expected,
        batch.next_run_at,
        batch.run_flags,
        batch.shards,
        [epochs[shard] for shard in batch.shards],
    )
    moved = frozenset(rows[0]["moved"] or ())
    return Fired(moved, frozenset(rows[0]["led"] or ()), len(moved))


async def _send_fires(store: Querier, shard: int, epoch: int, batch: Fires) -> Fired:
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
        batch.run_number,
        batch.drop_job_ids,
        batch.drop_first,
        batch.drop_last,
        batch.drop_count,
        batch.drop_reason,
        batch.versions,
    )
    row = rows[0]
    led = frozenset({shard}) if row["led"] else frozenset[int]()
    return Fired(frozenset(row["moved"] or ()), led, row["live"])


async def catch_ups(
    store: Querier, *, shards: Sequence[int], limit: int, passing_over: Collection[UUID] = ()
) -> list[CatchUp]:
    """The catch-ups to serve next, the one served longest ago first."""
    return [CatchUp(*row) for row in await store.fetch("fires/catch_ups", shards, limit, list(passing_over))]


async def release(store: Querier, *, shard: int, epoch: int, batch: Release) -> tuple[int, set[UUID]]:
    """Releases late runs, if the epoch is still current. Returns how many, and the jobs that were served."""
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
        batch.run_number,
    )
    assert row is not None
    return int(row["live"]), set(row["served"] or ())


async def abandon(store: Querier, *, shard: int, epoch: int, waiting: Sequence[CatchUp]) -> list[int]:
    """Records as missed the late occurrences of jobs that were paused or cancelled. Returns how many, for each entry
    of history."""
    rows = await store.fetch(
        "fires/abandon",
        shard,
        epoch,
        [one.job_id for one in waiting],
        [one.last_at for one in waiting],
        [one.status for one in waiting],
    )
    return [row["count"] for row in rows]


async def park_costly(store: Querier, *, jobs: Sequence[tuple[DueJob, str]]) -> list[UUID]:
    """Pauses jobs whose plan costs too much, each with its reason, whichever node leads their shards by now."""
    rows = await store.fetch(
        "fires/park_costly",
        [job.job_id for job, _ in jobs],
        [job.version for job, _ in jobs],
        [job.next_run_at for job, _ in jobs],
        [reason for _, reason in jobs],
        DULY.note(),
    )
    return [row["job_id"] for row in rows]


async def park(store: Querier, *, shard: int, epoch: int, jobs: Sequence[tuple[UUID, datetime, str]]) -> list[UUID]:
    """Parks jobs that cannot be planned, each with its reason."""
    rows = await store.fetch(
        "fires/park",
        shard,
        epoch,
        [job[0] for job in jobs],
        [job[1] for job in jobs],
        [job[2] for job in jobs],
        DULY.note(),
    )
    return [row["job_id"] for row in rows]
