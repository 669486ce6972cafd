"""Shard assignment: even, the same on every node, and few moves."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from duly.cluster.assignment import assign

nodes = st.lists(st.uuids(), min_size=1, max_size=8, unique=True)


@given(nodes, st.integers(1, 128))
def test_every_shard_has_a_leader_and_no_node_has_two_more_than_another(live: list[UUID], shards: int) -> None:
    leaders = assign(live, shards)
    assert len(leaders) == shards
    loads = [leaders.count(node) for node in live]
    assert sum(loads) == shards
    assert max(loads) - min(loads) <= 1


@given(nodes, st.randoms())
def test_the_order_in_which_nodes_are_seen_does_not_matter(live: list[UUID], random: object) -> None:
    shuffled = list(live)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assign(live, 64) == assign(shuffled, 64)


@settings(max_examples=50)
@given(st.lists(st.uuids(), min_size=3, max_size=8, unique=True))
def test_a_node_that_leaves_moves_little_more_than_its_own_shards(live: list[UUID]) -> None:
    before, after = assign(live, 64), assign(live[1:], 64)
    moved = sum(1 for old, new in zip(before, after, strict=True) if old != new)
    own = before.count(live[0])
    assert own <= moved <= own + 64 // 4


def test_without_nodes_nobody_leads() -> None:
    assert assign([], 3) == [None, None, None]
