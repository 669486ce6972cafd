"""The whole store: its nodes, its shards, its figures, and whether it answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from duly.model import ClusterStatus, Counts
from duly.operations.core import Core
from duly.operations.runnable import KINDS, unrunnable
from duly.store import cluster, demands, stores
from duly.store.demands import Demands

# Seconds for which the demands of jobs are believed: a page asks every second.
_BELIEVED_SECONDS = 5.0


class ClusterOperations:
    """Everything here is about the store as a whole, whatever the tenant."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pool = core.pool
        self._demands: tuple[float, Demands] = (0.0, Demands())

    async def status(self) -> ClusterStatus:
        """The nodes, the leader and epoch of each shard, the counts of jobs and runs, the lag of firing, and the jobs
        that no live worker can run."""
        nodes, shards, counts, demanded = await asyncio.gather(
            cluster.node_statuses(self._pool),
            cluster.shard_statuses(self._pool),
            stores.counts(self._pool),
            self._demanded(),
        )
        oldest = counts.oldest_overdue_at
        lag = 0.0 if oldest is None else max(0.0, (self._core.now() - oldest).total_seconds())
        return ClusterStatus(
            nodes,
            shards,
            lag,
            counts,
            unrunnable=unrunnable(demanded.demands, nodes),
            surveyed_at=demanded.surveyed_at,
        )

    async def _demanded(self) -> Demands:
        """What jobs demand of workers. The store is not asked each time."""
        until, found = self._demands
        if time.monotonic() >= until:
            found = await demands.read(self._pool)
            self._demands = time.monotonic() + _BELIEVED_SECONDS, found
        return found

    async def counts(self) -> Counts:
        """Counts of jobs and runs, over all tenants."""
        return await stores.counts(self._pool)

    async def figures(self) -> stores.Figures:
        """The figures of the whole store for a monitoring system."""
        figures, nodes, demanded = await asyncio.gather(
            stores.figures(self._pool), cluster.node_statuses(self._pool), self._demanded()
        )
        jobs, runs = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        for one in unrunnable(demanded.demands, nodes):
            kind = one.kind if one.kind in KINDS else KINDS[0]
            jobs[kind] += one.jobs
            runs[kind] += one.runs
        return replace(figures, unrunnable_jobs=jobs, unrunnable_runs=runs)

    async def ready(self) -> bool:
        """Whether the store answers."""
        await stores.ping(self._pool)
        return True
