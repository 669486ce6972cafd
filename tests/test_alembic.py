"""`duly.alembic`: the migrations in revisions of a user's own, by real Alembic on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import psycopg
import pytest
import sqlalchemy

import duly.alembic
from conftest import Server
from duly.errors import ConfigError, InvalidInput
from duly.store.catalogue import drift
from duly.store.migrate import migrate, plan
from duly.store.pool import Pool
from duly.store.steps import Release, Step, this_release
from harness.old_store import make_first_store

_numbers = itertools.count(1)

ENV = """
import asyncio

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

config = context.config
url = config.attributes["url"]


def run(connection):
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_async():
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


if context.is_offline_mode():
    context.configure(dialect_name="postgresql", transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
elif url.drivername.endswith("asyncpg"):
    asyncio.run(run_async())
else:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            run(connection)
    finally:
        engine.dispose()
"""
REVISION = """
import duly.alembic
from alembic import op

revision, down_revision = {name!r}, {before!r}


def upgrade():
    {upgrade}


def downgrade():
    duly.alembic.downgrade(op)
"""


@dataclass
class Project:
    """A folder with Alembic's files, as a user has them, and a database."""

    folder: Path
    url: str
    driver: str
    revisions: int = 0
    output: io.StringIO = field(default_factory=io.StringIO)

    @property
    def config(self) -> alembic.config.Config:
        config = alembic.config.Config(output_buffer=self.output)
        config.set_main_option("script_location", str(self.folder))
        config.set_main_option("path_separator", "os")
        url = self.url.replace("postgresql://", f"postgresql+{self.driver}://", 1)
        config.attributes["url"] = sqlalchemy.make_url(url)
        return config

    def revise(self, upgrade: str) -> None:
        before = str(self.revisions) if self.revisions else None
        self.revisions += 1
        text = REVISION.format(name=str(self.revisions), before=before, upgrade=upgrade)
        (self.folder / "versions" / f"{self.revisions}.py").write_text(text)

    def upgrade(self, to: str = "head") -> None:
        alembic.command.upgrade(self.config, to)

    def sql(self, to: str = "head") -> str:
        alembic.command.upgrade(self.config, to, sql=True)
        return self.output.getvalue()

    def query(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def pending(self, schema: str = "duly") -> list[str]:
        """What `duly migrate --check` would name."""

        async def look() -> list[str]:
            pool = await Pool.connect(self.url, schema=schema)
            try:
                return [one.what.label for one in await plan(pool)] + [str(one) for one in await drift(pool)]
            finally:
                await pool.close()

        return asyncio.run(look())


@pytest.fixture(params=["psycopg", "psycopg2", "asyncpg"])
def project(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Project]:
    """An empty database, by each driver."""
    name = f"alembic_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        yield made(tmp_path, server.database_url(name), request.param)
        connection.execute(f"drop database {name} with (force)".encode())


def made(folder: Path, url: str, driver: str = "psycopg") -> Project:
    (folder / "versions").mkdir()
    (folder / "env.py").write_text(ENV)
    return Project(folder, url, driver)


@pytest.fixture
def first(server: Server, tmp_path: Path) -> Project:
    """A store as 0.1.0 makes it."""
    return made(tmp_path, asyncio.run(make_first_store(server)))


class TestOnline:
    def test_a_new_store_and_its_next_steps(self, project: Project) -> None:
        project.revise("duly.alembic.upgrade(op, target=2, shards=8)")
        project.revise("op.execute('create table public.theirs ()')")
        project.upgrade()
        assert project.query("select count(*) from duly.shards") == [(8,)]
        assert project.query("select number from duly.steps order by number") == [(1,), (2,)]
        project.revise("duly.alembic.upgrade(op)")
        project.upgrade()
        assert project.pending() == []
        assert project.query("select version_num from alembic_version") == [("3",)]
        assert project.query("select to_regclass('public.theirs') is not null") == [(True,)], "the path stays"

    def test_a_store_of_the_first_version_and_twice(self, first: Project) -> None:
        first.revise("duly.alembic.upgrade(op); duly.alembic.upgrade(op)")
        first.upgrade()
        assert first.pending() == []
        before = first.query("select * from duly.migrations order by version")
        first.revise("duly.alembic.upgrade(op)")
        first.upgrade()
        assert first.query("select * from duly.migrations order by version") == before

    def test_a_store_that_duly_migrate_has_made_and_goes_on_with(self, first: Project) -> None:
        async def further() -> None:
            pool = await Pool.connect(first.url)
            await migrate(pool, target=2)
            await pool.close()

        asyncio.run(further())
        first.revise("duly.alembic.upgrade(op, target=3)")
        first.upgrade()
        assert first.query("select max(number) from duly.steps") == [(3,)]

        async def to_the_end() -> None:
            pool = await Pool.connect(first.url)
            await migrate(pool)
            await pool.close()

        asyncio.run(to_the_end())
        assert first.pending() == []

    def test_the_revision_of_the_guide(self, first: Project) -> None:
        guide = (Path(__file__).parents[1] / "docs/upgrading.md").read_text()
        (text,) = re.findall(r"```python\n(import duly\.alembic.*?)```", guide, re.DOTALL)
        (first.folder / "versions" / "4f1c.py").write_text(text)
        first.upgrade()
        assert first.query("select max(number) from duly.steps") == [(3,)]
        alembic.command.downgrade(first.config, "base")
        first.upgrade()
        assert first.query("select version_num from alembic_version") == [("4f1c",)]

    def test_an_error_in_the_revision_takes_the_steps_back(self, first: Project) -> None:
        first.revise("duly.alembic.upgrade(op); op.execute('select 1 / 0')")
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            first.upgrade()
        assert first.query("select version from duly.migrations") == [(1,)]

    def test_in_a_schema_of_another_name(self, project: Project) -> None:
        project.revise("duly.alembic.upgrade(op, schema='jobs')")
        project.upgrade()
        assert project.pending("jobs") == []
        assert project.query("select to_regnamespace('duly')") == [(None,)]

    def test_going_back_changes_nothing(self, first: Project, caplog: pytest.LogCaptureFixture) -> None:
        first.revise("duly.alembic.upgrade(op)")
        first.upgrade()
        with caplog.at_level("INFO", logger="duly.store"):
            alembic.command.downgrade(first.config, "base")
        assert "the version before works with it" in caplog.text
        assert first.pending() == []
        first.upgrade()
        assert first.pending() == []


class TestOffline:
    def test_a_new_store(self, project: Project) -> None:
        project.revise("duly.alembic.upgrade(op, target=2, shards=8)")
        project.revise("duly.alembic.upgrade(op)")
        text = project.sql()
        assert "CREATE TABLE alembic_version" in text
        project.query(text)
        assert project.pending() == []
        assert project.query("select version_num from alembic_version") == [("2",)]

    def test_a_store_of_the_first_version(self, first: Project) -> None:
        first.revise("duly.alembic.upgrade(op)")
        first.query(first.sql())
        assert first.pending() == []


@dataclass
class More:
    """This Duly with 0100_index, which is built concurrently, and 0101_drop, which is destructive."""

    release: Release

    def __call__(self, op: Any, phase: Any = None) -> None:
        duly.alembic._upgrade(op, self.release, None, phase, schema="duly", shards=8, create_schema=True)


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> More:
    own = this_release()
    index = "-- concurrently\ncreate index concurrently if not exists by_name on duly.jobs (name);\n"
    steps = (Step(100, "index", index), Step(101, "drop", "-- min_version: 0.2.0\ndrop table duly.parked;", "after"))
    more = More(replace(own, steps=(*own.steps, *steps)))
    monkeypatch.setattr(duly.alembic, "more", more, raising=False)
    return more


OLD_NODE = (
    "insert into duly.nodes (node_id, kind, name, version, started_at, lease_until) "
    "values (gen_random_uuid(), 'worker', 'shop', '0.1.0', now(), now() + interval '1 hour')"
)


class TestSteps:
    @pytest.mark.parametrize("offline", [False, True], ids=["online", "offline"])
    def test_an_index_is_built_outside_the_transaction(self, project: Project, more: More, offline: bool) -> None:
        project.revise("duly.alembic.more(op)")
        if offline:
            for one in statements(project.sql()):
                project.query(one)
        else:
            project.upgrade()
        assert project.query("select indisvalid from pg_index where indexrelid = 'duly.by_name'::regclass") == [(True,)]
        assert project.query("select to_regclass('duly.parked')") == [(None,)]
        assert project.query("select version_num from alembic_version") == [("1",)]

    def test_a_destructive_step_waits_for_older_nodes(self, first: Project, more: More) -> None:
        first.revise("duly.alembic.more(op, 'before')")
        first.revise("duly.alembic.more(op, 'after')")
        first.query(OLD_NODE)
        with pytest.raises(sqlalchemy.exc.DBAPIError, match=r"0101_drop waits until .*: worker shop \(0\.1\.0\)"):
            first.upgrade()
        assert first.query("select version_num from alembic_version") == [("1",)]
        assert first.query("select min(version) from duly.migrations") == [(-100,)]
        first.query("update duly.nodes set stopped_at = now()")
        first.upgrade()
        assert first.query("select min(version) from duly.migrations") == [(-101,)]
        first.query("update duly.nodes set stopped_at = null")
        first.revise("duly.alembic.more(op)")
        first.upgrade()


def statements(text: str) -> list[str]:
    """The statements of a script: those of an index may not share a message with others."""
    from store.test_script import of

    return of(text)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ("target=7777", InvalidInput, "there is no step 7777; the newest"),
        ("phase='during'", ConfigError, "phase: must be 'before' or 'after'"),
        ("schema='public'", ConfigError, "schema: public belongs to others"),
    ],
)
def test_what_does_not_exist_is_refused(first: Project, arguments: str, error: type[Exception], why: str) -> None:
    first.revise(f"duly.alembic.upgrade(op, {arguments})")
    with pytest.raises(error, match=why):
        first.upgrade()


def test_another_database_is_refused(first: Project) -> None:
    first.revise("duly.alembic.upgrade(op)")
    config = first.config
    config.attributes["url"] = sqlalchemy.make_url("sqlite://")
    with pytest.raises(ConfigError, match="this one is sqlite"):
        alembic.command.upgrade(config, "head")
