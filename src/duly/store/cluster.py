"""Nodes, shards and terms in PostgreSQL."""

from __future__ import annotations

import json
import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from duly.model import NodeStatus, ShardStatus
from duly.store.pool import Querier
from duly.store.session import DirectSession
from duly.store.translation import lock_key

NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as a scheduler node saw it at its heartbeat. Lists are indexed by shard."""

    now: datetime
    nodes: tuple[UUID, ...]
    leaders: tuple[UUID | None, ...]
    epochs: tuple[int, ...]
    expires_in: float | None = None
    """Seconds until the first of the other nodes' leases runs out, unless it is extended."""

    def only(self, members: Container[UUID]) -> View:
        """The same view, in which only these nodes count as alive."""
        return replace(self, nodes=tuple(node for node in self.nodes if node in members))


async def join(
    store: Querier, *, node_id: UUID, kind: str, name: str, version: str, lease_seconds: float, info: Mapping[str, Any]
) -> None:
    await store.fetch("cluster/join", node_id, kind, name, version, lease_seconds, json.dumps(info))


@dataclass(frozen=True, slots=True)
class OtherScheduler:
    """A live scheduler. `registry_path`: its place in etcd or ZooKeeper; None: it has none, or is of version 0.1."""

    name: str
    coordinator: str
    registry_path: str | None


async def other_schedulers(store: Querier, *, node_id: UUID) -> list[OtherScheduler]:
    return [OtherScheduler(**row) for row in await store.fetch("cluster/other_schedulers", node_id)]


async def leave(store: Querier, *, node_id: UUID) -> int:
    """Ends a node's lease and frees its shards. Returns how many it led."""
    row = await store.row("cluster/leave", node_id)
    return int(row["freed"]) if row else 0


async def beat(store: Querier, *, node_id: UUID, lease_seconds: float) -> View | None:
    """Extends a scheduler's lease and reads the cluster. None: the store does not know this node (any more)."""
    row = await store.row("cluster/beat", node_id, lease_seconds)
    return None if row is None else _view(row)


async def be_present(session: DirectSession) -> int:
    """Takes a lock that says that this session's node is alive, and returns its key.

    The key is drawn for every session: a lock that an earlier session of the same node still holds proves nothing. The
    first key is the schema's. Locks with two keys are of another kind than those with one, so they never clash with the
    migrations' lock.
    """
    while True:
        key = random.randrange(1, 2**31)  # noqa: S311
        row = await session.row("cluster/be_present", lock_key(session.schema), key)
        if row is not None and row["held"]:
            return key


async def beat_present(session: DirectSession, *, node_id: UUID, lease_seconds: float) -> View | None:
    """As `beat`, but only nodes that hold their presence lock are alive."""
    row = await session.row("cluster/beat_present", node_id, lease_seconds, lock_key(session.schema))
    return None if row is None else _view(row)


def _view(row: asyncpg.Record) -> View:
    leaders = tuple(None if leader == NOBODY else leader for leader in row["leaders"])
    return View(row["now"], tuple(row["nodes"]), leaders, tuple(row["epochs"]), row["expires_in"])


async def acquire(
    store: Querier, *, node_id: UUID, shards: Sequence[int], epochs: Sequence[int], elected: bool = False
) -> dict[int, int]:
    """Begins terms by raising each shard's epoch from the one seen. Returns the new epochs of the shards it got.

    `elected`: another coordinator has elected this node, so the shards are taken even from a node whose lease runs.
    """
    rows = await store.fetch("cluster/acquire", node_id, shards, epochs, elected)
    return {row["shard"]: row["epoch"] for row in rows}


async def hand_over(store: Querier, *, node_id: UUID, shards: Sequence[int], epochs: Sequence[int]) -> None:
    await store.fetch("cluster/hand_over", node_id, shards, epochs)


async def node_statuses(store: Querier) -> list[NodeStatus]:
    rows = await store.fetch("cluster/node_statuses")
    return [NodeStatus(**{**row, "info": json.loads(row["info"])}) for row in rows]


async def shard_statuses(store: Querier) -> list[ShardStatus]:
    rows = await store.fetch("cluster/shard_statuses")
    return [ShardStatus(**row) for row in rows]


async def forget_terms(store: Querier, *, kept_seconds: float, most: int, limit: int) -> int:
    """Deletes terms that ended `kept_seconds` ago; keeps at most the last `most` of each shard."""
    row = await store.row("cluster/forget_terms", kept_seconds, most, limit)
    return int(row["forgotten"]) if row else 0


async def forget_nodes(store: Querier, *, kept_seconds: float, most: int, limit: int) -> int:
    """Deletes nodes last alive `kept_seconds` ago, except those that kept rows name; keeps at most `most`."""
    row = await store.row("cluster/forget_nodes", kept_seconds, most, limit)
    return int(row["forgotten"]) if row else 0


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of one shard at `now`, the database's time. No name: it has none."""

    epoch: int
    name: str | None
    alive: bool
    now: datetime


async def leader_of(store: Querier, *, shard: int) -> Leader:
    row = await store.row("cluster/leader_of", shard)
    assert row is not None
    return Leader(**row)


async def offer_handlers(store: Querier, names: Sequence[str]) -> None:
    await store.fetch("cluster/offer_handlers", sorted(set(names)))


async def known_handlers(store: Querier) -> list[str]:
    return [row["name"] for row in await store.fetch("cluster/known_handlers")]


@dataclass(frozen=True, slots=True)
class Offer:
    """Whether a live worker offers a task for one of the asker's queues, and how long ago the last one that offered it
    was alive; None: none is known.

    `for_others`: a live worker offers it, but serves other queues only, or some tenants only.
    """

    live: bool
    for_others: bool
    seconds_ago: float | None


async def offer_of(store: Querier, *, task: str, queues: Sequence[str]) -> Offer:
    row = await store.row("cluster/offer_of", task, queues)
    assert row is not None
    return Offer(**row)
