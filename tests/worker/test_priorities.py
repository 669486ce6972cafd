"""An urgent run does not wait behind runs of lower priority."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from duly.model import JobRequest
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn, lines
from harness.store import count
from harness.waiting import eventually

WAITING = 100_000
TRIES = 15

_FILL = """
with job as (
    insert into duly.jobs (job_id, created_at, updated_at, last_run_at, shard, priority, status, kind, tenant, name,
        queue, handler, schedule, timezone, payload)
    select gen_random_uuid(), now(), now(), now(), 0, 2, 'ended', 'once', 'default', 'job', 'default', 'record', 'now',
        'UTC', '{"seconds": 0.02}'
    from generate_series(1, $1)
    returning job_id
)
insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, state, queue)
select job_id, now(), now(), now(), 0, 2, 'queued', 'default' from job
"""


async def test_an_urgent_run_starts_within_100_ms_on_a_worker_with_a_hundred_thousand_others_waiting(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    await pool.query(_FILL, WAITING)
    await pool.query("analyze duly.runs")
    # All slots of this worker are always busy, but they are too few to overload the machine.
    spawn("worker", "--concurrency", "10", settings={"DULY_WORKER_LEASE_SECONDS": "15"})
    await eventually(lambda: len(lines(sink)) > 200, seconds=30)
    waited: list[float] = []
    for _ in range(TRIES):
        sent = time.time()
        submitted = await operations.submit_many([JobRequest("record", priority=9)], allow_unknown_handler=True)
        urgent = str(submitted[0].job_id)
        started: list[float] = []

        def has_started(urgent: str = urgent, started: list[float] = started) -> bool:
            started[:] = [line.at for line in lines(sink) if line.run_id.startswith(urgent)]
            return bool(started)

        await eventually(has_started, seconds=30)
        waited.append(started[0] - sent)
        await asyncio.sleep(0.1)
    took = ", ".join(f"{seconds * 1000:.0f}" for seconds in sorted(waited))
    print(f"submit to start, in ms: {took}; median {statistics.median(waited) * 1000:.0f}")
    assert await count(pool, "runs", "priority = 2") > WAITING / 2, "no other runs were waiting: this tests nothing"
    assert statistics.median(waited) < 0.1
