"""Runs that appear in the past, because the transaction that submitted them took long to commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

import duly.worker.floors
from duly import Context, Duly
from duly.config import Settings
from duly.model import ClaimedRun
from duly.node import running_worker
from duly.store.ids import new_job_ids, shard_of
from duly.store.jobs import submit
from duly.store.pool import Pool
from duly.worker.executor import Outcome
from harness.proxy import Proxy
from harness.store import SHARDS, new_job
from harness.waiting import eventually
from harness.worker import wait_idle

RUNS, CONCURRENCY = 600, 50
# At one claim of 50 per second, the 600 runs would take 12 s.
SECONDS = 5.0


@pytest.fixture
async def far_pool(database_url: str) -> AsyncIterator[Pool]:
    """A pool whose round trip to the store takes 10 ms."""
    with Proxy(database_url) as proxy:
        pool = await Pool.connect(proxy.url, size=4)
        proxy.delay(0.005)
        yield pool
        proxy.passing()
        await pool.close()


async def seconds_to_drain_late_runs(pool: Pool, near: Pool, settings: Settings) -> float:
    app = Duly(settings=settings)
    left = RUNS
    over = asyncio.Event()

    @app.task()
    async def noop(ctx: Context) -> None: ...

    def ended(run: ClaimedRun, outcome: Outcome | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            over.set()

    jobs = [
        new_job(near, job_id=job_id, shard=shard_of(job_id, SHARDS))
        for job_id in new_job_ids(RUNS, near.clock.now_us())
    ]
    async with running_worker(pool, app.tasks, settings, concurrency=CONCURRENCY, observer=ended) as worker:
        # Wait until the worker has found its lanes empty.
        await eventually(lambda: bool(worker.claimer._floors._floors))
        async with near.transaction() as transaction:
            await submit(transaction, jobs, created_at=near.clock.now())
            await transaction.connection.execute("update duly.runs set run_at = run_at - interval '6 seconds'")
        started = time.monotonic()
        async with asyncio.timeout(60):
            await over.wait()
        took = time.monotonic() - started
        await wait_idle(worker)
    await app.close()
    rows = await near.query("select job_id from duly.history where status = 'succeeded'")
    assert {UUID(str(row["job_id"])) for row in rows} == {job.job_id for job in jobs}
    return took


async def test_a_worker_far_from_its_database_takes_late_runs_as_fast_as_others(
    far_pool: Pool, pool: Pool, settings: Settings
) -> None:
    assert await seconds_to_drain_late_runs(far_pool, pool, settings) < SECONDS


async def test_where_claims_are_slow_late_runs_are_taken_one_full_claim_after_the_other(
    pool: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.worker.floors, "SLOW_SECONDS", -1.0)
    assert await seconds_to_drain_late_runs(pool, pool, settings) < SECONDS
