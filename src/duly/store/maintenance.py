"""Upkeep: expired leases, waiting runs, partitions."""

from __future__ import annotations

from dataclasses import dataclass

from duly.model import DEFAULT_POLICY
from duly.store.pool import Pool


@dataclass(frozen=True, slots=True)
class Rescued:
    claims: int = 0
    requeued: int = 0
    buried: int = 0


async def rescue(store: Pool, *, limit: int = 100) -> Rescued:
    """Take back what expired claims still held. Any number of nodes may try at once.

    Two statements in one transaction on purpose: see `maintenance/expired.sql`.
    """
    # A claim that is not there needs no transaction: this is asked every second by an idle cluster.
    if not await store.fetch("maintenance/any_expired"):
        return Rescued()
    async with store.transaction() as transaction:
        expired = [row["claim_id"] for row in await transaction.fetch("maintenance/expired", limit)]
        if not expired:
            return Rescued()
        row = await transaction.row("maintenance/rescue", expired, DEFAULT_POLICY.max_retries)
    assert row is not None
    return Rescued(len(expired), row["requeued"], row["buried"])


async def free_waiting(store: Pool, *, limit: int = 1000) -> int:
    """Let waiting runs go whose predecessors have ended."""
    row = await store.row("maintenance/free_waiting", limit)
    assert row is not None
    return int(row["freed"])


async def ensure_partitions(store: Pool, *, days_ahead: int = 7) -> int:
    """Make the partitions of the coming days."""
    row = await store.row("maintenance/ensure_partitions", days_ahead)
    assert row is not None
    return int(row["made"])
