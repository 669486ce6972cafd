"""Long analytics queries beside the queue: they hold vacuum back, and the queue must not slow down for it.

While a snapshot is held, the index entries of runs that are long gone stay at the head of their lane, and a search for
the first run walks over all of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from statistics import median
from uuid import uuid4

import asyncpg
import pytest

from duly import Context, Duly
from duly.config import Settings
from duly.model import ClaimedRun, JobRequest
from duly.node import running_worker
from duly.operations import Operations
from duly.store.pool import Pool
from duly.worker.claimer import Claimer
from duly.worker.floors import MAX_PAUSE_SECONDS
from harness.store import count, put_now, take

# Each query takes this long, and the next one begins when a third of it is over: there is one at every moment.
QUERY_SECONDS = float(os.environ.get("DULY_TEST_ANALYTICS_SECONDS", "15"))
QUERIES = 3
PER_SECOND = 800
BATCH = 40


@dataclass(frozen=True)
class Moment:
    at: float
    submitted: int
    waiting: int


async def analyse(url: str, begin: float) -> None:
    """Runs one report in one transaction, which sees the store as it was at its beginning."""
    await asyncio.sleep(begin)
    connection = await asyncpg.connect(url, server_settings={"application_name": "analytics"})
    try:
        until = time.monotonic() + QUERY_SECONDS
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            seen = await connection.fetchval("select count(*) from duly.history")
            while time.monotonic() < until:
                await connection.execute("select pg_sleep(1)")
                assert await connection.fetchval("select count(*) from duly.history") == seen
    finally:
        await connection.close()


@pytest.mark.timeout(QUERY_SECONDS * 2 + 120)
async def test_the_backlog_does_not_grow_beside_overlapping_analytics_queries(
    pool: Pool, operations: Operations, settings: Settings
) -> None:
    app = Duly(settings=settings)

    @app.task()
    async def nothing(ctx: Context) -> None: ...

    submitted = 0
    moments: list[Moment] = []

    async def submit() -> None:
        """Submits at an even pace, and makes up for delays."""
        nonlocal submitted
        began = time.monotonic()
        while True:
            due = int((time.monotonic() - began) * PER_SECOND) // BATCH * BATCH
            while submitted < due:
                await operations.submit_many([JobRequest("nothing") for _ in range(BATCH)], allow_unknown_handler=True)
                submitted += BATCH
            await asyncio.sleep(BATCH / PER_SECOND / 2)

    async def watch() -> None:
        began = time.monotonic()
        while True:
            moments.append(Moment(time.monotonic() - began, submitted, await count(pool, "runs")))
            await asyncio.sleep(0.5)

    async with running_worker(pool, app.tasks, settings):
        others = [asyncio.create_task(work()) for work in (submit, watch)]
        await asyncio.gather(*(analyse(pool.url, n * QUERY_SECONDS / 3) for n in range(QUERIES)))
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        ended, waiting = await count(pool, "history"), await count(pool, "runs")
    await app.close()

    lags = await pool.query(
        """
        select floor(extract(epoch from scheduled_at - min(scheduled_at) over ()) / ($1 / 5))::int as part,
            extract(epoch from started_at - scheduled_at)::float8 * 1000 as lag
        from duly.history
        """,
        moments[-1].at,
    )
    for part in range(5):
        of_part = sorted(row["lag"] for row in lags if row["part"] == part)
        if of_part:
            p50, p99 = of_part[len(of_part) // 2], of_part[len(of_part) * 99 // 100]
            print(f"part {part + 1} of 5: start lag p50 {p50:.1f} ms, p99 {p99:.1f} ms, {len(of_part)} runs")
    seconds = moments[-1].at
    print(
        f"{seconds:.0f} s: {submitted} submitted ({submitted / seconds:.0f}/s), {ended} ended, {waiting} waiting, "
        f"at most {max(moment.waiting for moment in moments)}"
    )
    assert submitted / seconds > 0.9 * PER_SECOND, "the submitter itself could not keep its pace"
    # A busy moment may leave the runs of one second waiting; a queue that grows leaves far more.
    assert waiting <= PER_SECOND
    assert ended >= submitted - 2 * PER_SECOND
    last_half = [moment.waiting for moment in moments[len(moments) // 2 :]]
    assert sum(last_half) / len(last_half) <= PER_SECOND


_GONE = """
insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, state, queue)
select lpad(to_hex(n), 32, '0')::uuid, now(), now() - (200000 - n) * interval '1 millisecond', now(), 0, 5, 'queued',
    'default'
from generate_series(1, 200000) n
"""


async def test_claims_begin_behind_what_is_gone_and_still_find_what_commits_late(pool: Pool) -> None:
    """200,000 runs that were taken while a report holds its snapshot lie dead before the head of their lane."""
    report = await asyncpg.connect(pool.url)
    found: list[ClaimedRun] = []
    claimer = Claimer(
        pool, pool.clock, worker_id=uuid4(), queues=["default"], lease_seconds=60, poll_seconds=1, concurrency=100,
        room=lambda: 100, started=lambda claim, _: found.extend(claim.runs),
    )  # fmt: skip

    async def looks(times: int) -> list[float]:
        took = []
        for _ in range(times):
            started = time.perf_counter()
            await claimer.run_once()
            took.append(time.perf_counter() - started)
        return took

    try:
        async with report.transaction(isolation="repeatable_read", readonly=True):
            await report.fetchval("select count(*) from duly.runs")
            await pool.query(_GONE)
            await pool.query("delete from duly.runs")
            whole = []
            for _ in range(5):
                started = time.perf_counter()
                await take(pool)
                whole.append(time.perf_counter() - started)
            took = await looks(30)
            print(f"the whole lane {median(whole) * 1000:.1f} ms, from its floor {median(took) * 1000:.1f} ms")
            assert median(took) < median(whole) / 2

            # One run was submitted in a transaction that took a minute to commit, the other just now.
            late, fresh = await put_now(pool, 2)
            await pool.query(
                "update duly.runs set run_at = run_at - interval '1 minute' where job_id = $1", late.job_id
            )
            await claimer.run_once()
            assert fresh.job_id in {run.job_id for run in found}
            began = time.monotonic()
            while len(found) < 2:
                await claimer.run_once()
                await asyncio.sleep(0.02)
                assert time.monotonic() - began < MAX_PAUSE_SECONDS + 5
            assert late.job_id in {run.job_id for run in found}
    finally:
        await report.close()
