"""Migrations: under a lock, once each, and never against a store of another version."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from conftest import Server
from duly.errors import ConfigError, StoreMismatch, StoreUnavailable, StoreUnusable
from duly.schema_name import DEFAULT_SCHEMA
from duly.store import catalogue, stores
from duly.store import migrate as migrations
from duly.store.migrate import check_version, migrate, plan
from duly.store.pool import Pool
from duly.store.steps import Release, Step, this_release
from duly.store.translation import lock_key
from harness.store import count, new_job, put
from harness.waiting import eventually


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
    each = sorted(one.label for done in applied for one in done)
    assert each == [step.label for step in this_release().steps]
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
    assert len(await plan(pool)) == len(this_release().steps)
    with pytest.raises(StoreMismatch, match="duly migrate"):
        await check_version(pool)
    with pytest.raises(ConfigError, match="duly migrate"):
        await stores.counts(pool)
    await pool.close()


def test_the_schema_defines_each_object_once_and_in_its_final_form() -> None:
    """A reader finds each object in one place. Later migrations may change it; the schema itself never does."""
    schema = "\n".join([this_release().steps[0].sql, *this_release().routines.texts])
    schema = schema.replace("create or replace function", "create function")
    made = re.findall(
        r"^create (?:unlogged |unique )?(?:table|view|index|function) (?:duly\.)?(\w+)", schema, re.MULTILINE
    )
    assert len(made) > 70
    assert [name for name, times in Counter(made).items() if times > 1] == []
    assert re.findall(r"^(?:drop|create or replace|do \$).*", schema, re.MULTILINE) == []
    changed = {line.split()[2] for line in re.findall(r"^alter table.*", schema, re.MULTILINE)}
    assert changed == {"duly.claims"}, "only `set storage` has no place in a `create table`"


def test_migrations_are_numbered_in_order_from_the_baseline_on() -> None:
    known = this_release().steps
    numbers = [step.number for step in known]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1
    assert known[0].name == "baseline"


async def test_partitions_are_there_for_the_coming_week_and_are_made_again_by_nobody(pool: Pool) -> None:
    from duly.store import maintenance

    assert (await maintenance.ensure_partitions(pool)).made == 0
    assert (await maintenance.ensure_partitions(pool, days_ahead=9)).made == 4
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


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "PAUSE_SECONDS", 0.3)


def one_more(sql: str) -> Release:
    """This Duly, with one more step: 9000_more."""
    return replace(this_release(), steps=(*this_release().steps, Step(9000, "more", sql)))


@asynccontextmanager
async def holding(url: str, *statements: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """The open transaction of another session, in which these statements were executed."""
    connection = await asyncpg.connect(url, server_settings={"application_name": "monthly report"})
    try:
        async with connection.transaction():
            for sql in statements:
                await connection.execute(sql)
            yield connection
    finally:
        await connection.close()


async def standing_in_line(pool: Pool) -> int:
    rows = await pool.query(
        "select count(*) as count from pg_locks where not granted and relation = 'duly.jobs'::regclass"
    )
    return int(rows[0]["count"])


class TestALock:
    async def test_a_store_that_is_up_to_date_is_only_looked_at(self, pool: Pool) -> None:
        async with (
            asyncio.timeout(10),
            holding(
                pool.url,
                f"select pg_advisory_xact_lock({lock_key(DEFAULT_SCHEMA)})",
                "lock table duly.migrations, duly.jobs, duly.history, duly.shards in share row exclusive mode",
            ),
        ):
            assert await migrate(pool) == []

    @pytest.mark.usefixtures("short_pauses")
    async def test_a_migration_waits_for_its_lock_without_making_others_wait(self, pool: Pool) -> None:
        more = one_more("alter table duly.jobs add column note text")
        told: list[str] = []
        longest = 0.0
        async with holding(pool.url, "select from duly.jobs"):
            migrating = asyncio.create_task(migrate(pool, tell=told.append, release=more))
            while len(told) < 2:
                began = time.monotonic()
                await pool.query("select count(*) from duly.jobs")
                longest = max(longest, time.monotonic() - began)
                assert not migrating.done()
        assert longest < 2.5
        assert "monthly report" in told[0]
        assert "jobs" in told[0]
        assert [one.label for one in await migrating] == ["9000_more"]

    async def test_one_that_gives_up_leaves_nothing_standing_in_line(
        self, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        more = one_more("alter table duly.jobs add column note text")
        monkeypatch.setattr(migrations, "PATIENCE_SECONDS", 0.0)
        async with holding(pool.url, "select from duly.jobs"):
            with pytest.raises(StoreUnavailable, match=r"monthly report.*duly migrate"):
                await migrate(pool, release=more)
            assert await standing_in_line(pool) == 0
        assert [one.what for one in await plan(pool, release=more)] == [more.steps[-1]]

    async def test_one_that_is_interrupted_leaves_nothing_standing_in_line(
        self, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(migrations, "LOCK_WAIT", "60s")
        more = one_more("alter table duly.jobs add column note text")
        async with holding(pool.url, "select from duly.jobs"):
            migrating = asyncio.create_task(migrate(pool, release=more))

            async def waits() -> bool:
                return await standing_in_line(pool) == 1

            await eventually(waits)
            migrating.cancel()
            await asyncio.wait([migrating])
            assert migrating.cancelled()
            assert await standing_in_line(pool) == 0

    async def test_a_migration_may_take_longer_than_any_other_statement(self, database_url: str) -> None:
        more = one_more("select pg_sleep(1.5)")
        pool = await Pool.connect(database_url, command_timeout=1)
        assert [one.label for one in await migrate(pool, release=more)] == ["9000_more"]
        await pool.close()

    async def test_partitions_that_cannot_be_made_now_do_not_matter(self, pool: Pool) -> None:
        await pool.query("update duly.clock set frozen_at = now() + interval '20 days'")
        async with asyncio.timeout(10), holding(pool.url, "select count(*) from duly.history"):
            assert await migrate(pool) == []
        assert await migrate(pool) == []
        rows = await pool.query("select to_regclass('duly.history_' || to_char(duly.now(), 'YYYYMMDD')) as day")
        assert rows[0]["day"] is not None


GUIDE = Path(__file__).parents[2] / "docs/upgrading.md"


class TestRights:
    """A role that may create nothing in the database but in the schema that somebody made for it."""

    @pytest.fixture
    async def role_url(self, server: Server, empty_url: str) -> AsyncIterator[str]:
        connection = await asyncpg.connect(empty_url)
        await connection.execute(
            "drop role if exists migrations_role; create role migrations_role login nosuperuser nocreatedb; "
            "revoke all on database test_empty from public; grant connect on database test_empty to migrations_role"
        )
        yield re.sub(r"://[^/@]*@", "://migrations_role@", empty_url)
        await connection.execute("drop owned by migrations_role; drop role migrations_role")
        await connection.close()

    async def test_without_a_schema_it_is_told_what_to_do(self, role_url: str) -> None:
        pool = await Pool.connect(role_url)
        for create_schema in (True, False):
            with pytest.raises(StoreUnusable, match="owner run: create schema duly authorization migrations_role"):
                await migrate(pool, create_schema=create_schema)
        await pool.close()

    @pytest.mark.parametrize(
        "given",
        [
            "create schema duly authorization duly_owner",
            "create schema duly; grant usage, create on schema duly to duly_owner with grant option",
        ],
    )
    async def test_in_a_schema_that_was_made_for_it(self, role_url: str, empty_url: str, given: str) -> None:
        assert given.split("; ")[-1] in GUIDE.read_text()
        connection = await asyncpg.connect(empty_url)
        await connection.execute(given.replace("duly_owner", "migrations_role"))
        pool = await Pool.connect(role_url)
        assert [one.label for one in await migrate(pool)] == [step.label for step in this_release().steps]
        await check_version(pool)
        assert await catalogue.drift(pool) == []
        more = one_more("alter table duly.jobs add column note text")
        assert [one.label for one in await migrate(pool, release=more)] == ["9000_more"]
        await put(pool, new_job(pool))
        rows = await pool.query("select pg_catalog.has_database_privilege(current_database(), 'create') as may")
        assert not rows[0]["may"]
        await pool.close()
        await connection.execute("drop schema duly cascade")
        await connection.close()
