"""Upkeep: expired leases, waiting runs, partitions, parked jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.model import DEFAULT_POLICY, ScheduleKind
from duly.store import runs
from duly.store.pool import Executor, Pool


@dataclass(frozen=True, slots=True)
class Rescued:
    claims: int = 0
    requeued: int = 0
    buried: int = 0
    held: bool = True
    """Whether workers hold anything at all: if not, nothing can expire before it has been claimed."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A job that could not be planned. `ours`: nobody has touched it since it was parked."""

    job_id: UUID
    version: int
    ours: bool
    kind: ScheduleKind
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    policy: str | None
    created_at: datetime


async def rescue(store: Pool, *, limit: int = 100) -> Rescued:
    """Take back what expired claims still held. Any number of nodes may try at once.

    Two statements in one transaction on purpose: see `maintenance/expired.sql`.
    """
    # A claim that is not there needs no transaction: this is asked every second by an idle cluster.
    look = await store.row("maintenance/any_expired")
    assert look is not None
    if not look["expired"]:
        return Rescued(held=look["held"])

    async def take_back(within: Executor) -> tuple[Rescued, Sequence[UUID]]:
        expired = [row["claim_id"] for row in await within.fetch("maintenance/expired", limit)]
        if not expired:
            return Rescued(), ()
        row = await within.row("maintenance/rescue", expired, DEFAULT_POLICY.max_retries)
        assert row is not None
        return Rescued(len(expired), row["requeued"], row["buried"]), row["serial"] or ()

    rescued, serial = await store.together(take_back)
    if serial:
        await runs.free_next(store, serial)
    return rescued


async def free_waiting(store: Pool, *, limit: int = 1000) -> int:
    """Let waiting runs go whose predecessors have ended. Returns in how many jobs."""
    # Almost always there is none, and then no transaction is needed to find that out.
    if not await store.fetch("maintenance/free_waiting", limit):
        return 0

    async def free(within: Executor) -> int:
        found = [row["job_id"] for row in await within.fetch("maintenance/free_waiting", limit)]
        if found:
            await within.fetch("runs/line", found)
        return len(found)

    return await store.together(free)


async def ensure_partitions(store: Pool, *, days_ahead: int = 7) -> int:
    """Make the partitions of the coming days."""
    row = await store.row("maintenance/ensure_partitions", days_ahead)
    assert row is not None
    return int(row["made"])


async def any_parked(store: Pool) -> bool:
    return bool(await store.fetch("maintenance/any_parked"))


async def parked(store: Pool, *, after: UUID | None, page: int) -> list[Parked]:
    """One page of the parked jobs, by id."""
    return [Parked(*row) for row in await store.fetch("maintenance/parked", after or UUID(int=0), page)]


async def unpark(store: Pool, *, able: Sequence[tuple[Parked, datetime | None]], touched: Sequence[UUID]) -> int:
    """Let jobs go on where they are planned to; forget those that somebody else has taken in hand."""
    row = await store.row(
        "maintenance/unpark",
        [job.job_id for job, _ in able],
        [job.version for job, _ in able],
        [next_run_at for _, next_run_at in able],
        touched,
    )
    assert row is not None
    return int(row["unparked"])
