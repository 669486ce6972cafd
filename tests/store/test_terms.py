"""Taking shards: the epoch decides, whoever elected the taker."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from duly.store import cluster
from duly.store.pool import Pool
from support import count, eventually


async def node(pool: Pool, *, lease: float = 600) -> UUID:
    node_id = uuid4()
    await cluster.join(pool, node_id=node_id, kind="scheduler", name="n", version="0", lease_seconds=lease, info={})
    return node_id


async def test_only_an_elected_node_takes_a_shard_from_a_living_leader(pool: Pool) -> None:
    leader, other = await node(pool), await node(pool)
    assert await cluster.acquire(pool, node_id=leader, shards=[3], epochs=[0]) == {3: 1}
    assert await cluster.acquire(pool, node_id=other, shards=[3], epochs=[1]) == {}
    assert await cluster.claim_term(pool, node_id=other, shards=[3], epochs=[1]) == {3: 2}
    assert await count(pool, "terms", "shard = 3") == 2


async def test_an_election_that_was_seen_under_an_older_epoch_wins_nothing(pool: Pool) -> None:
    leader, other = await node(pool), await node(pool)
    assert await cluster.claim_term(pool, node_id=leader, shards=[3, 4], epochs=[0, 0]) == {3: 1, 4: 1}
    assert await cluster.claim_term(pool, node_id=other, shards=[3, 4], epochs=[0, 1]) == {4: 2}


async def test_of_many_nodes_that_believe_they_were_elected_one_wins_each_shard(pool: Pool) -> None:
    nodes = [await node(pool) for _ in range(8)]
    shards = list(range(64))
    won = await asyncio.gather(
        *(cluster.claim_term(pool, node_id=each, shards=shards, epochs=[0] * 64) for each in nodes)
    )
    taken = [shard for each in won for shard in each]
    assert len(taken) == len(set(taken))
    assert {epoch for each in won for epoch in each.values()} == {1}
    assert await count(pool, "terms") == len(taken)


@pytest.mark.parametrize("take", [cluster.acquire, cluster.claim_term])
async def test_a_node_without_a_lease_takes_nothing(pool: Pool, take: Any) -> None:
    late = await node(pool, lease=-1)
    assert await take(pool, node_id=late, shards=[3], epochs=[0]) == {}
    assert await take(pool, node_id=uuid4(), shards=[3], epochs=[0]) == {}


async def test_a_beat_that_had_to_wait_does_not_take_a_lease_for_ended_that_was_extended_meanwhile(pool: Pool) -> None:
    waiting, living = await node(pool), await node(pool, lease=1)
    async with pool.transaction() as other:
        await other.connection.execute("select from duly.nodes where node_id = $1 for update", waiting)
        beat = asyncio.create_task(cluster.beat(pool, node_id=waiting, lease_seconds=600))

        async def blocked() -> bool:
            rows = await pool.query("select from pg_stat_activity where wait_event_type = 'Lock'")
            return len(rows) > 0

        await eventually(blocked)
        await cluster.beat(pool, node_id=living, lease_seconds=600)
        # Until the lease that the waiting beat saw is over.
        await asyncio.sleep(1.1)
    view = await beat
    assert view is not None
    assert set(view.nodes) == {waiting, living}
