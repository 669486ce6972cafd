"""Everything but LISTEN goes through a real PgBouncer in transaction mode. All processes share its few connections."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from duly.config import Settings
from duly.model import DEFAULT_TENANT, JobRequest, Policy
from duly.node import running_scheduler, running_worker
from duly.operations import Operations, StoreOperations
from duly.store import maintenance
from duly.store.migrate import migrate
from duly.store.pool import LARGE, Pool, connection_options
from duly.worker.handler.task import Task
from harness.processes import Spawn, executions, lines
from harness.servers import PgBouncerServer
from harness.store import count, put_now, take
from harness.waiting import eventually

_LEFT_BEHIND = """
select 'prepared', name from pg_prepared_statements where name <> ''
union all
select 'setting', name from pg_settings
where source = 'session' and name not in ('application_name', 'client_encoding', 'DateStyle', 'TimeZone')
union all
select 'lock', objid::text from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()
"""


@pytest.fixture
def pgbouncer(database_url: str) -> Iterator[PgBouncerServer]:
    if reason := PgBouncerServer.missing():
        pytest.skip(reason)
    server = PgBouncerServer(database_url, pool_size=3)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
async def pooled(pgbouncer: PgBouncerServer) -> AsyncIterator[Pool]:
    pool = await Pool.connect(pgbouncer.url, size=8, pgbouncer=True)
    yield pool
    await pool.close()


def through(pgbouncer: PgBouncerServer, direct_url: str | None = None) -> dict[str, str]:
    """Settings of a process that uses the pooler, and `direct_url` for LISTEN if there is one."""
    settings = {"DULY_DATABASE_URL": pgbouncer.url, "DULY_PGBOUNCER": "1"}
    return settings if direct_url is None else {**settings, "DULY_DIRECT_URL": direct_url}


async def left_behind(pgbouncer: PgBouncerServer) -> list[tuple[str, str]]:
    """The prepared statements, changed settings and advisory locks that are left in PgBouncer's sessions."""
    found: list[tuple[str, str]] = []
    connections = [
        await asyncpg.connect(pgbouncer.url, **connection_options(pgbouncer.url, pgbouncer=True)) for _ in range(3)
    ]
    try:
        transactions = []
        for connection in connections:
            transaction = connection.transaction()
            await transaction.start()  # holds on to one session each
            transactions.append(transaction)
        for connection in connections:
            found += [(row[0], row[1]) for row in await connection.fetch(_LEFT_BEHIND)]
        for transaction in transactions:
            await transaction.rollback()
    finally:
        for connection in connections:
            await connection.close()
    return found


async def test_a_store_is_made_and_used_through_the_pooler(
    pgbouncer: PgBouncerServer, pooled: Pool, settings: Settings
) -> None:
    """Migrate, submit, fire, claim, retry, complete; and nothing stays in the pooler's sessions."""
    await pooled.query("drop schema duly cascade")
    fresh = await Pool.connect(pgbouncer.url, size=8, pgbouncer=True)
    try:
        assert await migrate(fresh)
        operations = (await StoreOperations.open(fresh, settings)).for_tenant(DEFAULT_TENANT)
        tried: list[int] = []

        async def flaky(ctx: Any) -> None:
            tried.append(ctx.attempt)
            if ctx.attempt == 1:
                raise RuntimeError("the first time")

        async def noop(ctx: Any) -> None: ...

        mine = settings.model_copy(update={"database_url": pgbouncer.url, "pgbouncer": True, "reread_seconds": 2})
        tasks = {"flaky": Task("flaky", flaky), "noop": Task("noop", noop)}
        async with running_scheduler(fresh, mine) as node, running_worker(fresh, tasks, mine):
            assert node.notifier is None
            soon = operations.now() + timedelta(seconds=2)
            # More than LARGE jobs in one shard's batch: such a batch is planned for its size.
            many = [JobRequest("noop", schedule=soon) for _ in range(64 * LARGE * 2)]
            await operations.submit_many(many, allow_unknown_handler=True)
            again = Policy(retry_backoff="immediate")
            await operations.submit_many([JobRequest("flaky", policy=again)], allow_unknown_handler=True)

            async def done() -> bool:
                return await count(fresh, "history", "status = 'succeeded'") == len(many) + 1

            await eventually(done, seconds=60)
        assert tried == [1, 2]
        assert await left_behind(pgbouncer) == []
    finally:
        await fresh.close()


async def test_an_expired_lease_is_taken_back_through_the_pooler(pooled: Pool, pgbouncer: PgBouncerServer) -> None:
    await put_now(pooled, 500)
    claim = await take(pooled, lease=-1)
    assert len(claim.runs) == 500
    rescued = await maintenance.rescue(pooled)
    assert (rescued.claims, rescued.requeued) == (1, 500)
    assert await left_behind(pgbouncer) == []


async def test_a_batch_that_is_planned_for_its_size_leaves_no_statement_behind(
    pooled: Pool, pgbouncer: PgBouncerServer
) -> None:
    await pooled.fetch_planned("fires/due", [uuid4() for _ in range(LARGE)])
    await pooled.together(lambda within: within.fetch_planned("fires/due", [uuid4() for _ in range(LARGE)]))
    assert await left_behind(pgbouncer) == []


async def test_named_statements_would_not_survive_there(pgbouncer: PgBouncerServer) -> None:
    """The reason why nothing is prepared by name: two processes that do so collide in the sessions they share."""

    async def prepare() -> None:
        for _ in range(20):
            connections = [await asyncpg.connect(pgbouncer.url) for _ in range(4)]
            try:
                for connection in connections:
                    prepared = await connection.prepare("select 1", name="same")
                    await prepared.fetch()
            finally:
                for connection in connections:
                    connection.terminate()

    with pytest.raises((asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)):
        await prepare()


@pytest.mark.parametrize("listening", [True, False], ids=["direct url for LISTEN", "polling only"])
async def test_two_schedulers_and_two_workers_all_behind_the_pooler(
    pool: Pool,
    operations: Operations,
    database_url: str,
    pgbouncer: PgBouncerServer,
    spawn: Spawn,
    sink: Path,
    *,
    listening: bool,
) -> None:
    """`pool` bypasses the pooler and is only used to look."""
    settings = {**through(pgbouncer, database_url if listening else None), "DULY_REREAD_SECONDS": "2"}
    await pool.query("create table public.effects (run_id text primary key, token text not null)")
    schedulers = [spawn("scheduler", settings=settings) for _ in range(2)]
    workers = [spawn("worker", settings=settings) for _ in range(2)]

    async def all_there() -> bool:
        return await count(pool, "nodes") == 4 and await count(pool, "shards", "node_id is null") == 0

    await eventually(all_there, seconds=60)
    start = operations.now()
    requests = [JobRequest("record", schedule=start + timedelta(milliseconds=2 * n)) for n in range(2000)]
    requests += [JobRequest("record") for _ in range(500)]
    requests += [JobRequest("write_once") for _ in range(50)]
    requests += [JobRequest("fail", policy=Policy(max_retries=2, retry_backoff="immediate")) for _ in range(20)]
    total = len(requests)
    await operations.submit_many(requests, allow_unknown_handler=True)
    # A handler that takes longer than two leases of 3 s: heartbeats get through the pooler.
    await operations.submit_many([JobRequest("hold", payload={"seconds": 8})], allow_unknown_handler=True)

    async def half_done() -> bool:
        return await count(pool, "history") > total // 2

    await eventually(half_done, seconds=60)
    workers[0].send_signal(signal.SIGKILL)
    schedulers[0].send_signal(signal.SIGKILL)
    workers.append(spawn("worker", settings=settings))

    async def all_done() -> bool:
        return await count(pool, "history") == total + 1

    await eventually(all_done, seconds=60)
    assert await count(pool, "history", "status = 'dead'") == 20
    assert await count(pool, "history", "status = 'succeeded'") == total + 1 - 20
    assert await count(pool, "runs") == 0
    assert await count(pool, "attempts", "error ->> 'type' = 'ValueError'") == 60
    assert (await pool.query("select count(*) as count from public.effects"))[0]["count"] == 50
    # Only runs that the killed worker held were started twice.
    twice = {run_id for run_id, times in executions(sink).items() if times > 1}
    lost = await count(pool, "attempts", "error ->> 'type' = 'LeaseLost'")
    assert len(twice - {line.run_id for line in lines(sink) if line.attempt > 3}) <= lost + 20
    if listening:
        assert await count(pool, "nodes") >= 4

    async def third_has_started() -> bool:
        """On a busy machine the others may do everything while it still imports; then a signal just ends it."""
        return await count(pool, "nodes", "name like '%:' || $1::text", str(workers[2].pid)) == 1

    await eventually(third_has_started, seconds=60)
    for process in (schedulers[1], *workers[1:]):
        process.send_signal(signal.SIGTERM)
    codes = await asyncio.gather(*(asyncio.to_thread(process.wait) for process in (schedulers[1], *workers[1:])))
    assert codes == [0, 0, 0]
    assert await left_behind(pgbouncer) == []


def test_the_commands_work_through_the_pooler(pgbouncer: PgBouncerServer, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    environment |= through(pgbouncer)

    def duly(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "duly.cli", *arguments, "--json"], env=environment, cwd=tmp_path,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    job = duly("submit", "report", "--schedule", "every 1h", "--allow-unknown-handler")
    assert duly("job", "show", job["job_id"])["schedule"] == "every 1h"
    assert duly("job", "pause", job["job_id"])["status"] == "paused"
    assert duly("status")["counts"]["queued"] == 0
