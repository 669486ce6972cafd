"""Faults of etcd and ZooKeeper, in worlds that elect by them: sessions expire, or the server is out of reach."""

from __future__ import annotations

from random import Random

from ..world import World
from .base import Fault, Sort, spread


class _OfRegistry(Fault):
    weight = 2.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("registry",) if sort.registry else ()

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.3 * sort.leader_lease, 5 * sort.leader_lease)

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({"registry"})

    async def heal(self, world: World) -> None:
        assert world.registry is not None
        world.registry.go_on()
        await world.registry.start()


class RegistryKill(_OfRegistry):
    """SIGKILL; the registry comes back with the data on its disk."""

    kind = "registry-kill"
    healing = 2.0

    async def inject(self, world: World, random: Random) -> None:
        assert world.registry is not None
        self.details["server"] = world.registry.name
        world.registry.kill()


class RegistryEmptied(_OfRegistry):
    """The registry loses its disk and comes back empty, as from an old backup."""

    kind = "registry-emptied"
    healing = 2.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.2, sort.leader_lease)

    async def inject(self, world: World, random: Random) -> None:
        assert world.registry is not None
        self.details["server"] = world.registry.name
        world.registry.empty()


class RegistryPause(_OfRegistry):
    """SIGSTOP; when the registry goes on, every session may have expired."""

    kind = "registry-pause"

    async def inject(self, world: World, random: Random) -> None:
        assert world.registry is not None
        self.details["server"] = world.registry.name
        world.registry.pause()


class RegistryPartition(Fault):
    """One scheduler alone loses its connection to the registry; it still reaches PostgreSQL."""

    kind = "registry-partition"
    weight = 3.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return sort.schedulers if sort.registry else ()

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.3 * sort.leader_lease, 5 * sort.leader_lease)

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({f"{self.target} registry"})

    async def inject(self, world: World, random: Random) -> None:
        proxy = self.node(world).registry_proxy
        assert proxy is not None
        way = random.choice(("held", "to server", "to client", "refused"))
        self.details["way"] = way
        if way == "refused":
            proxy.refuse()
        else:
            proxy.hold(to_server=way != "to client", to_client=way != "to server")

    async def heal(self, world: World) -> None:
        proxy = self.node(world).registry_proxy
        assert proxy is not None
        proxy.passing()


FAMILY: tuple[type[Fault], ...] = (RegistryKill, RegistryEmptied, RegistryPause, RegistryPartition)
