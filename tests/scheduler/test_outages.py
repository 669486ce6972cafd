"""A scheduler keeps trying while its database is away; afterwards every occurrence has run or is recorded as missed.

This is tested for each kind of outage: connections refused, half-open, the server restarted, or present but read-only,
as after an incomplete failover. DULY_TEST_OUTAGE_SECONDS makes the outages longer.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import asyncpg
import pytest

from duly.errors import StoreUnavailable
from duly.model import JobRequest, Policy, make_run_id
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn, executions
from harness.proxy import Proxy
from harness.store import count
from harness.waiting import eventually
from worker.test_outages import Database, database, store_at

__all__ = ["database"]

Missed = Literal["RUN_ALL", "RUN_ONCE", "SKIP"]
SECONDS = float(os.environ.get("DULY_TEST_OUTAGE_SECONDS", "6"))
POLICIES: tuple[Missed, ...] = ("RUN_ALL", "RUN_ONCE", "SKIP")
# Shorter than the outage, so that the occurrences within it are missed and not merely late.
GRACE = {"DULY_MISFIRE_GRACE_SECONDS": "2"}


@asynccontextmanager
async def read_only(server_url: str, database_url: str) -> AsyncIterator[None]:
    """Makes the database read-only. Sessions that begin meanwhile stay read-only, and are not ended afterwards."""
    name = urlsplit(database_url).path.lstrip("/")
    admin = await asyncpg.connect(server_url)
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"
    try:
        await admin.execute(f"alter database {name} set default_transaction_read_only = on")
        await admin.execute(ended, name)
        yield
    finally:
        await admin.execute(f"alter database {name} reset default_transaction_read_only")
        await admin.close()


async def submit(operations: Operations) -> None:
    await operations.submit_many(
        [
            JobRequest(
                "record", name=missed, schedule="every 1s", policy=Policy(overlap="parallel", missed_window=missed)
            )
            for missed in POLICIES
            for _ in range(10)
        ],
        allow_unknown_handler=True,
    )


async def beyond(pool: Pool, moment: Any) -> bool:
    """Whether every job has a succeeded run of an occurrence after this moment."""
    try:
        rows = await pool.query(
            "select count(*) as count from duly.jobs j where exists (select from duly.history h "
            "where h.job_id = j.job_id and h.scheduled_at > $1 and h.status = 'succeeded')",
            moment,
        )
    except StoreUnavailable:
        return False
    return bool(rows[0]["count"] == 10 * len(POLICIES))


async def check_answers(pool: Pool) -> None:
    """Checks that every occurrence of every job, from the first to the last, ran once or is recorded as missed."""
    rows = await pool.query(
        """
        select j.name, count(*) filter (where h.status = 'succeeded') as ran,
            coalesce(sum((h.note ->> 'count')::int) filter (where h.status = 'missed'), 0)::int as missed,
            extract(epoch from max(h.scheduled_at) filter (where h.status = 'succeeded') - min(h.scheduled_at))::int + 1
                as expected
        from duly.jobs j join duly.history h on h.job_id = j.job_id
        group by j.job_id, j.name
        """
    )
    assert len(rows) == 10 * len(POLICIES)
    for row in rows:
        assert row["ran"] + row["missed"] == row["expected"], dict(row)
    missed = {name: {row["missed"] for row in rows if row["name"] == name} for name in POLICIES}
    assert missed["RUN_ALL"] == {0}
    assert min(missed["RUN_ONCE"]) > 0, "no occurrence fell into the outage: this tests nothing"
    assert min(missed["SKIP"]) > 0


async def check_second_executions(pool: Pool, sink: Path) -> None:
    """Checks that a run started again only for an attempt that is recorded as lost.

    The worker was without the database, too, so it may have lost its leases.
    """
    lost = await pool.query("select * from duly.attempts where error ->> 'type' = 'LeaseLost'")
    recorded = Counter(make_run_id(row["job_id"], row["scheduled_at"]) for row in lost)
    for run, times in executions(sink).items():
        assert times <= 1 + recorded[run], f"{run} was started {times} times, and {recorded[run]} attempts were lost"


async def stop_firing(pool: Pool) -> None:
    """Pauses the jobs and waits until all fired runs have ended, so that they can be counted."""
    await pool.query("update duly.jobs set next_run_at = null, status = 'paused'")

    async def quiet() -> bool:
        return await count(pool, "runs") == await count(pool, "claims") == await count(pool, "catch_ups") == 0

    await eventually(quiet, seconds=60)


@pytest.mark.parametrize("how", ["refused", "half-open", "read-only", "read-only, any server"])
async def test_a_scheduler_whose_database_was_away_catches_up_by_the_missed_policy(
    pool: Pool, operations: Operations, database_url: str, server: Any, spawn: Spawn, sink: Path, how: str
) -> None:
    with Proxy(database_url) as proxy:
        any_server = "&target_session_attrs=any" if how == "read-only, any server" else ""
        scheduler = spawn("scheduler", settings={**GRACE, "DULY_DATABASE_URL": proxy.url + any_server})
        worker = spawn("worker", settings={"DULY_DATABASE_URL": database_url + any_server})
        await submit(operations)
        first = operations.now()
        await eventually(lambda: beyond(pool, first), seconds=60)
        if how.startswith("read-only"):
            async with read_only(server.url, database_url):
                await asyncio.sleep(SECONDS)
        else:
            if how == "refused":
                proxy.refuse()
            else:
                proxy.black_hole()
            await asyncio.sleep(SECONDS)
            if how == "half-open":
                proxy.cut()
            proxy.passing()
        back = operations.now()
        await eventually(lambda: beyond(pool, back), seconds=60)
        assert (scheduler.poll(), worker.poll()) == (None, None)
        await stop_firing(pool)
        await check_answers(pool)
        if how.startswith("read-only"):  # the worker was affected as well
            await check_second_executions(pool, sink)
        else:
            assert set(executions(sink).values()) == {1}
        scheduler.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(scheduler.wait) == 0


async def test_a_scheduler_whose_database_is_restarted_goes_on(database: Database, sink: Path, tmp_path: Path) -> None:
    spawn = Spawn(tmp_path, sink, database.url)
    try:
        async with store_at(database.url) as (pool, operations):
            processes = [spawn("scheduler", settings=GRACE), spawn("worker")]
            await submit(operations)
            first = operations.now()
            await eventually(lambda: beyond(pool, first), seconds=60)
            for how in (signal.SIGINT, signal.SIGQUIT):
                await asyncio.to_thread(database.end, how)
                await asyncio.sleep(SECONDS)
                await asyncio.to_thread(database.start)
                back = operations.now()
                await eventually(lambda at=back: beyond(pool, at), seconds=60)  # type: ignore[misc]
            assert [process.poll() for process in processes] == [None, None]
            await stop_firing(pool)
            await check_answers(pool)
            await check_second_executions(pool, sink)
    finally:
        spawn.end()
