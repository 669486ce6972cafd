"""Schedulers whose machines have the wrong time, as real processes: the wall clock they see is shifted by libfaketime.

The monotonic clock is left alone, as on a machine whose time is merely set wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from duly.model import JobRequest, Policy
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn, executions
from harness.store import count
from harness.waiting import eventually

HOUR_AHEAD, TWO_MINUTES_BEHIND = 3600, -120


def shifted(seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is `seconds` ahead."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed: run scripts/test-services as root")
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": f"{seconds:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


async def see_fires(pool: Pool, operations: Operations, sink: Path, spawn: Spawn, shifts: Sequence[int]) -> None:
    """Runs recurring and one-off jobs for some seconds with schedulers that have these clocks. Checks the fires."""
    for seconds in shifts:
        spawn("scheduler", settings=shifted(seconds))
    spawn("worker")

    async def led() -> bool:
        return await count(pool, "shards", "node_id is not null") == 64

    await eventually(led, seconds=60)
    start = operations.now()
    recurring = Policy(overlap="parallel")
    await operations.submit_many(
        [JobRequest("record", schedule="every 1s", policy=recurring) for _ in range(30)]
        + [JobRequest("record", schedule=start + timedelta(seconds=2 + n / 20)) for n in range(100)]
        + [JobRequest("record", schedule=start + timedelta(minutes=50)) for _ in range(20)],
        allow_unknown_handler=True,
    )

    async def enough() -> bool:
        return await count(pool, "history") >= 100 + 30 * 6

    await eventually(enough, seconds=60)
    # By the database's clock nothing fires early, nothing late and nothing twice.
    assert await count(pool, "history", "started_at < scheduled_at") == 0
    assert await count(pool, "history", "fired_at < scheduled_at - interval '1 second'") == 0
    assert await count(pool, "history", "scheduled_at > $1", start + timedelta(minutes=40)) == 0
    assert await count(pool, "runs", "scheduled_at > $1", start + timedelta(minutes=40)) == 0
    assert await count(pool, "history", "flags & 2 = 2 or status <> 'succeeded'") == 0
    assert await count(pool, "history", "fired_at - scheduled_at > interval '5 seconds'") == 0
    ran = executions(sink)
    assert set(ran.values()) == {1}
    gaps = await pool.query(
        "select max(gap) as most, min(gap) as least from (select scheduled_at - lag(scheduled_at) "
        "over (partition by job_id order by scheduled_at) as gap from duly.history) all_gaps"
    )
    assert gaps[0]["most"] == gaps[0]["least"] == timedelta(seconds=1)


def test_the_library_shifts_what_a_process_sees_and_nothing_else() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"],
        env={**os.environ, **shifted(HOUR_AHEAD)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall, monotonic = map(float, told.stdout.split())
    assert 3500 < wall - time.time() < 3700
    assert abs(monotonic - time.monotonic()) < 60


async def test_a_node_an_hour_ahead_fires_nothing_early(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    await see_fires(pool, operations, sink, spawn, [HOUR_AHEAD])


async def test_a_node_two_minutes_behind_repeats_nothing(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    await see_fires(pool, operations, sink, spawn, [TWO_MINUTES_BEHIND])


async def test_shards_that_move_between_nodes_of_different_times_lose_and_repeat_nothing(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    ahead = spawn("scheduler", settings=shifted(HOUR_AHEAD))

    async def led() -> bool:
        return await count(pool, "shards", "node_id is not null") == 64

    await eventually(led, seconds=60)
    spawn("worker")
    await operations.submit_many(
        [JobRequest("record", schedule="every 1s", policy=Policy(overlap="parallel")) for _ in range(30)],
        allow_unknown_handler=True,
    )

    async def fired(times: int) -> bool:
        return await count(pool, "history") >= 30 * times

    await eventually(lambda: fired(2), seconds=60)
    ahead.kill()
    spawn("scheduler", settings=shifted(TWO_MINUTES_BEHIND))
    await eventually(lambda: fired(8), seconds=60)
    assert set(executions(sink).values()) == {1}
    assert await count(pool, "history", "started_at < scheduled_at") == 0
    # Each late occurrence within the grace fires; by a wrong clock they would be missed or passed over.
    rows = await pool.query(
        "select count(*) as count from (select scheduled_at - lag(scheduled_at) over "
        "(partition by job_id order by scheduled_at) as gap from duly.history) gaps where gap <> interval '1 second'"
    )
    assert rows[0]["count"] == 0
