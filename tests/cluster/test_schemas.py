"""Two Duly in one database, each in a schema of its own: neither sees, claims, wakes or elects for the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from duly.config import Settings
from duly.model import JobRequest
from duly.operations import Operations, StoreOperations
from duly.store import cluster, maintenance
from duly.store.migrate import migrate
from duly.store.notifier import Notifier
from duly.store.pool import Pool
from duly.store.session import DirectSession
from duly.store.translation import CHANNELS, lock_key
from harness.nodes import KINDS, REGISTRIES, SHARDS, Cluster
from harness.processes import Spawn, lines
from harness.servers import Servers
from harness.store import count
from harness.waiting import eventually


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Pool]:
    """A second Duly, in the schema `other` of the same database."""
    pool = await Pool.connect(database_url, size=8, schema="other")
    await migrate(pool)
    yield pool
    await pool.close()


@pytest.fixture
async def other_operations(other: Pool, settings: Settings) -> Operations:
    return (await StoreOperations.open(other, settings)).for_tenant("default")


@asynccontextmanager
async def listening(url: str, schema: str) -> AsyncIterator[list[tuple[str, str]]]:
    """What is sent on the channels of a schema."""
    heard: list[tuple[str, str]] = []
    connection = await asyncpg.connect(url)
    for word in CHANNELS:
        await connection.add_listener(
            f"{schema}_{word}", lambda _, __, channel, text: heard.append((channel, str(text)))
        )
    try:
        yield heard
    finally:
        await connection.close()


async def test_each_has_its_own_jobs_processes_and_leaders(
    pool: Pool, other: Pool, operations: Operations, other_operations: Operations, spawn: Spawn, sink: Path
) -> None:
    """With real processes. The scheduler of one is killed, and its jobs wait for it: the other's does not take them."""
    both = {"duly": (pool, operations), "other": (other, other_operations)}
    workers, schedulers = {}, {}
    for schema in both:
        # A lease that a busy machine keeps.
        settings = {"DULY_SCHEMA": schema, "DULY_LEADER_LEASE_SECONDS": "4"}
        schedulers[schema] = spawn("scheduler", settings=settings)
        workers[schema] = spawn("worker", settings={"DULY_SCHEMA": schema})
    for schema, (_, its) in both.items():
        await its.submit_many(
            [JobRequest("record", name=schema) for _ in range(150)]
            + [JobRequest("record", name=f"{schema} {number}", schedule="every 1s") for number in range(20)],
            allow_unknown_handler=True,
        )
    for store, _ in both.values():

        async def ran(store: Pool = store) -> bool:
            return await count(store, "history") >= 190

        await eventually(ran, seconds=60)
    # A worker's runs are those of its own schema's jobs.
    pids = {str(workers[schema].pid): schema for schema in both}
    jobs_of: dict[str, set[UUID]] = {}
    for schema, (store, _) in both.items():
        jobs_of[schema] = {row["job_id"] for row in await store.query("select job_id from duly.jobs")}
        names = await store.query("select distinct name from duly.jobs where name not like $1", f"{schema}%")
        assert not names
        kinds = await store.query("select kind from duly.nodes order by kind")
        assert [row["kind"] for row in kinds] == ["scheduler", "worker"]
        led = await store.query("select count(*) as shards from duly.shards s join duly.nodes n using (node_id)")
        assert led[0]["shards"] == SHARDS
    started = lines(sink, "started")
    assert {pids[str(line.pid)] for line in started} == set(both)
    for line in started:
        assert UUID(line.run_id.rpartition(".")[0] or line.run_id[:36]) in jobs_of[pids[str(line.pid)]]

    # The other goes on, and takes nothing over.
    schedulers["duly"].kill()
    schedulers["duly"].wait()

    async def lost() -> bool:
        rows = await pool.query(
            "select count(*) as alive from duly.nodes where kind = 'scheduler' and lease_until > now()"
        )
        return bool(rows[0]["alive"] == 0)

    await eventually(lost, seconds=60)
    before, fired = await count(pool, "history"), await count(other, "history")

    async def fires() -> bool:
        return await count(other, "history") >= fired + 60

    await eventually(fires, seconds=60)
    assert await count(pool, "history") <= before + 40, "what was in the queue already, and no more"
    led = await other.query("select distinct n.kind from duly.shards s left join duly.nodes n using (node_id)")
    assert [row["kind"] for row in led] == ["scheduler"]
    rows = await pool.query(
        "select count(*) as taken from duly.shards s left join duly.nodes n using (node_id) "
        "where s.node_id is not null and n.node_id is null"
    )
    assert rows[0]["taken"] == 0


async def test_what_one_announces_does_not_wake_the_other(
    pool: Pool, other: Pool, operations: Operations, other_operations: Operations
) -> None:
    async with listening(pool.url, "duly") as ours, listening(pool.url, "other") as theirs:
        requests = [JobRequest("x"), JobRequest("x", schedule="every 1m")]
        await operations.submit_many(requests, allow_unknown_handler=True)
        await eventually(lambda: len(ours) == 2)
        assert theirs == []
        await other_operations.submit_many(requests, allow_unknown_handler=True)
        await eventually(lambda: len(theirs) == 2)
        assert len(ours) == 2
        await pool.query("select duly.submit('x', schedule => 'every 1m', allow_unknown_handler => true)")
        await other.query("select duly.submit('x', schedule => 'every 1m', allow_unknown_handler => true)")
        await eventually(lambda: len(ours) == len(theirs) == 3)
    assert sorted(channel for channel, _ in ours) == ["duly_due", "duly_submitted", "duly_work"]
    assert sorted(channel for channel, _ in theirs) == ["other_due", "other_submitted", "other_work"]


async def test_a_node_hears_its_own_schema_only(
    other: Pool, operations: Operations, other_operations: Operations
) -> None:
    heard: list[str | None] = []
    notifier = Notifier(other.url, schema="other")
    notifier.listen("duly_work", heard.append)
    await notifier.start()
    try:
        await eventually(lambda: notifier.hearing)
        heard.clear()
        await operations.submit_many([JobRequest("x", queue="ours")], allow_unknown_handler=True)
        await other_operations.submit_many([JobRequest("x", queue="theirs")], allow_unknown_handler=True)
        await eventually(lambda: heard == ["theirs"])
    finally:
        await notifier.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_neither_elects_for_the_other(
    kind: str, pool: Pool, other: Pool, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with one registry for both, whose address names no place in it."""
    monkeypatch.chdir(tmp_path)
    server = servers.get(kind) if kind in REGISTRIES else None
    address = kind if server is None else f"{kind}://127.0.0.1:{server.port}"
    ours = Cluster(kind, pool.url, server)
    theirs = Cluster(kind, pool.url, server, schema="other")
    try:
        one, two = await ours.node(coordinator=address), await theirs.node(coordinator=address)
        await eventually(lambda: len(one.shards) == len(two.shards) == SHARDS)
        assert (
            one.coordinator._info.get("registry_path") != two.coordinator._info.get("registry_path") or server is None
        )
        await ours.leave(one)
        rows = await pool.query("select count(*) as led from duly.shards where node_id is not null")
        assert rows[0]["led"] == 0
        await two.coordinator.run_once()
        assert len(two.shards) == SHARDS
        rows = await other.query("select distinct node_id from duly.shards")
        assert [row["node_id"] for row in rows] == [two.node_id]
    finally:
        await ours.close()
        await theirs.close()


async def test_locks_of_one_do_not_hold_up_the_other(pool: Pool, other: Pool) -> None:
    """The locks of migrations, of the making of partitions, and of the presence of nodes."""
    holder = await asyncpg.connect(pool.url)
    block = holder.transaction()
    await block.start()
    key = lock_key("duly")
    await holder.execute(f"select pg_advisory_xact_lock({key}), pg_advisory_xact_lock({key}, 1)")
    async with asyncio.timeout(20):
        third = await Pool.connect(pool.url, size=1, schema="third")
        await migrate(third)
        await third.close()
    await pool.query("drop schema third cascade")
    for name in ("history", "attempts"):
        await other.query(f"drop table duly.{name}_{datetime.now(UTC):%Y%m%d}")
    done = await maintenance.ensure_partitions(other)
    assert done.made == 2
    await block.rollback()
    await holder.close()


async def test_a_nodes_presence_is_a_lock_of_its_own_schema(pool: Pool) -> None:
    """A dead node whose number a node of another schema happens to hold is not alive."""
    number = 4711
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "randrange", lambda *_: number)
        ours = await DirectSession.open(pool.url, lost=lambda _: None)
        theirs = await DirectSession.open(pool.url, lost=lambda _: None, schema="other")
        async with asyncio.timeout(10):
            assert await cluster.be_present(ours) == await cluster.be_present(theirs) == number
    for session in (ours, theirs):
        session.end()
