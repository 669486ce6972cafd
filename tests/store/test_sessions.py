"""Duly's sessions have the settings it needs, whatever is set for the role, the database or the public schema."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly.config import Settings
from duly.errors import DataRefused, StoreUnavailable, StoreUnusable
from duly.store import pool as pools
from duly.store.notifier import Notifier
from duly.store.pool import Pool, connection_options
from duly.store.session import DirectSession
from duly.store.statements import statement
from harness.living import live

ODD = {
    "search_path": "evil, pg_catalog",
    "lock_timeout": "1ms",
    "statement_timeout": "1ms",
    "idle_session_timeout": "50ms",
    "default_transaction_isolation": "serializable",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_nestloop": "off",
    "standard_conforming_strings": "off",
    "TimeZone": "Asia/Kolkata",
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_min_messages": "debug1",
}
# Each fits the arguments in Duly's statements at least as well as PostgreSQL's own function.
HOSTILE = (
    "cardinality(uuid[]) returns int", "cardinality(int[]) returns int", "power(int, int) returns float8",
    "to_timestamp(numeric) returns timestamptz", "unnest(uuid[]) returns setof uuid",
    "unnest(text[]) returns setof text", "unnest(timestamptz[]) returns setof timestamptz",
    "make_interval(secs float8) returns interval", "date_trunc(text, timestamptz) returns timestamptz",
    "pg_notify(text, text) returns void", "now() returns timestamptz", "generate_series(int, int) returns setof int",
    "jsonb_build_object(text, text) returns jsonb", "substr(text, int) returns text", "random() returns float8",
)  # fmt: skip
STATEMENTS = sorted(f"{file.parent.name}/{file.stem}" for file in Path(pools.__file__).parent.glob("sql/*/*.sql"))


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(url, **options)
    try:
        yield connection
    finally:
        connection.terminate()


async def make_odd(url: str, settings: dict[str, str]) -> None:
    async with connected(url) as connection:
        name = await connection.fetchval("select current_database()")
        for setting, value in settings.items():
            quoted = value if setting == "search_path" else f"'{value}'"
            await connection.execute(f"alter database {name} set {setting} = {quoted}")


async def be_hostile(url: str, schema: str) -> None:
    async with connected(url) as connection:
        await connection.execute(f"create schema if not exists {schema}")
        for signature in HOSTILE:
            await connection.execute(
                f"create function {schema}.{signature} language plpgsql as "
                "$$ begin raise exception 'a stranger''s function was called' using errcode = 'P0001'; end $$"
            )


async def test_every_session_has_dulys_own_settings(database_url: str) -> None:
    await make_odd(database_url, ODD)
    names = list(connection_options(database_url)["server_settings"])
    asked = "select name, current_setting(name) as value from unnest($1::text[]) as n (name)"
    async with connected(database_url, **connection_options(database_url)) as connection:
        wanted = {row["name"]: row["value"] for row in await connection.fetch(asked, names)}
    assert set(ODD) - set(wanted) <= {"bytea_output", "extra_float_digits", "client_min_messages"}
    assert not [name for name, value in ODD.items() if wanted.get(name) == value]
    pool = await Pool.connect(database_url, command_timeout=7)
    try:
        assert {row["name"]: row["value"] for row in await pool.query(asked, names)} == wanted | {
            "statement_timeout": "12s"
        }
    finally:
        await pool.close()
    session = await DirectSession.open(database_url, lost=lambda _: None)
    notifier = Notifier(database_url)
    await notifier.run_once()
    try:
        assert notifier._connection is not None
        for connection in (session._connection, notifier._connection):
            assert {row["name"]: row["value"] for row in await connection.fetch(asked, names)} == wanted
    finally:
        session.end()
        await notifier.stop()


async def test_a_jobs_life_under_odd_settings_and_hostile_functions(database_url: str, settings: Settings) -> None:
    await be_hostile(database_url, "evil")
    await be_hostile(database_url, "public")
    await make_odd(database_url, ODD)
    pool = await Pool.connect(database_url, size=8)
    try:
        await live(pool, settings)
    finally:
        await pool.close()


async def test_a_jobs_life_behind_a_pooler_with_hostile_functions_in_public(
    database_url: str, settings: Settings
) -> None:
    """Duly sets nothing for these sessions: its statements must be safe by themselves."""
    await be_hostile(database_url, "public")
    pool = await Pool.connect(database_url, size=8, pgbouncer=True)
    pooled = settings.model_copy(update={"pgbouncer": True, "direct_url": database_url})
    try:
        await live(pool, pooled)
    finally:
        await pool.close()


async def test_functions_of_the_schema_are_bound_or_have_a_path_of_their_own(pool: Pool) -> None:
    """The path names pg_temp last: without that, the caller's temporary tables and types would come first."""
    rows = await pool.query(
        "select p.oid::regprocedure::text as name from pg_proc p where p.pronamespace = 'duly'::regnamespace "
        "and p.prosqlbody is null "
        "and not exists (select from unnest(p.proconfig) as c (text) where c.text = 'search_path=pg_catalog, pg_temp')"
    )
    unbound = {row["name"] for row in rows}
    assert not unbound, "a function of the schema says `set search_path = pg_catalog, pg_temp`"


async def test_functions_that_are_inlined_for_speed_are_bound(pool: Pool) -> None:
    """A path of its own would keep a function from being inlined. These are bound when they are made: there is nothing
    left to look up."""
    rows = await pool.query(
        "select p.proname as name from pg_proc p where p.pronamespace = 'duly'::regnamespace and p.proconfig is null"
    )
    assert {row["name"] for row in rows} == {
        "as_cancelled", "as_serial", "is_among", "is_missed", "is_serial", "is_triggered", "last_runs_ended",
        "mark_of_line", "new_job_id", "now", "overlap", "shard_of",
    }  # fmt: skip


async def test_nobody_may_call_a_function_of_the_schema_without_being_allowed_to(pool: Pool) -> None:
    rows = await pool.query(
        "select p.oid::regprocedure::text as name from pg_proc p where p.pronamespace = 'duly'::regnamespace "
        "and exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)"
    )
    public = {row["name"] for row in rows}
    assert not public, (
        "a migration that makes a function says `revoke execute on function … from public` (the schema does it last)"
    )


def test_every_call_of_a_statement_names_postgresqls_own_function() -> None:
    for name in STATEMENTS:
        text = re.sub(r"--.*|'[^']*'", "", statement(name))
        calls = set(re.findall(r"(?<![\w.])([a-z_]\w*)\(", re.sub(r"(?<![\w.])unnest\([^()]+,", "", text)))
        assert calls <= {"array", "coalesce", "extract", "greatest", "least", "nullif", "operator"}, name


async def test_a_column_that_is_added_changes_no_answer(database_url: str, pool: Pool) -> None:
    """A prepared statement fails once its answer would have other columns."""

    async def shapes() -> dict[str, list[str]]:
        async with connected(database_url, statement_cache_size=0) as connection:
            return {
                name: [column.name for column in (await connection.prepare(statement(name))).get_attributes()]
                for name in STATEMENTS
            }

    before = await shapes()
    for row in await pool.query("select oid::regclass::text as name from pg_class where relkind in ('r', 'p') "
                                "and relnamespace = 'duly'::regnamespace and not relispartition"):  # fmt: skip
        await pool.query(f"alter table {row['name']} add column added_by_somebody text")
    assert await shapes() == before


async def test_a_statement_that_went_out_of_date_in_a_transaction_is_sent_again(pool: Pool) -> None:
    await pool.query("create table public.widening (n int)")
    await pool.query("insert into public.widening values (1)")
    tries = 0

    async def look(within: Any) -> Any:
        nonlocal tries
        tries += 1
        return await within.connection.fetch("select * from public.widening")

    one = await Pool.connect(pool.url, size=1)
    try:
        assert [tuple(row) for row in await one.together(look)] == [(1,)]
        await pool.query("alter table public.widening add column more int default 2")
        assert [tuple(row) for row in await one.together(look)] == [(1, 2)]
        assert tries == 3
    finally:
        await one.close()


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("22023", DataRefused), ("23514", DataRefused), ("22P02", DataRefused), ("23505", DataRefused),
        ("28000", StoreUnusable), ("42501", StoreUnusable), ("42P01", StoreUnusable), ("42703", StoreUnusable),
        ("40001", StoreUnavailable), ("40P01", StoreUnavailable), ("55P03", StoreUnavailable),
        ("57014", StoreUnavailable), ("54000", StoreUnavailable), ("58030", StoreUnavailable),
        ("XX000", StoreUnavailable), ("P0001", StoreUnavailable), ("25006", StoreUnavailable),
    ],
)  # fmt: skip
async def test_every_error_of_the_server_is_one_of_three(pool: Pool, state: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        await pool.query(f"do $$ begin raise exception 'injected' using errcode = '{state}'; end $$")
    assert type(caught.value) is error


async def test_an_argument_that_cannot_be_sent_is_refused_for_what_it_is(pool: Pool) -> None:
    with pytest.raises(DataRefused):
        await pool.query("select $1::int as n", 2**40)
    with pytest.raises(DataRefused):
        await pool.query("select $1::uuid as n", object())


@pytest.mark.parametrize("state", ["25006", "57P01", "57P02", "57P03"])
async def test_a_connection_to_a_server_that_is_read_only_or_going_is_not_used_again(pool: Pool, state: str) -> None:
    broken = f"do $$ begin raise exception 'injected' using errcode = '{state}'; end $$"
    one = await Pool.connect(pool.url, size=1)
    try:

        async def pid() -> int:
            return int((await one.query("select pg_backend_pid() as pid"))[0]["pid"])

        first = await pid()
        with pytest.raises(StoreUnavailable):
            await one.query(broken)
        second = await pid()
        with pytest.raises(StoreUnavailable):
            await one.together(lambda within: within.connection.fetch(broken))  # type: ignore[attr-defined]
        third = await pid()
        with pytest.raises(asyncpg.PostgresError):
            async with one.lend() as within:
                await within.connection.execute(broken)
        assert len({first, second, third, await pid()}) == 4
    finally:
        await one.close()
