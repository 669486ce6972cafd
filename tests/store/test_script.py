"""Migrations as SQL text: the same store as by `migrate`, and never the wrong one."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import asyncpg
import pytest

from conftest import Server
from duly.store.catalogue import drift, facts_of
from duly.store.migrate import chosen_of, migrate, plan, recorded
from duly.store.pool import Pool
from duly.store.script import script
from duly.store.statements import statement
from duly.store.steps import FENCE, MIN_VERSION, Phase, Recorded, Release, Routines, Step, this_release
from duly.version import VERSION
from harness.old_store import make_first_store
from harness.waiting import eventually

_numbers = itertools.count(1)
SHARDS = 8


@pytest.fixture
async def url(server: Server) -> AsyncIterator[str]:
    """An empty database."""
    name = f"script_{os.getpid()}_{next(_numbers)}"
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"create database {name}")
    yield server.database_url(name)
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()


def sql(
    start: int = 0,
    release: Release | None = None,
    phase: Phase | None = None,
    target: int | None = None,
    *,
    create_schema: bool = True,
    schema: str = "duly",
) -> str:
    release = release or this_release()
    now = Recorded.up_to(start, release)
    chosen = chosen_of(now, release, phase, target)
    return script(chosen, now.steps, release, SHARDS, create_schema=create_schema, schema=schema)


def of(text: str) -> list[str]:
    """The statements of a script, as psql sends them: each ends with a semicolon at the end of a line."""
    statements, quote, begun = [], "", ""
    for line in text.splitlines(keepends=True):
        begun += line
        for tag in re.findall(r"\$\w+\$", line):
            quote = tag if not quote else "" if tag == quote else quote
        if not quote and line.rstrip().endswith(";"):
            statements.append(begun)
            begun = ""
    return statements


async def apply(url: str, text: str) -> None:
    """Runs a script one statement at a time."""
    connection = await asyncpg.connect(url)
    try:
        for one in of(text):
            await connection.execute(one)
    finally:
        await connection.close()


async def contents(url: str) -> tuple[dict[str, str], dict[int, tuple[str, str]], int, int]:
    """What a store consists of, apart from the partitions of a day."""
    connection = await asyncpg.connect(url, server_settings={"search_path": "pg_catalog"})
    facts = facts_of(await connection.fetch(statement("stores/catalogue")))
    rows = await connection.fetch(statement("stores/migrations"))
    shards = await connection.fetchval("select shard_count from duly.store")
    counted = await connection.fetchval("select count(*) from duly.shards")
    await connection.close()
    return (
        {key: about for key, about in facts.items() if not key[-8:].isdigit()},
        {row["version"]: (row["name"], row["checksum"]) for row in rows},
        shards,
        counted,
    )


async def drifted(url: str) -> list[str]:
    pool = await Pool.connect(url)
    try:
        return [str(one) for one in await drift(pool)] + [one.what.label for one in await plan(pool)]
    finally:
        await pool.close()


class TestTheSameStore:
    async def test_a_new_one(self, url: str, server: Server, database_url: str) -> None:
        pool = await Pool.connect(server.database_url("template_duly"))
        await pool.close()
        await apply(url, sql())
        made, by_migrate = await contents(url), await contents(database_url)
        assert made[:2] == by_migrate[:2]
        assert made[2:] == (SHARDS, SHARDS)
        assert await drifted(url) == []

    async def test_one_of_the_first_version(self, server: Server) -> None:
        by_script, by_migrate = await make_first_store(server), await make_first_store(server)
        await apply(by_script, sql(1))
        pool = await Pool.connect(by_migrate)
        await migrate(pool)
        await pool.close()
        assert await contents(by_script) == await contents(by_migrate)
        assert await drifted(by_script) == []

    @pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
    @pytest.mark.parametrize("options", [[], ["-1"]], ids=["statements", "one transaction"])
    async def test_through_psql(self, url: str, server: Server, options: list[str], tmp_path: Path) -> None:
        first = await make_first_store(server)
        for database, text in ((url, sql()), (first, sql(1))):
            file = tmp_path / "script.sql"
            file.write_text(text)
            assert psql(*options, "-f", str(file), database) == (0, "", "")
            assert await drifted(database) == []

    async def test_step_by_step(self, url: str) -> None:
        steps = [step.number for step in this_release().steps]
        for before, number in zip([0, *steps], steps, strict=False):
            await apply(url, sql(before, target=number))
        assert await drifted(url) == []

    async def test_in_a_schema_of_another_name(self, url: str) -> None:
        """One that is also the name of a table, and nothing in the schema duly."""
        await apply(url, sql(schema="jobs"))
        pool = await Pool.connect(url, schema="jobs")
        assert [str(one) for one in await drift(pool)] == []
        assert await plan(pool) == []
        rows = await pool.query("select from pg_namespace where nspname = 'du' || 'ly'")
        assert rows == []
        await pool.close()

    async def test_a_store_that_lacks_nothing(self) -> None:
        assert re.fullmatch(
            r"-- Duly .*: for a store that has the steps 1, .*\. It lacks nothing\.\n",
            sql(this_release().steps[-1].number, phase="after"),
        )


def psql(*arguments: str) -> tuple[int, str, str]:
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


async def refused(url: str, text: str) -> str:
    before = await there(url)
    with pytest.raises(asyncpg.RaiseError) as caught:
        await apply(url, text)
    assert await there(url) == before, "half of it was done"
    return str(caught.value)


async def there(url: str) -> Collection[int]:
    pool = await Pool.connect(url)
    rows = (await recorded(pool)).rows
    await pool.close()
    return set(rows)


class TestRefusals:
    async def test_a_new_store_where_there_is_one(self, database_url: str) -> None:
        assert "this database has a schema duly with a store in it" in await refused(database_url, sql())

    async def test_a_store_where_there_is_none(self, url: str) -> None:
        assert "this database has no store" in await refused(url, sql(1))

    async def test_a_store_that_lacks_a_step(self, server: Server) -> None:
        assert "this store lacks 2" in await refused(await make_first_store(server), sql(2))

    async def test_a_store_that_needs_a_newer_duly(self, server: Server) -> None:
        url = await make_first_store(server)
        for version, fits in (("0.10.0", False), (VERSION, True)):
            connection = await asyncpg.connect(url)
            await connection.execute("delete from duly.migrations where version = 0")
            await connection.execute("insert into duly.migrations values (0, $1, '')", version)
            await connection.close()
            if fits:
                await apply(url, sql(1))
            else:
                assert f"newer than the Duly that made this script, {VERSION}" in await refused(url, sql(1))

    async def test_a_schema_that_is_missing(self, url: str) -> None:
        assert "let the owner of the database run: create schema duly" in await refused(url, sql(create_schema=False))
        connection = await asyncpg.connect(url)
        await connection.execute("create schema duly")
        await connection.close()
        await apply(url, sql(create_schema=False))
        assert await drifted(url) == []


class TestAgain:
    async def test_it_passes_over_what_the_store_has(self, server: Server) -> None:
        url = await make_first_store(server)
        await apply(url, sql(1, target=2))
        await apply(url, sql(1))
        before = await contents(url)
        await apply(url, sql(1))
        assert await contents(url) == before
        assert await drifted(url) == []

    async def test_one_that_ends_at_a_lock_leaves_nothing_half_done(self, server: Server) -> None:
        more = Release(
            VERSION,
            (
                *this_release().steps,
                Step(100, "note", "create table duly.note ();\nalter table duly.jobs add column n int;"),
            ),
            this_release().routines,
            1,
        )
        url = await make_first_store(server)
        reader = await asyncpg.connect(url)
        async with reader.transaction(), asyncio.timeout(30):
            await reader.execute("select from duly.jobs")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await apply(url, sql(1, more))
        await reader.close()
        assert -3 in await there(url)
        assert -100 not in await there(url)
        await apply(url, sql(1, more))
        assert -100 in await there(url)

    async def test_the_sessions_settings_stay(self, server: Server) -> None:
        connection = await asyncpg.connect(await make_first_store(server))
        async with connection.transaction():
            await connection.execute("set local search_path = public; set local lock_timeout = '7s'")
            for one in of(sql(1)):
                if not one.startswith("set "):
                    await connection.execute(one)
            assert await connection.fetchval("show search_path") == "public"
            assert await connection.fetchval("show lock_timeout") == "7s"
        await connection.close()

    async def test_it_waits_for_the_lock_that_a_migration_holds(self, server: Server) -> None:
        url = await make_first_store(server)
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("select pg_advisory_xact_lock(1685417081)")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await apply(url, sql(1))
        await other.close()
        await apply(url, sql(1))


class TestRoutines:
    async def test_those_of_a_newer_version_stay(self, server: Server) -> None:
        url = await make_first_store(server)
        connection = await asyncpg.connect(url)
        await connection.execute("insert into duly.migrations values (-1, '0.10.0', 'newer')")
        await apply(url, sql(1))
        row = await connection.fetchrow("select name, checksum from duly.migrations where version = -1")
        assert row is not None
        assert tuple(row) == ("0.10.0", "newer")
        await connection.execute("update duly.migrations set name = '0.1.9' where version = -1")
        await apply(url, sql(1))
        row = await connection.fetchrow("select name, checksum from duly.migrations where version = -1")
        assert row is not None
        assert tuple(row) == (VERSION, this_release().routines.checksum)
        await connection.close()


class TestPhases:
    STEPS = (
        Step(100, "add", "create table duly.added ()"),
        Step(101, "drop_old", "-- min_version: 0.3.0\ndrop table duly.added", "after"),
    )

    @property
    def release(self) -> Release:
        own = this_release()
        return Release("0.3.0", (*own.steps, *self.STEPS), Routines("0.3.0", own.routines.texts), 1)

    async def test_a_destructive_step_waits_until_no_older_node_lives(self, pool: Pool) -> None:
        newest = this_release().steps[-1].number
        await pool.query(
            "insert into duly.nodes (node_id, kind, name, version, started_at, lease_until) "
            "select gen_random_uuid(), 'worker', 'shop-' || v, v, now(), now() + e::interval from (values "
            "('0.2.9', '1 hour'), ('0.3.0', '1 hour'), ('0.10.0', '1 hour'), ('0.1.0', '-1 second')) as n (v, e)"
        )
        with pytest.raises(asyncpg.RaiseError, match=r"^0101_drop_old waits .*: worker shop-0\.2\.9 \(0\.2\.9\)$"):
            await apply(pool.url, sql(newest, self.release))
        assert {100, 101} & (await recorded(pool)).steps == {100}
        await pool.query("update duly.nodes set stopped_at = now() where version = '0.2.9'")
        await apply(pool.url, sql(newest, self.release))
        rows = (await recorded(pool)).rows
        assert rows[MIN_VERSION].name == "0.3.0"
        assert FENCE in rows
        await pool.query(
            "insert into duly.nodes (node_id, kind, name, version, started_at, lease_until) "
            "values (gen_random_uuid(), 'worker', 'late', '0.2.0', now(), now() + interval '1 hour')"
        )
        await apply(pool.url, sql(newest, self.release))

    async def test_the_oldest_version_that_may_run_only_rises(self, pool: Pool) -> None:
        newest = this_release().steps[-1].number
        await pool.query("insert into duly.migrations (version, name, checksum) values (0, '0.3', '')")
        await apply(pool.url, sql(newest, self.release))
        assert (await recorded(pool)).rows[MIN_VERSION].name == "0.3.0"

    async def test_one_by_one(self, pool: Pool) -> None:
        newest = this_release().steps[-1].number
        await apply(pool.url, sql(newest, self.release, phase="before"))
        assert {100, 101} & (await recorded(pool)).steps == {100}
        await apply(pool.url, sql(100, self.release, phase="after"))
        assert {100, 101} & (await recorded(pool)).steps == {100, 101}


class TestConcurrently:
    STEP = Step(
        100,
        "index",
        "-- concurrently\ncreate index concurrently steps_by_handler on duly.jobs (handler);\n"
        "create index concurrently if not exists steps_by_zone on duly.jobs (timezone);\n",
    )

    @property
    def release(self) -> Release:
        return Release(VERSION, (*this_release().steps, self.STEP), this_release().routines, 1)

    async def valid(self, pool: Pool) -> dict[str, bool]:
        rows = await pool.query(
            "select c.relname, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid "
            "where c.relname like 'steps_by_%'"
        )
        return {row["relname"]: row["indisvalid"] for row in rows}

    async def test_one_that_was_killed_is_taken_up_again(self, pool: Pool) -> None:
        text = sql(this_release().steps[-1].number, self.release)
        writer = await asyncpg.connect(pool.url)
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute("lock table duly.jobs in row exclusive mode")
        applying = asyncio.create_task(apply(pool.url, text))
        building = (
            "select pid from pg_stat_activity where datname = current_database() and query like '%create index conc%' "
            "and wait_event_type = 'Lock' and state = 'active' and pid <> pg_backend_pid()"
        )

        async def builds() -> bool:
            return bool(await pool.query(building))

        await eventually(builds)
        await pool.query(f"select pg_terminate_backend(pid) from ({building}) one")
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await applying
        assert await self.valid(pool) == {"steps_by_handler": False}
        await transaction.rollback()
        await writer.close()
        await apply(pool.url, text)
        assert await self.valid(pool) == {"steps_by_handler": True, "steps_by_zone": True}
        assert 100 in (await recorded(pool)).steps
        before = await contents(pool.url)
        await apply(pool.url, text)
        assert await contents(pool.url) == before
        rows = await pool.query("select from pg_locks where locktype = 'advisory' and granted")
        assert rows == [], "the script keeps the lock"
