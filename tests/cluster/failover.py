"""Measures for how long nothing fires when a leader is killed or leaves: real scheduler processes over one store.

Two schedulers share the shards. A round submits jobs that fall due from a chosen moment on, spread over all shards, and
strikes one scheduler at that moment. The round's figure is the longest that any of these jobs had to wait, counted from
the blow or from its own time, whichever is later. So it includes everything: noticing, taking over, reading the shard
and firing. A job that never fires fails the round.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from datetime import timedelta
from typing import Literal

from duly.model import JobRequest
from duly.operations import Operations
from duly.store.pool import Pool
from harness.processes import Spawn
from harness.waiting import eventually

Blow = Literal["kill", "leave", "stop"]

JOBS = 128
# The jobs fall due within this time after the blow.
SPREAD = 0.5
# A submit must be done, and the schedulers must know of it, before the blow.
LEAD = 1.0


class Pair:
    """Two schedulers. After a round the struck one is replaced."""

    def __init__(self, pool: Pool, operations: Operations, spawn: Spawn, settings: dict[str, str]) -> None:
        self._pool = pool
        self._operations = operations
        self._spawn = spawn
        self._settings = settings
        self.lease = float(settings["DULY_LEADER_LEASE_SECONDS"])
        self._processes: list[subprocess.Popen[bytes]] = []

    async def ready(self) -> None:
        """Waits until both schedulers run and each leads its half."""
        while len(self._processes) < 2:
            self._processes.append(self._spawn("scheduler", settings=self._settings))
        pids = {process.pid for process in self._processes}

        async def halves() -> bool:
            for process in self._processes:
                assert process.poll() is None, "a scheduler ended by itself"
            rows = await self._pool.query(
                "select n.name, count(*) as shards from duly.shards s join duly.nodes n using (node_id) "
                "where n.stopped_at is null and n.lease_until > duly.now() group by n.name"
            )
            found = {int(row["name"].rpartition(":")[2]): row["shards"] for row in rows}
            return found.keys() == pids and set(found.values()) == {32}

        await eventually(halves, seconds=60)

    async def strike(self, blow: Blow, dice: random.Random) -> float:
        """Runs one round. Returns the seconds for which some job that was due did not fire."""
        await self.ready()
        # The blow may come anywhere between two beats.
        await asyncio.sleep(dice.uniform(0, self.lease / 3))
        moment = self._operations.now() + timedelta(seconds=LEAD)
        requests = [
            JobRequest("noop", schedule=moment + timedelta(seconds=SPREAD * n / JOBS), name="round")
            for n in range(JOBS)
        ]
        await self._pool.query("truncate duly.jobs, duly.runs, duly.history")
        await self._operations.submit_many(requests, allow_unknown_handler=True)
        victim = self._processes.pop(dice.randrange(2))
        await asyncio.sleep(max(0.0, (moment - self._operations.now()).total_seconds()))
        struck = self._operations.now()
        number = {"kill": signal.SIGKILL, "leave": signal.SIGTERM, "stop": signal.SIGSTOP}[blow]
        victim.send_signal(number)

        async def all_fired() -> bool:
            rows = await self._pool.query("select count(*) as fired from duly.runs")
            return bool(rows[0]["fired"] == JOBS)

        await eventually(all_fired, seconds=self.lease * 3 + 20)
        rows = await self._pool.query(
            "select max(fired_at - greatest(scheduled_at, $1::timestamptz)) as waited, count(distinct job_id) as jobs "
            "from duly.runs",
            struck,
        )
        assert rows[0]["jobs"] == JOBS
        if blow == "stop":
            # The stopped scheduler wakes up after it was replaced, and must change nothing.
            victim.send_signal(signal.SIGCONT)
            victim.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(victim.wait, 30)
        assert code == (-signal.SIGKILL if blow == "kill" else 0)
        assert await all_fired(), "an occurrence fired twice"
        return float(rows[0]["waited"].total_seconds())
