"""Session advisory locks: a killed leader is replaced within a second, and nothing but PostgreSQL is needed.

Every node keeps one direct connection and holds one lock on it that says "I am here". PostgreSQL releases it the moment
the connection ends, so a killed node is gone from `pg_locks` at once. The others look every 0.7 s, in the same statement
that extends their own lease: 1.5 statements per second, however many shards there are. (A node that is alone looks only
as often as its lease requires.)

There is one lock per node and not one per shard: those would vanish at the same moment, the epoch decides about a shard
anyway, and 4,096 shards would fill PostgreSQL's lock table (64 locks per connection by default). Nor does a node wait
for another node's lock instead of looking: a waiting statement holds a snapshot, and so holds up vacuum, for hours.

| what happens | what follows |
| --- | --- |
| a leader is killed | its connection ends, its lock is gone; its shards are led by others within a second |
| a leader is stopped (SIGSTOP, a frozen machine) or cut off silently | its connection and lock stay for as long as TCP keeps them, but its lease in `duly.nodes` runs out, and then it is not alive, lock or not: replaced within the lease |
| the connection is lost or does not answer | ends its terms at once, then connects anew with a new lock |
| PostgreSQL is away | the same; when it is back, every node joins again |
| a pooler is between | refused: a pooler shares its sessions. Set DULY_DIRECT_URL beside DULY_PGBOUNCER |
"""  # noqa: E501

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from duly.cluster.coordinator import TermListener
from duly.cluster.member import MemberCoordinator
from duly.store import cluster as rows
from duly.store.pool import Pool
from duly.store.session import DirectSession

log = logging.getLogger("duly.cluster")

# Often enough to replace a killed leader within a second, at less than two statements per second.
LOOK_SECONDS = 0.7


class AdvisoryCoordinator(MemberCoordinator):
    def __init__(self, listener: TermListener, pool: Pool, *, url: str, **rest: Any) -> None:
        """`url` is that of PostgreSQL itself, not of a pooler."""
        super().__init__(listener, pool, **rest)
        self._url = url
        self._session: DirectSession | None = None
        self._alone = False
        self.interval = min(self._lease / 3, LOOK_SECONDS)

    async def run_once(self) -> float | None:
        pause = await super().run_once()
        # There is no other node to replace: beat only as often as the lease requires.
        return self._lease / 3 if pause is None and self._alone else pause

    async def _join(self) -> None:
        self._hang_up()
        session = await DirectSession.open(self._url, lost=self._lost, timeout=self._lease, schema=self._pool.schema)
        try:
            # The row names the lock, so that the others know which node holds it.
            self._info["presence"] = await rows.be_present(session)
            await super()._join()
        except BaseException:
            session.end()
            raise
        self._session = session

    async def _attend(self) -> rows.View | None:
        session = self._session
        if session is None or session.closed:
            return None
        sent = time.monotonic()
        try:
            view = await rows.beat_present(session, node_id=self.node_id, lease_seconds=self._lease)
        except BaseException:
            # Also after a timeout: whether we still hold the lock is in doubt.
            self._hang_up()
            self._end_all()
            raise
        if view is not None:
            self._pool.clock.observe(view.now, sent, time.monotonic())
            self._alone = len(view.nodes) == 1
        return view

    async def _depart(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()

    def _lost(self, session: DirectSession) -> None:
        # asyncpg calls this within the connection's own clean-up: step down after it.
        asyncio.get_running_loop().call_soon(self._step_down_without, session)

    def _step_down_without(self, session: DirectSession) -> None:
        if session is self._session:
            log.warning("the connection that holds this node's lock was lost: stepping down")
            self._session = None
            self._end_all()
            self.wake()
