"""Two versions of an application side by side, restarted in random order under load.

Schedules and tasks are added, changed, renamed and removed with each deploy. No run may be buried for a missing task,
no older schedule may follow a newer one, no run may be lost or recorded twice. `DULY_TEST_RESTARTS=50` looks longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

from duly.model import JobRequest
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn, lines
from harness.store import count
from harness.waiting import drawn_seed, eventually

RESTARTS = int(os.environ.get("DULY_TEST_RESTARTS", "6"))
# Restarts after which the next deploy begins.
PER_DEPLOY = 3
WORKERS = 3


class Fleet:
    """Workers of the newest deploy and of the one before it; at least one is of the newest."""

    def __init__(self, spawn: Spawn, draw: random.Random) -> None:
        self._spawn = spawn
        self._draw = draw
        self.newest = 1
        self.killed = 0
        self._workers: list[tuple[int, subprocess.Popen[bytes]]] = [self._start(1) for _ in range(WORKERS)]

    def _start(self, deploy: int) -> tuple[int, subprocess.Popen[bytes]]:
        return deploy, self._spawn("worker", "--app", "deploy_app:app", settings={"DULY_DEPLOY": str(deploy)})

    async def restart(self, number: int) -> None:
        began = number % PER_DEPLOY == 0
        self.newest += began
        place = self._draw.randrange(WORKERS)
        _, process = self._workers.pop(place)
        if self._draw.random() < 0.3:
            self.killed += 1
            process.kill()
        else:
            process.terminate()
        others = [deploy for deploy, _ in self._workers]
        deploy = self.newest if began or self.newest not in others else self.newest - self._draw.randrange(2)
        self._workers.insert(place, self._start(max(1, deploy)))
        await asyncio.to_thread(process.wait)

    async def finish(self) -> None:
        """Everything is of the newest deploy in the end."""
        for place, (deploy, process) in enumerate(self._workers):
            if deploy != self.newest:
                process.terminate()
                await asyncio.to_thread(process.wait)
                self._workers[place] = self._start(self.newest)


class Load:
    """200 runs/s, half of them of the newest deploy's own task; and a watch over the changed job."""

    def __init__(self, pool: Pool, operations: Operations) -> None:
        self._pool = pool
        self._operations = operations
        self.task = "work_1"
        self.submitted = 0
        self.seen: list[int] = []
        self.ending = asyncio.Event()

    async def submit(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while not self.ending.is_set():
            requests = [JobRequest(name) for name in ("work", self.task) for _ in range(10)]
            await self._operations.submit_many(requests, allow_unknown_handler=True)
            self.submitted += len(requests)
            due += 0.1
            await asyncio.sleep(max(0.0, due - clock()))

    async def watch(self) -> None:
        while not self.ending.is_set():
            for row in await self._pool.query("select payload from duly.jobs where name = 'tick'"):
                deploy = json.loads(row["payload"])["deploy"]
                if not self.seen or self.seen[-1] != deploy:
                    self.seen.append(deploy)
            await asyncio.sleep(0.02)


async def test_no_run_is_lost_and_no_older_schedule_follows_a_newer_one(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path
) -> None:
    seed = drawn_seed()
    print(f"repeat with DULY_TEST_SEED={seed} DULY_TEST_RESTARTS={RESTARTS}")
    draw = random.Random(seed)
    schedulers = [spawn("scheduler") for _ in range(2)]
    fleet = Fleet(spawn, draw)
    load = Load(pool, operations)

    async def all_live() -> bool:
        return await count(pool, "nodes", "lease_until > duly.now() and stopped_at is null") >= WORKERS + 2

    await eventually(all_live, seconds=60)
    tasks = [asyncio.create_task(load.submit()), asyncio.create_task(load.watch())]
    for number in range(1, RESTARTS + 1):
        await fleet.restart(number)
        if draw.random() < 0.2:
            place = draw.randrange(len(schedulers))
            schedulers[place].terminate()
            await asyncio.to_thread(schedulers[place].wait)
            schedulers[place] = spawn("scheduler")

        async def newest_lives() -> bool:
            return (
                await count(
                    pool, "nodes", f"lease_until > duly.now() and info -> 'app' ->> 'deploy' = '{fleet.newest}'"
                )
                > 0
            )

        await eventually(newest_lives, seconds=60)
        load.task = f"work_{fleet.newest}"
    await fleet.finish()

    async def all_of_the_newest() -> bool:
        newest = f"info -> 'app' ->> 'deploy' = '{fleet.newest}'"
        live = "kind = 'worker' and lease_until > duly.now()"
        return await count(pool, "nodes", f"{live} and {newest}") == await count(pool, "nodes", live) >= WORKERS

    await eventually(all_of_the_newest, seconds=60)
    old_extras = "name like 'extra_%' and name <> $1"

    async def removed_are_paused() -> bool:
        rows = await pool.query(
            f"select status, status_reason from duly.jobs where {old_extras}", f"extra_{fleet.newest}"
        )  # fmt: skip
        return all(
            row["status"] == "paused" and "no longer declared since deploy" in row["status_reason"] for row in rows
        )

    await eventually(removed_are_paused, seconds=60)
    load.ending.set()
    await asyncio.gather(*tasks)
    await pool.query(
        "update duly.jobs set status = 'paused', next_run_at = null where kind = 'cron' and status = 'active'"
    )

    async def all_done() -> bool:
        return await count(pool, "runs") == 0 and await count(pool, "held_runs") == 0

    await eventually(all_done, seconds=120)

    # No old schedule after the new one: neither was one seen, nor does the record of changes show one.
    assert load.seen == sorted(load.seen), "an older schedule followed a newer one"
    assert load.seen[-1] == fleet.newest
    newest_of: Counter[str] = Counter()
    for row in await pool.query(
        "select job_id, detail from duly.job_changes where what = 'redefined' order by change_id"
    ):
        by = json.loads(row["detail"]).get("reason", "")
        deploy = int(re.fullmatch(r"deploy (\d+) of app 'shop'", by)[1])  # type: ignore[index]
        assert deploy >= newest_of[str(row["job_id"])], f"deploy {deploy} came after {newest_of[str(row['job_id'])]}"
        newest_of[str(row["job_id"])] = deploy
    # A rename keeps the job: there is one, of the newest name.
    reports = await pool.query("select name, handler from duly.jobs where handler like 'report_%'")
    assert [(row["name"], row["handler"]) for row in reports] == [(f"report_{fleet.newest}",) * 2]
    assert await count(pool, "jobs", "name like 'extra_%'") == fleet.newest
    # None is buried, lost or recorded twice.
    assert await count(pool, "history", "status = 'dead'") == 0
    works = "job_id in (select job_id from duly.jobs where handler like 'work%')"
    assert await count(pool, "history", f"status = 'succeeded' and {works}") == load.submitted
    assert await count(pool, "history", works) == load.submitted
    ran = lines(sink)
    assert max(Counter((line.run_id, line.token) for line in ran).values()) == 1
    twice = sum(times > 1 for times in Counter(line.run_id for line in ran).values())
    if fleet.killed == 0:
        assert twice == 0
    print(
        f"{RESTARTS} restarts ({fleet.killed} by kill -9), {fleet.newest} deploys, {load.submitted} runs submitted, "
        f"{await count(pool, 'history', 'true')} recorded, {twice} started twice after a kill"
    )
