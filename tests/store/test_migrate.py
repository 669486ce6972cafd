"""Migrations: under a lock, once each, and never against a store of another version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from conftest import Server
from duly.errors import ConfigError, StoreMismatch, StoreUnavailable
from duly.store import stores
from duly.store.migrate import check_version, known_migrations, migrate, pending_migrations
from duly.store.pool import Pool
from support import count


@pytest.fixture
async def empty_url(server: Server) -> AsyncIterator[str]:
    connection = await asyncpg.connect(server.url)
    await connection.execute("create database test_empty")
    yield server.database_url("test_empty")
    await connection.execute("drop database test_empty with (force)")
    await connection.close()


async def test_many_processes_at_once_migrate_an_empty_store_once(empty_url: str) -> None:
    pools = [await Pool.connect(empty_url, size=1) for _ in range(6)]
    applied = await asyncio.gather(*(migrate(pool, shards=16) for pool in pools))
    assert sorted(map(len, applied)) == [0, 0, 0, 0, 0, len(known_migrations())]
    assert await count(pools[0], "shards") == 16
    assert (await stores.facts(pools[0])).shard_count == 16
    for pool in pools:
        await check_version(pool)
        await pool.close()


async def test_the_shard_count_is_fixed_when_the_store_is_made(empty_url: str) -> None:
    pool = await Pool.connect(empty_url)
    await migrate(pool, shards=8)
    await migrate(pool, shards=99)
    assert (await stores.facts(pool)).shard_count == 8
    await pool.close()


async def test_an_empty_store_is_refused_with_what_to_do(empty_url: str) -> None:
    pool = await Pool.connect(empty_url)
    assert len(await pending_migrations(pool)) == len(known_migrations())
    with pytest.raises(StoreMismatch, match="duly migrate"):
        await check_version(pool)
    with pytest.raises(ConfigError, match="duly migrate"):
        await stores.counts(pool)
    await pool.close()


async def test_a_newer_store_is_refused_and_not_touched(pool: Pool) -> None:
    await pool.query("insert into duly.migrations (version, name, checksum) values (9999, 'future', '')")
    with pytest.raises(StoreMismatch, match="newer"):
        await check_version(pool)
    with pytest.raises(StoreMismatch, match="newer"):
        await migrate(pool)


async def test_an_older_store_is_refused_with_what_is_missing(pool: Pool) -> None:
    await pool.query("delete from duly.migrations where version = (select max(version) from duly.migrations)")
    with pytest.raises(StoreMismatch, match="older"):
        await check_version(pool)


async def test_partitions_are_there_for_the_coming_week_and_are_made_again_by_nobody(pool: Pool) -> None:
    from duly.store import maintenance

    assert await maintenance.ensure_partitions(pool) == 0
    assert await maintenance.ensure_partitions(pool, days_ahead=9) == 4
    rows = await pool.query(
        "select count(*) as count from pg_inherits "
        "where inhparent in ('duly.history'::regclass, 'duly.attempts'::regclass)"
    )
    assert rows[0]["count"] == 2 * (1 + 9 + 1 + 1)


async def test_a_database_that_cannot_be_reached_is_one_sentence() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await Pool.connect("postgresql://nobody@127.0.0.1:1/nothing")


async def test_a_database_that_does_not_exist_is_named(server: Server) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        await Pool.connect(server.database_url("no_such_database"))


@pytest.mark.parametrize("url", ["mysql://x", "postgresql://[::", "nonsense", "postgresql://h:notaport/x"])
async def test_an_address_that_is_none_is_one_sentence(url: str) -> None:
    with pytest.raises((ConfigError, StoreUnavailable)):
        await Pool.connect(url)


async def test_a_password_is_never_shown() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await Pool.connect("postgresql://someone:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)
