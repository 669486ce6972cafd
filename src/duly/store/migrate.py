"""The schema and the numbered SQL migrations after it, applied in order under a lock.

Every migration runs in one transaction together with the row that records it. The lock is a transaction-level advisory
lock, so it also holds behind a transaction-mode pooler and ends with a process that dies.

A migration may take as long as it needs, but it must not wait long for a table: a session that waits for an exclusive
lock makes all others wait behind it, for as long as some report takes. So each wait ends after a second, the
transaction is rolled back, and it is retried after a pause for the others. A store that is up to date is only read.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources

import asyncpg

from duly.errors import DulyError, StoreMismatch, StoreUnavailable
from duly.store import maintenance
from duly.store.pool import Pool, connection_options, translated_errors
from duly.store.statements import statement

log = logging.getLogger("duly.store")

# Key of the advisory lock. Any number does, as long as it never changes: "duly" in ASCII.
_LOCK = 0x64756C79
DEFAULT_SHARDS = 64
MINIMUM_SERVER = 140000
# Wait for a lock, during which all other sessions wait too, and the pause for them before the next try.
LOCK_WAIT = "1s"
PAUSE_SECONDS = 2.0
# Seconds without getting the lock after which the migration fails and names the sessions that hold it.
PATIENCE_SECONDS = 600.0
# Time for the server to confirm that it cancelled the statement under way.
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    version: int
    name: str
    applied_at: datetime


def known_migrations() -> list[Migration]:
    """The migrations of this Duly, in order: the schema as one baseline, then `migrations/0002_….sql` and so on."""
    files = _sql_files("schema", r"(\d\d)_(\w+)\.sql")
    baseline = Migration(1, "baseline", "\n".join(text for _, text in files))
    later = [
        Migration(int(match[1]), match[2], text) for match, text in _sql_files("migrations", r"(\d{4})_(\w+)\.sql")
    ]
    return [baseline, *later]


def _sql_files(folder: str, pattern: str) -> list[tuple[re.Match[str], str]]:
    """Names and texts of a folder's files, by number; empty where the folder does not exist."""
    files = resources.files("duly.store").joinpath(folder)
    matches = (
        [match for entry in files.iterdir() if (match := re.fullmatch(pattern, entry.name))] if files.is_dir() else []
    )
    return [
        (match, files.joinpath(match[0]).read_text(encoding="utf-8")) for match in sorted(matches, key=lambda m: m[0])
    ]


async def applied_migrations(pool: Pool) -> list[Applied]:
    there = await pool.query("select pg_catalog.to_regclass('duly.migrations') is not null as there")
    if not there[0]["there"]:
        return []
    rows = await pool.query("select version, name, applied_at from duly.migrations order by version")
    return [Applied(row["version"], row["name"], row["applied_at"]) for row in rows]


async def pending_migrations(pool: Pool) -> list[Migration]:
    """The migrations that `migrate` would apply."""
    done = {applied.version for applied in await applied_migrations(pool)}
    return [migration for migration in known_migrations() if migration.version not in done]


async def migrate(
    pool: Pool, *, shards: int = DEFAULT_SHARDS, tell: Callable[[str], None] = log.info
) -> list[Migration]:
    """Brings the store up to this Duly's version. Safe to call from many processes at once, and while others work.

    `tell` gets messages about slow steps. Partitions that cannot be made now are left to the schedulers.
    """
    await _check_server(pool)
    applied = [] if await _is_up_to_date(pool) else await _bring_up(pool, shards, tell)
    try:
        done = await maintenance.ensure_partitions(pool)
    except (DulyError, asyncpg.PostgresError) as error:
        tell(f"the history's partitions could not be made; a scheduler makes them: {error}")
    else:
        for failure in done.failed:
            tell(f"a partition could not be made, its rows stay in the default one: {failure}")
    return applied


async def _is_up_to_date(pool: Pool) -> bool:
    """Whether there is nothing to do; found out without a lock that could make others wait."""
    done = {applied.version for applied in await applied_migrations(pool)}
    _refuse_newer(done)
    if any(migration.version not in done for migration in known_migrations()):
        return False
    rows = await pool.query("select exists (select from duly.store) as made")
    return bool(rows[0]["made"])


async def _bring_up(pool: Pool, shards: int, tell: Callable[[str], None]) -> list[Migration]:
    with translated_errors(pool.url):
        async with _connection(pool) as connection:
            return [
                migration
                for migration in known_migrations()
                if await _patiently(pool, connection, migration, shards, tell)
            ]


@asynccontextmanager
async def _connection(pool: Pool) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection without a timeout: the pool's give up after a minute."""
    connection = await asyncpg.connect(pool.url, timeout=10, **connection_options(pool.url, pgbouncer=pool.pooled))
    try:
        yield connection
    finally:
        # Waits until the server has cancelled the statement: a client that just goes leaves it waiting for its lock.
        try:
            await connection.close(timeout=_CLOSE_SECONDS)
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


async def _patiently(
    pool: Pool,
    connection: asyncpg.Connection[asyncpg.Record],
    migration: Migration,
    shards: int,
    tell: Callable[[str], None],
) -> bool:
    """Applies one migration, retrying while a lock is in the way. False: it was applied already."""
    began = time.monotonic()
    while True:
        try:
            async with connection.transaction(isolation="read_committed"):
                return await _apply(connection, migration, shards, tell)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            holders = await _holders(pool)
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise StoreUnavailable(
                    f"{migration.version:04d}_{migration.name} could not be applied: {holders}; "
                    "end those sessions or wait for them, then run: duly migrate"
                ) from error
            tell(f"{migration.version:04d}_{migration.name} waits for a lock, and is tried again: {holders}")
        await asyncio.sleep(PAUSE_SECONDS)


async def _apply(
    connection: asyncpg.Connection[asyncpg.Record],
    migration: Migration,
    shards: int,
    tell: Callable[[str], None],
) -> bool:
    # Behind a pooler the role sets the path, and views stay bound to what they referred to when they were created.
    await connection.execute("set local search_path = pg_catalog, pg_temp")
    await connection.execute(f"set local lock_timeout = '{LOCK_WAIT}'")
    await connection.execute("set local statement_timeout = 0")
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
    await connection.execute("create schema if not exists duly")
    await connection.execute(
        "create table if not exists duly.migrations (version integer primary key, name text not null, "
        "checksum text not null, applied_at timestamptz not null default clock_timestamp())"
    )
    rows = await connection.fetch("select version from duly.migrations")
    done = {row["version"] for row in rows}
    _refuse_newer(done)
    new = migration.version not in done
    if new:
        began = time.monotonic()
        await connection.execute(migration.sql)
        await connection.execute(
            "insert into duly.migrations (version, name, checksum) values ($1, $2, $3)",
            migration.version,
            migration.name,
            migration.checksum,
        )
        if (took := time.monotonic() - began) > 1:
            tell(f"{migration.version:04d}_{migration.name} took {took:.0f} s")
    if migration == known_migrations()[-1] and not await connection.fetchval("select exists (select from duly.store)"):
        await connection.execute("insert into duly.store (shard_count) values ($1)", shards)
        await connection.execute("insert into duly.shards (shard) select generate_series(0, $1::int - 1)", shards)
    return new


async def _holders(pool: Pool) -> str:
    """The sessions that have locked Duly's tables, for a message."""
    rows = await pool.query(statement("stores/lock_holders"))
    if not rows:
        return "another session had one of its tables locked"
    return "; ".join(
        f"process {row['pid']} ({row['who']}) has had {row['tables']} locked for {row['seconds']:.0f} s: {row['doing']}"
        for row in rows
    )


async def check_version(pool: Pool) -> None:
    """Raises if the store is of a newer or older version, so that a node does not touch it."""
    await _check_server(pool)
    done = {applied.version for applied in await applied_migrations(pool)}
    if not done:
        raise StoreMismatch("the store is empty; run: duly migrate")
    _refuse_newer(done)
    if missing := [migration for migration in known_migrations() if migration.version not in done]:
        names = ", ".join(f"{migration.version:04d}_{migration.name}" for migration in missing)
        raise StoreMismatch(f"the store is older than this Duly (missing {names}); run: duly migrate")


@cache
def check_newest(version: int) -> None:
    """As `check_version`, given only the newest migration of the store."""
    _refuse_newer({version})
    if version < known_migrations()[-1].version:
        raise StoreMismatch(f"the store is older than this Duly (it has migration {version:04d}); run: duly migrate")


def _refuse_newer(done: set[int]) -> None:
    newest = max((migration.version for migration in known_migrations()), default=0)
    if ahead := sorted(version for version in done if version > newest):
        raise StoreMismatch(
            f"the store is newer than this Duly (it has migration {ahead[-1]:04d}, this version knows {newest:04d}); "
            "upgrade Duly on this machine"
        )


async def _check_server(pool: Pool) -> None:
    try:
        rows = await pool.query(
            "select pg_catalog.current_setting('server_version_num')::int as number, pg_catalog.version() as text"
        )
    except asyncpg.PostgresError as error:
        raise StoreMismatch(f"this server does not answer like PostgreSQL: {error}") from error
    if rows[0]["number"] < MINIMUM_SERVER:
        raise StoreMismatch(f"Duly needs PostgreSQL 14 or newer; this is {rows[0]['text'].split(' on ')[0]}")
