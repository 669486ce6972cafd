"""Keeps looks at all claims short while vacuum cannot: `store/schema/04_claims.sql` says why the
floor can be relied on.

Overlap is decided by such looks. So this floor is not a guess that a later look corrects, as a claimer's own floors
are: it is kept in the store, and rises only when no claim can appear below it any more.
"""

from __future__ import annotations

from uuid import UUID

from duly.store import maintenance
from duly.store.pool import Pool

# The floor rises once this many more rows are dead: they cost each look a millisecond (measured).
DEAD_ROWS = 2_000


class ClaimFloor:
    """Raises the floor in two steps: a bar for new claims, then the floor once no older claim is uncommitted."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._bar: UUID | None = None
        self._before: set[str] = set()
        self._dead = 0

    async def work(self, dead: int) -> None:
        """Does one step, given the number of dead rows: sets a bar, or raises the floor to it."""
        if self._bar is None:
            self._dead = min(self._dead, dead)
            if dead < self._dead + DEAD_ROWS:
                return
            self._bar = await maintenance.set_claim_bar(self._pool)
            self._before = await maintenance.claimers(self._pool)
            self._dead = dead
        elif self._before:
            self._before &= await maintenance.claimers(self._pool)
        if not self._before:
            bar, self._bar = self._bar, None
            await maintenance.raise_claim_floor(self._pool, bar=bar)
