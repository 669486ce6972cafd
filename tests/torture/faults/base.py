"""The common part of all faults, and the view of the world for which a plan is made."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import asyncpg

from ..world import World
from ..world.node import Node

#: Errors of a PostgreSQL that is away or goes away.
AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class NotNow(Exception):
    """The fault cannot be injected now; the message says why. Nothing was done."""


@dataclass(frozen=True)
class Sort:
    """The properties of a world that a plan depends on; it depends on nothing else but the seed and the arguments."""

    schedulers: tuple[str, ...]
    workers: tuple[str, ...]
    api: tuple[str, ...]
    namespaces: bool
    standby: bool
    registry: bool
    small_disk: bool
    clocks: bool
    leader_lease: float
    worker_lease: float

    @classmethod
    def of(cls, world: World) -> Sort:
        return cls(
            schedulers=tuple(node.name for node in world.of_kind("scheduler")),
            workers=tuple(node.name for node in world.of_kind("worker")),
            api=tuple(node.name for node in world.of_kind("api")),
            namespaces=world.namespaces,
            standby=world.database.mode != "none",
            registry=world.registry is not None,
            small_disk=world.database.primary.on_small_disk,
            clocks=all(node.clock.can_step for node in world.nodes.values()),
            leader_lease=world.lease("scheduler"),
            worker_lease=world.lease("worker"),
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.schedulers + self.workers + self.api

    def lease(self, target: str) -> float:
        return self.leader_lease if target in self.schedulers else self.worker_lease


class Fault(ABC):
    """A fault that is injected into one target and healed. Made by a plan, used once."""

    kind: ClassVar[str]
    #: The weight with which the fault is drawn.
    weight: ClassVar[float] = 1.0
    #: Seconds that healing usually takes; a plan leaves room for them.
    healing: ClassVar[float] = 0.0

    def __init__(self, target: str, seed: int = 0) -> None:
        self.target = target
        self.seed = seed
        self.details: dict[str, Any] = {}

    @classmethod
    @abstractmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        """The possible targets in such a world; empty if the world lacks what the fault needs."""

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5, 8.0)

    def touches(self, sort: Sort) -> frozenset[str]:
        """The things that no other fault may touch at the same time."""
        return frozenset({f"{self.target} network"})

    @abstractmethod
    async def inject(self, world: World, random: Random) -> None:
        """Injects the fault and writes its random choices to `details`. Raises NotNow if that is not possible now."""

    @abstractmethod
    async def heal(self, world: World) -> None:
        """Undoes the fault as far as it was injected, also after an `inject` that failed half-way."""

    def node(self, world: World) -> Node:
        return world.nodes[self.target]


def spread(random: Random, least: float, most: float) -> float:
    """A number between the two, small ones more often: half of them lie below the geometric mean."""
    return round(math.exp(random.uniform(math.log(least), math.log(most))), 3)


async def until(holds: Any, seconds: float) -> None:
    """Waits until an async condition holds, or raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 nobody signals it
            await asyncio.sleep(0.1)
