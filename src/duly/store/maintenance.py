"""Upkeep: expired leases, waiting runs, partitions, parked jobs, and impossible states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID

from duly.errors import DataRefused
from duly.model import DEFAULT_POLICY, DULY, make_run_id
from duly.store import jobs, runs
from duly.store.pool import Pool, Querier

# Pause before a run that can neither be taken back nor be ended is tried again.
PUT_OFF_SECONDS = 60.0
# Maximum number of claims below the floor that are listed one by one.
_MAX_OLDS = 200


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a search for expired claims, with the time, the dead rows among the claims, and its seconds in the
    database."""

    expired: bool
    now: datetime
    dead: int
    took: float


@dataclass(frozen=True, slots=True)
class Rescued:
    claims: int = 0
    requeued: int = 0
    buried: int = 0
    any_claims: bool = True
    """Whether there is any claim: if not, nothing can expire before it has been claimed."""
    given_up: tuple[str, ...] = ()
    """Runs that the database refused to take back: their ids, its errors, and their outcome."""
    look: Look | None = field(default=None, compare=False)


#: Maximum past days per pass, and rows moved per day: other sessions wait while rows are moved (0.6 s, measured).
MAX_PAST_DAYS = 8
MAX_MOVED_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The result of a pass over the days. `failed`: partitions that could not be made, each with the reason."""

    made: int
    put_off: str | None
    """The day at which a lock ended the pass."""
    failed: list[str]


@dataclass(frozen=True, slots=True)
class Parked(jobs.TimingRow):
    """A job that could not be planned. `ours`: it was not changed since it was parked."""

    version: int
    ours: bool
    dealt_with_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """An impossible state. `stalled`: an active job without a next occurrence. `lost`: a run in no table."""

    problem: Literal["stalled", "lost"]
    job_id: UUID
    scheduled_at: datetime | None


async def rescue(store: Pool, *, limit: int = 100, since: datetime | None = None, read_claims: bool = False) -> Rescued:
    """Takes back the runs that expired claims still hold. Any number of nodes may try at once.

    `since`: leases that ended before that are skipped. `read_claims`: reads all claims instead of the index of leases.
    Two statements in one transaction on purpose: see `maintenance/lock_expired.sql`.
    """
    # Without an expired claim no transaction is needed: an idle cluster asks every second. It looks for more claims
    # than it takes, because other nodes may be working on some.
    look = await store.row("maintenance/expired", 10 * limit, since, read_claims)
    assert look is not None
    found: list[UUID] = look["expired"]
    looked = Look(bool(found), look["now"], look["dead"], look["took"])
    if not found:
        return Rescued(any_claims=look["any_claims"], look=looked)

    async def take_back(within: Querier) -> tuple[Rescued, Sequence[UUID]]:
        expired = await _lock_expired(within, found, limit)
        if not expired:
            return Rescued(look=looked), ()
        row = await within.row("maintenance/rescue", expired, DEFAULT_POLICY.max_retries)
        assert row is not None
        return Rescued(len(expired), row["requeued"], row["buried"], look=looked), row["serial"] or ()

    try:
        rescued, serial = await store.together(take_back)
    except DataRefused:
        # One row is at fault, and the others must not suffer for it.
        return await _rescue_each(store, await _lock_expired(store, found, limit), looked)
    if serial:
        await runs.free_next(store, serial)
    return rescued


async def _lock_expired(store: Querier, claim_ids: Sequence[UUID], limit: int) -> list[UUID]:
    return [row["claim_id"] for row in await store.fetch("maintenance/lock_expired", claim_ids, limit)]


async def _rescue_each(store: Pool, waiting: list[UUID], look: Look) -> Rescued:
    """Rescues claim by claim; a claim with a run that cannot be taken back, run by run."""
    requeued = buried = 0
    given_up: list[str] = []
    claims = len(waiting)
    while waiting:
        claim_id = waiting.pop()
        try:
            back, ended, serial = await store.together(partial(_take_back, claim_id=claim_id))
        except DataRefused as error:
            apart = await store.together(partial(_split, claim_id=claim_id))
            if apart:
                waiting += apart
                continue
            said, serial = await _give_up(store, claim_id, str(error))
            back, ended = 0, 1 if said else 0
            given_up += said
        requeued += back
        buried += ended
        if serial:
            await runs.free_next(store, serial)
    return Rescued(claims, requeued, buried, given_up=tuple(given_up), look=look)


async def _take_back(within: Querier, claim_id: UUID) -> tuple[int, int, Sequence[UUID]]:
    if not await _lock_expired(within, [claim_id], 1):
        return 0, 0, ()  # another node is working on it
    row = await within.row("maintenance/rescue", [claim_id], DEFAULT_POLICY.max_retries)
    assert row is not None
    return row["requeued"], row["buried"], row["serial"] or ()


async def _split(within: Querier, claim_id: UUID) -> list[UUID]:
    """Replaces a claim that holds several runs by claims of one run each; returns none if it holds only one."""
    if not await _lock_expired(within, [claim_id], 1):
        return []
    return [row["claim_id"] for row in await within.fetch("maintenance/split", claim_id)]


async def _give_up(store: Pool, claim_id: UUID, reason: str) -> tuple[list[str], Sequence[UUID]]:
    """Ends a run that cannot be taken back. If not even that can be written, it is tried again later."""

    async def end(within: Querier) -> list[Any]:
        if not await _lock_expired(within, [claim_id], 1):
            return []
        return await within.fetch("maintenance/give_up", claim_id, reason[:500])

    try:
        rows = await store.together(end)
    except DataRefused as error:
        rows = await store.fetch("maintenance/put_off", claim_id, PUT_OFF_SECONDS)
        return [f"{make_run_id(row['job_id'], row['scheduled_at'])}: {error}; tried again later" for row in rows], ()
    said = [f"{make_run_id(row['job_id'], row['scheduled_at'])}: {reason}; it has ended" for row in rows]
    return said, [row["job_id"] for row in rows if row["serial"]]


async def set_claim_bar(store: Querier) -> UUID:
    """Sets and returns the smallest id that a claim may get from now on."""
    row = await store.row("maintenance/set_claim_bar")
    assert row is not None
    bar = row["bar"]
    assert isinstance(bar, UUID)
    return bar


async def claimers(store: Querier) -> set[str]:
    """The transactions that may have written a claim which is not visible yet."""
    return {row["holder"] for row in await store.fetch("maintenance/claimers")}


async def raise_claim_floor(store: Querier, *, bar: UUID) -> None:
    """Lets reads of all claims start at the bar. Only after all transactions that were claimers at the bar have
    ended."""
    await store.fetch("maintenance/raise_claim_floor", bar, _MAX_OLDS)


async def free_waiting(store: Pool, *, limit: int = 1000) -> int:
    """Releases waiting runs whose predecessors have ended. Returns the number of jobs."""
    # Almost always there is none, and finding that out needs no transaction.
    if not await store.fetch("maintenance/free_waiting", limit):
        return 0

    async def free(within: Querier) -> int:
        found = [row["job_id"] for row in await within.fetch("maintenance/free_waiting", limit)]
        if found:
            await jobs.put_in_order(within, job_ids=found)
        return len(found)

    return await store.together(free)


async def ensure_partitions(store: Pool, *, days_ahead: int = 7) -> Partitioning:
    """Makes the partitions of the coming days, and of past days whose rows are in the default partition.

    Each in a transaction of its own: one that cannot be made now does not hold up the others. The first lock in the way
    ends the pass: other sessions waited during that try, and the next day's would fare no better.
    """
    made, put_off = 0, None
    failed = []
    for row in await store.fetch("maintenance/missing_partitions", days_ahead, MAX_PAST_DAYS):
        answer = await store.row("maintenance/make_partition", row["parent"], row["day"], MAX_MOVED_ROWS)
        assert answer is not None
        became: str = answer["became"]
        if became == "locked":
            put_off = f"{row['parent']} {row['day']}"
            break
        if became in ("made", "moved"):
            made += 1
        elif became != "there":
            failed.append(f"{row['parent']} {row['day']}: {became.removeprefix('failed: ')}")
    await store.fetch("maintenance/write_has_ended", days_ahead)
    return Partitioning(made, put_off, failed)


async def any_parked(store: Pool) -> bool:
    return bool(await store.fetch("maintenance/any_parked"))


async def parked(store: Pool, *, after: UUID | None, page: int) -> list[Parked]:
    """One page of the parked jobs, by id."""
    return [Parked(*row) for row in await store.fetch("maintenance/parked", after or UUID(int=0), page)]


async def unpark(store: Pool, *, able: Sequence[tuple[Parked, datetime | None]], touched: Sequence[UUID]) -> int:
    """Lets jobs continue at their planned time; forgets those that were changed since (`touched`)."""
    row = await store.row(
        "maintenance/unpark",
        [job.job_id for job, _ in able],
        [job.version for job, _ in able],
        [next_run_at for _, next_run_at in able],
        touched,
        DULY.note(),
    )
    assert row is not None
    return int(row["unparked"])


async def suspects(
    store: Querier, *, after: UUID | None, grace_seconds: float, page: tuple[int, int], pages: int
) -> tuple[list[Suspect], UUID | None]:
    """The impossible states among one page of jobs, by id, and where the next page begins: None at the end.

    The page size makes the whole store about `pages` pages, within the smallest and largest size `page`.
    """
    rows = await store.fetch("maintenance/suspects", after or UUID(int=0), grace_seconds, *page, pages)
    return [Suspect(*row) for row in rows if row["problem"] is not None], rows[-1]["job_id"]


async def stalled(store: Querier, *, job_ids: Sequence[UUID]) -> list[Parked]:
    """Reads those of these jobs that are active and have no next occurrence."""
    return [Parked(*row) for row in await store.fetch("maintenance/stalled", job_ids)]


async def replan(store: Querier, planned: Sequence[tuple[Parked, datetime | None, str | None]]) -> list[UUID]:
    """Lets stalled jobs continue at the given time, or parks them for the given reason."""
    rows = await store.fetch(
        "maintenance/replan",
        [job.job_id for job, _, _ in planned],
        [job.version for job, _, _ in planned],
        [next_run_at for _, next_run_at, _ in planned],
        [reason for _, _, reason in planned],
        DULY.note(),
    )
    return [row["job_id"] for row in rows]


async def restore_runs(store: Pool, lost: Sequence[tuple[UUID, datetime]]) -> list[tuple[UUID, datetime]]:
    """Puts back runs that are in no table. Returns those it put back."""

    async def restore(within: Querier) -> list[tuple[UUID, datetime]]:
        free = set(await jobs.lock_available(within, job_ids=[job_id for job_id, _ in lost]))
        found = [one for one in lost if one[0] in free]
        rows = await within.fetch(
            "maintenance/restore_runs", [job_id for job_id, _ in found], [scheduled_at for _, scheduled_at in found]
        )
        restored = [(row["job_id"], row["scheduled_at"]) for row in rows]
        if restored:
            await jobs.put_in_order(within, job_ids=sorted({job_id for job_id, _ in restored}))
        return restored

    return await store.together(restore)


async def unattended_claims(store: Querier, *, ahead_seconds: float, limit: int) -> dict[UUID, datetime]:
    """Claims that no worker can be extending, each with its current lease."""
    rows = await store.fetch("maintenance/unattended_claims", ahead_seconds, limit)
    return {row["claim_id"]: row["lease_until"] for row in rows}


async def expire_claims(store: Querier, seen: Mapping[UUID, datetime]) -> list[UUID]:
    """Ends those leases that were not extended since they were read."""
    return [row["claim_id"] for row in await store.fetch("maintenance/expire_claims", list(seen), list(seen.values()))]


async def end_claims(store: Querier, *, worker_id: UUID) -> int:
    """Ends the leases of a worker that is known to be dead. Returns how many claims it held."""
    row = await store.row("maintenance/end_claims", worker_id)
    return int(row["ended"]) if row else 0


async def restore_shards(store: Querier) -> list[int]:
    return [row["shard"] for row in await store.fetch("maintenance/restore_shards")]
