"""Forgets what nobody needs any more: old idempotency keys, progress of handlers that have ended, nodes and terms of
long ago. The last two name the worker of a run and the leader that fired it; an older run shows the worker's id.
"""

from __future__ import annotations

import time

from duly.maintenance.leader import LeaderService
from duly.store import cluster, ledger, progress
from duly.store.pool import Pool

BATCH = 5_000
# Nodes and terms come and go with processes: once an hour is often enough, and soon after a start is not needed.
FORGET_SECONDS = 3600.0
# How long a node that is gone and a term that has ended still have a name, and how many at most: processes that are
# restarted every few seconds for weeks must not fill the store either.
KEPT_SECONDS = 30 * 86400.0
MOST_NODES = 10_000
MOST_TERMS = 1_000


class Tidier(LeaderService):
    interval = 60.0

    def __init__(self, pool: Pool, *, ledger_retention_seconds: float) -> None:
        super().__init__()
        self._pool = pool
        self._retention = ledger_retention_seconds
        self._next_forget = 0.0

    async def work(self) -> float | None:
        forgotten = await ledger.prune(self._pool, retention_seconds=self._retention, limit=BATCH)
        dropped = await progress.prune(self._pool, limit=BATCH)
        gone = await self._forget_the_gone() if time.monotonic() >= self._next_forget else 0
        return 0.0 if max(forgotten, dropped, gone) == BATCH else None

    async def _forget_the_gone(self) -> int:
        """A batch of terms and, when those are through, of nodes: a node stays as long as a term names it."""
        gone = await cluster.forget_terms(self._pool, kept_seconds=KEPT_SECONDS, most=MOST_TERMS, limit=BATCH)
        if gone < BATCH:
            gone = await cluster.forget_nodes(self._pool, kept_seconds=KEPT_SECONDS, most=MOST_NODES, limit=BATCH)
        if gone < BATCH:
            self._next_forget = time.monotonic() + FORGET_SECONDS
        return gone
