"""`ctx.transaction()` with workers that are killed at any moment: the user's table has exactly one row per run."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from duly.model import JobRequest, Policy
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn, executions
from harness.store import count
from harness.waiting import drawn_seed, eventually


async def test_a_thousand_transactions_under_kills_leave_one_row_each(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    total = 1000
    seed = drawn_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    # No unique key: nothing but Duly keeps a second row away.
    await pool.query("create table public.effects (run_id text not null, token text not null)")
    policy = Policy(max_retries=100, retry_backoff="immediate")
    await operations.submit_many(
        [JobRequest("write_once", payload={"seconds": dice.uniform(0, 0.02)}, policy=policy) for _ in range(total)],
        allow_unknown_handler=True,
    )
    short = {"DULY_WORKER_LEASE_SECONDS": "1.5", "DULY_POLL_SECONDS": "0.2"}
    spawn("scheduler", settings=short)
    workers = [spawn("worker", "--concurrency", "20", settings=short) for _ in range(3)]
    kills = 0

    async def progress() -> int:
        rows = await pool.query("select count(*) as count from public.effects")
        return int(rows[0]["count"])

    async with asyncio.timeout(150):
        while await count(pool, "history") < total:
            await asyncio.sleep(dice.uniform(0.02, 0.25))
            victim = dice.randrange(3)
            # A worker is killed only after some progress: kills during the start would test nothing.
            if kills < 30 and await progress() > kills * 25 + 10:
                workers[victim].kill()
                workers[victim].wait()
                kills += 1
                workers[victim] = spawn("worker", "--concurrency", "20", settings=short)

    async def quiet() -> bool:
        return await count(pool, "runs") == 0 and await count(pool, "claims") == 0

    await eventually(quiet, seconds=30)
    rows = await pool.query("select count(*) as rows, count(distinct run_id) as runs from public.effects")
    started = executions(sink)
    print(f"{kills} kills, {sum(started.values())} executions, {rows[0]['rows']} rows")
    assert (rows[0]["rows"], rows[0]["runs"]) == (total, total)
    assert kills >= 20
    assert sum(started.values()) > total, "no run was executed twice: the kills hit nothing"
    assert await count(pool, "history", "status = 'succeeded'") == total
    # Each row was written under the token that history accepted.
    mismatched = await pool.query(
        "select count(*) as count from public.effects e where not exists "
        "(select from duly.history h where h.claim_id::text = e.token)"
    )
    assert mismatched[0]["count"] == 0
