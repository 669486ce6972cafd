"""The part common to all coordinators: keep this node a member, and move towards the assignment of the members.

A pass tells the others that this node is alive, reads which nodes are, and moves towards the assignment that every node
computes alike:

- a shard that is ours in the store and should be another node's is handed over (its row is set free, the others are
  notified), whether or not we still believe that we lead it: a hand-over whose answer was lost is repeated;
- a shard that should be ours and is free, or whose leader is not alive, is taken by raising its epoch.

So no coordinator holds an election per shard. A registry of members is enough, because the epoch in PostgreSQL is the
arbiter: of two nodes that see different members for a moment and want the same shard, only one can raise the epoch from
the value that both saw. With 64 shards that is one key and one watch instead of 64.

Every coordinator keeps the node's lease in `duly.nodes` as well. A node is alive if both its registry and its row say
so: a node that reaches etcd but not PostgreSQL can fire nothing and must not keep its shards.

| what happens | what this node does |
| --- | --- |
| no pass comes through | ends its terms when its lease, counted from when the last good pass *began*, is nearly up |
| its row or its entry in the registry is gone | ends its terms, joins again, leads nothing |
| another node raised the epoch | ends that term; a fire that was on its way finds the epoch changed |
| it was stopped and wakes up | checks the time first: its terms are over |
| it was stopped while it took shards, and wakes up | does not begin those terms; the next pass takes them anew |
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from duly.cluster.assignment import assign
from duly.cluster.coordinator import Coordinator, Term, TermListener
from duly.errors import ConfigError, DulyError, StoreUnavailable
from duly.store import cluster as rows
from duly.store.pool import Pool

log = logging.getLogger("duly.cluster")

# Fraction of a lease for which a leader trusts its terms: the rest covers the time a fire needs to reach the database.
TRUSTED_FRACTION = 0.8
# Delay between the end of another node's lease and the pass that looks: two machines' clocks run differently fast.
AFTER_EXPIRY_SECONDS = 0.01
# Longest wait for a goodbye, which only saves the others the rest of a lease.
MAX_LEAVE_SECONDS = 2.0


class MemberCoordinator(Coordinator):
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

    # Steps that differ between coordinators.

    @abstractmethod
    async def _attend(self) -> rows.View | None:
        """Extends this node's membership and reads which nodes are alive. None: this node is not a member."""

    @property
    def _membership_seconds(self) -> float:
        """Seconds for which the others count this node as alive after it last attended."""
        return self._lease

    async def _take(self, shards: list[int], epochs: list[int]) -> dict[int, int]:
        """Raises the epochs of shards whose leader is not alive. Returns the new epochs of the shards that were won."""
        return await rows.acquire(self._pool, node_id=self.node_id, shards=shards, epochs=epochs, elected=True)

    async def _join(self) -> None:
        """Makes this node a member."""
        await rows.join(
            self._pool,
            node_id=self.node_id,
            kind="scheduler",
            name=self._name,
            version=self._version,
            lease_seconds=self._lease,
            info=self._info,
        )

    async def _depart(self) -> None:
        """Leaves the registry, after the store. Never raises: an entry that is not removed soon expires."""

    # Steps that are the same for all.

    async def start(self) -> None:
        try:
            # Before joining, so that a node that is refused takes no shard away, and after it, because another node
            # may have joined at the same moment: then at most one of the two goes on.
            await self._refuse_other_coordinators()
            await self._join()
            try:
                await self._refuse_other_coordinators()
            except (Exception, asyncio.CancelledError):
                await rows.leave(self._pool, node_id=self.node_id)
                raise
        except (Exception, asyncio.CancelledError):
            await self._depart()
            raise
        await super().start()

    async def _refuse_other_coordinators(self) -> None:
        """Refuses to start beside schedulers with another coordinator: the two would take shards from each other.

        Only at the start: a node that joins again after an outage was accepted before.
        """
        own, path = self._info.get("coordinator"), self._info.get("registry_path")
        for other in await rows.other_schedulers(self._pool, node_id=self.node_id):
            # Version 0.1 said etcds for etcd with TLS, and no path.
            kind = other.coordinator.replace("etcds", "etcd")
            if own is None or (kind == own and other.registry_path in (path, None)):
                continue
            theirs, ours = (kind, own) if kind != own else (f"{kind} at {other.registry_path}", f"{own} at {path}")
            raise ConfigError(
                f"coordinator (DULY_COORDINATOR): this scheduler would use {ours}, but {other.name} is alive and uses "
                f"{theirs}: set the same, or stop all such schedulers first (one that was killed counts until its "
                "lease ends)"
            )

    async def run_once(self) -> float | None:
        began = time.monotonic()
        with _in_time():
            async with asyncio.timeout(self._lease / 2):
                view = await self._attend()
        if view is None:
            self._end_all()
            with _in_time():
                async with asyncio.timeout(self._lease * 2):
                    await self._join()
            return 0.0
        self._trust_until(began + min(self._lease, self._membership_seconds) * TRUSTED_FRACTION)
        with _in_time():
            async with asyncio.timeout(self._lease):
                await self._move_towards_assignment(view)
        # A dead node's shards are taken when its lease ends, not at some pass after that.
        if view.expires_in is not None and view.expires_in + AFTER_EXPIRY_SECONDS < self.interval:
            return view.expires_in + AFTER_EXPIRY_SECONDS
        return None

    def not_ready(self) -> str | None:
        if self._trusted_until == 0.0:
            return "the scheduler has not joined the cluster yet"
        if (silent := time.monotonic() - self._trusted_until) <= 0:
            return None
        return f"no heartbeat of the scheduler has come through for {silent:.0f} s longer than its lease allows"

    async def leave(self) -> None:
        """Ends the terms first: nothing fires after that, so another node can lead the shards at once."""
        self._end_all()
        if self._watch is not None:
            self._watch.cancel()
        try:
            with _in_time():
                async with asyncio.timeout(MAX_LEAVE_SECONDS):
                    await rows.leave(self._pool, node_id=self.node_id)
        except DulyError as error:
            log.warning("could not hand the shards over; they are free when the lease ends: %s", error)
        finally:
            await self._depart()

    async def _beat(self) -> rows.View | None:
        sent = time.monotonic()
        view = await rows.beat(self._pool, node_id=self.node_id, lease_seconds=self._lease)
        if view is not None:
            self._pool.clock.observe(view.now, sent, time.monotonic())
        return view

    async def _move_towards_assignment(self, view: rows.View) -> None:
        for shard, term in list(self.terms.items()):
            if view.leaders[shard] != self.node_id or view.epochs[shard] != term.epoch:
                log.warning("shard %d was taken over (epoch %d)", shard, view.epochs[shard])
                self._end(shard)
        wanted = assign(view.nodes, len(view.leaders))
        surplus = [
            shard
            for shard, leader in enumerate(view.leaders)
            if leader == self.node_id and wanted[shard] != self.node_id
        ]
        if surplus:
            for shard in surplus:
                self._end(shard)
            epochs = [view.epochs[shard] for shard in surplus]
            await rows.hand_over(self._pool, node_id=self.node_id, shards=surplus, epochs=epochs)
        alive = set(view.nodes) - {self.node_id}
        free = [
            shard
            for shard, leader in enumerate(view.leaders)
            if wanted[shard] == self.node_id and shard not in self.terms and leader not in alive
        ]
        if free:
            won = await self._take(free, [view.epochs[shard] for shard in free])
            if time.monotonic() >= self._trusted_until:
                return  # the answer came so late that another node may lead them by now
            for shard, epoch in sorted(won.items()):
                self._begin(Term(shard, epoch))
            log.info("leading %d of %d shards", len(self.terms), len(view.leaders))

    def _trust_until(self, moment: float) -> None:
        """Steps down at `moment`, unless a pass succeeds before; also if a pass hangs at that time."""
        self._trusted_until = moment
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_later(max(0.0, moment - time.monotonic()), self._step_down)

    def _step_down(self) -> None:
        if time.monotonic() < self._trusted_until:
            # Timers may fire a little early.
            self._trust_until(self._trusted_until)
        elif self.terms:
            log.warning("no heartbeat came through in time: stepping down from %d shards", len(self.terms))
            self._end_all()


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise StoreUnavailable("the store did not answer a scheduler in time") from error
