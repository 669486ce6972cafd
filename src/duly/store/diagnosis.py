"""What `duly doctor` asks the server about itself. Every question is bounded: none reads a large table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import uuid4

import asyncpg

from duly.store.pool import Pool, Querier, connection_options, translated_errors
from duly.store.statements import statement

# The tables that fires, claims, completions and beats write; further the two days of history that they write now.
_HOT = ("jobs", "runs", "claims", "nodes", "shards", "dead_letters", "ledger", "handlers", "catch_ups")
_BY_DAY = ("history", "attempts")
# The names of Duly's sessions (`connection_options`); the first one's listen.
_NAMES = ("duly", "duly handler")
# Rows of the default partition that are looked at.
_MAX_STRAYS = 1_000
# Timeout of opening a connection for a look.
_CONNECT_SECONDS = 1.0
# Rounds in which two clients ask which session serves them.
_ROUNDS = 3

Pooling = Literal["direct", "session", "transaction"]


@dataclass(frozen=True, slots=True)
class Server:
    """`connections_allowed`: without those reserved for administrators. `sees_all`: also what other users do."""

    version: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    freeze_max_age: int
    xid_age: int
    multixact_age: int
    connections_allowed: int
    connections: int
    own_connections: int
    sees_all: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """One that keeps PostgreSQL from cleaning up: since `seconds`, where known, and for so many `transactions`."""

    kind: Literal["session", "standby", "prepared", "slot"]
    what: str
    handle: str
    seconds: float | None
    transactions: int | None
    in_use: bool

    @property
    def ending(self) -> str | None:
        """The command that ends it; None: it has to end elsewhere."""
        if self.kind == "session":
            return f"select pg_terminate_backend({self.handle})"
        name = "'" + self.handle.replace("'", "''") + "'"
        if self.kind == "prepared":
            return f"rollback prepared {name}"
        return None if self.in_use else f"select pg_drop_replication_slot({name})"


@dataclass(frozen=True, slots=True)
class Table:
    """`needed`: bytes that the live rows need; None: not known. `dead_allowed`: more of them call autovacuum."""

    name: str
    bytes: int
    needed: float | None
    live: int
    dead: int
    autovacuum: bool
    dead_allowed: float
    vacuumed_seconds_ago: float | None


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    bytes: int
    needed: float


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of notifications. `listening`: None if this user may not see it."""

    usage: float
    listening: int | None
    oldest: str | None
    oldest_pid: int | None


async def server(store: Querier) -> Server:
    row = await store.row("diagnosis/server", _NAMES)
    assert row is not None
    return Server(**row)


async def holders(store: Querier, *, most: int = 50) -> list[Holder]:
    return [Holder(**row) for row in await store.fetch("diagnosis/holders", most)]


async def tables(pool: Pool) -> list[Table]:
    return [Table(**row) for row in await pool.fetch("diagnosis/tables", pool.schema, _hot(pool.clock.now()))]


async def indexes(pool: Pool) -> list[Index]:
    return [Index(**row) for row in await pool.fetch("diagnosis/indexes", pool.schema, _hot(pool.clock.now()))]


async def strays(store: Querier) -> int:
    """Rows of today and later in the default partition of the history, among those that ended last."""
    row = await store.row("diagnosis/strays", _MAX_STRAYS)
    assert row is not None
    return int(row["strays"])


async def queue(store: Querier) -> Queue:
    row = await store.row("diagnosis/queue", _NAMES[0])
    assert row is not None
    return Queue(**row)


async def announcement_seconds(pool: Pool, url: str, *, patience: float) -> float | None:
    """How long an announcement of this pool takes to a listener at `url`; None if it does not arrive."""
    channel, arrived = f"duly_doctor_{uuid4().hex}", asyncio.Event()
    with translated_errors(url):
        listener = await _connected(url)
        try:
            await listener.add_listener(channel, lambda *_: arrived.set())
            sent = time.monotonic()
            await pool.row("diagnosis/announce", channel)
            try:
                async with asyncio.timeout(patience):
                    await arrived.wait()
            except TimeoutError:
                return None
            return time.monotonic() - sent
        finally:
            listener.terminate()


async def pooling(url: str) -> Pooling:
    """What is between this process and the server: nothing, or a pooler and its mode.

    A pooler tells its clients a session of its own making. In transaction mode one client is served by several
    sessions, or two clients by the same one, although both are there.
    """
    with translated_errors(url):
        one = await _connected(url)
        try:
            told = one.get_server_pid()
            if await _session(one) == told:
                return "direct"
            other = await _connected(url)
            try:
                of_one = {await _session(one)}
                of_other: Collection[int] = set()
                for _ in range(_ROUNDS):
                    of_other = {*of_other, await _session(other)}
                    of_one.add(await _session(one))
            except TimeoutError:
                return "session"  # a pool of one connection, which the first client keeps
            finally:
                other.terminate()
            return "transaction" if len(of_one) > 1 or len(of_other) > 1 or of_one & set(of_other) else "session"
        finally:
            one.terminate()


async def _connected(url: str) -> asyncpg.Connection[asyncpg.Record]:
    # Without settings of its own: a pooler refuses them.
    return await asyncpg.connect(
        url, timeout=_CONNECT_SECONDS, command_timeout=_CONNECT_SECONDS, **connection_options(url, pgbouncer=True)
    )


async def _session(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    return int(await connection.fetchval(statement("diagnosis/session")))


def _hot(now: datetime) -> list[str]:
    days = [f"{table}_{now - timedelta(days=back):%Y%m%d}" for table in _BY_DAY for back in (0, 1)]
    return [*_HOT, *(f"{table}_default" for table in _BY_DAY), *days]
