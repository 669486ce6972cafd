"""Assigns each shard the node that should lead it, by a pure function that every node computes alike.

Rendezvous hashing with a bounded load: each shard goes to the live node with the highest score for it that may still
take one. The load is even to within one shard, and a node that joins or leaves moves little more than its own share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID


def _score(node: UUID, shard: int) -> bytes:
    return hashlib.blake2b(node.bytes + shard.to_bytes(4, "big"), digest_size=8).digest()


def assign(nodes: Sequence[UUID], shard_count: int) -> list[UUID | None]:
    """The leader that each shard should have, given the live nodes; None without nodes."""
    if not nodes:
        return [None] * shard_count
    # `extra` nodes take one shard more than the others.
    share, extra = divmod(shard_count, len(nodes))
    load = dict.fromkeys(nodes, 0)
    leaders: list[UUID | None] = [None] * shard_count
    # Strongest preferences first, so that a full node is full of the shards that want it most.
    wishes = sorted(
        ((_score(node, shard), shard, node) for node in nodes for shard in range(shard_count)), reverse=True
    )
    for _, shard, node in wishes:
        if leaders[shard] is not None:
            continue
        if load[node] < share or (load[node] == share and extra > 0):
            if load[node] == share:
                extra -= 1
            load[node] += 1
            leaders[shard] = node
    return leaders
