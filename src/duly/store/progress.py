"""The progress that running handlers report."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from duly.store.pool import Querier


async def write(store: Querier, said: Sequence[tuple[UUID, int, float, str]]) -> None:
    """Stores (claim, ordinal, fraction, note) each; a run's last report replaces the one before."""
    await store.fetch(
        "progress/write",
        [claim_id for claim_id, _, _, _ in said],
        [ordinal for _, ordinal, _, _ in said],
        [fraction for _, _, fraction, _ in said],
        [note for _, _, _, note in said],
    )


async def prune(store: Querier, *, limit: int) -> int:
    row = await store.row("progress/prune", limit)
    return int(row["dropped"]) if row else 0
