"""One node's wall clock steps to a wrong time, and later back to the right one."""

from __future__ import annotations

from random import Random

from ..world import World
from .base import Fault, Sort, spread

STEPS = (5.0, -5.0, 3600.0, -3600.0)


class ClockStep(Fault):
    kind = "clock-step"
    weight = 4.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.nodes if sort.clocks else ()

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 3.0, 20.0)  # the step is seen within two seconds

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({f"{self.target} clock"})

    async def inject(self, world: World, random: Random) -> None:
        self.details["seconds"] = seconds = random.choice(STEPS)
        self.node(world).clock.step(seconds)

    async def heal(self, world: World) -> None:
        self.node(world).clock.step(0)


FAMILY: tuple[type[Fault], ...] = (ClockStep,)
