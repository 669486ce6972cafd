"""The default coordinator: lease rows in PostgreSQL.

One row per node is its lease; one row per shard names its leader and epoch. A pass extends the lease, sees who else is
alive, and moves towards the assignment that every node computes alike:

- a shard that should be another's is handed over (its row is set free, the others are told);
- a shard that should be ours and is free, or whose leader's lease has run out, is taken by raising its epoch.

| what happens | what this node does |
| --- | --- |
| no beat comes through | ends its terms when its lease, counted from when the last good beat was *sent*, is nearly up |
| the node's row is gone | joins again, owns nothing |
| another node raised the epoch | ends that term; a fire that was on its way finds the epoch changed |
| it was stopped and wakes up | the first thing it looks at is the time: its terms are over |
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from duly.cluster.assignment import assign
from duly.cluster.coordinator import Coordinator, Term, TermListener
from duly.errors import StoreUnavailable
from duly.store import cluster as rows
from duly.store.pool import Pool

log = logging.getLogger("duly.cluster")

# The part of a lease in which a leader trusts itself: the rest covers the time a fire needs to reach the database.
TRUSTED = 0.8


class PostgresCoordinator(Coordinator):
    def __init__(
        self,
        listener: TermListener,
        pool: Pool,
        *,
        node_id: UUID,
        name: str,
        version: str,
        lease_seconds: float = 5.0,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(listener)
        self._pool = pool
        self.node_id = node_id
        self._name = name
        self._version = version
        self._lease = lease_seconds
        self._info = dict(info or {})
        self._trusted_until = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.interval = lease_seconds / 3
        # A lost beat must leave room for several more tries within the lease.
        self.backoff = (lease_seconds / 50, lease_seconds / 5)

    async def start(self) -> None:
        await self._join()
        await super().start()

    async def run_once(self) -> float | None:
        sent = time.monotonic()
        try:
            async with asyncio.timeout(self._lease / 2):
                view = await rows.beat(self._pool, node_id=self.node_id, lease_seconds=self._lease)
        except TimeoutError as error:
            raise StoreUnavailable("the database did not answer a scheduler's heartbeat in time") from error
        if view is None:
            self._end_all()
            await self._join()
            return 0.0
        self._pool.clock.observe(view.now, sent, time.monotonic())
        self._trust_until(sent + self._lease * TRUSTED)
        await self._move_towards_assignment(view)
        return None

    async def leave(self) -> None:
        """Nothing fires after the terms have ended here, so the shards can be somebody else's at once."""
        self._end_all()
        if self._watch is not None:
            self._watch.cancel()
        await rows.leave(self._pool, node_id=self.node_id)

    async def _join(self) -> None:
        await rows.join(
            self._pool,
            node_id=self.node_id,
            kind="scheduler",
            name=self._name,
            version=self._version,
            lease_seconds=self._lease,
            info=self._info,
        )

    async def _move_towards_assignment(self, view: rows.View) -> None:
        for shard, term in list(self.terms.items()):
            if view.leaders[shard] != self.node_id or view.epochs[shard] != term.epoch:
                log.warning("shard %d was taken over (epoch %d)", shard, view.epochs[shard])
                self._end(shard)
        wanted = assign(view.nodes, len(view.leaders))
        surplus = [shard for shard in self.terms if wanted[shard] != self.node_id]
        if surplus:
            epochs = [self.terms[shard].epoch for shard in surplus]
            for shard in surplus:
                self._end(shard)
            await rows.hand_over(self._pool, node_id=self.node_id, shards=surplus, epochs=epochs)
        alive = set(view.nodes)
        free = [
            shard
            for shard, leader in enumerate(view.leaders)
            if wanted[shard] == self.node_id
            and shard not in self.terms
            and (leader is None or leader == self.node_id or leader not in alive)
        ]
        if free:
            won = await rows.acquire(
                self._pool, node_id=self.node_id, shards=free, epochs=[view.epochs[shard] for shard in free]
            )
            for shard, epoch in sorted(won.items()):
                self._begin(Term(shard, epoch))
            log.info("leading %d of %d shards", len(self.terms), len(view.leaders))

    def _trust_until(self, moment: float) -> None:
        """Step down by ourselves when no beat has come through in time, even if one hangs right now."""
        self._trusted_until = moment
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_later(max(0.0, moment - time.monotonic()), self._step_down)

    def _step_down(self) -> None:
        if time.monotonic() >= self._trusted_until and self.terms:
            log.warning("no heartbeat came through in time: stepping down from %d shards", len(self.terms))
            self._end_all()
