"""All statements that touch claims, all at once: in the end each run has one outcome, and no caller saw an error."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid4

from duly.model import Buried, ClaimedRun, Requeued, to_micros
from duly.store import maintenance, runs
from duly.store.pool import Pool
from harness.processes import Spawn
from harness.store import count, put_now, succeeded, take
from harness.waiting import drawn_seed, eventually

SECONDS = float(os.environ.get("DULY_TEST_FIGHT_SECONDS", "6"))
ERROR = json.dumps({"type": "ValueError", "message": "no", "traceback": None})
# Far below what a round trip takes here when all fight: leases end while they are used.
LEASE = 0.15


class Fighter:
    """A worker stripped to its statements. It holds several claims at once; its parts do not wait for each other."""

    def __init__(self, pool: Pool, dice: random.Random, accepted: Counter[str]) -> None:
        self._pool = pool
        self._dice = dice
        self._accepted = accepted
        self._worker_id = uuid4()
        self._held: dict[UUID, list[ClaimedRun]] = {}
        self.over = False

    async def claim(self) -> None:
        while not self.over:
            claim = await take(self._pool, worker_id=self._worker_id, limit=self._dice.randint(1, 30), lease=LEASE)
            if claim.claim_id is not None:
                self._held[claim.claim_id] = claim.runs
            self._accepted["claimed"] += len(claim.runs)
            await asyncio.sleep(0.05 if len(self._held) > 6 else 0)

    async def beat(self) -> None:
        while not self.over:
            held, _ = await runs.heartbeat(
                self._pool, worker_id=self._worker_id, lease_seconds=LEASE, claims=list(self._held)
            )
            self._accepted["beaten"] += len(held)
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Sends outcomes of all kinds, of several claims in one statement, in random order."""
        while not self.over:
            if not self._held:
                await asyncio.sleep(0.001)
                continue
            chosen = self._dice.sample(sorted(self._held), self._dice.randint(1, len(self._held)))
            # The claims get heartbeats until they are gone, as those of a real worker do.
            mine = [run for claim_id in chosen for run in self._held[claim_id]]
            self._dice.shuffle(mine)
            third = len(mine) // 3
            await self._requeue(mine[:third])
            # Runs that get no outcome here are left to rescue, as after a crash.
            lost = self._dice.random() < 0.2
            await self._bury(mine[third : third + 2])
            if not lost:
                accepted = await runs.complete(self._pool, [succeeded(run) for run in mine[third + 2 :]], chosen)
                self._accepted["succeeded"] += accepted
            for claim_id in chosen:
                del self._held[claim_id]

    async def _requeue(self, some: list[ClaimedRun]) -> None:
        if some:
            delay = self._dice.choice([0.0, 0.05])
            sent = [Requeued(run, "retrying", delay, 1, 2, ERROR) for run in some]
            accepted = await runs.requeue(self._pool, sent)
            self._accepted["requeued"] += accepted

    async def _bury(self, some: list[ClaimedRun]) -> None:
        if some:
            sent = [Buried(run, 1, to_micros(run.scheduled_at), ERROR) for run in some]
            accepted = await runs.bury(self._pool, sent)
            self._accepted["dead"] += accepted


async def test_claim_heartbeat_rescue_complete_and_requeue_fighting_over_the_same_rows_end_every_run_once(
    pool: Pool, database_url: str, spawn: Spawn, sink: Path
) -> None:
    seed = drawn_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    accepted: Counter[str] = Counter()
    submitted = 0
    over = False
    # Real workers and a real rescuer take part: they end the runs that the loops here do not end.
    small = {"DULY_WORKER_LEASE_SECONDS": "0.5", "DULY_POLL_SECONDS": "0.05"}
    spawn("scheduler")
    workers = [spawn("worker", "--concurrency", "20", settings=small) for _ in range(2)]
    arena = await Pool.connect(database_url, size=16)
    policy = '{"max_retries": 10000}'

    async def feed() -> None:
        nonlocal submitted
        while not over:
            if await count(pool, "runs") < 1500:
                await put_now(pool, 300, handler="record", policy=policy)
                submitted += 300
            await asyncio.sleep(0.02)

    async def rescue() -> None:
        while not over:
            rescued = await maintenance.rescue(arena)
            accepted["rescued"] += rescued.requeued
            await asyncio.sleep(0.005)

    fighters = [Fighter(arena, random.Random(dice.random()), accepted) for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        # An error in any of these tasks ends the test here.
        group.create_task(feed())
        for _ in range(2):
            group.create_task(rescue())
        for fighter in fighters:
            for part in (fighter.claim, fighter.beat, fighter.end):
                group.create_task(part())
        await asyncio.sleep(SECONDS)
        over = True
        for fighter in fighters:
            fighter.over = True
    await arena.close()

    async def all_ended() -> bool:
        return await count(pool, "runs") == 0 and await count(pool, "claims") == 0

    ending = time.monotonic()
    await eventually(all_ended, seconds=60)
    rows = await pool.query("select status, count(*) as runs from duly.history group by status")
    outcomes = {row["status"]: row["runs"] for row in rows}
    deadlocks = (await pool.query("select deadlocks from pg_stat_database where datname = current_database()"))[0][0]
    print(f"{submitted} runs: {dict(accepted)}; {outcomes}; the rest took {time.monotonic() - ending:.1f} s")
    # A deadlock would be retried and no caller would see it, but it would cost a second. There is none: rows are locked
    # in one order everywhere.
    assert deadlocks == 0
    assert sum(outcomes.values()) == submitted == await count(pool, "jobs")
    assert set(outcomes) == {"succeeded", "dead"}
    # Runs of the real workers only succeed; the dead ones are exactly those whose burial a fighter saw accepted.
    assert outcomes["dead"] == accepted["dead"] == await count(pool, "dead_letters")
    assert outcomes["succeeded"] >= accepted["succeeded"]
    assert min(accepted[what] for what in ("claimed", "beaten", "succeeded", "requeued", "rescued", "dead")) > 50
    assert [worker.poll() for worker in workers] == [None, None]
