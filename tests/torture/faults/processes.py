"""Faults of Duly's processes: killed, stopped and restarted."""

from __future__ import annotations

import asyncio
from random import Random

from ..world import World
from ..world.node import Node
from .base import Fault, Sort, spread


def _members(target: str, sort: Sort) -> tuple[str, ...]:
    return {"schedulers": sort.schedulers, "workers": sort.workers, "all nodes": sort.nodes}[target]


class Kill(Fault):
    """SIGKILL; the process is started again later."""

    kind = "kill"
    weight = 5.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.nodes

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.1, 3 * sort.lease(target))

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({f"{self.target} process"})

    async def inject(self, world: World, random: Random) -> None:
        self.node(world).kill()

    async def heal(self, world: World) -> None:
        self.node(world).start()


class KillMany(Fault):
    """SIGKILL of all processes of one kind, or of all processes, at the same moment."""

    kind = "kill-many"
    weight = 1.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return "schedulers", "workers", "all nodes"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.1, 5.0)

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset(f"{name} process" for name in _members(self.target, sort))

    async def inject(self, world: World, random: Random) -> None:
        for name in _members(self.target, Sort.of(world)):
            world.nodes[name].kill()

    async def heal(self, world: World) -> None:
        for name in _members(self.target, Sort.of(world)):
            world.nodes[name].start()


class Pause(Fault):
    """SIGSTOP for half a lease to ten leases; then the process goes on as if nothing had happened."""

    kind = "pause"
    weight = 5.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.nodes

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5 * sort.lease(target), 10 * sort.lease(target))

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({f"{self.target} process"})

    async def inject(self, world: World, random: Random) -> None:
        self.node(world).stop_signal()

    async def heal(self, world: World) -> None:
        self.node(world).continue_()


class RollingRestart(Fault):
    """SIGTERM, wait for the process to end, start it: one process after the other, as a deploy does."""

    kind = "rolling-restart"
    weight = 1.0
    healing = 8.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return "schedulers", "workers", "all nodes"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return 0.0  # `inject` itself does all the restarts

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset(f"{name} process" for name in _members(self.target, sort))

    async def inject(self, world: World, random: Random) -> None:
        names = list(_members(self.target, Sort.of(world)))
        random.shuffle(names)
        pause = round(random.uniform(0, 1), 3)
        self.details |= {"order": names, "pause": pause}
        for name in names:
            node = world.nodes[name]
            node.terminate()
            await world.restart(node)
            await asyncio.sleep(pause)

    async def heal(self, world: World) -> None:
        for name in _members(self.target, Sort.of(world)):
            node: Node = world.nodes[name]
            if node.ended_on_purpose:
                await world.restart(node)


FAMILY: tuple[type[Fault], ...] = (Kill, KillMany, Pause, RollingRestart)
