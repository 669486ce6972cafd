"""The audit trail: read page by page, and pruned. The statements that change something write it themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.model import AuditEntry
from duly.store.pool import Querier
from duly.store.statements import AUDIT_STEP

#: A place in the trail: at, audit_id.
Position = tuple[datetime, int]

# Rows that one statement reads at most; if too few of them match, the page ends early.
_MAX_ROWS_READ = 20_000
# Ids that a row about many jobs names.
_MAX_IDS = 100


@dataclass(frozen=True, slots=True)
class ListedEntries:
    """Entries of a list with their positions, newest first, down to `stop`; None: to its end."""

    entries: list[tuple[Position, AuditEntry]]
    stop: Position | None


def exists(store: Querier) -> bool:
    """Whether the store has the table; one that is not migrated yet has none."""
    return store.has_step(AUDIT_STEP)


async def page(
    store: Querier,
    *,
    tenant: str,
    job_id: UUID | None,
    actor: str | None,
    action: str | None,
    since: datetime,
    until: datetime,
    before: Position,
    limit: int,
) -> ListedEntries:
    """Up to `limit` entries before a position."""
    arguments = (tenant, actor, action, since, until, *before, limit, _MAX_ROWS_READ)
    if job_id is None:
        rows = await store.fetch("audit/page", *arguments)
    else:
        rows = await store.fetch("audit/page_of_job", *arguments, job_id)
    stops = [(row["at"], row["audit_id"]) for row in rows if row["stop"]]
    entries = [((row["at"], row["audit_id"]), _to_entry(row)) for row in rows if not row["stop"]]
    return ListedEntries(entries, stops[0] if stops else None)


async def note_copied(within: Querier, job_ids: Sequence[UUID], *, note: str) -> None:
    """Notes jobs that a copy has inserted, in the transaction of the copy."""
    if exists(within):
        await within.fetch("audit/copied", len(job_ids), sorted(job_ids)[:_MAX_IDS], note)


async def prune(store: Querier, *, retention_seconds: float, limit: int) -> int:
    if not exists(store):
        return 0
    row = await store.row("audit/prune", retention_seconds, limit)
    assert row is not None
    return int(row["forgotten"])


def _to_entry(row: Any) -> AuditEntry:
    who = json.loads(row["who"])
    before, after = (None if row[name] is None else json.loads(row[name]) for name in ("before", "after"))
    return AuditEntry(
        row["at"],
        row["via"],
        row["actor"],
        row["action"],
        row["kind"],
        row["object"],
        row["job_id"],
        before,
        after,
        row["reason"],
        **{name: who.get(name) for name in ("key", "request", "address")},
    )
