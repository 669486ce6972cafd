"""Deploys of an application that declares jobs: old and new workers side by side, restarted and killed in any order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from random import Random

from ..workload import SHOP_DEPLOYS
from ..world import World
from ..world.world import PATIENCE
from .base import AWAY, Fault, NotNow, Sort, spread

_APP = "torture.workload.shop_app:app"
_REASON = "the deploy is over"
_HEAL_SECONDS = 60.0


class Deploys(Fault):
    """A deploy of the shop (`workload/shop_app.py`) beside the one before it. It ends with no worker of either.

    Its jobs then have to be paused, as the clients' own are: nothing else ends them. The next such fault resumes them.
    """

    kind = "deploys"
    weight = 4.0
    _PAUSE_SECONDS = (0.5, 3.0)

    def __init__(self, target: str, seed: int = 0) -> None:
        super().__init__(target, seed)
        self._ending = contextlib.AsyncExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._restarting: asyncio.Task[None] | None = None

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("shop",)

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 4.0, 15.0)  # a worker takes a second to start

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({"shop"})

    async def inject(self, world: World, random: Random) -> None:
        if world.deploys == SHOP_DEPLOYS:
            raise NotNow("the shop has had all its deploys")
        world.deploys += 1
        newest = self.details["deploy"] = world.deploys
        self.details["restarts"] = 0
        log = Path(world.folder / f"{self.kind}.log").open("ab")  # noqa: ASYNC230, SIM115 closed with the fault
        self._ending.callback(log.close)

        def start(deploy: int) -> subprocess.Popen[bytes]:
            return world.spawn(
                ["worker", "--app", _APP, "--quiet", "--concurrency", "10"], log, DULY_DEPLOY=str(max(1, deploy))
            )

        self._workers = [start(newest - 1), start(newest)]
        for job_id in await _shop_jobs(world, f"status = 'paused' and status_reason = '{_REASON}'"):
            await _command(world, "resume", job_id)

        async def restart() -> None:
            while True:
                await asyncio.sleep(random.uniform(*self._PAUSE_SECONDS))
                place = random.randrange(2)
                await self._end(place, random.choice((signal.SIGTERM, signal.SIGKILL)))
                self._workers[place] = start(newest - random.randrange(2))
                self.details["restarts"] += 1

        self._restarting = asyncio.create_task(restart())

    async def heal(self, world: World) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        for place in range(len(self._workers)):
            await self._end(place, signal.SIGTERM if self.seed % 2 else signal.SIGKILL)
        await self._ending.aclose()
        if not self._workers:
            return
        # Repeated until nothing is left twice in a row: the primary may be away, and what a dead worker has sent may
        # take effect after its end.
        quiet = 0
        async with asyncio.timeout(_HEAL_SECONDS):
            while quiet < 2:
                quiet = quiet + 1 if await self._paused(world) == [] else 0
                await asyncio.sleep(0.3)

    async def _paused(self, world: World) -> list[str] | None:
        """Pauses the shop's active jobs. Returns those it has found, or None if that was not to be learned."""
        try:
            found = await _shop_jobs(world, "status = 'active'")
            for job_id in found:
                await _command(world, "pause", job_id, "--reason", _REASON)
        except NotNow:
            return None
        return found

    async def _end(self, place: int, number: signal.Signals) -> None:
        process = self._workers[place]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        try:
            await asyncio.to_thread(process.wait, PATIENCE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)


async def _shop_jobs(world: World, condition: str) -> list[str]:
    try:
        async with world.database.primary.session("duly") as connection:
            rows = await connection.fetch(
                f"select job_id::text from duly.jobs where dedupe_key like 'declared:shop\\_%' and {condition}"
            )
    except AWAY as error:
        raise NotNow(f"PostgreSQL is away: {error}") from error
    return [row["job_id"] for row in rows]


async def _command(world: World, *arguments: str) -> None:
    try:
        await world.command("job", *arguments)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        raise NotNow(f"the command could not be carried out: {error}") from error


FAMILY: tuple[type[Fault], ...] = (Deploys,)
