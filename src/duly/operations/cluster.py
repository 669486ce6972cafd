"""The whole store: its nodes, its shards, its figures, and whether it answers."""

from __future__ import annotations

import asyncio

from duly.model import ClusterStatus, Counts
from duly.operations.core import Core
from duly.store import cluster, stores


class ClusterOperations:
    """Everything here is about the store as a whole, whatever the tenant."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pool = core.pool

    async def status(self) -> ClusterStatus:
        """The nodes, the leader and epoch of each shard, the counts of jobs and runs, and the lag of firing."""
        nodes, shards, counts = await asyncio.gather(
            cluster.node_statuses(self._pool), cluster.shard_statuses(self._pool), stores.counts(self._pool)
        )
        oldest = counts.oldest_overdue_at
        lag = 0.0 if oldest is None else max(0.0, (self._core.now() - oldest).total_seconds())
        return ClusterStatus(nodes, shards, lag, counts)

    async def counts(self) -> Counts:
        """Counts of jobs and runs, over all tenants."""
        return await stores.counts(self._pool)

    async def figures(self) -> stores.Figures:
        """The figures of the whole store for a monitoring system."""
        return await stores.figures(self._pool)

    async def ready(self) -> bool:
        """Whether the store answers."""
        await stores.ping(self._pool)
        return True
