"""Faults of the cables between a node and PostgreSQL, and between clients and the API.

With namespaces packets are really lost; without, the proxies hold the data that would be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Literal

from ..world import World
from ..world.proxy import Strike
from .base import Fault, Sort, spread


class _Cable(Fault):
    """A fault between one node and everything else."""

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.nodes

    async def heal(self, world: World) -> None:
        node = self.node(world)
        if world.namespaces:
            world.network.mend(node.name)
        node.proxy.passing()


class Partition(_Cable):
    """Nothing arrives, either way, and neither side gets an error."""

    kind = "partition"
    weight = 4.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.3 * sort.lease(target), 4 * sort.lease(target))

    async def inject(self, world: World, random: Random) -> None:
        if world.namespaces:
            world.network.partition(self.target)
        else:
            self.node(world).proxy.hold()


class PartitionOneWay(Partition):
    """The node's requests arrive and the answers do not, or the other way round."""

    kind = "partition-one-way"
    weight = 3.0

    async def inject(self, world: World, random: Random) -> None:
        lost = random.choice(("sent", "received"))
        self.details["lost"] = lost
        if world.namespaces:
            world.network.partition(self.target, sends=lost == "sent", receives=lost == "received")
        else:
            self.node(world).proxy.hold(to_server=lost == "sent", to_client=lost == "received")


class Unplug(_Cable):
    """The interface goes down: sending fails at once."""

    kind = "unplug"

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.nodes if sort.namespaces else ()

    async def inject(self, world: World, random: Random) -> None:
        world.network.unplug(self.target)


class Flapping(_Cable):
    """A bad plug: packets are lost for some tenths of a second, again and again."""

    kind = "flapping"
    _shaking: asyncio.Task[None] | None = None

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.nodes if sort.namespaces else ()

    async def inject(self, world: World, random: Random) -> None:
        async def shake() -> None:
            while True:
                await asyncio.to_thread(world.network.partition, self.target)
                await asyncio.sleep(random.uniform(0.05, 0.8))
                await asyncio.to_thread(world.network.mend, self.target)
                await asyncio.sleep(random.uniform(0.05, 0.5))

        self._shaking = asyncio.create_task(shake())

    async def heal(self, world: World) -> None:
        if self._shaking is not None:
            self._shaking.cancel()
            await asyncio.wait([self._shaking])
            # A step under way in its thread cannot be cancelled; it ends within this time.
            await asyncio.sleep(0.05)
        await super().heal(world)


class Delay(_Cable):
    """All data are delayed, each way."""

    kind = "delay"
    weight = 2.0

    async def inject(self, world: World, random: Random) -> None:
        seconds = spread(random, 0.01, 1.5)
        self.details |= {"seconds": seconds}
        self.node(world).proxy.delay(seconds, jitter=seconds / 2)


class Loss(_Cable):
    """A share of the data has to be sent again."""

    kind = "loss"
    weight = 2.0

    async def inject(self, world: World, random: Random) -> None:
        share = round(random.uniform(0.05, 0.6), 2)
        self.details |= {"share": share}
        self.node(world).proxy.lose(share)


class HalfOpen(_Cable):
    """Connections look alive and carry nothing, one way or both; one side does not learn that the other has ended."""

    kind = "half-open"
    weight = 2.0

    async def inject(self, world: World, random: Random) -> None:
        way = random.choice(("to server", "to client", "both"))
        self.details["held"] = way
        self.node(world).proxy.hold(to_server=way != "to client", to_client=way != "to server")


class Refuse(_Cable):
    """All connections are reset, and so is every new one."""

    kind = "refuse"

    async def inject(self, world: World, random: Random) -> None:
        self.node(world).proxy.refuse()


class Reset(_Cable):
    """All connections are reset at one moment. New ones are accepted."""

    kind = "reset"
    weight = 2.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return 0.0

    async def inject(self, world: World, random: Random) -> None:
        self.details["connections"] = self.node(world).proxy.cut()


class _Struck(_Cable):
    """Strikes at statements that write. The statements that were struck are noted when the fault heals."""

    _strike: Strike | None = None

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 1.0, 6.0)

    async def heal(self, world: World) -> None:
        await super().heal(world)
        if self._strike is not None:
            self.details["struck"] = self._strike.struck


class ResetInBatch(_Struck):
    """The connection is reset when only a part of a statement with its arguments has arrived."""

    kind = "reset-in-batch"
    weight = 2.0

    async def inject(self, world: World, random: Random) -> None:
        after = random.choice((0, 1, 20, 60, 150, 400, 1500))
        self.details["after"] = after
        self._strike = self.node(world).proxy.strike(
            "cut", times=random.randint(1, 3), after=after, skip=random.randint(0, 4)
        )


class CutAfterCommit(_Struck):
    """A write is sent and perhaps (`sever`) or surely (`swallow`) executed; its answer never arrives."""

    kind = "cut-after-commit"
    weight = 4.0

    async def inject(self, world: World, random: Random) -> None:
        kinds: tuple[Literal["swallow", "sever"], ...] = ("swallow", "swallow", "sever")
        kind = random.choice(kinds)
        self.details["way"] = kind
        self._strike = self.node(world).proxy.strike(kind, times=random.randint(1, 4), skip=random.randint(0, 4))


class ApiPartition(Fault):
    """The link between clients and the API is held, refused, slow, or cut in the middle of a request."""

    kind = "api-partition"
    weight = 3.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.api

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({"front"})

    async def inject(self, world: World, random: Random) -> None:
        way = random.choice(("held", "requests held", "answers held", "refused", "slow", "cut"))
        self.details["way"] = way
        front = world.front
        if way == "refused":
            front.refuse()
        elif way == "slow":
            front.delay(spread(random, 0.05, 1.0))
        elif way == "cut":
            front.cut()
        else:
            front.hold(to_server=way != "answers held", to_client=way != "requests held")

    async def heal(self, world: World) -> None:
        world.front.passing()
        # Connections of clients that gave up long ago are closed.
        with contextlib.suppress(OSError):
            if self.details.get("way") in ("held", "requests held", "answers held"):
                world.front.cut()


FAMILY: tuple[type[Fault], ...] = (
    Partition, PartitionOneWay, Unplug, Flapping, Delay, Loss, HalfOpen, Refuse, Reset, ResetInBatch, CutAfterCommit,
    ApiPartition,
)  # fmt: skip
