"""Objects that others create in a shared schema do not replace PostgreSQL's own functions, operators and types.

Of all functions or operators that fit a call, PostgreSQL takes the one that fits the types exactly, whichever schema of
the search_path it is in. So a role that may only create objects in `public` could put an operator for a smallint and an
integer there, and `flags & 8` would run its code with Duly's rights.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from conftest import Server
from duly import Duly
from duly.config import Settings
from duly.errors import Conflict, LimitReached
from duly.operations import StoreOperations
from duly.store import pool as pools
from duly.store.migrate import migrate
from duly.store.pool import Pool
from duly.store.statements import statement
from duly.store.steps import this_release
from harness.living import live

STATEMENTS = sorted(f"{file.parent.name}/{file.stem}" for file in Path(pools.__file__).parent.glob("sql/*/*.sql"))
# The statements that run over a caller's connection, whose search_path may be anything.
OVER_ANOTHERS = (
    "audit/copied", "cluster/known_handlers", "jobs/announce", "jobs/clock", "jobs/find_duplicates",
    "jobs/submit", "stores/transaction_facts", "tenants/count_new", "tenants/free_slots", "tenants/take",
)  # fmt: skip
OWN = {"search_path": "pg_catalog"}
TRAPS = Path(__file__).with_name("traps.sql")


def called_functions() -> list[str]:
    """The names of all functions that a statement or the schema calls."""
    texts = [statement(name, audited=True) for name in STATEMENTS]
    texts += [step.sql for step in this_release().steps] + [this_release().routines.sql]
    return sorted({name for text in texts for name in re.findall(r"([a-z_]\w*)\(", text)})


async def set_traps(server: Server) -> None:
    admin = await asyncpg.connect(server.url)
    await admin.execute("drop database if exists template_traps with (force)")
    await admin.execute("create database template_traps template template_duly")
    await admin.close()
    connection = await asyncpg.connect(server.database_url("template_traps"), server_settings=OWN)
    await connection.execute("select set_config('traps.names', $1, false)", " ".join(called_functions()))
    await connection.execute(TRAPS.read_text())
    for kind, least in (("operator", 5000), ("proc", 700)):
        counted = (
            f"select count(*) from pg_{kind} where {'opr' if kind == 'operator' else 'pro'}namespace = $1::regnamespace"
        )
        assert await connection.fetchval(counted, "public") > least
    await connection.close()


@pytest.fixture(scope="module")
def traps(server: Server) -> None:
    asyncio.run(set_traps(server))


@pytest.fixture
async def trapped_url(server: Server, traps: None) -> AsyncIterator[str]:
    """A store with traps around it. At the end, none of them may have been called."""
    name = f"traps_{uuid4().hex}"
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"create database {name} template template_traps")
    yield (url := server.database_url(name))
    connection = await asyncpg.connect(url, server_settings=OWN)
    called = await connection.fetchval("select is_called from public.trapped")
    await connection.close()
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()
    assert not called


async def bound_to(connection: asyncpg.Connection[asyncpg.Record], sql: str, types: str, path: str) -> list[str]:
    """The objects of `public` that a statement would use with this search_path, as PostgreSQL records them."""
    text = re.sub(r"--[^\n]*", "", sql).strip()
    block = connection.transaction()
    await block.start()
    try:
        await connection.execute(f"set local search_path = {path}")
        try:
            await connection.execute(f"create procedure duly.probe({types}) language sql begin atomic {text}; end")
        except asyncpg.PostgresError as error:
            # A trap was chosen, and does not work in this place.
            return [str(error)]
        await connection.execute("set local search_path = pg_catalog")
        rows = await connection.fetch(
            "select pg_describe_object(refclassid, refobjid, 0) as what from pg_depend "
            "where classid = 'pg_proc'::regclass and objid = 'duly.probe'::regproc"
        )
        return sorted(row["what"] for row in rows if "public" in row["what"])
    finally:
        await block.rollback()


async def test_every_statement_uses_postgresqls_own_whatever_is_in_public(trapped_url: str) -> None:
    connection = await asyncpg.connect(trapped_url, statement_cache_size=0, server_settings=OWN)
    found: dict[str, list[str]] = {}
    texts = {(name, statement(name, audited=audited)) for name in STATEMENTS for audited in (False, True)}
    for name, text in sorted(texts):
        asked = (await connection.prepare(text)).get_parameters()
        types = ", ".join(f"{one.schema}.{one.name}" for one in asked)
        # Behind a pooler the path is the role's, usually the default; a caller's path may put anything first.
        paths = ["public"] + (["public, pg_catalog"] if name in OVER_ANOTHERS else [])
        for path in paths:
            if used := await bound_to(connection, text, types, path):
                found[f"{name} ({path})"] = used
    await connection.close()
    assert not found


async def test_what_is_asked_over_a_callers_connection_is_named_above(pool: Pool, settings: Settings) -> None:
    """The list `OVER_ANOTHERS` must not fall behind the code."""
    from duly.store import foreign

    asked: set[str] = set()
    fetch = foreign.Joined.fetch

    async def noted(self: Any, name: str, *args: Any) -> list[Any]:
        asked.add(name)
        return await fetch(self, name, *args)

    store_operations = await StoreOperations.open(pool, settings)
    app = Duly(settings=settings)
    connection = await asyncpg.connect(pool.url)
    foreign.Joined.fetch = noted  # type: ignore[method-assign]
    try:
        await submit_over(app, store_operations, connection)
    finally:
        foreign.Joined.fetch = fetch  # type: ignore[method-assign]
        await connection.close()
        await app.close()
    assert asked == set(OVER_ANOTHERS)


async def submit_over(
    app: Duly, store_operations: StoreOperations, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """Submits over a connection in every way: one job, many jobs, again under the same key, within a limit."""
    for most in (None, 700):
        await store_operations.tenants.set("default", max_jobs=most)
        async with connection.transaction():
            await app.submit("x", connection=connection)
            await app.submit("x", schedule="every 1m", connection=connection)
            await app.submit_many([{"handler": "x"}] * 150, connection=connection)
            await app.submit_many([{"handler": "x", "schedule": "every 1m"}] * 150, connection=connection)
            for _ in range(2):
                await app.submit("x", dedupe_key="k", connection=connection)
            with pytest.raises(Conflict):
                await app.submit("y", dedupe_key="k", connection=connection)
    with pytest.raises(LimitReached):
        await app.submit_many([{"handler": "x"}] * 150, connection=connection)


async def test_a_jobs_life_with_traps_on_connections_of_our_own(trapped_url: str, settings: Settings) -> None:
    pool = await Pool.connect(trapped_url, size=8)
    try:
        await live(pool, settings.model_copy(update={"database_url": trapped_url}))
    finally:
        await pool.close()


async def test_a_jobs_life_with_traps_behind_a_pooler(trapped_url: str, settings: Settings) -> None:
    """The search_path is the one that the manual gives to the role: the driver's own queries for types need it. Duly's
    statements do not need it, see above."""
    admin = await asyncpg.connect(trapped_url, server_settings=OWN)
    name = await admin.fetchval("select current_database()")
    await admin.execute(f"alter database {name} set search_path = pg_catalog, pg_temp")
    await admin.close()
    pool = await Pool.connect(trapped_url, size=8, pgbouncer=True)
    try:
        await live(pool, settings.model_copy(update={"pgbouncer": True, "direct_url": trapped_url}))
    finally:
        await pool.close()


async def test_submitting_over_a_callers_connection_and_by_sql_whatever_its_path(
    trapped_url: str, settings: Settings
) -> None:
    pool = await Pool.connect(trapped_url)
    store_operations = await StoreOperations.open(pool, settings)
    app = Duly(settings=settings)
    connection = await asyncpg.connect(trapped_url, server_settings={"search_path": "public, pg_catalog"})
    try:
        await submit_over(app, store_operations, connection)
        for arguments in (
            "'x'", "'x', run_at => '2035-01-01 00:00:00+00'", "'x', schedule => 'every 1h', dedupe_key => 's'",
            "'x', schedule => 'every 1h', dedupe_key => 's'", "'{\"type\": \"http\", \"url\": \"https://example.org/\"}'",
            "'x', policy => '{\"timeout_seconds\": 1.5}', labels => '{\"a\": \"b\"}', timezone => 'Asia/Tokyo'",
        ):  # fmt: skip
            await connection.execute(f"select duly.submit({arguments})")
    finally:
        await connection.close()
        await app.close()
        await pool.close()


async def test_a_store_is_made_with_traps_around_it(trapped_url: str) -> None:
    admin = await asyncpg.connect(trapped_url, server_settings=OWN)
    await admin.execute("drop schema duly cascade")
    for path in ("public", "public, pg_catalog"):
        await admin.execute(f"alter role current_user in database {trapped_url.rpartition('/')[2].partition('?')[0]} "
                            f"set search_path = {path}")  # fmt: skip
        pool = await Pool.connect(trapped_url, pgbouncer=True)
        await migrate(pool)
        await pool.close()
        uses = await admin.fetch(
            "select pg_describe_object(d.classid, d.objid, 0) as who from pg_depend d "
            "join pg_operator o on d.refclassid = 'pg_operator'::regclass and o.oid = d.refobjid "
            "where o.oprnamespace = 'public'::regnamespace and d.classid <> 'pg_operator'::regclass"
        )
        assert uses == []
        await admin.execute("drop schema duly cascade")
    await admin.close()
