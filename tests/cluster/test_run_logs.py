"""Workers are killed while thousands of runs print: every log is complete and in order up to the last flush.

`DULY_TEST_LOGGED_RUNS=10000` makes it large.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

from duly.model import JobRequest, Policy, make_run_id
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn, lines
from harness.store import count
from harness.waiting import eventually

RUNS = int(os.environ.get("DULY_TEST_LOGGED_RUNS", "250"))
LARGE = RUNS >= 5_000
KILLS = 6 if LARGE else 2
LINES = 10
# A line is written this many seconds after it was said: the pause between two flushes, and time to write on a busy
# machine.
FLUSHED_SECONDS = 4.0


@pytest.mark.timeout(1200 if LARGE else 180)
async def test_logs_are_complete_and_in_order_up_to_the_last_flush_under_kill_9(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    policy = Policy(max_retries=10, retry_delay_seconds=0)
    requests = [
        JobRequest("talk", payload={"lines": LINES, "pause": 0.05 + (0.2 if LARGE else 0.1) * (n % 5)}, policy=policy)
        for n in range(RUNS)
    ]
    await operations.submit_many(requests, allow_unknown_handler=True)
    spawn("scheduler")
    killed_at: dict[int, float] = {}
    settings = {"DULY_RUN_LOGS": "on"}
    for kill in range(1, KILLS + 1):
        worker = spawn("worker", "--concurrency", str(max(100, RUNS // 10)), settings=settings)

        async def under_way(kill: int = kill) -> bool:
            return await count(pool, "history") >= RUNS * kill // (KILLS + 2)

        await eventually(under_way, seconds=400 if LARGE else 120)
        worker.kill()
        worker.wait()
        killed_at[worker.pid] = time.time()
    last = spawn("worker", "--concurrency", str(max(100, RUNS // 10)), settings=settings)

    async def all_ended() -> bool:
        return await count(pool, "history") == RUNS

    await eventually(all_ended, seconds=600 if LARGE else 120)
    last.terminate()
    await asyncio.to_thread(last.wait, 30)

    said: dict[tuple[str, str], list[tuple[int, int, float]]] = defaultdict(list)
    for line in lines(sink):
        if line.word.isdigit():
            said[line.run_id, line.token].append((int(line.word), line.pid, line.at))
    kept: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in await pool.query("select * from duly.run_logs order by job_id, scheduled_at, claim_id, part"):
        found = kept[make_run_id(row["job_id"], row["scheduled_at"]), str(row["claim_id"])]
        for number, _, level, source, text in json.loads(row["lines"]):
            assert (level, source, text) == (None, "stdout", f"line {number}")
            found.append(number)
    assert kept.keys() <= said.keys()
    cut_short = 0
    for attempt, spoken in said.items():
        numbers = kept.get(attempt, [])
        assert numbers == list(range(1, len(numbers) + 1)), f"{attempt}: not in order, or with a gap or a double"
        pid = spoken[0][1]
        due = [n for n, _, at in spoken if pid not in killed_at or at < killed_at[pid] - FLUSHED_SECONDS]
        assert len(numbers) >= len(due), f"{attempt}: {len(numbers)} of {len(due)} lines"
        cut_short += len(numbers) < len(spoken)
    assert cut_short, "no attempt was killed between two flushes: this tests nothing"
    whole = await pool.query(
        "select l.job_id, sum(jsonb_array_length(l.lines::jsonb)) as lines, bool_or(l.ended) as ended "
        "from duly.run_logs l join duly.history h using (job_id, scheduled_at, claim_id) group by 1"
    )
    print(f"{len(said)} attempts of {RUNS} runs, {KILLS} kills: {cut_short} logs without their last flush")
    # A run whose outcome was recorded a moment before its worker was killed may lack the end of its log.
    assert len([row for row in whole if row["lines"] == LINES and row["ended"]]) >= RUNS - cut_short
