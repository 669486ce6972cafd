"""The coordinator in PostgreSQL: nodes over one store, a beat at a time."""

from __future__ import annotations

from uuid import uuid4

from duly.cluster.coordinator import Term
from duly.cluster.postgres import PostgresCoordinator
from duly.store.pool import Pool
from harness.store import count
from harness.waiting import eventually


class Listener:
    def __init__(self) -> None:
        self.shards: set[int] = set()

    def term_began(self, term: Term) -> None:
        assert term.shard not in self.shards
        self.shards.add(term.shard)

    def term_ended(self, term: Term) -> None:
        self.shards.remove(term.shard)


async def joined(pool: Pool, *, lease_seconds: float = 30) -> PostgresCoordinator:
    """A node that has joined and has not beaten yet."""
    node = PostgresCoordinator(Listener(), pool, node_id=uuid4(), name="n", version="0", lease_seconds=lease_seconds)
    await node._join()
    return node


async def test_the_first_node_leads_everything(pool: Pool) -> None:
    one = await joined(pool)
    await one.run_once()
    assert len(one.terms) == 64
    assert {term.epoch for term in one.terms.values()} == {1}


async def test_a_second_node_gets_its_half_and_no_shard_ever_has_two_leaders(pool: Pool) -> None:
    one = await joined(pool)
    await one.run_once()
    two = await joined(pool)
    for _ in range(3):
        for each in (two, one):
            await each.run_once()
            assert not one.terms.keys() & two.terms.keys()
    assert (len(one.terms), len(two.terms)) == (32, 32)
    assert {term.epoch for term in two.terms.values()} == {2}


async def test_a_graceful_leave_frees_the_shards_at_once(pool: Pool) -> None:
    one = await joined(pool)
    await one.run_once()
    two = await joined(pool)
    await one.leave()
    assert one.terms == {}
    await two.run_once()
    assert len(two.terms) == 64


async def test_a_dead_nodes_shards_are_taken_when_its_lease_is_over_and_not_before(pool: Pool) -> None:
    one = await joined(pool)
    await one.run_once()
    two = await joined(pool)
    await two.run_once()
    assert len(two.terms) == 0
    await pool.query("update duly.nodes set lease_until = duly.now() where node_id = $1", one.node_id)
    await two.run_once()
    assert len(two.terms) == 64
    # The old leader wakes up and learns that it has lost its shards.
    await one.run_once()
    assert len(one.terms) <= 32
    assert not one.terms.keys() & two.terms.keys()


async def test_a_node_that_the_store_has_forgotten_joins_again(pool: Pool) -> None:
    one = await joined(pool)
    await one.run_once()
    await pool.query("delete from duly.nodes")
    await one.run_once()
    assert one.terms == {}
    await one.run_once()
    assert len(one.terms) == 64


async def test_without_a_beat_in_time_it_steps_down_by_itself(pool: Pool) -> None:
    one = await joined(pool, lease_seconds=0.5)
    await one.run_once()
    assert one.terms
    await eventually(lambda: not one.terms, seconds=5)


async def test_every_term_is_kept_so_that_an_epoch_names_its_node(pool: Pool) -> None:
    one = await joined(pool)
    await one.run_once()
    assert await count(pool, "terms", "node_id = $1 and epoch = 1", one.node_id) == 64
