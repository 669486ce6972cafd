"""Fires and outcomes go on while a report or a backup stays open and the day's partitions have to be made.

DULY_TEST_READER_SECONDS=600 tests the whole promise: ten minutes, and no fire more than a second late.
"""

from __future__ import annotations

import asyncio
import os

import asyncpg
import pytest

from duly import Context, Duly
from duly.config import Settings
from duly.maintenance import partitions
from duly.node import running_scheduler
from duly.operations import Operations
from duly.store.pool import Pool
from harness.store import count
from harness.waiting import eventually
from harness.worker import Workbench

SECONDS = float(os.environ.get("DULY_TEST_READER_SECONDS", "8"))
# The short test allows more, because a busy machine is late by itself.
LATE = 1.0 if "DULY_TEST_READER_SECONDS" in os.environ else 3.0
JOBS = 20


async def test_fires_go_on_beside_a_report_across_the_making_of_a_partition(
    pool: Pool, settings: Settings, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Partitions are tried far more often than usual, so that a short report meets as many tries as a long one.
    monkeypatch.setattr(partitions, "_MIN_PAUSE_SECONDS", 1.0)
    monkeypatch.setattr(partitions, "_MAX_PAUSE_SECONDS", 1.0)
    app = Duly(settings=settings)

    @app.task()
    async def tick(ctx: Context) -> None:
        pass

    @app.task(max_retries=100, retry_delay_seconds=1, retry_max_delay_seconds=1)
    async def fails(ctx: Context) -> None:
        raise ValueError("again")

    bench = Workbench(pool, settings, operations, app)
    for _ in range(JOBS):
        await bench.submit("tick", schedule="every 1s")
    await bench.submit("fails")
    tomorrow = await pool.query("select to_char(duly.now() + interval '7 days', 'YYYYMMDD') as day")
    for parent in ("history", "attempts"):
        await pool.query(f"drop table duly.{parent}_{tomorrow[0]['day']}")
    await pool.query("select duly.write_has_ended(current_date - 1, current_date + 6)")
    report = await asyncpg.connect(pool.url)
    try:
        async with report.transaction(isolation="repeatable_read"):
            await report.execute("select count(*) from duly.history")
            await report.execute("select count(*) from duly.attempts")
            async with running_scheduler(pool, settings) as node, bench.working():

                async def begun() -> bool:
                    return await count(pool, "history") >= JOBS

                await eventually(begun)
                since = pool.clock.now()
                await asyncio.sleep(SECONDS)
                until = pool.clock.now()
                await report.execute("commit; begin")

                async def made() -> bool:
                    rows = await pool.query(
                        "select count(*) as count from pg_inherits where right(inhrelid::regclass::text, 8) = $1",
                        tomorrow[0]["day"],
                    )
                    return int(rows[0]["count"]) == 2

                await eventually(made)
                assert node.firer.fired
    finally:
        await report.close()
    (row,) = await pool.query(
        "select count(*) as fires, max(extract(epoch from fired_at - scheduled_at))::float8 as late, "
        "max(extract(epoch from started_at - scheduled_at))::float8 as begun_late "
        "from duly.history where scheduled_at between $1 and $2 and status = 'succeeded'",
        since,
        until,
    )
    print(f"{row['fires']} fires, latest {row['late']:.3f} s, begun {row['begun_late']:.3f} s after its time")
    assert row["fires"] >= JOBS * (SECONDS - LATE)
    assert row["late"] < LATE
    assert await count(pool, "history", "status = 'missed'") == 0
    assert await count(pool, "attempts") > min(SECONDS / 4, 50)
