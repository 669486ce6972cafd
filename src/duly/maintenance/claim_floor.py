"""Keeps looks at all claims short while vacuum cannot: `store/schema/04_claims.sql` says why the
floor can be relied on.

Overlap is decided by such looks. So this floor is not an opinion that another look corrects, as a claimer's own floors
are, but stands in the store, and rises only when nothing can come to lie below it any more.
"""

from __future__ import annotations

from uuid import UUID

from duly.store import maintenance
from duly.store.pool import Pool

# The floor rises when so many more rows are dead: they cost each look a millisecond (measured).
DEAD = 2_000


class ClaimFloor:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._bar: UUID | None = None
        self._before: set[str] = set()
        self._dead = 0

    async def work(self, dead: int) -> None:
        """One step, with what is known of dead rows: set a bar, or raise the floor to the one that was set."""
        if self._bar is None:
            self._dead = min(self._dead, dead)
            if dead < self._dead + DEAD:
                return
            self._bar = await maintenance.set_claim_bar(self._pool)
            self._before = await maintenance.claimers(self._pool)
            self._dead = dead
        elif self._before:
            self._before &= await maintenance.claimers(self._pool)
        if not self._before:
            bar, self._bar = self._bar, None
            await maintenance.raise_claim_floor(self._pool, bar=bar)
