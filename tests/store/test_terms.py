"""Taking shards: the epoch decides, however the taker was elected."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly.maintenance import tidier as tidier_module
from duly.maintenance.tidier import Tidier
from duly.store import cluster
from duly.store.pool import Pool
from harness.store import count, put_now, take
from harness.waiting import eventually


async def node(pool: Pool, *, lease: float = 600) -> UUID:
    node_id = uuid4()
    await cluster.join(pool, node_id=node_id, kind="scheduler", name="n", version="0", lease_seconds=lease, info={})
    return node_id


async def test_only_an_elected_node_takes_a_shard_from_a_living_leader(pool: Pool) -> None:
    leader, other = await node(pool), await node(pool)
    assert await cluster.acquire(pool, node_id=leader, shards=[3], epochs=[0]) == {3: 1}
    assert await cluster.acquire(pool, node_id=other, shards=[3], epochs=[1]) == {}
    assert await cluster.acquire(pool, node_id=other, shards=[3], epochs=[1], elected=True) == {3: 2}
    assert await count(pool, "terms", "shard = 3") == 2


async def test_an_election_that_was_seen_under_an_older_epoch_wins_nothing(pool: Pool) -> None:
    leader, other = await node(pool), await node(pool)
    assert await cluster.acquire(pool, node_id=leader, shards=[3, 4], epochs=[0, 0], elected=True) == {3: 1, 4: 1}
    assert await cluster.acquire(pool, node_id=other, shards=[3, 4], epochs=[0, 1], elected=True) == {4: 2}


async def test_of_many_nodes_that_believe_they_were_elected_one_wins_each_shard(pool: Pool) -> None:
    nodes = [await node(pool) for _ in range(8)]
    shards = list(range(64))
    won = await asyncio.gather(
        *(cluster.acquire(pool, node_id=each, shards=shards, epochs=[0] * 64, elected=True) for each in nodes)
    )
    taken = [shard for each in won for shard in each]
    assert len(taken) == len(set(taken))
    assert {epoch for each in won for epoch in each.values()} == {1}
    assert await count(pool, "terms") == len(taken)


@pytest.mark.parametrize("elected", [False, True])
async def test_a_node_without_a_lease_takes_nothing(pool: Pool, elected: bool) -> None:
    late = await node(pool, lease=-1)
    assert await cluster.acquire(pool, node_id=late, shards=[3], epochs=[0], elected=elected) == {}
    assert await cluster.acquire(pool, node_id=uuid4(), shards=[3], epochs=[0], elected=elected) == {}


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
        # Wait until the lease that the waiting beat saw is over.
        await asyncio.sleep(1.1)
    view = await beat
    assert view is not None
    assert set(view.nodes) == {waiting, living}


DAYS = 86400.0


async def gone_node(pool: Pool, *, days: float, kind: str = "scheduler") -> UUID:
    """A node that was last alive `days` days ago."""
    node_id = uuid4()
    await cluster.join(
        pool, node_id=node_id, kind=kind, name=f"gone {days:g}", version="0", lease_seconds=-days * DAYS, info={}
    )
    return node_id


async def term(pool: Pool, shard: int, epoch: int, node_id: UUID, *, days: float) -> None:
    await pool.query(
        "insert into duly.terms (shard, epoch, node_id, started_at) "
        "values ($1, $2, $3, duly.now() - make_interval(secs => $4))",
        shard, epoch, node_id, days * DAYS,
    )  # fmt: skip


async def terms(pool: Pool, shard: int) -> list[int]:
    rows = await pool.query("select epoch from duly.terms where shard = $1 order by epoch", shard)
    return [row["epoch"] for row in rows]


async def test_nodes_and_terms_of_long_ago_are_forgotten_and_what_still_names_a_run_is_not(pool: Pool) -> None:
    first, second, third = [await gone_node(pool, days=days) for days in (60, 45, 40)]
    # The second term lasted until the third began, which is within the time that is kept.
    await term(pool, 7, 1, first, days=90)
    await term(pool, 7, 2, second, days=60)
    await term(pool, 7, 3, third, days=20)
    # A shard that nobody has taken for long keeps its last epoch.
    await term(pool, 8, 5, first, days=80)
    await term(pool, 8, 6, first, days=70)
    idle, late = await gone_node(pool, days=50, kind="worker"), await gone_node(pool, days=29, kind="worker")
    holding = await gone_node(pool, days=50, kind="worker")
    await put_now(pool, 1)
    await take(pool, worker_id=holding)
    leading = await gone_node(pool, days=50)
    await pool.query("update duly.shards set node_id = $1 where shard = 9", leading)
    alive = await node(pool)
    tidier = Tidier(pool, ledger_retention_seconds=60, audit_retention_seconds=86400, run_log_retention_seconds=3600)
    tidier.lead(True)
    await tidier.work()
    assert await terms(pool, 7) == [2, 3]
    assert await terms(pool, 8) == [6]
    left = {row["node_id"] for row in await pool.query("select node_id from duly.nodes")}
    assert left == {first, second, third, late, holding, leading, alive}
    assert idle not in left


async def test_however_many_nodes_come_and_go_the_store_does_not_fill_with_them(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidier_module, "BATCH", 7)
    monkeypatch.setattr(tidier_module, "MAX_NODES", 10)
    monkeypatch.setattr(tidier_module, "MAX_TERMS", 5)
    nodes = [await gone_node(pool, days=1 + n / 100) for n in range(60)]
    for epoch in range(1, 31):
        await term(pool, 3, epoch, nodes[60 - epoch], days=1)
    recent = [await gone_node(pool, days=0.01) for _ in range(12)]  # in the last hour: people may still look at them
    tidier = Tidier(pool, ledger_retention_seconds=60, audit_retention_seconds=86400, run_log_retention_seconds=3600)
    tidier.lead(True)
    passes = 1
    while await tidier.work() == 0.0:
        passes += 1
    assert await terms(pool, 3) == [26, 27, 28, 29, 30]
    left = {row["node_id"] for row in await pool.query("select node_id from duly.nodes")}
    assert left == {*nodes[30:35], *recent}
    assert passes > 5  # in small batches
    # The tidier looks at nodes again only after an hour: processes do not come and go that fast.
    await gone_node(pool, days=90)
    assert await tidier.work() is None
    assert len(await pool.query("select from duly.nodes")) == len(left) + 1


async def test_a_node_whose_row_somebody_keeps_locked_is_forgotten_later(pool: Pool) -> None:
    held, free = await gone_node(pool, days=60), await gone_node(pool, days=50)

    async def forget() -> int:
        async with asyncio.timeout(10):
            return await cluster.forget_nodes(pool, kept_seconds=DAYS, most=100, limit=100)

    stranger = await asyncpg.connect(pool.url)  # unlike the pool's, it may stay idle in a transaction
    try:
        async with stranger.transaction():
            await stranger.execute("select from duly.nodes where node_id = $1 for update", held)
            assert await forget() == 1
            assert await count(pool, "nodes", "node_id = $1", free) == 0
    finally:
        await stranger.close()
    assert await forget() == 1


async def test_a_shard_that_a_fire_keeps_locked_does_not_hold_up_the_others(pool: Pool) -> None:
    taker = await node(pool)
    async with pool.transaction() as fire:
        await fire.connection.execute("select from duly.shards where shard = 3 for share")
        async with asyncio.timeout(10):
            assert await cluster.acquire(pool, node_id=taker, shards=[3, 4], epochs=[0, 0]) == {4: 1}
    assert await cluster.acquire(pool, node_id=taker, shards=[3], epochs=[0]) == {3: 1}


async def test_a_node_hands_over_its_own_and_only_under_the_epoch_it_had(pool: Pool) -> None:
    leader, other = await node(pool), await node(pool)
    await cluster.acquire(pool, node_id=leader, shards=[3], epochs=[0])
    await cluster.hand_over(pool, node_id=other, shards=[3], epochs=[1])
    await cluster.hand_over(pool, node_id=leader, shards=[3], epochs=[0])
    assert await count(pool, "shards", "node_id = $1", leader) == 1
    await cluster.hand_over(pool, node_id=leader, shards=[3], epochs=[1])
    assert await count(pool, "shards", "node_id = $1", leader) == 0


async def test_who_leaves_frees_its_shards_at_once(pool: Pool) -> None:
    leader, other = await node(pool), await node(pool)
    await cluster.acquire(pool, node_id=leader, shards=[3, 4], epochs=[0, 0])
    assert await cluster.leave(pool, node_id=leader) == 2
    assert await count(pool, "shards", "node_id is not null") == 0
    view = await cluster.beat(pool, node_id=other, lease_seconds=600)
    assert view is not None
    assert view.nodes == (other,)
