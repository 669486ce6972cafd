"""Reading, redriving and purging dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from duly import checks
from duly.errors import Conflict, InvalidInput, NotFound
from duly.model import (
    Actor,
    DeadLetter,
    DeadLetterFilter,
    Page,
    Swept,
    from_micros,
    make_run_id,
    parse_run_id,
    to_micros,
)
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core, check_reason, to_job_id
from duly.store import dead_letters
from duly.store.dead_letters import Batch, Position, Worked

# Dead letters per transaction: enough to be quick, few enough not to hold jobs up.
MAX_BATCH = 500
ALL = DeadLetterFilter()


class DeadLetterOperations:
    """The dead letters of one tenant."""

    def __init__(self, core: Core, tenant: str, actor: Actor) -> None:
        self._pool = core.pool
        self._tenant = tenant
        self._actor = actor

    async def page(
        self,
        wanted: DeadLetterFilter = ALL,
        *,
        cursor: str | None = None,
        limit: int = 100,
        payload: bool = True,
    ) -> Page[DeadLetter]:
        """One page of dead letters, newest first. A page ends at `limit`, at 4 MiB, or where a statement has read its
        maximum of rows: it may be empty and yet not the last. Without `payload` each payload is None."""
        limit = checks.check_integer("limit", limit, 1, MAX_PAGE)
        after = None if cursor is None else _read_cursor(cursor)
        listed = await dead_letters.list_positions(
            self._pool, _check(wanted), tenant=self._tenant, after=after, limit=limit + 1
        )
        asked = listed.positions[:limit]
        found = await dead_letters.page(self._pool, asked, tenant=self._tenant, payload=payload)
        stop = asked[-1] if len(listed.positions) > limit else listed.stop
        if found and (found[-1].job_id, found[-1].scheduled_at) != asked[-1][1:]:
            last = found[-1]
            stop = last.buried_at, last.job_id, last.scheduled_at
        return Page(found, None if stop is None else _cursor(stop))

    async def get(self, run_id: str) -> DeadLetter:
        job_id, scheduled_at = _parse(run_id)
        letter = await dead_letters.get(self._pool, tenant=self._tenant, job_id=job_id, scheduled_at=scheduled_at)
        if letter is None:
            raise _missing(run_id)
        return letter

    async def count(self, wanted: DeadLetterFilter = ALL) -> int:
        return await dead_letters.count(self._pool, _check(wanted), tenant=self._tenant)

    async def redrive(self, run_id: str, *, reason: str | None = None) -> None:
        """Redrive one dead letter: its run starts over with attempt 1 and keeps its idempotency key."""
        check_reason(reason)
        job_id, scheduled_at = _parse(run_id)
        one = Batch(checks.LAST_MOMENT, limit=2, scheduled_at=scheduled_at)
        worked = await dead_letters.redrive(
            self._pool,
            DeadLetterFilter(str(job_id)),
            one,
            tenant=self._tenant,
            actor=self._actor,
            reason=reason,
        )
        if worked.refused:
            raise Conflict(f"run {run_id} cannot be redriven: its job is cancelled or gone")
        if not worked.done:
            raise _missing(run_id)

    async def purge(self, run_id: str, *, reason: str | None = None) -> None:
        """Delete one dead letter for good. The history still records that its run died."""
        check_reason(reason)
        job_id, scheduled_at = _parse(run_id)
        one = Batch(checks.LAST_MOMENT, limit=2, scheduled_at=scheduled_at)
        worked = await dead_letters.purge(
            self._pool,
            DeadLetterFilter(str(job_id)),
            one,
            tenant=self._tenant,
            actor=self._actor,
            reason=reason,
        )
        if not worked.done:
            raise _missing(run_id)

    async def redrive_all(self, wanted: DeadLetterFilter = ALL, *, reason: str | None = None) -> AsyncIterator[Swept]:
        """Redrive all dead letters that match, oldest first, in batches; yields the totals after each batch.

        Only letters that are dead at the start are redriven: a run that dies again meanwhile is not redriven twice.
        """
        async for swept in self._sweep("redrive", wanted, check_reason(reason)):
            yield swept

    async def purge_all(self, wanted: DeadLetterFilter = ALL, *, reason: str | None = None) -> AsyncIterator[Swept]:
        """Delete all dead letters that match, in batches; yields the totals after each batch."""
        async for swept in self._sweep("purge", wanted, check_reason(reason)):
            yield swept

    async def _sweep(self, what: str, wanted: DeadLetterFilter, reason: str | None) -> AsyncIterator[Swept]:
        wanted = _check(wanted)
        await self._pool.measure_clock()
        until = self._pool.clock.now()
        work = dead_letters.redrive if what == "redrive" else dead_letters.purge
        done = refused = 0
        after: Position | None = None
        while True:
            worked: Worked = await work(
                self._pool,
                wanted,
                Batch(until, MAX_BATCH, after),
                tenant=self._tenant,
                actor=self._actor,
                reason=reason,
            )
            done += worked.done
            refused += worked.refused
            yield Swept(done, refused)
            after = worked.last
            if after is None:
                return


def _check(wanted: DeadLetterFilter) -> DeadLetterFilter:
    for field in ("name", "queue", "handler", "error_type"):
        if (value := getattr(wanted, field)) is not None:
            checks.check_text(field, value, longest=200)
    return replace(
        wanted,
        job_id=None if wanted.job_id is None else str(to_job_id(wanted.job_id)),
        since=checks.check_moment("since", wanted.since),
        until=checks.check_moment("until", wanted.until),
    )


def _parse(run_id: str) -> tuple[UUID, datetime]:
    if (parsed := parse_run_id(run_id)) is None:
        raise _missing(run_id)
    return parsed


def _missing(run_id: str) -> NotFound:
    return NotFound(f"there is no dead letter {run_id[:100]!r}", kind="dead letter", sought=run_id)


def _cursor(position: Position) -> str:
    buried_at, job_id, scheduled_at = position
    return f"{to_micros(buried_at):x}.{make_run_id(job_id, scheduled_at)}"


def _read_cursor(text: str) -> Position:
    moment, _, run_id = text.partition(".")
    try:
        parsed = parse_run_id(run_id)
        if parsed is None:
            raise ValueError(run_id)
        return from_micros(int(moment, 16)), *parsed
    except (ValueError, OverflowError) as error:
        raise InvalidInput("cursor", INVALID_CURSOR) from error
