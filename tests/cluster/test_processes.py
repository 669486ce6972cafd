"""Several real processes over one store, killed for real."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from duly.model import ClaimedRun, JobRequest, Policy, Succeeded, from_micros, parse_run_id, to_micros
from duly.operations import Operations
from duly.store import runs
from duly.store.pool import Pool
from harness.processes import Spawn, executions
from harness.store import count
from harness.waiting import drawn_seed, eventually


async def submit(operations: Operations, requests: list[JobRequest]) -> None:
    await operations.submit_many(requests, allow_unknown_handler=True)


async def held_by_the_dead(pool: Pool) -> list[ClaimedRun]:
    """Every run that the claims now in the store hold, as the worker that made them knows it."""
    stale = []
    for claim in await pool.query("select claim_id, job_ids, scheduled_ats, attempts from duly.claims"):
        for ordinal, job_id in enumerate(claim["job_ids"], start=1):
            run = ClaimedRun()
            run.claim_id, run.ordinal, run.job_id = claim["claim_id"], ordinal, job_id
            run.scheduled_at = claim["scheduled_ats"][ordinal - 1]
            run.attempt = claim["attempts"][ordinal - 1]
            stale.append(run)
    return stale


async def test_a_worker_killed_in_the_middle_of_a_thousand_runs_loses_none_and_its_token_is_dead(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    total = 1000
    await submit(operations, [JobRequest("record", payload={"seconds": 0.05}) for _ in range(total)])
    victim = spawn("worker", "--concurrency", "100")

    async def in_the_middle() -> bool:
        return await count(pool, "history") >= total // 5

    await eventually(in_the_middle)
    victim.kill()
    victim.wait()
    stale = await held_by_the_dead(pool)
    assert stale, "the worker was killed while it held nothing: this tests nothing"
    before = await count(pool, "history")
    assert before < total

    spawn("scheduler")
    spawn("worker", "--concurrency", "100")

    async def all_done() -> bool:
        return await count(pool, "history") == total

    await eventually(all_done, seconds=60)
    assert await count(pool, "history", "status = 'succeeded'") == total
    assert await count(pool, "runs") == 0
    ran = executions(sink)
    assert len(ran) == total
    # Only runs that the dead worker held were executed twice.
    held = {(run.job_id, run.scheduled_at) for run in stale}
    assert {parse_run_id(run_id) for run_id, times in ran.items() if times > 1} <= held

    rows_before = await pool.query("select * from duly.history order by job_id")
    assert await runs.complete(pool, [Succeeded(run, 1, 2) for run in stale]) == 0
    assert await pool.query("select * from duly.history order by job_id") == rows_before


async def test_two_schedulers_and_four_workers_run_ten_thousand_one_offs_once_each(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    total = 10_000
    for _ in range(2):
        spawn("scheduler")
    for _ in range(4):
        spawn("worker")

    async def all_there() -> bool:
        return await count(pool, "nodes") == 6 and await count(pool, "shards", "node_id is null") == 0

    await eventually(all_there, seconds=60)
    start = to_micros(operations.now() + timedelta(seconds=3))
    # In random order, so that neither ids nor pages follow time.
    dues = random.sample([start + n * 1000 for n in range(total)], total)
    await submit(operations, [JobRequest("record", schedule=from_micros(due)) for due in dues])

    async def all_done() -> bool:
        return await count(pool, "history") == total

    await eventually(all_done, seconds=90)
    ran = executions(sink)
    assert len(ran) == sum(ran.values()) == total
    assert await count(pool, "history", "status = 'succeeded' and attempt = 1") == total
    assert await count(pool, "history", "started_at < scheduled_at") == 0
    assert (
        await count(pool, "runs")
        == await count(pool, "claims", "cardinality(job_ids) > 0 and lease_until > now()")
        == 0
    )
    leaders = await pool.query("select count(distinct node_id) as nodes from duly.shards where node_id is not null")
    assert leaders[0]["nodes"] == 2


@pytest.mark.search
async def test_fifty_kills_of_a_scheduler_lose_no_occurrence_and_double_none(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    seed = drawn_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    spawn("worker")
    schedulers = [spawn("scheduler"), spawn("scheduler")]
    # Parallel, so that a slow moment of the machine does not turn an occurrence into a skipped one.
    policy = Policy(overlap="parallel")
    await submit(
        operations, [JobRequest("record", name=f"j{n}", schedule="every 1s", policy=policy) for n in range(20)]
    )

    async def firing() -> bool:
        return await count(pool, "history") > 0

    await eventually(firing, seconds=60)
    for _ in range(50):
        await asyncio.sleep(dice.uniform(0, 1.2))
        victim = dice.randrange(2)
        schedulers[victim].kill()
        schedulers[victim].wait()
        schedulers[victim] = spawn("scheduler")

    async def both_lead() -> bool:
        rows = await pool.query(
            "select name from duly.nodes where stopped_at is null and lease_until > now() "
            "and node_id in (select node_id from duly.shards)"
        )
        return {int(row["name"].rpartition(":")[2]) for row in rows} == {process.pid for process in schedulers}

    # At the end no scheduler fires any more, and every fired run is done.
    await eventually(both_lead)
    for process in schedulers:
        process.send_signal(signal.SIGTERM)
    for process in schedulers:
        assert await asyncio.to_thread(process.wait, 20) == 0

    async def quiet() -> bool:
        return await count(pool, "runs") == 0 and await count(pool, "claims") == 0

    await eventually(quiet, seconds=60)
    jobs = await pool.query("select job_id, created_at, next_run_at from duly.jobs")
    lost = doubled = expected = 0
    for job in jobs:
        rows = await pool.query("select scheduled_at, status from duly.history where job_id = $1", job["job_id"])
        got = {row["scheduled_at"] for row in rows}
        assert {row["status"] for row in rows} == {"succeeded"}
        grid = set()
        moment = job["created_at"] + timedelta(seconds=1)
        while moment < job["next_run_at"]:
            grid.add(moment)
            moment += timedelta(seconds=1)
        expected += len(grid)
        lost += len(grid - got)
        doubled += len(got - grid)
    ran = executions(sink)
    assert (lost, doubled) == (0, 0), f"of {expected} occurrences, seed {seed}"
    assert len(ran) == sum(ran.values()) == expected
    assert expected > 20 * 20
    late = await pool.query("select max(fired_at - scheduled_at) as late from duly.history")
    print(f"{expected} occurrences, 50 kills, latest fire {late[0]['late'].total_seconds():.2f} s after its time")


async def test_a_leader_killed_50_ms_before_a_due_time_costs_a_delay_and_not_the_occurrence(
    pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    async def led() -> bool:
        alive = "node_id in (select node_id from duly.nodes where lease_until > now())"
        return await count(pool, "shards", alive) == 64

    async def killed_just_before() -> bool:
        """Whether the leader was killed before the occurrence fired; on a slow machine it may fire first."""
        # A scheduler that fires ahead would have fired already.
        victim = spawn("scheduler", settings={"DULY_FIRE_AHEAD_SECONDS": "0"})
        await eventually(led)
        due = operations.now() + timedelta(seconds=2)
        await submit(operations, [JobRequest("record", schedule=due) for _ in range(20)])
        await asyncio.sleep((due - operations.now()).total_seconds() - 0.05)
        victim.kill()
        victim.wait()
        return await count(pool, "jobs", "next_run_at is null") == 0

    for _ in range(5):
        if await killed_just_before():
            break
        await pool.query("truncate duly.jobs, duly.runs")
    else:
        pytest.fail("the leader could not be killed in time: this machine is too slow for this test")
    spawn("worker")
    spawn("scheduler")

    async def all_done() -> bool:
        return await count(pool, "history", "status = 'succeeded'") == 20

    await eventually(all_done, seconds=15)
    rows = await pool.query("select max(fired_at - scheduled_at) as late, count(*) as runs from duly.history")
    assert rows[0]["runs"] == 20
    # The lease of this test is 1 s; a new process needs its start as well.
    assert rows[0]["late"] < timedelta(seconds=6)


async def test_a_stopped_scheduler_hands_its_shards_over_at_once(
    pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    # A node that is not told of it looks only every third of this lease.
    lease = {"DULY_LEADER_LEASE_SECONDS": "9"}
    first = spawn("scheduler", settings=lease)

    async def led() -> bool:
        return await count(pool, "shards", "node_id is null") == 0

    await eventually(led)
    spawn("scheduler", settings=lease)

    async def both() -> bool:
        rows = await pool.query("select count(distinct node_id) as nodes from duly.shards where node_id is not null")
        return bool(rows[0]["nodes"] == 2) and await led()

    await eventually(both, seconds=30)
    first.send_signal(signal.SIGTERM)
    await asyncio.to_thread(first.wait, 20)
    stopped = time.monotonic()
    await eventually(led, seconds=10)
    assert time.monotonic() - stopped < 1.5
