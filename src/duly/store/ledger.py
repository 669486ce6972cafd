"""The ledger: custom idempotency keys that a run has completed with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from duly.store.pool import Querier

# A template can make a key longer than an index entry may be; a longer key is stored as its digest.
_MAX_KEY_CHARACTERS = 500


async def known(
    store: Querier, asked: Sequence[tuple[UUID, str]], *, retention_seconds: float
) -> set[tuple[UUID, str]]:
    """Returns those of these (job, key) pairs whose key a run has completed with."""
    stored = {(job_id, _stored(key)): (job_id, key) for job_id, key in asked}
    rows = await store.fetch(
        "ledger/known", [job_id for job_id, _ in stored], [key for _, key in stored], retention_seconds
    )
    return {stored[row["job_id"], row["key"]] for row in rows}


async def remember(store: Querier, ended: Sequence[tuple[UUID, UUID, datetime, str]]) -> None:
    """Stores keys, as (claim, job, scheduled_at, key), of runs recorded in this very transaction."""
    await store.fetch(
        "ledger/remember",
        [claim_id for claim_id, _, _, _ in ended],
        [job_id for _, job_id, _, _ in ended],
        [scheduled_at for _, _, scheduled_at, _ in ended],
        [_stored(key) for _, _, _, key in ended],
    )


async def prune(store: Querier, *, retention_seconds: float, limit: int) -> int:
    row = await store.row("ledger/prune", retention_seconds, limit)
    return int(row["forgotten"]) if row else 0


def _stored(key: str) -> str:
    return key if len(key) <= _MAX_KEY_CHARACTERS else "sha256:" + hashlib.sha256(key.encode()).hexdigest()
