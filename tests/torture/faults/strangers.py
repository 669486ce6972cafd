"""Faults by other users of the database: reports, dumps, indexes, locks, cancelled statements, revoked rights.

Nothing is broken: a healthy server answers with errors or makes clients wait. Duly must go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import asyncpg

from harness.pids import children_of, is_alive

from ..world import World
from ..world.world import PATIENCE
from .base import AWAY, Fault, NotNow, Sort, spread, until

#: The tables that every run goes through.
HOT = ("jobs", "runs", "claims", "history", "attempts")
#: A stranger gives up if it does not get a lock within this time: while it waits, all others wait behind it.
_LOCK_TIMEOUT = "700ms"
_EMPTY_APP = "torture.workload.empty_app:app"


class _Stranger(Fault):
    """A stranger that holds one session for as long as the fault lasts."""

    weight = 1.5

    def __init__(self, target: str, seed: int = 0) -> None:
        super().__init__(target, seed)
        self._theirs = contextlib.AsyncExitStack()

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("primary",)

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5, 8.0)

    def touches(self, sort: Sort) -> frozenset[str]:
        return frozenset({self.kind})

    async def _begin(self, world: World, *statements: str, isolation: str = "read committed") -> Any:
        """Begins a transaction that stays open until the fault is over."""
        try:
            connection = await self._theirs.enter_async_context(world.database.primary.session("duly"))
            await connection.execute(f"begin isolation level {isolation}")
            await connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
            for statement in statements:
                await connection.execute(statement)
        except AWAY as error:
            raise NotNow(f"the stranger's transaction failed: {error}") from error
        return connection

    async def heal(self, world: World) -> None:
        await self._theirs.aclose()


class TableLock(_Stranger):
    """A stranger has locked a table, in a mode that blocks writes, or reads as well."""

    kind = "table-lock"
    weight = 3.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.3, 5.0)

    async def inject(self, world: World, random: Random) -> None:
        table = random.choice(HOT)
        mode = random.choice(("share", "share row exclusive", "exclusive", "access exclusive"))
        self.details |= {"table": table, "mode": mode}
        await self._begin(world, f"lock table duly.{table} in {mode} mode")


class CreateIndex(_Stranger):
    """An administrator builds an index without CONCURRENTLY, which blocks all writes to the table until it is done."""

    kind = "create-index"
    weight = 2.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5, 5.0)

    async def inject(self, world: World, random: Random) -> None:
        table = random.choice(HOT)
        self.details["table"] = table
        column = {"claims": "claimed_at"}.get(table, "job_id")
        # Rolled back at the end, as if the build had taken that long and then been given up.
        await self._begin(world, f"create index torture_{table} on duly.{table} ({column})")


class Report(_Stranger):
    """A report reads all tables and stays open while a day's partition has to be made, as reports do at night."""

    kind = "report"
    weight = 3.0
    healing = 1.0

    def __init__(self, target: str, seed: int = 0) -> None:
        super().__init__(target, seed)
        self._making: asyncio.Task[str] | None = None

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 2.0, 15.0)

    async def inject(self, world: World, random: Random) -> None:
        await self._forget_a_day(world)
        counts = [f"select count(*) from duly.{table}" for table in (*HOT, "job_changes", "dead_letters", "nodes")]
        await self._begin(world, *counts, isolation="repeatable read")
        # A deploy makes that day's partition again, as the leader's maintenance does every hour.
        self._making = asyncio.create_task(world.command("migrate"))

    async def _forget_a_day(self, world: World) -> None:
        """Drops the last partition that was made ahead, as if it had not been made yet."""
        try:
            async with world.database.primary.session("duly") as connection:
                days = await connection.fetch(
                    "select c.oid::regclass::text as name from pg_inherits i join pg_class c on c.oid = i.inhrelid "
                    "where i.inhparent = 'duly.history'::regclass and c.relname ~ '^history_[0-9]{8}$' "
                    "order by c.relname desc limit 1"
                )
                await connection.execute(f"set lock_timeout = '{_LOCK_TIMEOUT}'")
                for day in days:
                    await connection.execute(f"drop table {day['name']}")
                    self.details["day"] = day["name"]
        except AWAY as error:
            raise NotNow(f"no partition could be dropped: {error}") from error

    async def heal(self, world: World) -> None:
        await super().heal(world)
        if self._making is not None:
            try:
                await self._making
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                # The database may have been killed meanwhile: only then may the deploy fail.
                self.details["migrate"] = str(error)[-500:]


class Dump(_Stranger):
    """A real pg_dump, repeated: it holds a lock on every table and a snapshot."""

    kind = "dump"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 1.0, 8.0)

    async def inject(self, world: World, random: Random) -> None:
        self.details["dumps"] = 0
        dumping = asyncio.create_task(self._dump(world))

        async def end() -> None:
            dumping.cancel()
            await asyncio.gather(dumping, return_exceptions=True)

        self._theirs.push_async_callback(end)

    async def _dump(self, world: World) -> None:
        while True:
            command = [str(world.database.program("pg_dump")), "--file=/dev/null", world.database.admin_url]
            process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            self.details["dumps"] += process.returncode == 0
            await asyncio.sleep(0.1)


class OpenSubmit(_Stranger):
    """A tenant with a limit submits in its own transaction and leaves it open: the tenant's row stays locked."""

    kind = "open-submit"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 1.0, 12.0)

    async def inject(self, world: World, random: Random) -> None:
        await self._begin(
            world,
            "insert into duly.tenants (tenant, max_jobs, created_at, updated_at) "
            "values ('stranger', 1000, now(), now()) on conflict do nothing",
            "select duly.submit('nothing', tenant => 'stranger', allow_unknown_handler => true)",
        )


class StuckListener(_Stranger):
    """A listener stays idle in a transaction, so that the notification queue fills up and every NOTIFY fails."""

    kind = "stuck-listener"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5, 5.0)

    async def inject(self, world: World, random: Random) -> None:
        try:
            listener = await self._theirs.enter_async_context(world.database.primary.session("duly"))
            await listener.execute("listen duly_stranger")
            await listener.execute("begin")
            await listener.execute("select 1")
            async with world.database.primary.session("duly") as filler:
                for _ in range(400):
                    await filler.execute("select pg_notify('duly_stranger', repeat('x', 7000) || $1)", str(_))
                self.details["usage"] = await filler.fetchval("select pg_notification_queue_usage()")
        except asyncpg.ProgramLimitExceededError:
            self.details["usage"] = 1.0
        except AWAY as error:
            raise NotNow(f"PostgreSQL is away: {error}") from error


class CancelledStatements(_Stranger):
    """An administrator cancels Duly's statements again and again, at any point."""

    kind = "cancelled-statements"
    weight = 3.0

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.5, 6.0)

    async def inject(self, world: World, random: Random) -> None:
        self.details["cancelled"] = 0
        cancelling = asyncio.create_task(self._cancel(world))

        async def end() -> None:
            cancelling.cancel()
            await asyncio.gather(cancelling, return_exceptions=True)

        self._theirs.push_async_callback(end)

    async def _cancel(self, world: World) -> None:
        while True:
            with contextlib.suppress(*AWAY, TimeoutError):
                async with world.database.primary.session() as connection:
                    while True:
                        self.details["cancelled"] += await connection.fetchval(
                            "select count(*) from (select pg_cancel_backend(pid) from pg_stat_activity "
                            "where usename = 'duly' and state = 'active' and random() < 0.5) cancelled"
                        )
                        await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)


class RevokedGrant(_Stranger):
    """A right of Duly's role is taken away and given back."""

    kind = "revoked-grant"

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 0.3, 4.0)

    async def inject(self, world: World, random: Random) -> None:
        right = random.choice(("insert", "select", "update", "delete"))
        table = random.choice(HOT)
        self.details |= {"right": right, "table": table}
        try:
            async with world.database.primary.session("duly") as connection:
                await connection.execute(f"revoke {right} on duly.{table} from duly")
        except AWAY as error:
            raise NotNow(f"PostgreSQL is away: {error}") from error

    async def heal(self, world: World) -> None:
        # Repeated until it succeeds, because the primary may be away: the right must not stay revoked.
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(*AWAY):
                    async with world.database.primary.session("duly") as connection:
                        await connection.execute("grant all on all tables in schema duly to duly")
                        return
                await asyncio.sleep(0.2)


class _FurtherWorker(_Stranger):
    """A `duly worker` beside the nodes. In the end it is stopped properly or killed, depending on the seed."""

    weight = 2.0
    app: str | None = None
    options: tuple[str, ...] = ()

    @classmethod
    def targets(cls, sort: Sort) -> tuple[str, ...]:
        return ("workers",)

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 2.0, 10.0)

    async def inject(self, world: World, random: Random) -> None:
        await self._start(world)

    async def _start(self, world: World) -> int:
        """Returns its pid."""
        log = Path(world.folder / f"{self.kind}.log").open("ab")  # noqa: ASYNC230, SIM115 closed with the fault
        self._theirs.callback(log.close)
        arguments = ["worker", *world.worker_arguments, *self.options]
        if self.app is not None:
            arguments[arguments.index("--app") + 1] = self.app
        process = world.spawn(arguments, log)
        self.details["pid"] = process.pid

        async def end() -> None:
            process.send_signal(signal.SIGTERM if self.seed % 2 else signal.SIGKILL)
            try:
                await asyncio.to_thread(process.wait, PATIENCE)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.to_thread(process.wait)

        self._theirs.push_async_callback(end)
        return process.pid


class OtherApp(_FurtherWorker):
    """A worker of another application serves the same queues and has none of the tasks."""

    kind = "other-app"
    app = _EMPTY_APP


class WornWorkers(_FurtherWorker):
    """Worker processes under a supervisor, which replaces them after a few runs; and some of them are killed.

    The processes must end with their supervisor, also when that is killed.
    """

    kind = "worn-workers"
    weight = 4.0
    options = ("--processes", "2", "--max-runs", "5")
    _PAUSE_SECONDS = (0.5, 3.0)

    @classmethod
    def duration(cls, random: Random, sort: Sort, target: str) -> float:
        return spread(random, 4.0, 15.0)  # the first processes take two seconds to start

    async def inject(self, world: World, random: Random) -> None:
        self._seen: set[int] = set()
        # What is pushed first is called last: after the supervisor's end.
        self._theirs.push_async_callback(self._all_gone)
        supervisor = await self._start(world)
        self.details["killed"] = 0
        killing = asyncio.create_task(self._kill(supervisor, random))

        async def end() -> None:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            self._seen |= set(await asyncio.to_thread(children_of, supervisor))
            self.details["processes"] = len(self._seen)

        self._theirs.push_async_callback(end)

    async def _kill(self, supervisor: int, random: Random) -> None:
        while True:
            await asyncio.sleep(random.uniform(*self._PAUSE_SECONDS))
            workers = await asyncio.to_thread(children_of, supervisor)
            self._seen |= set(workers)
            if workers and random.random() < 0.5:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random.choice(workers), signal.SIGKILL)
                    self.details["killed"] += 1

    async def _all_gone(self) -> None:
        await until(lambda: asyncio.to_thread(self._none_lives), PATIENCE)

    def _none_lives(self) -> bool:
        return not any(is_alive(pid) for pid in self._seen)


FAMILY: tuple[type[Fault], ...] = (
    TableLock, CreateIndex, Report, Dump, OpenSubmit, StuckListener, CancelledStatements, RevokedGrant, OtherApp,
    WornWorkers,
)  # fmt: skip
