"""Faults of PostgreSQL: killed, crashed, frozen, cut off, overrun, full, and replaced by its standby."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from random import Random

from ..world import World
from .base import AWAY, Fault, NotNow, Sort, spread, until

_BACK_SECONDS = 60.0


class _OfDatabase(Fault):
    """A fault of the database, one at a time. Healing waits until the primary takes connections again."""

    healing = 3.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("primary",)

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.2, 6.0)

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({"database"})

    async def heal(self, world: World) -> None:
        await world.database.start()


class Crash(_OfDatabase):
    """SIGQUIT: every session ends at once, and the next start recovers from the log."""

    kind = "postgres-crash"
    weight = 2.0

    async def inject(self, world: World, random: Random) -> None:
        self.details["server"] = world.database.primary.name
        await world.database.crash()


class KillPostmaster(_OfDatabase):
    """SIGKILL of the postmaster alone; sessions end when they notice."""

    kind = "kill-postmaster"

    async def inject(self, world: World, random: Random) -> None:
        self.details["server"] = world.database.primary.name
        await world.database.crash(kill=True)


class KillBackend(_OfDatabase):
    """SIGKILL of one session's process. PostgreSQL then ends all sessions and recovers by itself."""

    kind = "kill-backend"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return 0.5

    async def inject(self, world: World, random: Random) -> None:
        pids = await _sessions(world)
        self.details["pid"] = pid = random.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    async def heal(self, world: World) -> None:
        await until(world.database.primary.answers, _BACK_SECONDS)


class EndBackends(_OfDatabase):
    """An administrator terminates some sessions, at any point of their work."""

    kind = "end-backends"
    weight = 2.0
    healing = 0.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return 0.0

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset()

    async def inject(self, world: World, random: Random) -> None:
        pids = await _sessions(world)
        chosen = random.sample(pids, random.randint(1, len(pids)))
        self.details["sessions"] = len(chosen)
        try:
            async with world.database.primary.session() as connection:
                await connection.execute("select pg_terminate_backend(pid) from unnest($1::int[]) pid", chosen)
        except AWAY as error:
            raise NotNow(f"PostgreSQL went away: {error}") from error

    async def heal(self, world: World) -> None:
        return


class Freeze(_OfDatabase):
    """SIGSTOP of the whole server, as when its machine is moved: it refuses nothing and answers nothing."""

    kind = "postgres-freeze"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.3 * sort.leader_lease, 3 * sort.leader_lease)

    async def inject(self, world: World, random: Random) -> None:
        server = world.database.primary
        self.details["server"] = server.name
        server.signal(signal.SIGSTOP)  # the postmaster first, so that it starts no session that would be missed
        self._send(server.backends(), signal.SIGSTOP)

    async def heal(self, world: World) -> None:
        server = world.database.primary
        self._send(server.backends(), signal.SIGCONT)
        server.signal(signal.SIGCONT)
        await until(server.answers, _BACK_SECONDS)

    def _send(self, pids: list[int], what: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)


class DatabasePartition(_OfDatabase):
    """The primary's own cable fails, one way or both: neither the nodes nor the standby reach it."""

    kind = "database-partition"

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("primary",) if sort.namespaces else ()

    async def inject(self, world: World, random: Random) -> None:
        lost = random.choice(("sent", "received", "both"))
        self.details |= {"lost": lost, "server": world.database.primary.name}
        name = world.database.primary.name
        world.network.partition(name, sends=lost != "received", receives=lost != "sent")

    async def heal(self, world: World) -> None:
        for server in world.database.servers:
            world.network.mend(server.name)


class Storm(_OfDatabase):
    """A stranger takes every free connection. Duly keeps the connections it has and gets no new ones."""

    kind = "connection-storm"
    weight = 2.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 1.0, 6.0)

    async def inject(self, world: World, random: Random) -> None:
        # Some of Duly's sessions are ended first; they try to reconnect and find all connections taken.
        with contextlib.suppress(*AWAY):
            async with world.database.primary.session() as connection:
                await connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'duly' and random() < 0.3"
                )
        taken, refused = await world.database.storm()
        self.details |= {"taken": taken, "refused": refused}
        if not taken:
            raise NotNow("PostgreSQL takes no connections")

    async def heal(self, world: World) -> None:
        world.database.end_storm()


class LockedJobs(_OfDatabase):
    """A stranger's open transaction has locked some jobs: these wait, and no other job may."""

    kind = "locked-jobs"
    weight = 3.0
    healing = 0.0

    def __init__(self, target: str, seed: int = 0) -> None:
        super().__init__(target, seed)
        self._theirs = contextlib.AsyncExitStack()

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5, 12.0)

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({"locked jobs"})

    async def inject(self, world: World, random: Random) -> None:
        try:
            connection = await self._theirs.enter_async_context(world.database.primary.session("duly"))
            await connection.execute("begin")
            locked = await connection.fetch(
                "select from duly.jobs where job_id in (select job_id from duly.jobs order by next_run_at, random() "
                "limit $1) for update skip locked",
                random.randint(1, 20),
            )
        except AWAY as error:
            raise NotNow(f"PostgreSQL is away: {error}") from error
        self.details["jobs"] = len(locked)
        if not locked:
            raise NotNow("there are no jobs")

    async def heal(self, world: World) -> None:
        await self._theirs.aclose()


class DiskFull(_OfDatabase):
    """The primary's disk is full. PostgreSQL refuses writes, or goes down when its log cannot grow."""

    kind = "disk-full"
    weight = 2.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("primary",) if sort.small_disk else ()

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 1.0, 10.0)

    async def inject(self, world: World, random: Random) -> None:
        server = world.database.primary
        felt = random.choice(("tables", "log"))
        self.details |= {"server": server.name, "bytes": await asyncio.to_thread(server.fill_disk), "felt_by": felt}
        if felt == "log":
            # Preallocated log files would last long. Filling them up makes the server go down.
            with contextlib.suppress(*AWAY, TimeoutError):
                async with asyncio.timeout(5), server.session() as connection:
                    await connection.execute(
                        "select pg_logical_emit_message(false, 'torture', repeat('x', 1000000)) "
                        "from generate_series(1, 200)"
                    )

    async def heal(self, world: World) -> None:
        self.details["went_down"] = not world.database.primary.alive()
        world.database.primary.free_disk()
        await world.database.start()
        await until(world.database.primary.answers, _BACK_SECONDS)


class _WithStandby(_OfDatabase):
    healing = 4.0

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("standby",) if sort.standby else ()

    async def _need_standby(self, world: World) -> None:
        try:
            await until(world.database.standby_ready, 10)
        except TimeoutError:
            raise NotNow("no standby is ready") from None


class Promotion(_WithStandby):
    """The standby takes over while the old primary lives: clients connected to the old one go on talking to it.

    In a synchronous pair the old primary must not acknowledge any commit: it has no standby any more. When the fault
    heals, the old primary is stopped and becomes the new one's standby.
    """

    kind = "promotion"
    weight = 4.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5, 8.0)

    async def inject(self, world: World, random: Random) -> None:
        await self._need_standby(world)
        database = world.database
        self.details |= {"from": database.primary.name, "mode": database.mode}
        await database.promote()
        self.details |= {"to": database.primary.name, "old_primary_alive": database.old_primary_alive}

    async def heal(self, world: World) -> None:
        if world.database.old_primary is not None:
            await world.database.rejoin()


class Failover(Promotion):
    """The primary dies, and its standby takes over a moment later."""

    kind = "failover"
    weight = 2.0

    async def inject(self, world: World, random: Random) -> None:
        await self._need_standby(world)
        database = world.database
        gap = spread(random, 0.05, 3.0)
        self.details |= {"from": database.primary.name, "mode": database.mode, "gap": gap}
        await database.crash(kill=random.random() < 0.5)
        await asyncio.sleep(gap)
        await database.promote()
        self.details |= {"to": database.primary.name, "old_primary_alive": database.old_primary_alive}

    async def heal(self, world: World) -> None:
        if world.database.old_primary is None:  # the promotion failed
            await world.database.start()
        await super().heal(world)


class StandbyCrash(_WithStandby):
    """The standby is down; if it is synchronous, no commit is acknowledged until it is back."""

    kind = "standby-crash"

    async def inject(self, world: World, random: Random) -> None:
        if world.database.standby is None:
            raise NotNow("there is no standby")
        self.details["server"] = world.database.standby.name
        await world.database.standby.crash(kill=random.random() < 0.5)

    async def heal(self, world: World) -> None:
        await world.database.heal()


class ReplicationCut(_WithStandby):
    """The log reaches the standby late or not at all for a while."""

    kind = "replication-cut"

    async def inject(self, world: World, random: Random) -> None:
        way = random.choice(("held", "refused", "slow"))
        self.details["way"] = way
        replication = world.database.replication
        if way == "held":
            replication.hold()
        elif way == "refused":
            replication.refuse()
        else:
            replication.delay(spread(random, 0.05, 1.0))

    async def heal(self, world: World) -> None:
        world.database.replication.passing()


async def _sessions(world: World) -> list[int]:
    """The process ids of Duly's sessions."""
    try:
        async with world.database.primary.session() as connection:
            rows = await connection.fetch("select pid from pg_stat_activity where usename = 'duly' order by pid")
    except AWAY as error:
        raise NotNow(f"PostgreSQL is away: {error}") from error
    if not rows:
        raise NotNow("Duly has no session")
    return [row["pid"] for row in rows]


FAMILY: tuple[type[Fault], ...] = (
    Crash, KillPostmaster, KillBackend, EndBackends, Freeze, DatabasePartition, Storm, LockedJobs, DiskFull, Promotion,
    Failover, StandbyCrash, ReplicationCut,
)  # fmt: skip
