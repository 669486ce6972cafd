"""Submitting inside the caller's own transaction, with the real drivers: the job exists only if that commits."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import django
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from django.conf import settings as django_settings
from django.db import DatabaseError, connections, transaction
from psycopg.rows import namedtuple_row

from duly import Conflict, Duly, InvalidInput, UnknownHandler
from duly.config import Settings
from duly.errors import LimitReached, StoreMismatch
from duly.model import NO_DEFAULTS, Declarer, Policy, TaskDefaults
from duly.operations import Operations, StoreOperations
from duly.store import cluster
from duly.store.foreign import Joined, recognise
from duly.store.pool import Pool
from harness.store import count
from harness.waiting import eventually

MOMENT = datetime(2031, 1, 1, 9, 30, 15, 123456, tzinfo=UTC)
NASTY = 'it\'s "quoted" \\back\\slash, {braces}, NULL, %s %(p1)s $1 :name --no\t🙂'


class Caller:
    """A caller with a transaction on its connection. It has the same few steps for every driver, sync or async."""

    def __init__(self, connection: Any, *, submit: Callable[..., Awaitable[str]], **steps: Any) -> None:
        self.connection = connection
        self._submit = submit
        self._steps = steps

    async def submit(self, *args: Any, **options: Any) -> str:
        return await self._submit(*args, connection=self.connection, **options)

    async def _step(self, step: Any) -> Any:
        answer = step()
        return await answer if hasattr(answer, "__await__") else answer

    async def commit(self) -> None:
        await self._step(self._steps["commit"])

    async def rollback(self) -> None:
        await self._step(self._steps["rollback"])

    async def execute(self, sql: str) -> Any:
        answer = self._steps["execute"](sql)
        return await answer if hasattr(answer, "__await__") else answer


def sync_submit(app: Duly) -> Callable[..., Awaitable[str]]:
    async def submit(*args: Any, **options: Any) -> str:
        return app.submit_sync(*args, **options)

    return submit


def sync_in_async(app: Duly) -> Callable[..., Awaitable[str]]:
    """A synchronous connection in asynchronous code: it blocks, as every other use of it does."""
    return app.submit


def driver_url(url: str, driver: str) -> sqlalchemy.URL:
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username=query.pop("user", None) or parts.username,
        password=query.pop("password", None) or parts.password,
        host=parts.hostname,
        port=parts.port,
        database=parts.path.lstrip("/"),
        query=query,
    )


async def asyncpg_caller(connection: Any, app: Duly) -> Caller:
    """A caller that always has a transaction open, like the others: asyncpg does not begin one by itself."""
    await connection.execute("begin")
    return Caller(
        connection,
        submit=app.submit,
        commit=lambda: connection.execute("commit; begin"),
        rollback=lambda: connection.execute("rollback; begin"),
        execute=connection.execute,
    )


@asynccontextmanager
async def of_asyncpg(url: str, app: Duly) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    try:
        yield await asyncpg_caller(connection, app)
    finally:
        await connection.close()


@asynccontextmanager
async def of_asyncpg_pool(url: str, app: Duly) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield await asyncpg_caller(connection, app)


def psycopg_of(submit: Callable[[Duly], Any], **options: Any) -> Callable[[str, Duly], Any]:
    @asynccontextmanager
    async def open_(url: str, app: Duly) -> AsyncIterator[Caller]:
        with psycopg.connect(url, **options) as connection:
            yield Caller(
                connection,
                submit=submit(app),
                commit=connection.commit,
                rollback=connection.rollback,
                execute=connection.execute,
            )

    return open_


@asynccontextmanager
async def of_psycopg_async(url: str, app: Duly) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Caller(
            connection,
            submit=app.submit,
            commit=connection.commit,
            rollback=connection.rollback,
            execute=connection.execute,
        )


@asynccontextmanager
async def of_psycopg2(url: str, app: Duly) -> AsyncIterator[Caller]:
    connection = psycopg2.connect(url, cursor_factory=psycopg2.extras.RealDictCursor)

    def execute(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    try:
        yield Caller(
            connection,
            submit=sync_submit(app),
            commit=connection.commit,
            rollback=connection.rollback,
            execute=execute,
        )
    finally:
        connection.close()


def sqlalchemy_of(driver: str, *, session: bool) -> Callable[[str, Duly], Any]:
    @asynccontextmanager
    async def open_(url: str, app: Duly) -> AsyncIterator[Caller]:
        engine = sqlalchemy.create_engine(driver_url(url, driver))
        try:
            with sqlalchemy.orm.Session(engine) if session else engine.connect() as connection:
                yield Caller(
                    connection,
                    submit=sync_submit(app),
                    commit=connection.commit,
                    rollback=connection.rollback,
                    execute=lambda sql: connection.execute(sqlalchemy.text(sql)),
                )
        finally:
            engine.dispose()

    return open_


def async_sqlalchemy_of(driver: str, *, session: bool) -> Callable[[str, Duly], Any]:
    @asynccontextmanager
    async def open_(url: str, app: Duly) -> AsyncIterator[Caller]:
        engine = sqlalchemy.ext.asyncio.create_async_engine(driver_url(url, driver))
        try:
            async with sqlalchemy.ext.asyncio.AsyncSession(engine) if session else engine.connect() as connection:
                yield Caller(
                    connection,
                    submit=app.submit,
                    commit=connection.commit,
                    rollback=connection.rollback,
                    execute=lambda sql: connection.execute(sqlalchemy.text(sql)),
                )
        finally:
            await engine.dispose()

    return open_


@asynccontextmanager
async def in_run_sync(url: str, app: Duly) -> AsyncIterator[Caller]:
    """A sync session over asyncpg, as in code that SQLAlchemy's `run_sync` calls."""
    engine = sqlalchemy.ext.asyncio.create_async_engine(driver_url(url, "asyncpg"))

    async def submit(*args: Any, connection: Any, **options: Any) -> str:
        return str(await session.run_sync(lambda inner: app.submit_sync(*args, connection=inner, **options)))

    try:
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
            yield Caller(
                session,
                submit=submit,
                commit=session.commit,
                rollback=session.rollback,
                execute=lambda sql: session.execute(sqlalchemy.text(sql)),
            )
    finally:
        await engine.dispose()


class DjangoThread:
    """One thread without an event loop: Django wants its connections used in such a thread, as in request handlers."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._thread = ThreadPoolExecutor(1)

    def __call__(self, work: Callable[..., Any], *args: Any, **options: Any) -> Awaitable[Any]:
        return asyncio.wrap_future(self._thread.submit(lambda: work(*args, **options)))

    def close(self) -> None:
        self._thread.shutdown()


def django_alias(url: str) -> str:
    """A configured Django database for this store."""
    given = driver_url(url, "psycopg")
    alias = given.database or ""
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": {}}, USE_TZ=True)
        django.setup()
    connections.databases[alias] = connections.configure_settings(
        {
            "default": {},
            alias: {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": alias,
                "USER": given.username or "",
                "PASSWORD": given.password or "",
                "HOST": given.query.get("host") or given.host or "",
                "PORT": given.query.get("port") or given.port or "",
            },
        }
    )[alias]
    return alias


@asynccontextmanager
async def of_django(url: str, app: Duly) -> AsyncIterator[Caller]:
    alias = django_alias(url)
    thread = DjangoThread()
    connection = await thread(lambda: connections[alias])

    def execute(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    try:
        await thread(connection.set_autocommit, False)
        yield Caller(
            connection,
            submit=lambda *args, **options: thread(app.submit_sync, *args, **options),
            commit=lambda: thread(connection.commit),
            rollback=lambda: thread(connection.rollback),
            execute=lambda sql: thread(execute, sql),
        )
    finally:
        await thread(connection.close)
        thread.close()
        connections.databases.pop(alias)


KINDS: dict[str, Callable[[str, Duly], Any]] = {
    "asyncpg": of_asyncpg,
    "asyncpg from a pool": of_asyncpg_pool,
    "psycopg": psycopg_of(sync_submit),
    "psycopg in async code": psycopg_of(sync_in_async),
    "psycopg with rows of its own": psycopg_of(sync_submit, row_factory=namedtuple_row),
    "psycopg that binds by itself": psycopg_of(sync_submit, cursor_factory=psycopg.ClientCursor),
    "psycopg async": of_psycopg_async,
    "psycopg2": of_psycopg2,
    "sqlalchemy connection over psycopg": sqlalchemy_of("psycopg", session=False),
    "sqlalchemy session over psycopg": sqlalchemy_of("psycopg", session=True),
    "sqlalchemy session over psycopg2": sqlalchemy_of("psycopg2", session=True),
    "sqlalchemy async connection over asyncpg": async_sqlalchemy_of("asyncpg", session=False),
    "sqlalchemy async session over asyncpg": async_sqlalchemy_of("asyncpg", session=True),
    "sqlalchemy async session over psycopg": async_sqlalchemy_of("psycopg_async", session=True),
    "sqlalchemy session in run_sync": in_run_sync,
    "django": of_django,
}


@pytest.fixture
def app(settings: Settings) -> Duly:
    # The address leads nowhere: the app must get everything over the connection it is given.
    app = Duly(settings=settings.model_copy(update={"database_url": "postgresql://nobody@127.0.0.1:1/nothing"}))

    @app.task(queue="reports")
    async def send_report(report_type: str = "x") -> None: ...

    return app


@pytest.fixture(params=KINDS)
async def caller(request: pytest.FixtureRequest, database_url: str, app: Duly) -> AsyncIterator[Caller]:
    async with KINDS[request.param](database_url, app) as caller:
        yield caller


@pytest.fixture
async def opened(database_url: str, app: Duly) -> AsyncIterator[Callable[[str], Awaitable[Caller]]]:
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        yield lambda kind: stack.enter_async_context(KINDS[kind](database_url, app))


async def test_a_rollback_leaves_no_job(caller: Caller, pool: Pool) -> None:
    await caller.submit("send_report", {"report_type": "never"})
    await caller.rollback()
    assert await count(pool, "jobs") == await count(pool, "runs") == 0


async def test_a_commit_makes_the_job_visible_and_not_before(
    caller: Caller, pool: Pool, operations: Operations
) -> None:
    job_id = await caller.submit("send_report", {"report_type": "weekly"})
    assert await count(pool, "jobs") == 0
    await caller.commit()
    job = await operations.jobs.get(job_id)
    assert (job.handler, job.payload, job.queue, job.status) == (
        "send_report", {"report_type": "weekly"}, "reports", "active",
    )  # fmt: skip
    assert await count(pool, "runs", "job_id = $1", UUID(job_id)) == 1


async def test_every_field_arrives_as_it_was_given(caller: Caller, operations: Operations) -> None:
    payload = {"text": NASTY, "list": [1, None, 2.5], "nested": {"ключ": "значение\n"}}
    job_id = await caller.submit(
        "send_report", payload, schedule="every 1h30m", name="café, weekly", payload_ref="s3://b/k?a=1&b=2%20",
        timezone="Europe/Berlin", start_at=MOMENT, end_at=MOMENT + timedelta(days=9), max_runs=7, queue="q'1",
        priority=9, dedupe_key=NASTY.replace("\t", ""), labels={"team": 'a"b'}, overlap="queue", max_retries=0,
    )  # fmt: skip
    await caller.commit()
    job = await operations.jobs.get(job_id)
    assert job.payload == payload
    assert (job.name, job.payload_ref, job.timezone) == ("café, weekly", "s3://b/k?a=1&b=2%20", "Europe/Berlin")
    assert (job.start_at, job.end_at, job.max_runs) == (MOMENT, MOMENT + timedelta(days=9), 7)
    assert (job.queue, job.priority, job.labels) == ("q'1", 9, {"team": 'a"b'})
    assert (job.dedupe_key, job.schedule, job.kind) == (NASTY.replace("\t", ""), "every 1h30m", "interval")
    assert (job.policy.overlap, job.policy.max_retries, job.next_run_at) == ("queue", 0, MOMENT)


async def test_a_moment_is_kept_to_the_microsecond(caller: Caller, operations: Operations) -> None:
    job_id = await caller.submit("send_report", run_at=MOMENT)
    await caller.commit()
    assert (await operations.jobs.get(job_id)).next_run_at == MOMENT


async def test_the_same_dedupe_key_is_the_same_job_in_and_after_the_transaction(caller: Caller, pool: Pool) -> None:
    first = await caller.submit("send_report", {"n": 1}, dedupe_key="w-23")
    assert await caller.submit("send_report", {"n": 1}, dedupe_key="w-23") == first
    await caller.commit()
    assert await caller.submit("send_report", {"n": 1}, dedupe_key="w-23") == first
    await caller.commit()
    assert await count(pool, "jobs") == await count(pool, "runs") == 1


async def test_a_conflict_leaves_the_callers_transaction_whole(
    caller: Caller, pool: Pool, operations: Operations
) -> None:
    await operations.submit(Duly().request("send_report", {"n": 1}, dedupe_key="w-23"), allow_unknown_handler=True)
    with pytest.raises(Conflict, match="w-23"):
        await caller.submit("send_report", {"n": 2}, dedupe_key="w-23")
    with pytest.raises(InvalidInput, match="priority"):
        await caller.submit("send_report", priority=10)
    with pytest.raises(UnknownHandler):
        await caller.submit("send_reprot")
    await caller.submit("send_report", {"n": 3}, dedupe_key="w-24")
    await caller.commit()
    assert await count(pool, "jobs") == 2


async def test_a_savepoint_that_is_rolled_back_takes_its_job_along(caller: Caller, pool: Pool) -> None:
    kept = await caller.submit("send_report", {"n": 1})
    await caller.execute("savepoint here")
    await caller.submit("send_report", {"n": 2}, dedupe_key="gone")
    await caller.execute("rollback to savepoint here")
    again = await caller.submit("send_report", {"n": 3}, dedupe_key="gone")
    await caller.commit()
    rows = await pool.query("select job_id::text from duly.jobs order by 1")
    assert [row["job_id"] for row in rows] == sorted([kept, again])


async def test_workers_are_told_at_the_commit_and_not_before(caller: Caller, database_url: str) -> None:
    heard: list[str] = []
    listening = await asyncpg.connect(database_url)
    await listening.add_listener("duly_work", lambda *args: heard.append(str(args[-1])))
    await listening.add_listener("duly_due", lambda *args: heard.append("due"))
    await caller.submit("send_report")
    await caller.submit("send_report", schedule="every 1m")
    await listening.execute("select 1")
    assert heard == []
    await caller.commit()
    await eventually(lambda: sorted(heard) == ["due", "reports"])
    await listening.close()


async def test_a_submit_writes_beside_the_callers_own_rows(caller: Caller, pool: Pool) -> None:
    await pool.query("create table public.orders (id int primary key)")
    await caller.execute("insert into orders values (1)")
    await caller.submit("send_report")
    await caller.rollback()
    assert (await pool.query("select count(*) as count from public.orders"))[0]["count"] == 0
    assert await count(pool, "jobs") == 0
    await caller.execute("insert into orders values (1)")
    await caller.submit("send_report")
    await caller.commit()
    assert (await pool.query("select count(*) as count from public.orders"))[0]["count"] == 1
    assert await count(pool, "jobs") == 1


async def test_a_twin_waits_for_the_other_transaction_and_takes_its_job(
    opened: Callable[[str], Awaitable[Caller]], pool: Pool
) -> None:
    one, other = await opened("asyncpg"), await opened("psycopg async")
    first = await one.submit("send_report", {"n": 1}, dedupe_key="twin")
    second = asyncio.create_task(other.submit("send_report", {"n": 1}, dedupe_key="twin"))
    waiting = "select count(*) as count from pg_stat_activity where wait_event_type = 'Lock'"

    async def is_waiting() -> bool:
        return bool((await pool.query(waiting))[0]["count"])

    await eventually(is_waiting)
    await one.commit()
    assert await second == first
    await other.commit()
    assert await count(pool, "jobs") == 1


async def test_a_twin_of_a_transaction_that_rolls_back_is_a_job_of_its_own(
    opened: Callable[[str], Awaitable[Caller]], pool: Pool
) -> None:
    one, other = await opened("psycopg async"), await opened("sqlalchemy async session over asyncpg")
    first = await one.submit("send_report", {"n": 1}, dedupe_key="twin")
    second = asyncio.create_task(other.submit("send_report", {"n": 2}, dedupe_key="twin"))
    await asyncio.sleep(0)
    await one.rollback()
    assert await second != first
    await other.commit()
    assert await count(pool, "jobs") == 1


async def test_a_value_never_gets_into_a_comment(
    opened: Callable[[str], Awaitable[Caller]], pool: Pool, store_operations: StoreOperations
) -> None:
    """Some drivers write values into the statement's text, where a value with a line break would end a comment."""
    await store_operations.tenants.set("acme", max_jobs=1)
    for kind in ("psycopg that binds by itself", "psycopg2"):
        joined = Joined(recognise((await opened(kind)).connection))
        hostile = "\n; drop table duly.tenants; --"
        assert [row["tenant"] for row in await joined.fetch("tenants/known", ["acme", hostile])] == ["acme"]


async def test_many_jobs_go_in_one_transaction(
    opened: Callable[[str], Awaitable[Caller]], app: Duly, pool: Pool
) -> None:
    caller = await opened("psycopg async")
    requests = [app.request("send_report", {"n": number}) for number in range(3_000)]
    assert len(set(await app.submit_many(requests, connection=caller.connection))) == 3_000
    assert await count(pool, "jobs") == 0
    await caller.commit()
    assert await count(pool, "runs") == 3_000


async def test_a_limit_refuses_and_leaves_the_transaction_whole(
    caller: Caller, store_operations: StoreOperations, pool: Pool
) -> None:
    await store_operations.tenants.set("default", max_jobs=2)
    await caller.submit("send_report", dedupe_key="a")
    await caller.submit("send_report")
    with pytest.raises(LimitReached, match="default"):
        await caller.submit("send_report")
    # A job that exists already needs no slot.
    await caller.submit("send_report", dedupe_key="a")
    await caller.commit()
    assert await count(pool, "jobs") == 2


async def test_a_task_of_the_stores_workers_is_known(caller: Caller, pool: Pool) -> None:
    await cluster.offer_handlers(pool, ["elsewhere"])
    assert await caller.submit("elsewhere")


async def test_the_defaults_of_such_a_task_apply(caller: Caller, pool: Pool, operations: Operations) -> None:
    offered = {"elsewhere": TaskDefaults("reports", 8, Policy(max_retries=0)), "plain": NO_DEFAULTS}
    await cluster.offer_tasks(pool, offered, by=Declarer())
    submitted = [
        await caller.submit("elsewhere"),
        await caller.submit("elsewhere", queue="default", max_retries=3),
        await caller.submit("plain"),
    ]
    await caller.commit()
    found = [await operations.jobs.get(job_id) for job_id in submitted]
    assert [(job.queue, job.priority, job.policy.max_retries) for job in found] == [
        ("reports", 8, 0), ("default", 8, 3), ("default", 5, 3),
    ]  # fmt: skip


async def test_djangos_atomic_blocks_decide(database_url: str, app: Duly, pool: Pool) -> None:
    alias = django_alias(database_url)
    thread = DjangoThread()

    def work() -> None:
        connection = connections[alias]
        with transaction.atomic(using=alias):
            app.submit_sync("send_report", {"n": 1}, connection=connection)
            with suppress(DatabaseError), transaction.atomic(using=alias):
                app.submit_sync("send_report", {"n": 2}, connection=connection)
                connection.cursor().execute("select 1 / 0")
        with suppress(RuntimeError), transaction.atomic(using=alias):
            app.submit_sync("send_report", {"n": 3}, connection=connection)
            raise RuntimeError
        # Without a transaction of the caller's, every statement is a transaction of its own.
        app.submit_sync("send_report", {"n": 4}, connection=connection)
        connection.close()

    await thread(work)
    thread.close()
    rows = await pool.query("select payload->>'n' as n from duly.jobs order by job_id")
    assert [row["n"] for row in rows] == ["1", "4"]


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg async", "sqlalchemy async session over asyncpg"])
async def test_an_asynchronous_connection_in_submit_sync_is_a_clear_error(
    opened: Callable[[str], Awaitable[Caller]], app: Duly, kind: str
) -> None:
    caller = await opened(kind)
    with pytest.raises(InvalidInput, match=r"await app\.submit"):
        app.submit_sync("send_report", connection=caller.connection)


async def test_whatever_is_no_connection_is_refused_with_what_can_be_given(app: Duly, database_url: str) -> None:
    import sqlite3

    engine = sqlalchemy.create_engine("sqlite://")
    for wrong in (object(), "postgresql://", sqlite3.connect(":memory:"), 5):
        with pytest.raises(InvalidInput, match="psycopg"):
            app.submit_sync("send_report", connection=wrong)
    with pytest.raises(InvalidInput, match="holds many"):
        await app.submit("send_report", connection=engine)
    with engine.connect() as connection, pytest.raises(InvalidInput, match="sqlite"):
        app.submit_sync("send_report", connection=connection)
    async with asyncpg.create_pool(database_url, min_size=0) as many:
        with pytest.raises(InvalidInput, match="holds many"):
            await app.submit("send_report", connection=many)


async def test_a_store_of_another_version_is_refused(opened: Callable[[str], Awaitable[Caller]], pool: Pool) -> None:
    caller = await opened("psycopg")
    await pool.query("insert into duly.migrations (version, name, checksum) values (0, '9.0.0', '')")
    with pytest.raises(StoreMismatch, match="newer"):
        await caller.submit("send_report")


async def test_the_jobs_shard_is_that_of_the_store_it_goes_to(
    opened: Callable[[str], Awaitable[Caller]], pool: Pool
) -> None:
    await pool.query("update duly.store set shard_count = 3")
    caller = await opened("psycopg")
    job_ids = [await caller.submit("send_report") for _ in range(10)]
    await caller.commit()
    rows = await pool.query("select shard = duly.shard_of(job_id, 3) as right from duly.jobs")
    assert [row["right"] for row in rows] == [True] * len(job_ids)


async def test_the_python_of_the_manual_runs(database_url: str, app: Duly, pool: Pool) -> None:
    sqlalchemy_code, asyncpg_code, django_code = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/sql.md").read_text(), re.DOTALL
    )
    await pool.query("create table public.orders (id bigint primary key)")
    app.task("send_invoice")(lambda order: None)

    engine = sqlalchemy.create_engine(driver_url(database_url, "psycopg"))
    orders = sqlalchemy.Table("orders", sqlalchemy.MetaData(), sqlalchemy.Column("id", sqlalchemy.BigInteger))
    exec(sqlalchemy_code, {"engine": engine, "orders": orders, "app": app})
    engine.dispose()

    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as many:
        inner = compile(asyncpg_code, "docs/sql.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await eval(inner, {"pool": many, "app": app})

    alias, thread = django_alias(database_url), DjangoThread()

    def in_django() -> None:
        # The manual uses Django's default database; this test's database has another alias.
        def create(**fields: int) -> None:
            with connections[alias].cursor() as cursor:
                cursor.execute("insert into orders values (%(id)s)", fields)

        order = SimpleNamespace(objects=SimpleNamespace(create=create))
        names = {
            "transaction": SimpleNamespace(atomic=lambda: transaction.atomic(using=alias)),
            "django": SimpleNamespace(db=SimpleNamespace(connection=connections[alias])),
        }
        exec(django_code, {"Order": order, "app": app, **names})
        connections[alias].close()

    await thread(in_django)
    thread.close()
    rows = await pool.query("select payload->>'order' as number from duly.jobs order by 1")
    assert [row["number"] for row in rows] == ["1", "2", "3"]
    assert (await pool.query("select count(*) as count from public.orders"))[0]["count"] == 3
