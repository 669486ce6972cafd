"""Nodes, shards and terms in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.store.pool import Executor

NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class View:
    """What a scheduler node saw when it said that it is alive. Lists are indexed by shard."""

    now: datetime
    nodes: tuple[UUID, ...]
    leaders: tuple[UUID | None, ...]
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    node_id: UUID
    kind: str
    name: str
    version: str
    started_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    info: dict[str, Any]
    alive: bool
    shards: int
    held: int


@dataclass(frozen=True, slots=True)
class ShardStatus:
    shard: int
    epoch: int
    node_id: UUID | None
    since: datetime
    node: str | None
    alive: bool


async def join(
    store: Executor, *, node_id: UUID, kind: str, name: str, version: str, lease_seconds: float, info: Mapping[str, Any]
) -> None:
    await store.fetch("cluster/join", node_id, kind, name, version, lease_seconds, json.dumps(info))


async def leave(store: Executor, *, node_id: UUID) -> int:
    """End a node's lease and free its shards. Returns how many it led."""
    row = await store.row("cluster/leave", node_id)
    return int(row["freed"]) if row else 0


async def beat(store: Executor, *, node_id: UUID, lease_seconds: float) -> View | None:
    """Extend a scheduler's lease and see the cluster. None: the store does not know this node (any more)."""
    row = await store.row("cluster/beat", node_id, lease_seconds)
    if row is None:
        return None
    leaders = tuple(None if leader == NOBODY else leader for leader in row["leaders"])
    return View(row["now"], tuple(row["nodes"]), leaders, tuple(row["epochs"]))


async def acquire(store: Executor, *, node_id: UUID, shards: Sequence[int], epochs: Sequence[int]) -> dict[int, int]:
    """Begin terms by raising each shard's epoch from the one seen. Returns the new epochs of those that were won."""
    rows = await store.fetch("cluster/acquire", node_id, shards, epochs)
    return {row["shard"]: row["epoch"] for row in rows}


async def hand_over(store: Executor, *, node_id: UUID, shards: Sequence[int], epochs: Sequence[int]) -> None:
    await store.fetch("cluster/hand_over", node_id, shards, epochs)


async def node_statuses(store: Executor) -> list[NodeStatus]:
    rows = await store.fetch("cluster/status")
    return [NodeStatus(**{**row, "info": json.loads(row["info"])}) for row in rows]


async def shard_statuses(store: Executor) -> list[ShardStatus]:
    rows = await store.fetch("cluster/shards")
    return [ShardStatus(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads one shard, seen at `now`, the database's time. No name: nobody."""

    epoch: int
    name: str | None
    alive: bool
    now: datetime


async def leader_of(store: Executor, *, shard: int) -> Leader:
    row = await store.row("cluster/leader", shard)
    assert row is not None
    return Leader(**row)


async def offer_handlers(store: Executor, names: Sequence[str]) -> None:
    await store.fetch("cluster/offer_handlers", sorted(set(names)))


async def known_handlers(store: Executor) -> list[str]:
    return [row["name"] for row in await store.fetch("cluster/handlers")]
