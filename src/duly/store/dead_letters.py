"""Dead letters: runs that failed for good, until they are redriven or purged.

A statement that takes a filter takes the tenant and then the filter's fields, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from duly.model import Actor, Attempt, DeadLetter, DeadLetterFilter, ErrorInfo, make_run_id
from duly.states import RunFlag
from duly.store import jobs
from duly.store.pool import Querier
from duly.store.reading import Reading

#: A letter's position in the order of dead letters: buried_at, job_id, scheduled_at.
Position = tuple[datetime, UUID, datetime]


class Batch(NamedTuple):
    """Up to `limit` matching letters, oldest first, from those buried by `until` and after the letter at `after`."""

    until: datetime
    limit: int
    after: Position | None = None
    scheduled_at: datetime | None = None
    """The one run of the filter's job that is meant; None: any."""


@dataclass(frozen=True, slots=True)
class Worked:
    """The result of one batch. `last` is where the next one continues, None when there are no more."""

    done: int
    refused: int
    last: Position | None


@dataclass(frozen=True, slots=True)
class ListedLetters:
    """Positions of a list, newest first: all matches from its start down to `stop`; None: to its end."""

    positions: list[Position]
    stop: Position | None


async def list_positions(
    store: Querier, wanted: DeadLetterFilter, *, tenant: str, after: Position | None, limit: int
) -> ListedLetters:
    """The positions of one page and of one letter more. The page may end early, after a maximum of letters read."""
    arguments = (tenant, *astuple(wanted), *(after or (None, None, None)), limit, jobs.MAX_ROWS_READ)
    rows = [] if wanted.job_id is None else await store.fetch("dead_letters/list_positions_of_job", *arguments)
    if wanted.job_id is None or rows[0]["crowded"]:
        rows = await store.fetch("dead_letters/list_positions", *arguments)
    rows = [row for row in rows if row["job_id"] is not None]
    positions = [(row["buried_at"], row["job_id"], row["scheduled_at"]) for row in rows]
    stop = positions[-1] if rows and rows[-1]["stop"] else None
    return ListedLetters([position for position, row in zip(positions, rows, strict=True) if row["matches"]], stop)


async def page(store: Querier, positions: Sequence[Position], *, tenant: str, payload: bool = True) -> list[DeadLetter]:
    """These letters in this order, or as many as fit into a page; at least one. Without `payload` theirs is None."""
    if not positions:
        return []
    job_ids, moments = [position[1] for position in positions], [position[2] for position in positions]
    rows = await store.fetch("dead_letters/page", job_ids, moments, jobs.PAGE_BYTES, payload, tenant)
    return [_to_letter(row) for row in rows]


async def get(store: Querier, *, tenant: str, job_id: UUID, scheduled_at: datetime) -> DeadLetter | None:
    row = await store.row("dead_letters/get", tenant, job_id, scheduled_at)
    return None if row is None else _to_letter(row)


async def count(store: Querier, wanted: DeadLetterFilter, *, tenant: str) -> int:
    row = await store.row("dead_letters/count", tenant, *astuple(wanted))
    return int(row["letters"]) if row else 0


async def redrive(
    store: Querier, wanted: DeadLetterFilter, batch: Batch, *, tenant: str, actor: Actor, reason: str | None = None
) -> Worked:
    """Queues one batch again, all or nothing. Letters of cancelled or deleted jobs are refused and stay."""

    async def send(within: Querier) -> Worked:
        picked = await _pick(within, tenant, wanted, batch)
        if not picked:
            return Worked(0, 0, None)
        there = await jobs.lock(within, job_ids=[job_id for _, job_id, _ in picked], tenant=tenant)
        able = [position for position in picked if there.get(position[1], "cancelled") != "cancelled"]
        if able:
            job_ids = [job_id for _, job_id, _ in able]
            moments = [moment for _, _, moment in able]
            await within.fetch("dead_letters/let_go", job_ids, moments)
            note = _note(actor, reason, tenant, None if batch.scheduled_at else wanted, able)
            await within.fetch("dead_letters/redrive", job_ids, moments, int(RunFlag.BEGUN), note)
            await jobs.put_in_order(within, job_ids=sorted(set(job_ids)))
        return Worked(len(able), len(picked) - len(able), picked[-1] if len(picked) == batch.limit else None)

    return await store.together(send)


async def purge(
    store: Querier, wanted: DeadLetterFilter, batch: Batch, *, tenant: str, actor: Actor, reason: str | None = None
) -> Worked:
    """Deletes one batch, all or nothing."""

    async def forget(within: Querier) -> Worked:
        picked = await _pick(within, tenant, wanted, batch)
        if not picked:
            return Worked(0, 0, None)
        job_ids, moments = [job_id for _, job_id, _ in picked], [moment for _, _, moment in picked]
        note = _note(actor, reason, tenant, None if batch.scheduled_at else wanted, picked)
        row = await within.row("dead_letters/purge", job_ids, moments, note)
        assert row is not None
        return Worked(row["purged"], 0, picked[-1] if len(picked) == batch.limit else None)

    return await store.together(forget)


def _note(
    actor: Actor, reason: str | None, tenant: str, wanted: DeadLetterFilter | None, letters: Sequence[Position]
) -> str:
    """Who acts on these letters. One row of the audit trail is about all of them. `wanted`: the filter of a sweep."""
    chosen = {} if wanted is None else {name: value for name, value in asdict(wanted).items() if value is not None}
    run_ids = [make_run_id(job_id, moment) for _, job_id, moment in letters]
    return actor.note(reason=reason, tenant=tenant, filter=chosen or None, objects=run_ids)


async def _pick(within: Querier, tenant: str, wanted: DeadLetterFilter, batch: Batch) -> Sequence[Position]:
    bounds = (batch.scheduled_at, batch.until, batch.limit, *(batch.after or (None, None, None)))
    rows = await within.fetch("dead_letters/pick", tenant, *astuple(wanted), *bounds)
    return [(row["buried_at"], row["job_id"], row["scheduled_at"]) for row in rows]


def _to_letter(row: Any) -> DeadLetter:
    names = {} if row["workers"] is None else json.loads(row["workers"])
    reading = Reading()
    secret_fields = reading.json("secret_fields", row["secret_fields"], otherwise=[], kind=list)
    payload = None if row["payload"] is None else reading.json("payload", row["payload"], otherwise=None)
    return DeadLetter(
        job_id=row["job_id"],
        scheduled_at=row["scheduled_at"],
        buried_at=row["buried_at"],
        attempt=row["attempt"],
        tenant=row["tenant"],
        name=row["name"],
        queue=row["queue"],
        handler=reading.json("handler", row["target"], otherwise=row["handler"], kind=dict),
        # If the list of secret fields cannot be read, nothing of the payload is shown.
        payload=payload if all(isinstance(path, str) for path in secret_fields) else None,
        payload_ref=row["payload_ref"],
        error=_to_error(json.loads(row["error"])),
        attempts=tuple(
            Attempt(
                attempt=one["attempt"],
                started_at=_to_time(one["started_at"]),
                finished_at=_to_time(one["finished_at"]),
                worker=names.get(one["worker_id"], one["worker_id"]),
                error=_to_error(one["error"]),
            )
            for one in json.loads(row["attempts"])
        ),
        secret_fields=tuple(path for path in secret_fields if isinstance(path, str)),
    )


def _to_error(error: dict[str, Any]) -> ErrorInfo:
    return ErrorInfo(error["type"], error["message"], error.get("traceback"))


def _to_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
