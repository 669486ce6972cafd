"""Deletes old rows: expired idempotency keys, progress of handlers that have ended, lines of runs, old rows of the
audit trail, closed incidents, nodes and terms of long ago.

Nodes and terms name the worker of a run and the leader that fired it; an older run shows the worker's id instead.
"""

from __future__ import annotations

import time

from duly.maintenance.leader import LeaderService
from duly.store import audit, cluster, incidents, ledger, progress, run_logs
from duly.store.pool import Pool

# Rows per table and pass.
BATCH = 5_000
# Pause between passes over nodes and terms, which change only when processes start and end.
FORGET_SECONDS = 3600.0
# Nodes and terms are kept this long after their end, up to a maximum number of each: processes that restart every few
# seconds for weeks must not fill the store.
KEPT_SECONDS = 30 * 86400.0
MAX_NODES = 10_000
MAX_TERMS = 1_000
# Incidents are kept this long after they were closed.
KEPT_INCIDENTS_SECONDS = 90 * 86400.0


class Tidier(LeaderService):
    """Deletes expired rows in batches."""

    interval = 60.0

    def __init__(
        self,
        pool: Pool,
        *,
        ledger_retention_seconds: float,
        audit_retention_seconds: float,
        run_log_retention_seconds: float,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._retention = ledger_retention_seconds
        self._audit_retention = audit_retention_seconds
        self._log_retention = run_log_retention_seconds
        self._next_forget = self._next_incidents = 0.0

    async def work(self) -> float | None:
        forgotten = await ledger.prune(self._pool, retention_seconds=self._retention, limit=BATCH)
        dropped = await progress.prune(self._pool, limit=BATCH)
        old = await audit.prune(self._pool, retention_seconds=self._audit_retention, limit=BATCH)
        unlogged = await run_logs.prune(self._pool, retention_seconds=self._log_retention, limit=BATCH)
        gone = await self._forget_nodes_and_terms() if time.monotonic() >= self._next_forget else 0
        closed = await self._forget_incidents() if time.monotonic() >= self._next_incidents else 0
        return 0.0 if max(forgotten, dropped, old, unlogged, gone, closed) == BATCH else None

    async def _forget_incidents(self) -> int:
        gone = 0
        if self._pool.has_step(incidents.STEP):
            gone = await incidents.prune(self._pool, kept_seconds=KEPT_INCIDENTS_SECONDS, limit=BATCH)
        if gone < BATCH:
            self._next_incidents = time.monotonic() + FORGET_SECONDS
        return gone

    async def _forget_nodes_and_terms(self) -> int:
        """Deletes a batch of terms and, once no more are due, of nodes: a node stays as long as a term names it."""
        gone = await cluster.forget_terms(self._pool, kept_seconds=KEPT_SECONDS, most=MAX_TERMS, limit=BATCH)
        if gone < BATCH:
            gone = await cluster.forget_nodes(self._pool, kept_seconds=KEPT_SECONDS, most=MAX_NODES, limit=BATCH)
        if gone < BATCH:
            self._next_forget = time.monotonic() + FORGET_SECONDS
        return gone
