"""Roles that may submit by SQL do so for their tenants, and can do nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from duly import Duly
from duly.config import Settings
from duly.errors import Forbidden, InvalidInput, NotFound
from duly.model import JobRequest
from duly.operations import Operations, StoreOperations
from duly.store.pool import Pool
from harness.store import count

MANUAL = Path(__file__).parents[2] / "docs/sql.md"
# The grants that an earlier manual recommended. A role that has them can do far more than submit.
OLD_GRANTS = """
grant usage on schema duly to {role};
grant select on duly.clock, duly.handlers, duly.migrations to {role};
grant select (store_id, shard_count, tenant_max_jobs, payload_max_bytes) on duly.store to {role};
grant insert, select (job_id, shard, tenant, status, queue, priority, dedupe_key, fingerprint, next_run_at, last_run_at)
    on duly.jobs to {role};
grant insert, select (job_id, queue) on duly.runs to {role};
grant insert on duly.sql_submits to {role};
grant select (job_id, tenant, shown_status) on duly.job_status to {role};
grant select (job_ids) on duly.claims to {role};
grant select (job_id, scheduled_at) on duly.history to {role};
grant select, insert, update on duly.tenants to {role};
grant select, insert, delete on duly.tenant_jobs to {role};
grant execute on all functions in schema duly to {role};
"""
COMMAND = json.dumps({"type": "command", "argv": ["id"]})
ENDPOINT = json.dumps({"type": "http", "url": "https://example.org/hook"})


def manual(role: str) -> str:
    """The snippet of the manual that names this role."""
    [text] = [text for text in re.findall(r"```sql\n(.*?)```", MANUAL.read_text(), re.DOTALL) if f"'{role}'" in text]
    return str(text)


@asynccontextmanager
async def session_of(url: str, role: str = "duly") -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(url.replace("duly@", f"{role}@", 1))
    try:
        yield connection
    finally:
        connection.terminate()


async def new_role(pool: Pool, options: str = "login") -> str:
    name = f"role_{uuid4().hex[:12]}"
    await pool.query(f"create role {name} {options}")
    return name


async def tenants(pool: Pool) -> list[str]:
    return [row["tenant"] for row in await pool.query("select tenant from duly.jobs order by created_at, job_id")]


async def attempts(admin: asyncpg.Connection[asyncpg.Record]) -> dict[str, str]:
    """Every action on every object of the schema, except a call of duly.submit: its name and its SQL."""
    found = {}
    relations = await admin.fetch(
        "select format('%I.%I', 'duly', c.relname) as name, c.relkind::text as kind, (select quote_ident(a.attname) "
        # A view's computed column cannot be updated by anybody, which says nothing about rights.
        "from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 "
        "order by pg_column_is_updatable(c.oid, a.attnum, false) desc, a.attnum limit 1) as first "
        "from pg_class c where c.relnamespace = 'duly'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')"
    )
    for name, kind, first in relations:
        if kind == "S":
            found[f"next of {name}"] = f"select nextval('{name}')"
            found[f"last of {name}"] = f"select last_value from {name}"
            continue
        found[f"select from {name}"] = f"select {first} from {name} limit 0"
        found[f"count {name}"] = f"select count(*) from {name} where false"
        found[f"insert into {name}"] = f"insert into {name} default values"
        found[f"update {name}"] = f"update {name} set {first} = default"
        found[f"delete from {name}"] = f"delete from {name}"
        found[f"lock {name}"] = f"lock table {name} in access exclusive mode"
    columns = await admin.fetch(
        "select format('%I.%I', 'duly', c.relname) as name, quote_ident(a.attname) as attribute from pg_attribute a "
        "join pg_class c on c.oid = a.attrelid where c.relnamespace = 'duly'::regnamespace and a.attnum > 0 "
        "and c.relkind in ('r', 'p', 'v') and not c.relispartition and not a.attisdropped"
    )
    for name, attribute in columns:
        found[f"read {name}.{attribute}"] = f"select {attribute} from {name} limit 0"
    functions = await admin.fetch(
        "select format('%I.%I', 'duly', p.proname) as name, array(select format_type(t, null) "
        "from unnest(p.proargtypes) with ordinality as a (t, n) order by n) as types from pg_proc p "
        "where p.pronamespace = 'duly'::regnamespace and p.proname <> 'submit'"
    )
    for name, types in functions:
        found[f"call {name}"] = f"select {name}({', '.join(f'null::{one}' for one in types)})"
    found["make a table"] = "create table duly.mine (n int)"
    found["make a function"] = "create function duly.mine() returns int language sql as 'select 1'"
    return found


async def allowed(caller: asyncpg.Connection[asyncpg.Record], tries: dict[str, str]) -> list[str]:
    """Returns the names of the actions that the caller's role is not refused."""
    done = []
    for what, sql in tries.items():
        try:
            async with caller.transaction():
                await caller.execute(sql)
                raise asyncpg.PostgresError(what)  # roll everything back
        except (asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError):
            continue  # the second error: a view that no role can write to
        except asyncpg.PostgresError:
            done.append(what)
    return done


async def test_with_the_right_of_the_manual_a_role_submits_for_its_tenant_and_can_do_nothing_else(
    database_url: str, pool: Pool, operations: Operations, store_operations: StoreOperations
) -> None:
    await store_operations.for_tenant("b").submit(
        JobRequest("theirs", payload={"secret": 1}), allow_unknown_handler=True
    )
    async with session_of(database_url) as admin:
        await admin.execute(manual("shop"))
        await admin.execute("alter role shop login")
        tries = await attempts(admin)
    assert len(tries) > 150
    async with session_of(database_url, "shop") as shop:
        assert await shop.fetchval("select duly.submit('mine')")
        assert await shop.fetchval("select duly.submit('mine', run_at => '2035-01-01 00:00:00+00', tenant => 'shop')")
        assert await shop.fetchval("select duly.submit($1)", ENDPOINT)
        recurring = (
            "select duly.submit('mine', schedule => 'every 1h', dedupe_key => 'k', policy => '{\"max_retries\": 1}')"
        )
        assert await shop.fetchval(recurring) == await shop.fetchval(recurring)
        for sql, field in (
            ("select duly.submit('mine', tenant => 'b')", "tenant"),
            ("select duly.submit('mine', tenant => 'default')", "tenant"),
            ("select duly.submit('mine', tenant => '')", "tenant"),
            (f"select duly.submit('{COMMAND}')", "handler"),
            (f"select duly.submit('{COMMAND}', schedule => 'every 1h', tenant => 'shop')", "handler"),
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="role shop") as refused:
                await shop.execute(sql)
            assert refused.value.column_name == field
        assert await allowed(shop, tries) == []
    assert await tenants(pool) == ["b", "shop", "shop", "shop", "shop"]
    # A role with too many rights shows that the search above finds something.
    old = await new_role(pool)
    async with session_of(database_url) as admin:
        await admin.execute(OLD_GRANTS.format(role=old))
    async with session_of(database_url, old) as caller:
        could = await allowed(caller, tries)
        assert {"insert into duly.jobs", "update duly.tenants", "read duly.jobs.tenant", "call duly.now"} <= {*could}
        assert await caller.fetchval("select duly.submit($1, tenant => 'b')", COMMAND)


async def test_limits_announcements_and_the_callers_transaction_hold_for_such_a_role(
    database_url: str, pool: Pool, store_operations: StoreOperations
) -> None:
    role = await new_role(pool)
    await store_operations.submitters.add(role, tenant="small")
    await store_operations.tenants.set("small", max_jobs=2)
    heard: list[tuple[str, str]] = []
    async with session_of(database_url) as listener, session_of(database_url, role) as caller:
        for channel in ("duly_work", "duly_due", "duly_submitted"):
            await listener.add_listener(channel, lambda _c, _p, channel, payload: heard.append((channel, str(payload))))
        block = caller.transaction()
        await block.start()
        assert await caller.fetchval("select duly.submit('x')")
        await block.rollback()
        assert await count(pool, "jobs") == 0
        await caller.fetchval("select duly.submit('x', queue => 'q')")
        await caller.fetchval("select duly.submit('x', schedule => 'every 1h')")
        with pytest.raises(asyncpg.ProgramLimitExceededError, match="small"):
            await caller.fetchval("select duly.submit('x')")
        await listener.fetchval("select 1")
    assert heard == [("duly_work", "q"), ("duly_submitted", "")]


async def test_whose_tenant_it_is_follows_the_role_that_the_session_has_or_has_set(
    database_url: str, pool: Pool, store_operations: StoreOperations
) -> None:
    a, b, member, shared, nobody = [await new_role(pool) for _ in range(5)]
    await store_operations.submitters.add(a, tenant="a")
    await store_operations.submitters.add(b, tenant="b", commands=True)
    await pool.query(f"grant {a} to {member}")
    await pool.query(f"alter role {shared} noinherit")
    await pool.query(f"grant {a}, {b} to {shared}")
    await pool.query(f"grant usage on schema duly to {nobody}, {shared}")
    await pool.query(f"grant execute on function duly.submit to {nobody}, {shared}")

    async def submit(caller: Any, **given: str) -> str:
        named = ", ".join(f"{name} => '{value}'" for name, value in ({"handler": "x"} | given).items())
        job = await caller.fetchval(f"select duly.submit({named})")
        return str((await pool.query("select tenant from duly.jobs where job_id = $1", job))[0]["tenant"])

    async with session_of(database_url, a) as caller:
        assert await submit(caller) == "a"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await caller.execute(f"set role {b}")
    async with session_of(database_url, b) as caller:
        assert await submit(caller, handler=COMMAND) == "b"
    # A member of a group submits for the group's tenant. A member of two groups says for which tenant.
    async with session_of(database_url, member) as caller:
        assert await submit(caller) == "a"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="tenant a and not for 'b'"):
            await submit(caller, tenant="b")
        await pool.query(f"grant {b} to {member}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="tenants a, b: say for which"):
            await submit(caller)
        assert await submit(caller, tenant="b") == "b"
        # The right to commands belongs to the role of tenant b, and does not extend to tenant a.
        assert await submit(caller, tenant="b", handler=COMMAND) == "b"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="no commands"):
            await submit(caller, tenant="a", handler=COMMAND)
        await caller.execute(f"set role {a}")
        assert await submit(caller) == "a"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="tenant a and not for 'b'"):
            await submit(caller, tenant="b")
    # A pooler's user has no tenant by itself, only as one of its roles.
    async with session_of(database_url, shared) as caller:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="submits for no tenant"):
            await submit(caller)
        for role, tenant in ((a, "a"), (b, "b")):
            await caller.execute(f"set role {role}")
            assert await submit(caller) == tenant
            await caller.execute("reset role")
    # A role that was granted the function by hand has no tenant.
    async with session_of(database_url, nobody) as caller:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=f"{nobody} submits for no tenant"):
            await submit(caller, tenant="a")
    # The store's owner submits for any tenant; with another role set, for that role's tenant.
    async with session_of(database_url) as caller:
        assert await submit(caller) == "default"
        assert await submit(caller, tenant="c", handler=COMMAND) == "c"
        await caller.execute(f"set role {a}")
        assert await submit(caller) == "a"


async def test_what_a_caller_puts_in_front_of_postgresqls_own_is_not_asked(
    database_url: str, pool: Pool, store_operations: StoreOperations
) -> None:
    """PostgreSQL looks for tables and types among the temporary ones first, unless the search path lists pg_temp."""
    role = await new_role(pool)
    await store_operations.submitters.add(role, tenant="a")
    await pool.query(f"grant temporary on database {database_url.rpartition('/')[2].partition('?')[0]} to {role}")
    async with session_of(database_url, role) as caller:
        await caller.execute(
            """
            create temp table called (who text);
            grant insert on called to public;
            create function pg_temp.trap() returns boolean language plpgsql as $$
            begin insert into pg_temp.called values (current_user); return true; end $$;
            create temp view pg_timezone_names as select 'Mars/Olympus'::text as name where pg_temp.trap();
            create temp view pg_roles as select 'x'::name as rolname, 1::oid as oid where pg_temp.trap();
            create temp view jobs as select 1 where pg_temp.trap();
            create domain pg_temp.jsonb as pg_catalog.jsonb check (pg_temp.trap());
            create domain pg_temp.uuid as pg_catalog.uuid check (pg_temp.trap());
            create domain pg_temp.bytea as pg_catalog.bytea check (pg_temp.trap());
            """
        )
        with pytest.raises(asyncpg.InvalidParameterValueError, match="time zone"):
            await caller.execute("select duly.submit('x', timezone => 'Mars/Olympus')")
        await caller.execute(
            "select duly.submit('x', run_at => now(), timezone => 'Asia/Tokyo', dedupe_key => 'k', "
            "labels => '{\"a\": \"b\"}', payload => '[1.5]', policy => '{\"timeout_seconds\": 1.5}')"
        )
        await caller.execute("select duly.submit($1)", ENDPOINT)
        assert await caller.fetch("select * from pg_temp.called") == []


async def test_a_role_that_could_write_the_store_is_not_bound_but_refused(
    database_url: str, pool: Pool, store_operations: StoreOperations
) -> None:
    old = await new_role(pool)
    async with session_of(database_url) as admin:
        await admin.execute(OLD_GRANTS.format(role=old))
        with pytest.raises(
            InvalidInput, match=rf"^role: {old} may write or call more .*duly\.jobs.* first run: (.*)"
        ) as no:
            await store_operations.submitters.add(old, tenant="a")
        for statement in str(no.value).rpartition("first run: ")[2].split("; "):
            await admin.execute(statement)
    await store_operations.submitters.add(old, tenant="a")
    async with session_of(database_url, old) as caller:
        assert await caller.fetchval("select duly.submit('x')")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await caller.fetchval("select tenant from duly.jobs")
    with pytest.raises(InvalidInput, match="owns the store"):
        await store_operations.submitters.add("duly", tenant="a")
    with pytest.raises(InvalidInput, match="there is no role"):
        await store_operations.submitters.add("no one", tenant="a")
    with pytest.raises(InvalidInput, match=r"^role: must have"):
        await store_operations.submitters.add("x" * 64, tenant="a")
    writer = await new_role(pool)
    await pool.query(f"grant pg_write_all_data to {writer}")
    with pytest.raises(InvalidInput, match="no tenant would bind it"):
        await store_operations.submitters.add(writer, tenant="a")


async def test_a_role_is_bound_anew_and_let_go(
    database_url: str, pool: Pool, store_operations: StoreOperations
) -> None:
    role = await new_role(pool)
    await store_operations.submitters.add(role, tenant="a", commands=True)
    await store_operations.submitters.add(role, tenant="b")
    assert [(one.role, one.tenant, one.commands) for one in await store_operations.submitters.all()] == [
        (role, "b", False)
    ]
    async with session_of(database_url, role) as caller:
        assert await caller.fetchval("select duly.submit('x')")
        assert await tenants(pool) == ["b"]
        await store_operations.submitters.remove(role)
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied"):
            await caller.fetchval("select duly.submit('x')")
    with pytest.raises(NotFound, match="duly submitter list"):
        await store_operations.submitters.remove(role)
    # A removed submitter leaves nothing that prevents dropping its role, and a dropped role can still be removed.
    await store_operations.submitters.add(other := await new_role(pool), tenant="a")
    await pool.query(f"drop role {role}")
    await pool.query(f"drop owned by {other}")
    await pool.query(f"drop role {other}")
    await store_operations.submitters.remove(other)
    assert await store_operations.submitters.all() == []


async def test_app_submit_on_a_connection_of_such_a_role_says_what_to_call(
    database_url: str, pool: Pool, store_operations: StoreOperations, settings: Settings
) -> None:
    role = await new_role(pool)
    await store_operations.submitters.add(role, tenant="a")
    app = Duly(settings=settings)
    async with session_of(database_url, role) as caller:
        with pytest.raises(Forbidden, match=r"call duly\.submit.*docs/sql\.md"):
            await app.submit("mine", connection=caller)
    await app.close()


@pytest.mark.parametrize("limited", [False, True])
async def test_with_the_rights_of_the_manual_app_submit_works_on_a_connection(
    database_url: str, pool: Pool, store_operations: StoreOperations, settings: Settings, limited: bool
) -> None:
    if limited:
        await store_operations.tenants.set("default", max_jobs=400)
    text = manual("own_app")
    async with session_of(database_url) as admin:
        await admin.execute(text if limited else text.partition("-- Where tenants have limits")[0])
        await admin.execute("alter role own_app login")
    app = Duly(settings=settings)
    async with session_of(database_url, "own_app") as caller:
        for _ in range(2):
            async with caller.transaction():
                await app.submit("mine", connection=caller, dedupe_key="k")
        await app.submit("mine", schedule="every 1h", connection=caller)
        await app.submit_many([{"handler": "mine"}] * 150, connection=caller)
    assert await count(pool, "jobs") == 152
    await app.close()
