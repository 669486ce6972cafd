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

from duly.model import NO_DEFAULTS, Declarer, NodeStatus, ShardStatus, TaskDefaults
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


#: The step that gives the rows of tasks their defaults (`migrations/0004_task_defaults.sql`).
DEFAULTS_STEP = 4


async def offer_handlers(store: Querier, names: Sequence[str]) -> None:
    """Stores the names of a worker's tasks, on a store that keeps no more of them."""
    await store.fetch("cluster/offer_handlers", sorted(set(names)))


async def offer_tasks(store: Querier, tasks: Mapping[str, TaskDefaults], *, by: Declarer) -> list[OfferedTask]:
    """Stores a worker's tasks with the defaults that they set. Returns the tasks whose defaults stay another offer's:
    that of a newer deploy, or of another application that is alive."""
    names = sorted(tasks)
    rows = await store.fetch(
        "cluster/offer_tasks", names, [tasks[name].to_stored() for name in names], by.owner, by.deploy, by.rank
    )
    if not (refused := sorted(tasks.keys() - {row["name"] for row in rows})):
        return []
    rows = await store.fetch("cluster/offered_tasks", refused)
    return [OfferedTask(row["name"], _defaults(row["defaults"]), row["owner"] or "", row["deploy"]) for row in rows]


@dataclass(frozen=True, slots=True)
class OfferedTask:
    """A task as it was last offered, and the application and deploy of the worker that did."""

    name: str
    defaults: TaskDefaults
    owner: str
    deploy: str | None


async def known_handlers(store: Querier) -> tuple[frozenset[str], dict[str, TaskDefaults]]:
    """The tasks that workers have offered, and the defaults of those that set some."""
    rows = await store.fetch("cluster/known_handlers")
    offered = {row["name"]: _defaults(row["defaults"]) for row in rows}
    return frozenset(offered), {name: defaults for name, defaults in offered.items() if defaults}


def read_offered(text: str | None) -> dict[str, TaskDefaults]:
    """The defaults of tasks by name, from a JSON object of them. Those without any are left out."""
    offered = {name: TaskDefaults.from_stored(one) for name, one in json.loads(text or "{}").items()}
    return {name: defaults for name, defaults in offered.items() if defaults}


def _defaults(text: str | None) -> TaskDefaults:
    return NO_DEFAULTS if text is None else TaskDefaults.from_stored(json.loads(text))


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
