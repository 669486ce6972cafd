"""Nodes in one process over a real store, each with its own coordinator, and one record of all their terms."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from duly.cluster.coordinator import Term
from duly.cluster.making import make_coordinator
from duly.cluster.member import MemberCoordinator
from duly.config import load_settings
from duly.schema_name import DEFAULT_SCHEMA
from duly.store.notifier import Notifier
from duly.store.pool import Pool
from harness.forwarding import Armed
from harness.proxy import Proxy
from harness.servers import RegistryServer, Wire

KINDS = ("postgres", "postgres-advisory", "etcd", "zookeeper")
REGISTRIES = ("etcd", "zookeeper")
SHARDS = 64
# Seconds. Long enough that a busy machine does not lose a lease by itself.
LEASE = 1.5


@dataclass
class Event:
    at: float
    node: UUID
    what: str
    term: Term


@dataclass
class Record:
    """Every term of every node, in the order in which the listeners heard of it."""

    events: list[Event] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    leaders: dict[int, UUID] = field(default_factory=dict)

    def began(self, node: UUID, term: Term) -> None:
        if (other := self.leaders.get(term.shard)) is not None:
            self.overlaps.append(f"shard {term.shard} began with {node} while {other} led it")
        self.leaders[term.shard] = node
        self.events.append(Event(time.monotonic(), node, "began", term))

    def ended(self, node: UUID, term: Term) -> None:
        if self.leaders.get(term.shard) == node:
            del self.leaders[term.shard]
        self.events.append(Event(time.monotonic(), node, "ended", term))

    def of(self, what: str, node: UUID | None = None) -> list[Event]:
        return [event for event in self.events if event.what == what and node in (None, event.node)]


@dataclass
class Listener:
    record: Record
    node_id: UUID
    coordinator: MemberCoordinator | None = None

    def term_began(self, term: Term) -> None:
        assert self.coordinator is not None
        if time.monotonic() >= self.coordinator._trusted_until:
            self.record.overlaps.append(f"shard {term.shard} began with {self.node_id} after its lease was over")
        self.record.began(self.node_id, term)

    def term_ended(self, term: Term) -> None:
        self.record.ended(self.node_id, term)


@dataclass
class Node:
    coordinator: MemberCoordinator
    node_id: UUID
    pool: Pool

    @property
    def shards(self) -> set[int]:
        return set(self.coordinator.terms)


class Counting(Proxy):
    """Counts the statements that pass."""

    statements = 0

    def fault_for(self, text: bytes) -> Armed | None:
        self.statements += 1
        return super().fault_for(text)


class Cluster:
    """Nodes of one kind over one store."""

    def __init__(
        self, kind: str, database_url: str, server: RegistryServer | None, *, schema: str = DEFAULT_SCHEMA
    ) -> None:
        self.kind = kind
        self.schema = schema
        self.url = database_url
        self.server = server
        self.room = f"test-{uuid4().hex}"
        self.record = Record()
        self.nodes: list[Node] = []
        self._stack = AsyncExitStack()

    async def node(
        self,
        *,
        lease: float = LEASE,
        url: str | None = None,
        registry_port: int | None = None,
        notified: bool = True,
        coordinator: str | None = None,
    ) -> Node:
        """Starts a node, which joins. `url`, `registry_port`: where this node reaches the store and the registry."""
        if coordinator is None:
            coordinator = self.kind if self.server is None else self.server.address(self.room, port=registry_port)
        settings = load_settings(database_url=url or self.url, leader_lease_seconds=lease, coordinator=coordinator)
        pool = await Pool.connect(settings.database_url or "", size=4, schema=self.schema)
        self._stack.push_async_callback(pool.close)
        node_id = uuid4()
        listener = Listener(self.record, node_id)
        made = make_coordinator(listener, pool, settings, node_id=node_id, name=f"n{len(self.nodes)}", version="0")
        assert isinstance(made, MemberCoordinator)
        listener.coordinator = made
        if notified:
            notifier = Notifier(pool.url, schema=pool.schema)
            notifier.listen("duly_shards", lambda _: made.wake())
            await notifier.start()
            self._stack.push_async_callback(notifier.stop)
        await made.start()
        node = Node(made, node_id, pool)
        self.nodes.append(node)
        return node

    def proxy(self) -> Counting:
        """A proxy to the store that can fail. It stays until the nodes have left."""
        proxy = Counting(self.url)
        self._stack.enter_context(proxy)
        return proxy

    async def wire(self) -> Wire:
        """A connection to the registry that can be cut."""
        assert self.server is not None
        return await self._stack.enter_async_context(Wire(self.server.port))

    async def leave(self, node: Node) -> None:
        self.nodes.remove(node)
        await node.coordinator.stop()
        await node.coordinator.leave()

    def shared_by(self, *nodes: Node) -> Callable[[], bool]:
        """Returns a condition: exactly these nodes lead all shards, evenly."""

        def holds() -> bool:
            shares = [len(node.shards) for node in nodes]
            return sum(shares) == SHARDS and max(shares) - min(shares) <= 1 and len(self.record.leaders) == SHARDS

        return holds

    async def close(self) -> None:
        async with self._stack:
            for node in list(self.nodes):
                await self.leave(node)
