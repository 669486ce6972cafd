"""A store as version 0.1.0 makes it, from the files of its schema in tests/store/first_schema."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from duly.store.steps import FIRST_BASELINE

if TYPE_CHECKING:
    from conftest import Server

_numbers = itertools.count(1)
_SCHEMA = Path(__file__).parents[1] / "store" / "first_schema"


async def make_first_store(server: Server, shards: int = 8) -> str:
    """The URL of a new database with such a store."""
    name = f"test_first_{os.getpid()}_{next(_numbers)}"
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"create database {name}")
    await admin.close()
    connection = await asyncpg.connect(server.database_url(name))
    async with connection.transaction():
        await connection.execute("set local search_path = pg_catalog, pg_temp; create schema duly")
        await connection.execute(
            "create table duly.migrations (version integer primary key, name text not null, "
            "checksum text not null, applied_at timestamptz not null default clock_timestamp())"
        )
        await connection.execute("\n".join(path.read_text() for path in sorted(_SCHEMA.glob("*.sql"))))
        await connection.execute(
            "insert into duly.migrations (version, name, checksum) values (1, 'baseline', $1)", FIRST_BASELINE
        )
        await connection.execute("insert into duly.store (shard_count) values ($1)", shards)
        await connection.execute("insert into duly.shards (shard) select generate_series(0, $1::int - 1)", shards)
    await connection.close()
    return server.database_url(name)
