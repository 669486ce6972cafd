"""The time-zone data by which a store's jobs are planned, and the plans that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.model import ScheduleKind
from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the data. `replanned` is the last job whose plan was looked at; `finished_at`: all were."""

    version: str
    noted_at: datetime
    replanned: UUID | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A job whose plan may be by other rules than those in force. `planned` is when it was made."""

    job_id: UUID
    version: int
    kind: ScheduleKind
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    policy: str | None
    created_at: datetime
    next_run_at: datetime
    planned: datetime


async def versions(store: Querier) -> list[Version]:
    """Those that were ever in force, the newest, which is, first."""
    return [Version(*row) for row in await store.fetch("zones/versions")]


async def data(store: Querier, *, wanted: Sequence[str]) -> dict[str, bytes]:
    """The packed rules of these versions, as far as they are kept: those in force and those before."""
    return {row["version"]: row["data"] for row in await store.fetch("zones/data", wanted)}


async def note(store: Querier, *, version: str, data: bytes, instead_of: str | None) -> bool:
    """Let a version come into force. False: somebody else's has, meanwhile."""
    return await store.row("zones/note", version, data, instead_of) is not None


async def planned(
    store: Querier, *, after: UUID | None, page: int, zones: Sequence[str], before: datetime
) -> tuple[list[Planned], UUID | None]:
    """Of one page of jobs those that were planned in these zones before that; and where the next page begins."""
    rows = await store.fetch("zones/planned", after or UUID(int=0), page, zones, before)
    return [Planned(*row) for row in rows if row["kind"] is not None], rows[-1]["job_id"]


class Move(NamedTuple):
    """A plan that goes elsewhere, unless the row is no longer the one that was seen."""

    job_id: UUID
    version: int
    expected: datetime
    next_run_at: datetime


async def move(store: Querier, moves: Sequence[Move]) -> set[UUID]:
    """Move plans. Returns whose; the others were changed or fired meanwhile, or somebody keeps them locked."""
    rows = await store.fetch("zones/move", *zip(*moves, strict=True))
    return {row["job_id"] for row in rows}


async def progress(store: Querier, *, version: str, replanned: UUID | None) -> None:
    """How far the walk over all jobs has come; None: to the end."""
    await store.fetch("zones/progress", version, replanned)
