"""Schedulers that come, go, die and freeze at random, with every coordinator: nothing is lost, nothing fires twice.

DULY_TEST_CHURN_SECONDS=180 makes the test longer. DULY_TEST_SEED repeats a failing run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from duly.model import JobRequest, Policy
from duly.operations import Operations
from duly.store.pool import Pool
from harness.nodes import KINDS, REGISTRIES
from harness.processes import Spawn, executions
from harness.servers import Servers
from harness.store import count
from harness.waiting import drawn_seed, eventually

LEASE = 1.0
JOBS = 40


class Herd:
    """At least one scheduler that runs, at most four in all; some are frozen."""

    def __init__(self, spawn: Spawn, settings: dict[str, str], dice: random.Random) -> None:
        self._spawn = spawn
        self._settings = settings
        self._dice = dice
        self.running: list[subprocess.Popen[bytes]] = []
        self._frozen: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        self.done: Counter[str] = Counter()

    def join(self) -> None:
        self.running.append(self._spawn("scheduler", settings=self._settings))
        self.done["join"] += 1

    def move(self) -> None:
        """Lets one scheduler join, die, leave or freeze."""
        self._thaw(time.monotonic())
        what = self._dice.choice(("join", "kill", "kill", "leave", "freeze", "freeze"))
        if what == "join" and len(self.running) + len(self._frozen) < 4:
            self.join()
        elif what != "join" and len(self.running) > 1:
            victim = self.running.pop(self._dice.randrange(len(self.running)))
            self.done[what] += 1
            if what == "kill":
                victim.kill()
            elif what == "leave":
                victim.send_signal(signal.SIGTERM)
                self._leaving.append(victim)
            else:
                victim.send_signal(signal.SIGSTOP)
                self._frozen.append((time.monotonic() + LEASE * self._dice.uniform(0.5, 4), victim))
        elif len(self.running) < 2:
            self.join()

    def _thaw(self, now: float) -> None:
        for until, process in [frozen for frozen in self._frozen if frozen[0] <= now]:
            process.send_signal(signal.SIGCONT)
            self._frozen.remove((until, process))
            self.running.append(process)
            self.done["thaw"] += 1

    async def end(self) -> None:
        """Wakes all schedulers up and lets them leave."""
        self._thaw(float("inf"))
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running + self._leaving:
            # A scheduler that was only starting is ended by the signal itself.
            assert await asyncio.to_thread(process.wait, 30) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_lost_or_doubled_while_nodes_come_go_die_and_freeze(
    kind: str, servers: Servers, pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    seconds = float(os.environ.get("DULY_TEST_CHURN_SECONDS", "8"))
    seed = drawn_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    address = servers.get(kind).address(f"churn-{uuid4().hex}") if kind in REGISTRIES else kind
    herd = Herd(spawn, {"DULY_COORDINATOR": address, "DULY_LEADER_LEASE_SECONDS": str(LEASE)}, dice)
    spawn("worker", "--concurrency", "200")
    herd.join()
    herd.join()
    # Parallel and RUN_ALL, so that no occurrence is skipped or missed in a slow moment of the machine.
    policy = Policy(overlap="parallel", missed_window="RUN_ALL", max_missed=10_000)
    await operations.submit_many(
        [JobRequest("record", name=f"j{n}", schedule="every 1s", policy=policy) for n in range(JOBS)],
        allow_unknown_handler=True,
    )

    async def firing() -> bool:
        return await count(pool, "history") > JOBS

    await eventually(firing, seconds=60)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(dice.uniform(0.05, 0.6))
        herd.move()

    # Jobs that fell due while the last scheduler died must be fired by the remaining ones before those leave.
    begun = operations.now()

    async def caught_up() -> bool:
        behind = await count(pool, "jobs", "next_run_at < $1", begun)
        return behind == 0 and await count(pool, "catch_ups") == 0

    await eventually(caught_up, seconds=60)
    await herd.end()

    async def quiet() -> bool:
        return await count(pool, "runs") == 0 and await count(pool, "claims") == 0

    await eventually(quiet, seconds=60)
    expected = 0
    for job in await pool.query("select job_id, created_at, next_run_at from duly.jobs"):
        rows = await pool.query("select scheduled_at, status from duly.history where job_id = $1", job["job_id"])
        assert {row["status"] for row in rows} == {"succeeded"}, f"seed {seed}"
        grid = {
            job["created_at"] + timedelta(seconds=n)
            for n in range(1, round((job["next_run_at"] - job["created_at"]).total_seconds()))
        }
        assert {row["scheduled_at"] for row in rows} == grid, f"seed {seed}"
        expected += len(grid)
    ran = executions(sink)
    assert len(ran) == sum(ran.values()) == expected, f"seed {seed}"
    await one_leader_at_a_time(pool)
    late = (await pool.query("select max(fired_at - scheduled_at) as late from duly.history"))[0]["late"]
    print(f"{kind}: {dict(herd.done)}, {expected} occurrences, latest fire {late.total_seconds():.2f} s after its time")


async def one_leader_at_a_time(pool: Pool) -> None:
    """Checks the store's own record: epochs follow each other without a gap, and each fire lies within its term."""
    gaps = await pool.query(
        "select shard from duly.terms group by shard having count(*) <> max(epoch) or min(epoch) <> 1"
    )
    assert not gaps
    astray = await pool.query(
        """
        select h.job_id, h.fired_at, t.started_at, t.until
        from duly.history h
        join duly.jobs j using (job_id)
        join (
            select shard, epoch, started_at, lead(started_at) over (partition by shard order by epoch) as until
            from duly.terms
        ) t on t.shard = j.shard and t.epoch = h.epoch
        where h.fired_at < t.started_at or h.fired_at > t.until
        """
    )
    assert not astray, f"{len(astray)} fires outside their term: {astray[:3]}"
    unknown = await count(
        pool,
        "history h",
        "not exists (select from duly.terms t join duly.jobs j on j.shard = t.shard "
        "where j.job_id = h.job_id and t.epoch = h.epoch)",
    )
    assert unknown == 0
