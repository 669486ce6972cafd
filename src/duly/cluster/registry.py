"""A coordinator whose members are listed by another server: etcd or ZooKeeper.

A pass keeps this node's entry there alive, reads the list, and beats in PostgreSQL. A node in both is alive; for a node
in PostgreSQL only the list is read again.

| what happens | what follows |
| --- | --- |
| a leader is killed or stopped | its shards are taken when its entry or its lease in `duly.nodes` is gone, whichever is first |
| a node leaves | its shards are free in PostgreSQL and its entry is removed at once; a watch and a notification tell the others |
| the registry is away, PostgreSQL is not | terms last as long as the last good pass is trusted, then every node steps down; nothing fires until the registry is back, and then everything goes on by itself |
| PostgreSQL is away, the registry is not | the same: a leader that cannot reach the store fires nothing, so it does not keep its terms either |
| a node reaches one of the two only | it steps down, its lease runs out, others lead |
| the registry loses its memory, or two nodes are given different registries | they take shards from each other: slow, never twice, for every fire compares the epoch |
"""  # noqa: E501

from __future__ import annotations

from abc import abstractmethod
from uuid import UUID

from duly.cluster.member import MemberCoordinator
from duly.schema_name import DEFAULT_SCHEMA
from duly.store import cluster as rows

# Shortest timeout for entering: a server under load syncs its disk before it answers.
MIN_ENTRY_SECONDS = 5.0


class RegistryCoordinator(MemberCoordinator):
    @abstractmethod
    async def _enter(self) -> None:
        """Puts this node's entry into the registry. Idempotent."""

    @abstractmethod
    async def _members(self) -> frozenset[UUID]:
        """Keeps our entry alive and reads the members. If we are not among them, our entry is gone."""

    async def _join(self) -> None:
        # The row comes first, so that a node that sees the entry finds the row.
        await super()._join()
        await self._enter()

    async def _attend(self) -> rows.View | None:
        # The registry comes first: while it is away the lease in PostgreSQL ends as well, and no node is half alive.
        members = await self._members()
        if self.node_id not in members:
            return None
        view = await self._beat()
        if view is None:
            return None
        if not members.issuperset(view.nodes):
            # A node may have entered, and begun to lead, between the two reads. Every node that led when the store was
            # read had entered before, so only a list read after that tells which nodes are gone.
            members = await self._members()
            if self.node_id not in members:
                return None
        return view.only(members)


def default_path(schema: str) -> str:
    """The place of a store's nodes in a registry, if its address names none: each schema has one of its own."""
    return "/duly" if schema == DEFAULT_SCHEMA else f"/duly-{schema}"


def node_id_of(name: str) -> UUID | None:
    """The node of an entry; None if the entry is not one of ours."""
    try:
        return UUID(name)
    except ValueError:
        return None
