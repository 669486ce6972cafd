"""A coordinator's pass: the terms that it begins and ends, and how long it trusts them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from duly.cluster import member
from duly.cluster.assignment import assign
from duly.cluster.coordinator import Term
from duly.cluster.member import MemberCoordinator
from duly.store.cluster import View
from duly.store.pool import Pool

LEASE = 10.0
SHARDS = 4
ME, OTHER = UUID(int=1), UUID(int=2)


class Node(MemberCoordinator):
    """A node that sees what the test shows it and gets every shard that it asks for. Its clock moves only by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes = 0.0
        self.taking = 0.0
        self.leaders: list[UUID | None] = [None] * SHARDS
        self.epochs = [1] * SHARDS
        self.nodes: tuple[UUID, ...] = (ME,)
        self.told: list[tuple[str, Term]] = []
        self.handed_over: list[int] = []
        listener = SimpleNamespace(
            term_began=lambda term: self.told.append(("began", term)),
            term_ended=lambda term: self.told.append(("ended", term)),
        )
        super().__init__(listener, cast("Pool", None), node_id=ME, name="me", version="0", lease_seconds=LEASE)

    async def _attend(self) -> View:
        self.now += self.takes
        return View(datetime.now(UTC), self.nodes, tuple(self.leaders), tuple(self.epochs))

    async def _take(self, shards: list[int], epochs: list[int]) -> dict[int, int]:
        self.now += self.taking
        for shard, epoch in zip(shards, epochs, strict=True):
            assert epoch == self.epochs[shard]
            self.leaders[shard], self.epochs[shard] = ME, epoch + 1
        return {shard: self.epochs[shard] for shard in shards}

    async def hand_over(self, _pool: Any, *, shards: list[int], epochs: list[int], **_: Any) -> None:
        self.handed_over += shards
        for shard in shards:
            self.leaders[shard] = None


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node()
    monkeypatch.setattr(member, "time", SimpleNamespace(monotonic=lambda: node.now))
    monkeypatch.setattr(member, "rows", SimpleNamespace(hand_over=node.hand_over))
    return node


async def test_a_node_that_is_alone_leads_everything_and_begins_each_term_once(node: Node) -> None:
    await node.run_once()
    await node.run_once()
    assert node.told == [("began", Term(shard, 2)) for shard in range(SHARDS)]


async def test_a_term_is_trusted_from_when_the_beat_was_sent(node: Node) -> None:
    began, node.takes = node.now, 0.4 * LEASE
    await node.run_once()
    node.now = began + 0.7 * LEASE
    node._step_down()
    assert len(node.terms) == SHARDS
    node.now = began + 0.9 * LEASE
    node._step_down()
    assert not node.terms
    assert [what for what, _ in node.told] == ["began"] * SHARDS + ["ended"] * SHARDS


async def test_terms_that_were_won_when_the_lease_was_over_do_not_begin(node: Node) -> None:
    node.taking = LEASE
    await node.run_once()
    assert node.told == []
    node.taking = 0
    await node.run_once()
    assert len(node.terms) == SHARDS, "the next pass takes them anew"


async def test_what_should_be_anothers_is_handed_over(node: Node) -> None:
    await node.run_once()
    node.nodes = (ME, OTHER)
    theirs = [shard for shard, leader in enumerate(assign(node.nodes, SHARDS)) if leader == OTHER]
    assert theirs
    await node.run_once()
    assert node.handed_over == theirs
    assert sorted(node.terms) == [shard for shard in range(SHARDS) if shard not in theirs]
    await node.run_once()
    assert node.handed_over == theirs, "the shards are not taken back"


async def test_a_raised_epoch_ends_the_term_whoever_is_named_as_leader(node: Node) -> None:
    await node.run_once()
    node.epochs[0] += 5
    node.told.clear()
    await node.run_once()
    assert node.told == [("ended", Term(0, 2)), ("began", Term(0, 8))]


async def test_what_a_living_node_leads_is_not_taken(node: Node) -> None:
    node.nodes = (ME, OTHER)
    node.leaders = [OTHER] * SHARDS
    await node.run_once()
    assert not node.terms
    node.nodes = (ME,)
    await node.run_once()
    assert len(node.terms) == SHARDS
