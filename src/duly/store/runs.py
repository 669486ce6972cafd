"""Claims runs and records their outcomes: the worker's side of the store.

Every write names its claim. A claim that is gone (its lease ran out and rescue took the runs back) accepts nothing; the
returned count shows that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from duly.model import Buried, Claim, ClaimedRun, Expired, Requeued, Succeeded
from duly.store import jobs, ledger
from duly.store.pool import Querier

# Pauses in seconds before a locked job is tried again; after the last it is left to upkeep.
FREE_PAUSES = (0.0, 0.01, 0.05)


Lanes = tuple[list[str], list[int]]
"""Queues and priorities, pairwise, in the order to read them."""


class Served(NamedTuple):
    """The tenants whose runs a claim takes (None: all), and the number of runs of each lane that it reads to find those
    that it takes."""

    tenants: Sequence[str] | None
    stretch: int


async def claim(
    store: Querier,
    *,
    worker_id: UUID,
    lease_seconds: float,
    limit: int,
    lanes: Lanes,
    floors: Sequence[datetime | None] | None = None,
    without: Sequence[str] = (),
    served: Served | None = None,
) -> Claim:
    """Takes up to `limit` startable runs, highest priority first, under one new lease.

    `floors`: runs of a lane that could have started before its floor are skipped. `served`: takes only some runs, as
    far as the claim reads: of some tenants, and without those of the tasks `without`, which are left to other workers.
    """
    floors = [None] * len(lanes[0]) if floors is None else floors
    arguments = (worker_id, lease_seconds, limit, *lanes, floors)
    if served is not None:
        *taken, last = await store.fetch("runs/claim_served", *arguments, without, *served)
    else:
        *taken, last = await store.fetch("runs/claim", *arguments)
    runs = []
    for row in taken:
        run = ClaimedRun()
        (
            run.claim_id, run.ordinal, run.job_id, run.scheduled_at, run.attempt, run.flags, run.name, run.handler,
            run.target, run.payload, run.payload_ref, run.timezone, run.policy_text, aside,
        ) = row[:14]  # fmt: skip
        run.tenant = run.queue = run.trace = None
        if aside is not None:
            tenant, run.queue, trace = aside.split("\n", 2)
            run.tenant, run.trace = tenant or None, trace or None
        runs.append(run)
    return Claim(
        runs[0].claim_id if runs else None,
        runs,
        next_run_at=last["next_run_at"],
        emptied_lanes=last["emptied_lanes"],
        emptied_to=last["emptied_to"],
        now=last["now"],
        took=last["took"].total_seconds(),
        ends=() if served is None else last["ends"],
    )


async def lanes(store: Querier, *, queues: Sequence[str]) -> list[tuple[str, int]]:
    """The lanes of these queues that hold any run, as queue and priority."""
    return [(row["queue"], row["priority"]) for row in await store.fetch("runs/lanes", queues)]


async def complete(store: Querier, ended: Sequence[Succeeded], close: Sequence[UUID] = ()) -> int:
    """Records successes and closes claims that hold nothing more. Returns how many were accepted."""
    if any(end.key is not None for end in ended):
        return await store.together(lambda within: _complete_keyed(within, ended, close))
    return await _complete(store, ended, close)


async def _complete_keyed(store: Querier, ended: Sequence[Succeeded], close: Sequence[UUID]) -> int:
    accepted = await _complete(store, ended, close)
    keyed = [(end.run.claim_id, end.run.job_id, end.run.scheduled_at, end.key) for end in ended if end.key is not None]
    await ledger.remember(store, keyed)
    return accepted


def _complete(store: Querier, ended: Sequence[Succeeded], close: Sequence[UUID]) -> Awaitable[int]:
    return _write(
        store, "runs/complete", ended,
        [end.started_us for end in ended],
        [end.finished_us for end in ended],
        [end.result for end in ended],
        [end.flags for end in ended],
        list(close),
    )  # fmt: skip


async def requeue(store: Querier, ended: Sequence[Requeued]) -> int:
    """Puts runs back into the queue. Returns how many were accepted."""
    return await _write(
        store, "runs/requeue", ended,
        [end.state for end in ended],
        [end.delay for end in ended],
        [end.refund for end in ended],
        [end.error for end in ended],
        [end.started_us for end in ended],
        [end.finished_us for end in ended],
        [end.flags for end in ended],
    )  # fmt: skip


async def bury(store: Querier, ended: Sequence[Buried]) -> int:
    """Records runs that will not be tried again. Returns how many were accepted."""
    return await _write(
        store, "runs/bury", ended,
        [end.error for end in ended],
        [end.started_us for end in ended],
        [end.finished_us for end in ended],
        [end.status for end in ended],
    )  # fmt: skip


async def expire(store: Querier, ended: Sequence[Expired]) -> int:
    """Records runs that no worker started in time as missed. Returns how many were accepted."""
    return await _write(
        store, "runs/expire", ended,
        [end.finished_us for end in ended],
        [end.start_within_seconds for end in ended],
    )  # fmt: skip


async def _write(
    store: Querier, statement: str, ended: Sequence[Succeeded | Requeued | Buried | Expired], *columns: list[Any]
) -> int:
    """Sends outcomes, each named by its claim and ordinal, with the other columns of the statement."""
    claims: dict[UUID, int] = {}
    positions = [claims.setdefault(end.run.claim_id, len(claims) + 1) for end in ended]
    row = await store.row(statement, list(claims), positions, [end.run.ordinal for end in ended], *columns)
    assert row is not None
    if row["serial"]:
        await free_next(store, row["serial"])
    return int(row["accepted"])


async def settled(store: Querier, runs: Sequence[ClaimedRun]) -> set[tuple[UUID, datetime]]:
    """Returns those of these runs that history records under the very claim they were taken with."""
    rows = await store.fetch(
        "runs/settled",
        [run.claim_id for run in runs],
        [run.job_id for run in runs],
        [run.scheduled_at for run in runs],
    )
    return {(row["job_id"], row["scheduled_at"]) for row in rows}


class Beat(NamedTuple):
    """The claims that a worker still holds, each with the ordinals of its cancelled runs."""

    held: dict[UUID, list[int]]
    joined: bool
    """False: the store does not know the worker, whatever it holds; it must join again."""


async def heartbeat(store: Querier, *, worker_id: UUID, lease_seconds: float, claims: Collection[UUID]) -> Beat:
    """Extends these leases of a worker, and its own."""
    rows = await store.fetch("runs/heartbeat", worker_id, lease_seconds, list(claims))
    held = {row["claim_id"]: row["cancelled"] for row in rows if row["claim_id"] is not None}
    return Beat(held, joined=len(held) == len(rows))


async def free_next(store: Querier, job_ids: Sequence[UUID]) -> None:
    """Releases the next waiting run of each job after one has ended. Upkeep finds the runs that this misses.

    A fire locks a job for a moment. A user's transaction may lock it for an hour, and the outcomes of all other jobs
    must not wait for that.
    """

    async def free(within: Querier) -> list[UUID]:
        found = await jobs.lock_available(within, job_ids=left)
        if found:
            await jobs.put_in_order(within, job_ids=found, whole=False)
        return found

    left = set(job_ids)
    for pause in FREE_PAUSES:
        if pause:
            await asyncio.sleep(pause)
        left.difference_update(await store.together(free))
        if not left:
            break


async def cancel(store: Querier, *, job_id: UUID, scheduled_at: datetime, tenant: str, note: str | None) -> str | None:
    """Returns `cancelled` if the run waited and has ended, `running` if it was asked to stop, None if it was not
    found."""

    async def end(within: Querier) -> str | None:
        if not await jobs.lock(within, job_ids=[job_id], tenant=tenant):
            return None
        row = await within.row("runs/cancel", job_id, scheduled_at, note)
        assert row is not None
        if row["became"] == "cancelled":
            await jobs.put_in_order(within, job_ids=[job_id])
        became: str | None = row["became"]
        return became

    return await store.together(end)
