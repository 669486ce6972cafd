"""Numbered SQL migrations, applied in order under a lock.

Every migration runs in one transaction together with the row that says it ran. The lock is a transaction-level advisory
lock, so it also holds behind a transaction-mode pooler and goes away with a process that dies.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources

import asyncpg

from duly.errors import StoreMismatch
from duly.store.pool import Pool, translated_errors

# Any number, as long as it is always the same one: "duly" in ASCII.
_LOCK = 0x64756C79
DEFAULT_SHARDS = 64
MINIMUM_SERVER = 140000


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
    """What this Duly brings, in order."""
    found = [
        Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8"))
        for entry in resources.files("duly.store").joinpath("migrations").iterdir()
        if (match := re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name))
    ]
    return sorted(found, key=lambda migration: migration.version)


async def applied_migrations(pool: Pool) -> list[Applied]:
    there = await pool.query("select to_regclass('duly.migrations') is not null as there")
    if not there[0]["there"]:
        return []
    rows = await pool.query("select version, name, applied_at from duly.migrations order by version")
    return [Applied(row["version"], row["name"], row["applied_at"]) for row in rows]


async def pending_migrations(pool: Pool) -> list[Migration]:
    """What `migrate` would apply."""
    done = {applied.version for applied in await applied_migrations(pool)}
    return [migration for migration in known_migrations() if migration.version not in done]


async def migrate(pool: Pool, *, shards: int = DEFAULT_SHARDS) -> list[Migration]:
    """Bring the store up to this Duly. Safe to call from many processes at once; only one does the work."""
    await _check_server(pool)
    with translated_errors(pool.url):
        async with pool.transaction() as transaction:
            connection = transaction.connection
            await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute("create schema if not exists duly")
            await connection.execute(
                "create table if not exists duly.migrations (version integer primary key, name text not null, "
                "checksum text not null, applied_at timestamptz not null default clock_timestamp())"
            )
            rows = await connection.fetch("select version from duly.migrations")
            done = {row["version"] for row in rows}
            _refuse_newer(done)
            applied = []
            for migration in known_migrations():
                if migration.version in done:
                    continue
                await connection.execute(migration.sql)
                await connection.execute(
                    "insert into duly.migrations (version, name, checksum) values ($1, $2, $3)",
                    migration.version,
                    migration.name,
                    migration.checksum,
                )
                applied.append(migration)
            if not await connection.fetchval("select exists (select from duly.store)"):
                await connection.execute("insert into duly.store (shard_count) values ($1)", shards)
                await connection.execute(
                    "insert into duly.shards (shard) select generate_series(0, $1::int - 1)", shards
                )
            await connection.execute(
                "select duly.ensure_partitions((duly.now() at time zone 'UTC')::date - 1, "
                "(duly.now() at time zone 'UTC')::date + 7)"
            )
    return applied


async def check_version(pool: Pool) -> None:
    """A node that finds a newer or older store says so and does not touch it."""
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
    """Like `check_version`, where only the newest migration of the store is known."""
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
        rows = await pool.query("select current_setting('server_version_num')::int as number, version() as text")
    except asyncpg.PostgresError as error:
        raise StoreMismatch(f"this server does not answer like PostgreSQL: {error}") from error
    if rows[0]["number"] < MINIMUM_SERVER:
        raise StoreMismatch(f"Duly needs PostgreSQL 14 or newer; this is {rows[0]['text'].split(' on ')[0]}")
