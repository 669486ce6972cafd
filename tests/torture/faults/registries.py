"""etcd and ZooKeeper, in worlds that elect by them: sessions are lost because the server or the way to it is."""

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
    """-9; it comes back with what it had on disk."""

    kind = "registry-kill"
    healing = 2.0

    async def inject(self, world: World, random: Random) -> None:
        assert world.registry is not None
        self.details["server"] = world.registry.name
        world.registry.kill()


class RegistryEmptied(_OfRegistry):
    """Its disk was lost: it comes back and knows nothing, as from an old backup."""

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
    """SIGSTOP: when it goes on, it may find that every session has expired."""

    kind = "registry-pause"

    async def inject(self, world: World, random: Random) -> None:
        assert world.registry is not None
        self.details["server"] = world.registry.name
        world.registry.pause()


class RegistryPartition(Fault):
    """One scheduler alone loses its way to the registry; its way to PostgreSQL is whole."""

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
