"""Forgets what nobody needs any more: old idempotency keys, and the progress of handlers that have ended."""

from __future__ import annotations

from duly.maintenance.leader import LeaderService
from duly.store import ledger, progress
from duly.store.pool import Pool

BATCH = 5_000


class Tidier(LeaderService):
    interval = 60.0

    def __init__(self, pool: Pool, *, ledger_retention_seconds: float) -> None:
        super().__init__()
        self._pool = pool
        self._retention = ledger_retention_seconds

    async def work(self) -> float | None:
        forgotten = await ledger.prune(self._pool, retention_seconds=self._retention, limit=BATCH)
        dropped = await progress.prune(self._pool, limit=BATCH)
        return 0.0 if max(forgotten, dropped) == BATCH else None
