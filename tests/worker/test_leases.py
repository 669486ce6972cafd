"""Leases, with real processes and real signals: a worker that is stopped, blocked, told to end, or crashes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from duly.model import JobRequest, Policy
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn, executions, lines
from harness.store import count
from harness.waiting import eventually

ONCE = Policy(max_retries=0)


async def submit(operations: Operations, *requests: JobRequest) -> list[UUID]:
    submitted = await operations.submit_many(list(requests), allow_unknown_handler=True)
    return [UUID(str(job.job_id)) for job in submitted]


async def rows_of(pool: Pool, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in await pool.query(f"select * from duly.{table} order by job_id, scheduled_at")]


async def exit_code(process: subprocess.Popen[bytes], *, seconds: float = 30) -> int:
    return await asyncio.to_thread(process.wait, seconds)


async def all_started(sink: Path, runs: int) -> None:
    await eventually(lambda: len(executions(sink)) == runs, seconds=30)


async def test_a_worker_stopped_for_two_leases_changes_nothing_when_it_goes_on_and_its_handlers_are_told(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    lease = 2.0
    settings = {"DULY_WORKER_LEASE_SECONDS": str(lease)}
    # Two runs that would go on when their worker wakes up, and one that will have its result ready by then.
    await submit(
        operations,
        JobRequest("hold", payload={"seconds": 120, "again": 0.1}),
        JobRequest("hold_thread", payload={"seconds": 120, "again": 0.1}),
        JobRequest("hold", payload={"seconds": lease / 2, "again": 0.1}),
    )
    sleeper = spawn("worker", settings=settings)
    await all_started(sink, 3)
    sleeper.send_signal(signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        spawn("scheduler")
        other = spawn("worker", settings=settings)

        async def done_elsewhere() -> bool:
            return await count(pool, "history") == 3

        await eventually(done_elsewhere, seconds=30)
        await asyncio.sleep(max(0.0, 2 * lease - (time.monotonic() - stopped)))
        before = {table: await rows_of(pool, table) for table in ("history", "attempts")}
    finally:
        sleeper.send_signal(signal.SIGCONT)
    await eventually(lambda: len(lines(sink, "told")) >= 2, seconds=10)
    # After a graceful end, everything that the worker wanted to write has been written or refused.
    sleeper.send_signal(signal.SIGTERM)
    assert await exit_code(sleeper) == 0

    assert {table: await rows_of(pool, table) for table in ("history", "attempts")} == before
    assert await count(pool, "runs") == await count(pool, "claims") == 0
    assert {line.pid for line in lines(sink, "told")} == {sleeper.pid}
    accepted = {line.token for line in lines(sink, "started") if line.pid == other.pid}
    for row in before["history"]:
        assert (row["status"], row["attempt"]) == ("succeeded", 2)
        assert str(row["claim_id"]) in accepted
    assert [(row["attempt"], row["error"]["type"]) for row in await _attempts(pool)] == [(1, "LeaseLost")] * 3


async def test_a_worker_stopped_past_its_lease_begins_nothing_that_stood_in_line(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    """The worker had claimed more runs than it has threads, and its threads are free when it goes on."""
    lease, threads, behind = 3.0, 64, 20
    settings = {"DULY_WORKER_LEASE_SECONDS": str(lease)}
    payload = {"seconds": lease, "again": 0}
    await submit(operations, *(JobRequest("hold_thread", payload=payload) for _ in range(threads + behind)))
    sleeper = spawn("worker", "--concurrency", str(threads + behind), settings=settings)
    await all_started(sink, threads)
    sleeper.send_signal(signal.SIGSTOP)
    try:
        assert await count(pool, "history") == 0
        spawn("scheduler")
        spawn("worker", settings=settings)

        async def done_elsewhere() -> bool:
            return await count(pool, "history") == threads + behind

        await eventually(done_elsewhere, seconds=40)
    finally:
        sleeper.send_signal(signal.SIGCONT)
    sleeper.send_signal(signal.SIGTERM)
    assert await exit_code(sleeper) == 0
    assert len([line for line in lines(sink, "started") if line.pid == sleeper.pid]) == threads
    assert await count(pool, "runs") == await count(pool, "claims") == 0


async def _attempts(pool: Pool) -> list[dict[str, Any]]:
    rows = await pool.query("select * from duly.attempts order by job_id, scheduled_at, attempt")
    return [dict(row) | {"error": json.loads(row["error"])} for row in rows]


async def test_a_handler_that_blocks_the_event_loop_or_computes_for_three_leases_keeps_its_lease(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    lease = 2.0
    settings = {"DULY_WORKER_LEASE_SECONDS": str(lease)}
    computing = 8
    spawn("scheduler")
    await submit(
        operations,
        JobRequest("block", payload={"seconds": 3 * lease}, policy=ONCE),
        *(
            JobRequest("compute", queue="computing", payload={"seconds": 3 * lease}, policy=ONCE)
            for _ in range(computing)
        ),
    )
    blocked, busy = spawn("worker", settings=settings), spawn("worker", "--queue", "computing", settings=settings)

    async def all_ended() -> bool:
        return await count(pool, "history") == 1 + computing

    await eventually(all_ended, seconds=60)
    rows = await rows_of(pool, "history")
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    assert await count(pool, "attempts") == await count(pool, "runs") == 0
    ran = executions(sink)
    assert len(ran) == sum(ran.values()) == 1 + computing
    assert {line.pid for line in lines(sink, "ended")} == {blocked.pid, busy.pid}
    took = [row["finished_at"] - row["started_at"] for row in rows]
    assert min(took) >= timedelta(seconds=3 * lease)


async def test_sigterm_in_the_middle_of_a_run_beats_until_it_has_finished(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    lease = 2.0
    settings = {"DULY_WORKER_LEASE_SECONDS": str(lease), "DULY_SHUTDOWN_GRACE_SECONDS": "60"}
    spawn("scheduler")
    await submit(
        operations,
        JobRequest("hold", payload={"seconds": 2.5 * lease}, policy=ONCE),
        JobRequest("hold_thread", payload={"seconds": 2.5 * lease}, policy=ONCE),
    )
    worker = spawn("worker", settings=settings)
    await all_started(sink, 2)
    worker.send_signal(signal.SIGTERM)
    leases: set[datetime] = set()

    async def look() -> None:
        leases.update(row["lease_until"] for row in await pool.query("select lease_until from duly.claims"))

    async def beaten() -> bool:
        await look()
        return len(leases) > 2

    async def ended() -> bool:
        await look()
        return worker.poll() is not None

    # After two heartbeats the worker has handled the signal: runs that are submitted now are for other workers.
    await eventually(beaten, seconds=30)
    later = await submit(operations, JobRequest("record"))
    await eventually(ended, seconds=30)
    assert worker.returncode == 0
    # The first lease comes from the claim; the runs outlived it by more than a lease.
    assert len(leases) > 3
    rows = await rows_of(pool, "history")
    assert [(row["status"], row["attempt"]) for row in rows] == [("succeeded", 1)] * 2
    assert await count(pool, "attempts") == await count(pool, "claims") == 0
    # The worker began no new run.
    assert [row["job_id"] for row in await rows_of(pool, "runs")] == later


@pytest.mark.parametrize("insisting", [False, True], ids=["beyond the grace", "a second signal"])
async def test_runs_of_a_worker_that_must_end_go_back_at_once_and_no_attempt_is_counted(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, insisting: bool
) -> None:
    lease = 60.0
    grace = 120.0 if insisting else 0.5
    settings = {"DULY_WORKER_LEASE_SECONDS": str(lease), "DULY_SHUTDOWN_GRACE_SECONDS": str(grace)}
    await submit(
        operations,
        *(JobRequest("hold", payload={"seconds": 300}, policy=ONCE) for _ in range(5)),
        JobRequest("hold_thread", payload={"seconds": 300}, policy=ONCE),
    )
    worker = spawn("worker", settings=settings)
    await all_started(sink, 6)
    worker.send_signal(signal.SIGTERM)
    if insisting:
        # Only after the first signal was handled: two that arrive together count as one.
        await asyncio.sleep(0.5)
        assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    assert await exit_code(worker) == (130 if insisting else 0)
    assert time.monotonic() - asked < 15
    assert await count(pool, "runs", "state = 'queued' and attempt = 0 and run_at <= duly.now()") == 6
    assert await count(pool, "claims") == await count(pool, "history") == await count(pool, "attempts") == 0

    # Another worker can take the runs now, and they are still at their first attempt.
    spawn("worker")

    async def taken_again() -> bool:
        return {line.attempt for line in lines(sink, "started")} == {1} and set(executions(sink).values()) == {2}

    await eventually(taken_again, seconds=20)


async def test_a_handler_that_crashes_its_process_each_time_ends_in_the_dead_letters(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    settings = {"DULY_WORKER_LEASE_SECONDS": "1"}
    spawn("scheduler")
    ways = ("exit", "kill")
    for how in ways:
        await submit(operations, JobRequest("crash", queue=how, payload={"how": how}, policy=Policy(max_retries=2)))
    workers = {how: spawn("worker", "--queue", how, settings=settings) for how in ways}
    ends: dict[str, list[int]] = {how: [] for how in ways}

    async def buried() -> bool:
        for how, worker in workers.items():
            # Start a crashed worker again, as a supervisor does.
            if (code := worker.poll()) is not None:
                ends[how].append(code)
                workers[how] = spawn("worker", "--queue", how, settings=settings)
        return await count(pool, "dead_letters") == 2

    await eventually(buried, seconds=60)
    assert ends == {"exit": [3] * 3, "kill": [-signal.SIGKILL] * 3}
    assert sorted(executions(sink).values()) == [3, 3]
    rows = await rows_of(pool, "history")
    assert [(row["status"], row["attempt"]) for row in rows] == [("dead", 3)] * 2
    attempts = await _attempts(pool)
    assert sorted((row["attempt"], row["error"]["type"]) for row in attempts) == [
        (attempt, "LeaseLost") for attempt in (1, 1, 2, 2, 3, 3)
    ]
    assert len({row["worker_id"] for row in attempts}) == 6
    letters = await pool.query(
        "select jsonb_array_length(attempts) as attempts, attempt, error ->> 'type' as error, payload::text as payload "
        "from duly.dead_letters"
    )
    assert [(row["attempts"], row["attempt"], row["error"]) for row in letters] == [(3, 3, "LeaseLost")] * 2
    assert await count(pool, "runs") == 0
    # The last workers live on: the runs that crashed the others are buried.
    assert [worker.poll() for worker in workers.values()] == [None, None]


async def test_twenty_workers_over_ten_thousand_runs_execute_each_exactly_once(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    total = 10_000
    # On a small machine twenty processes need a while to start; none of them may begin before all are there.
    workers = [spawn("worker", "--concurrency", "50", settings={"DULY_WORKER_LEASE_SECONDS": "15"}) for _ in range(20)]

    async def all_there() -> bool:
        return await count(pool, "nodes") == 20

    await eventually(all_there, seconds=90)
    await submit(operations, *(JobRequest("record", payload={"seconds": 0.02}) for _ in range(total)))

    async def all_done() -> bool:
        return await count(pool, "history") == total

    await eventually(all_done, seconds=60)
    ran = executions(sink)
    assert len(ran) == sum(ran.values()) == total
    assert await count(pool, "history", "status = 'succeeded' and attempt = 1") == total
    assert len({line.pid for line in lines(sink)}) == len(workers)
    assert await count(pool, "attempts") == await count(pool, "runs") == 0


async def test_a_thousand_jobs_that_fail_together_are_not_tried_again_together(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    total = 1000
    await submit(operations, *(JobRequest("fail") for _ in range(total)))
    spawn("worker")

    async def all_failed() -> bool:
        return await count(pool, "runs", "state = 'retrying'") == total

    await eventually(all_failed, seconds=30)
    rows = await pool.query(
        "select extract(epoch from r.run_at - a.finished_at)::float8 as delay "
        "from duly.runs r join duly.attempts a using (job_id, scheduled_at)"
    )
    delays = sorted(row["delay"] for row in rows)
    assert len(delays) == total
    # 30 s and up to a quarter more, and up to 10 s for writing the rows.
    assert delays[0] >= 30
    assert delays[-1] < 37.5 + 10
    # Spread evenly: none of ten slices of the 7.5 s holds twice its share, and the middle half of the delays spans
    # about half of the 7.5 s.
    slices = [sum(30 + 0.75 * n <= delay < 30.75 + 0.75 * n for delay in delays) for n in range(10)]
    assert max(slices) < 2 * total / 10, slices
    assert 2.5 < delays[3 * total // 4] - delays[total // 4] < 5
