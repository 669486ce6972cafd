"""The contract of all coordinators, tested with each: real servers, a real store, several nodes in one process.

Nodes have pools of their own and report every term that begins or ends to one record. A term that begins while another
node still has a term of that shard is noted as an overlap, and at the end of every test there must be none.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from duly.cluster.coordinator import Term
from duly.store.pool import Pool
from harness.nodes import KINDS, LEASE, REGISTRIES, SHARDS, Cluster
from harness.servers import Servers
from harness.store import count, due_job, fire_now, fire_of, put
from harness.waiting import eventually


@pytest.fixture
async def cluster(
    request: pytest.FixtureRequest, database_url: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    monkeypatch.chdir(request.getfixturevalue("tmp_path"))
    kind = str(request.param)
    cluster = Cluster(kind, database_url, servers.get(kind) if kind in REGISTRIES else None)
    yield cluster
    await cluster.close()
    assert cluster.record.overlaps == []
    assert cluster.record.leaders == {}
    await the_store_agrees(cluster, database_url)


async def the_store_agrees(cluster: Cluster, database_url: str) -> None:
    """Checks that every reported term is in the store, under the node that reported it, and that epochs only grew."""
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch("select shard, epoch, node_id from duly.terms")
    finally:
        await connection.close()
    stored = {(row["shard"], row["epoch"]): row["node_id"] for row in rows}
    last: Counter[int] = Counter()
    for event in cluster.record.of("began"):
        assert stored[event.term.shard, event.term.epoch] == event.node
        assert event.term.epoch > last[event.term.shard]
        last[event.term.shard] = event.term.epoch


every_kind = pytest.mark.parametrize("cluster", KINDS, indirect=True)
every_registry = pytest.mark.parametrize("cluster", REGISTRIES, indirect=True)


@every_kind
async def test_a_single_node_leads_every_shard(cluster: Cluster) -> None:
    one = await cluster.node()
    await eventually(cluster.shared_by(one))
    assert {term.epoch for term in one.coordinator.terms.values()} == {1}


@every_kind
async def test_nodes_share_evenly_and_a_join_moves_few(cluster: Cluster) -> None:
    one = await cluster.node()
    await eventually(cluster.shared_by(one))
    two = await cluster.node()
    await eventually(cluster.shared_by(one, two))
    before = dict(cluster.record.leaders)
    three = await cluster.node()
    await eventually(cluster.shared_by(one, two, three))
    after = cluster.record.leaders
    moved = [shard for shard in before if before[shard] != after[shard]]
    # The third of the new node must move, and a little more.
    assert len(moved) <= 28
    assert {after[shard] for shard in moved} >= {three.node_id}


@every_kind
async def test_a_graceful_leave_hands_over_at_once(cluster: Cluster) -> None:
    # With this lease, a node that is not told looks only every four seconds (advisory: 0.7 s).
    one, two = await cluster.node(lease=12), await cluster.node(lease=12)
    await eventually(cluster.shared_by(one, two))
    await cluster.leave(one)
    left = time.monotonic()
    await eventually(cluster.shared_by(two))
    assert time.monotonic() - left < 2


@every_registry
async def test_without_notifications_the_registry_s_watch_tells_of_a_leave(cluster: Cluster) -> None:
    one, two = await cluster.node(lease=12, notified=False), await cluster.node(lease=12, notified=False)
    await eventually(cluster.shared_by(one, two))
    await cluster.leave(one)
    left = time.monotonic()
    await eventually(cluster.shared_by(two))
    assert time.monotonic() - left < 2


@every_kind
async def test_a_node_that_stops_beating_steps_down_and_is_replaced_within_its_lease(
    cluster: Cluster, pool: Pool
) -> None:
    one, two = await cluster.node(), await cluster.node()
    await eventually(cluster.shared_by(one, two))
    old = dict(one.coordinator.terms)
    # As if the process hung: the connections stay, ZooKeeper's session and the advisory lock too.
    await one.coordinator.stop()
    frozen = time.monotonic()
    await eventually(cluster.shared_by(two))
    ended = max(event.at for event in cluster.record.of("ended", one.node_id))
    began = min(event.at for event in cluster.record.of("began", two.node_id) if event.term.shard in old)
    assert ended < began
    assert began - frozen < LEASE + 1
    await the_deposed_fire_nothing(pool, old)
    await one.coordinator.start()
    await eventually(cluster.shared_by(one, two))


async def the_deposed_fire_nothing(pool: Pool, old: dict[int, Term]) -> None:
    due = pool.clock.now() - timedelta(seconds=1)
    jobs = [due_job(pool, due) for _ in range(200)]
    job = next(job for job in jobs if job.shard in old)
    await put(pool, job)
    batch = fire_of(job, next_run_at=due + timedelta(hours=1))
    fired = await fire_now(pool, shard=job.shard, epoch=old[job.shard].epoch, batch=batch)
    assert fired.moved == frozenset()
    assert await count(pool, "runs") == 0
    new = (await pool.query("select epoch from duly.shards where shard = $1", job.shard))[0]["epoch"]
    fired = await fire_now(pool, shard=job.shard, epoch=new, batch=batch)
    assert fired.moved == {job.job_id}


@every_kind
async def test_a_node_cut_off_from_the_store_steps_down_first_and_comes_back_by_itself(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    one, two = await cluster.node(url=proxy.url), await cluster.node()
    await eventually(cluster.shared_by(one, two))
    proxy.refuse()
    await eventually(cluster.shared_by(two))
    proxy.passing()
    await eventually(cluster.shared_by(one, two))


@every_kind
async def test_a_silent_store_ends_the_terms_in_time_and_they_begin_again_by_themselves(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    nodes = [await cluster.node(url=proxy.url) for _ in range(2)]
    await eventually(cluster.shared_by(*nodes))
    before = {term.shard: term.epoch for node in nodes for term in node.coordinator.terms.values()}
    proxy.black_hole()
    silent = time.monotonic()
    await eventually(lambda: not cluster.record.leaders)
    assert time.monotonic() - silent < LEASE
    proxy.cut()
    proxy.passing()
    await eventually(cluster.shared_by(*nodes), seconds=30)
    after = {term.shard: term.epoch for node in nodes for term in node.coordinator.terms.values()}
    assert all(after[shard] > before[shard] for shard in before)


@every_kind
async def test_a_node_that_the_store_has_forgotten_joins_again(cluster: Cluster, pool: Pool) -> None:
    one = await cluster.node()
    await eventually(cluster.shared_by(one))
    await pool.query("delete from duly.nodes")
    await eventually(lambda: bool(cluster.record.of("ended", one.node_id)))
    await eventually(cluster.shared_by(one))


@every_kind
async def test_a_hand_over_that_never_arrived_is_done_again(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    one = await cluster.node(url=proxy.url)
    await eventually(cluster.shared_by(one))
    fault = proxy.cut_within("-- Gives shards up")
    two = await cluster.node()
    await eventually(lambda: fault.struck == 1)
    await eventually(cluster.shared_by(one, two))


@every_kind
async def test_shards_whose_taking_was_never_answered_are_taken_anew(cluster: Cluster, pool: Pool) -> None:
    proxy = cluster.proxy()
    fault = proxy.swallow("insert into duly.terms")
    one = await cluster.node(url=proxy.url)
    await eventually(lambda: fault.struck == 1)
    await eventually(cluster.shared_by(one))
    assert {term.epoch for term in one.coordinator.terms.values()} == {2}


@every_kind
async def test_terms_do_not_begin_when_the_answer_comes_after_the_lease(cluster: Cluster, pool: Pool) -> None:
    """The fixture checks every term that begins; here is one that must not begin."""
    async with pool.transaction() as slow:
        await slow.connection.execute("lock table duly.terms in exclusive mode")
        one = await cluster.node()
        await eventually(lambda: one.coordinator._trusted_until > 0)
        await asyncio.sleep(max(0.0, one.coordinator._trusted_until - time.monotonic()) + 0.05)
        assert one.shards == set()
    await eventually(cluster.shared_by(one))


@every_kind
async def test_a_shard_whose_row_is_locked_does_not_keep_the_others_waiting(cluster: Cluster, pool: Pool) -> None:
    """A leader that was stopped in the middle of a fire holds its shard's row until PostgreSQL ends its transaction."""
    async with pool.transaction() as stopped:
        await stopped.connection.execute("select from duly.shards where shard = 5 for share")
        one = await cluster.node()
        await eventually(lambda: len(one.shards) == SHARDS - 1)
        assert 5 not in one.shards
    await eventually(cluster.shared_by(one))


@every_registry
async def test_without_the_registry_everybody_steps_down_and_goes_on_when_it_is_back(cluster: Cluster) -> None:
    assert cluster.server is not None
    one, two = await cluster.node(), await cluster.node()
    await eventually(cluster.shared_by(one, two))
    await asyncio.to_thread(cluster.server.stop)
    gone = time.monotonic()
    try:
        await eventually(lambda: not cluster.record.leaders)
        assert time.monotonic() - gone < LEASE
    finally:
        await asyncio.to_thread(cluster.server.start)
    await eventually(cluster.shared_by(one, two), seconds=30)


@every_registry
async def test_a_registry_that_does_not_answer_is_as_good_as_none(cluster: Cluster) -> None:
    assert cluster.server is not None
    one, two = await cluster.node(), await cluster.node()
    await eventually(cluster.shared_by(one, two))
    cluster.server.pause()
    silent = time.monotonic()
    try:
        await eventually(lambda: not cluster.record.leaders)
        assert time.monotonic() - silent < LEASE
    finally:
        cluster.server.go_on()
    await eventually(cluster.shared_by(one, two), seconds=30)


@every_registry
async def test_a_node_cut_off_from_the_registry_alone_is_replaced_and_comes_back(cluster: Cluster) -> None:
    assert cluster.server is not None
    wire = await cluster.wire()
    one, two = await cluster.node(registry_port=wire.port), await cluster.node()
    await eventually(cluster.shared_by(one, two))
    await wire.cut()
    await eventually(cluster.shared_by(two))
    # The node must come back, and stay.
    wire.mend()
    await eventually(cluster.shared_by(one, two), seconds=30)
    began = len(cluster.record.of("began"))
    await asyncio.sleep(LEASE)
    assert len(cluster.record.of("began")) == began


class TestAdvisory:
    @pytest.mark.parametrize("cluster", ["postgres-advisory"], indirect=True)
    async def test_a_lost_session_is_noticed_by_both_sides_long_before_the_lease_ends(
        self, cluster: Cluster, pool: Pool
    ) -> None:
        one, two = await cluster.node(lease=9), await cluster.node(lease=9)
        await eventually(cluster.shared_by(one, two))
        key = (await pool.query("select info ->> 'presence' as key from duly.nodes where node_id = $1", one.node_id))[0]
        lost = time.monotonic()
        await pool.query(
            "select pg_terminate_backend(pid) from pg_locks "
            "where locktype = 'advisory' and objid = $1::text::bigint::oid",
            key["key"],
        )
        await eventually(lambda: bool(cluster.record.of("ended", one.node_id)))
        assert time.monotonic() - lost < 2
        # The node comes back with a new lock.
        await eventually(cluster.shared_by(one, two))


@pytest.mark.parametrize("cluster", ["postgres", "postgres-advisory"], indirect=True)
async def test_an_idle_node_sends_fewer_than_two_statements_a_second(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    one = await cluster.node(lease=5, url=proxy.url)
    two = await cluster.node(lease=5)
    await eventually(cluster.shared_by(one, two))
    before, began = proxy.statements, time.monotonic()
    await asyncio.sleep(3)
    sent, seconds = proxy.statements - before, time.monotonic() - began
    print(f"{cluster.kind}: {sent / seconds:.2f} statements a second")
    assert 0 < sent <= 2 * seconds
