"""Upkeep: expired leases, waiting runs, partitions, parked jobs, and what should never be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID

from duly.errors import DataRefused
from duly.model import DEFAULT_POLICY, ScheduleKind, make_run_id
from duly.store import jobs, runs
from duly.store.pool import Pool, Querier

# Before a run that can neither be taken back nor be ended is looked at again.
PUT_OFF_SECONDS = 60.0
# So many claims below the floor are named one by one.
_MOST_OLDS = 200


@dataclass(frozen=True, slots=True)
class Look:
    """What a look for expired claims tells: also the time, dead rows among the claims, and how long it took there."""

    expired: bool
    now: datetime
    dead: int
    took: float


@dataclass(frozen=True, slots=True)
class Rescued:
    claims: int = 0
    requeued: int = 0
    buried: int = 0
    held: bool = True
    """Whether workers hold anything at all: if not, nothing can expire before it has been claimed."""
    given_up: tuple[str, ...] = ()
    """Runs that the database would not take back: what they are, what it said, and what became of them."""
    look: Look | None = field(default=None, compare=False)


#: So many days of the past in one pass, and so many rows of a day: others wait while they are moved (0.6 s, measured).
PAST_DAYS = 8
MOST_MOVED = 100_000


@dataclass(frozen=True, slots=True)
class Partitioning:
    """What a pass over the days came to. `failed`: days that could not be made, each with the reason."""

    made: int
    put_off: str | None
    """The day at which somebody's lock ended the pass."""
    failed: list[str]


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
    dealt_with_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that should not be. `stalled`: an active job without a next run. `lost`: a run in no place."""

    problem: Literal["stalled", "lost"]
    job_id: UUID
    scheduled_at: datetime | None


async def rescue(store: Pool, *, limit: int = 100, since: datetime | None = None, read_claims: bool = False) -> Rescued:
    """Take back what expired claims still held. Any number of nodes may try at once.

    `since`: leases that ended before that are passed over. `read_claims`: all claims are read, not the index of leases.
    Two statements in one transaction on purpose: see `maintenance/lock_expired.sql`.
    """
    # A claim that is not there needs no transaction: this is asked every second by an idle cluster. More than are taken
    # are looked for, because others may have some in hand.
    look = await store.row("maintenance/expired", 10 * limit, since, read_claims)
    assert look is not None
    found: list[UUID] = look["expired"]
    looked = Look(bool(found), look["now"], look["dead"], look["took"])
    if not found:
        return Rescued(held=look["held"], look=looked)

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
        # One of them is at fault, and the others must not pay for it.
        return await _rescue_each(store, await _lock_expired(store, found, limit), looked)
    if serial:
        await runs.free_next(store, serial)
    return rescued


async def _lock_expired(store: Querier, claim_ids: Sequence[UUID], limit: int) -> list[UUID]:
    return [row["claim_id"] for row in await store.fetch("maintenance/lock_expired", claim_ids, limit)]


async def _rescue_each(store: Pool, waiting: list[UUID], look: Look) -> Rescued:
    """Claim by claim; those of which a run cannot be taken back, run by run."""
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
        return 0, 0, ()  # somebody else has it in hand
    row = await within.row("maintenance/rescue", [claim_id], DEFAULT_POLICY.max_retries)
    assert row is not None
    return row["requeued"], row["buried"], row["serial"] or ()


async def _split(within: Querier, claim_id: UUID) -> list[UUID]:
    """Claims of one run each in place of one that holds several; none if it holds no more than one."""
    if not await _lock_expired(within, [claim_id], 1):
        return []
    return [row["claim_id"] for row in await within.fetch("maintenance/split", claim_id)]


async def _give_up(store: Pool, claim_id: UUID, reason: str) -> tuple[list[str], Sequence[UUID]]:
    """End a run that cannot be taken back. If not even that can be written, it is looked at again after a while."""

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
    """From now on no claim gets an id below this one."""
    row = await store.row("maintenance/set_claim_bar")
    assert row is not None
    bar = row["bar"]
    assert isinstance(bar, UUID)
    return bar


async def claimers(store: Querier) -> set[str]:
    """The transactions that may have written a claim which nobody can see yet."""
    return {row["holder"] for row in await store.fetch("maintenance/claimers")}


async def raise_claim_floor(store: Querier, *, bar: UUID) -> None:
    """Let looks at all claims begin at the bar. Only when all are gone that were claimers once the bar was set."""
    await store.fetch("maintenance/raise_claim_floor", bar, _MOST_OLDS)


async def free_waiting(store: Pool, *, limit: int = 1000) -> int:
    """Let waiting runs go whose predecessors have ended. Returns in how many jobs."""
    # Almost always there is none, and then no transaction is needed to find that out.
    if not await store.fetch("maintenance/free_waiting", limit):
        return 0

    async def free(within: Querier) -> int:
        found = [row["job_id"] for row in await within.fetch("maintenance/free_waiting", limit)]
        if found:
            await jobs.put_in_order(within, job_ids=found)
        return len(found)

    return await store.together(free)


async def ensure_partitions(store: Pool, *, days_ahead: int = 7) -> Partitioning:
    """Make the partitions of the coming days, and of past ones whose rows had no other place than the default one.

    Each in a transaction of its own: what cannot be made now does not hold up the others. The first that somebody's
    lock is in the way of ends the pass: others waited for that try, and the next day's would fare no better.
    """
    made, put_off = 0, None
    failed = []
    for row in await store.fetch("maintenance/missing_partitions", days_ahead, PAST_DAYS):
        answer = await store.row("maintenance/make_partition", row["parent"], row["day"], MOST_MOVED)
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


async def suspects(
    store: Querier, *, after: UUID | None, grace_seconds: float, page: tuple[int, int], pages: int
) -> tuple[list[Suspect], UUID | None]:
    """What is wrong with one page of jobs, by id, and where the next page begins: None at the end.

    So large that the whole store has about so many `pages`, within the limits of `page`.
    """
    rows = await store.fetch("maintenance/suspects", after or UUID(int=0), grace_seconds, *page, pages)
    return [Suspect(*row) for row in rows if row["problem"] is not None], rows[-1]["job_id"]


async def stalled(store: Querier, *, job_ids: Sequence[UUID]) -> list[Parked]:
    """Those of these jobs that are active and have nothing planned."""
    return [Parked(*row) for row in await store.fetch("maintenance/stalled", job_ids)]


async def replan(store: Querier, planned: Sequence[tuple[Parked, datetime | None, str | None]]) -> list[UUID]:
    """Let stalled jobs go on from the given time, or park them for the given reason."""
    rows = await store.fetch(
        "maintenance/replan",
        [job.job_id for job, _, _ in planned],
        [job.version for job, _, _ in planned],
        [next_run_at for _, next_run_at, _ in planned],
        [reason for _, _, reason in planned],
    )
    return [row["job_id"] for row in rows]


async def restore_runs(store: Pool, lost: Sequence[tuple[UUID, datetime]]) -> list[tuple[UUID, datetime]]:
    """Put runs back that are in no place. Returns those that it did so with."""

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
    """Claims that nobody can be extending, each with its lease as it stands."""
    rows = await store.fetch("maintenance/unattended_claims", ahead_seconds, limit)
    return {row["claim_id"]: row["lease_until"] for row in rows}


async def expire_claims(store: Querier, seen: Mapping[UUID, datetime]) -> list[UUID]:
    """End those leases that are still as they were seen."""
    return [row["claim_id"] for row in await store.fetch("maintenance/expire_claims", list(seen), list(seen.values()))]


async def restore_shards(store: Querier) -> list[int]:
    return [row["shard"] for row in await store.fetch("maintenance/restore_shards")]
