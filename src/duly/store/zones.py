"""The time-zone data by which a store's jobs are planned, and the plans that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.store.jobs import TimingRow
from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the data. `replanned`: the last job whose plan was checked; `finished_at`: when all were."""

    version: str
    noted_at: datetime
    replanned: UUID | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Planned(TimingRow):
    """A job whose plan may follow other rules than those in force. `planned`: when the plan was made."""

    version: int
    next_run_at: datetime
    planned: datetime


async def versions(store: Querier) -> list[Version]:
    """The versions that were ever in force; the first is the newest, which is in force now."""
    return [Version(*row) for row in await store.fetch("zones/versions")]


async def data(store: Querier, *, wanted: Sequence[str]) -> dict[str, bytes]:
    """The packed rules of these versions, where they are kept: the version in force and the one before."""
    return {row["version"]: row["data"] for row in await store.fetch("zones/data", wanted)}


async def note(store: Querier, *, version: str, data: bytes, instead_of: str | None) -> bool:
    """Puts a version into force. False: another node has put one into force meanwhile."""
    return await store.row("zones/note", version, data, instead_of) is not None


async def planned(
    store: Querier, *, after: UUID | None, page: int, zones: Sequence[str], before: datetime
) -> tuple[list[Planned], UUID | None]:
    """The jobs of one page that were planned in these zones before `before`, and where the next page begins."""
    rows = await store.fetch("zones/planned", after or UUID(int=0), page, zones, before)
    return [Planned(*row) for row in rows if row["kind"] is not None], rows[-1]["job_id"]


class Move(NamedTuple):
    """A plan's new time, unless the row has changed since it was read."""

    job_id: UUID
    version: int
    expected: datetime
    next_run_at: datetime


async def move(store: Querier, moves: Sequence[Move]) -> set[UUID]:
    """Moves plans. Returns the moved jobs; the others were changed or fired meanwhile, or are locked."""
    rows = await store.fetch("zones/move", *zip(*moves, strict=True))
    return {row["job_id"] for row in rows}


async def progress(store: Querier, *, version: str, replanned: UUID | None) -> None:
    """Stores how far the walk over all jobs has come; None: to the end."""
    await store.fetch("zones/progress", version, replanned)
