"""A whole Duly in a schema that was made for its role, which may create no other: every command, every way in."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy

from conftest import Server
from duly import Duly
from duly.config import load_settings
from harness.commands import PATIENCE, Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]
APP = ("--app", "tasks_of_schema:app")
TASKS = """
import asyncio

from duly import Context, Duly

app = Duly(name="shop")


@app.task()
async def greet(name: str = "world") -> str:
    return f"hello, {name}"


@app.task()
async def fail() -> None:
    raise ValueError("as every time")


@app.task(isolation="process")
def apart() -> str:
    return "done elsewhere"


@app.task()
async def slow(ctx: Context) -> None:
    ctx.progress(0.5, "half")
    await asyncio.sleep(60)


@app.task()
async def write(ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("insert into public.effects values ($1)", ctx.run_id)


@app.cron("0 9 * * MON", timezone="America/New_York")
def weekly() -> None:
    pass
"""


@dataclass(frozen=True)
class Store:
    """A database with a schema that was made beforehand, and a role that may not create another."""

    url: str
    schema: str
    role: str
    log: Path

    def ask(self, sql: str, *args: Any) -> Any:
        """The one value that the owner of the database gets."""

        async def asked() -> Any:
            connection = await asyncpg.connect(self.url.replace(f"{self.role}@", "duly@", 1))
            try:
                return await connection.fetchval(sql, *args)
            finally:
                await connection.close()

        return asyncio.run(asked())


MADE_BY = {
    "as owner": "create schema {schema} authorization {role}",
    "with grants": "create schema {schema}; grant usage, create on schema {schema} to {role} with grant option",
}


@pytest.fixture(params=[("other", "as owner"), ("duly", "as owner"), ("other", "with grants")], ids=" ".join)
def store(request: pytest.FixtureRequest, server: Server, empty_url: str) -> Iterator[Store]:
    schema, way = request.param
    role = f"plain_{schema}"
    made = MADE_BY[way].format(schema=schema, role=role)
    run_as_owner(empty_url, f"create role {role} login; {made}; create table public.effects (run_id text); "
                            f"grant select, insert on public.effects to {role}")  # fmt: skip
    [socket] = parse_qs(urlsplit(server.url).query)["host"]
    yield Store(empty_url.replace("duly@", f"{role}@", 1), schema, role, Path(socket).parent / "server.log")
    run_as_owner(empty_url, f"drop owned by {role} cascade; drop role {role}")


def run_as_owner(url: str, sql: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(sql)
        await connection.close()

    asyncio.run(run())


@pytest.fixture
def environment(environment: dict[str, str], store: Store, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tasks_of_schema.py").write_text(TASKS)
    chosen = {} if store.schema == "duly" else {"DULY_SCHEMA": store.schema}
    # Leases that a busy machine keeps.
    leases = {"DULY_WORKER_LEASE_SECONDS": "15", "DULY_LEADER_LEASE_SECONDS": "5"}
    return {**environment, "DULY_DATABASE_URL": store.url, **leases, **chosen}


def done(ended: Ended) -> Ended:
    assert ended.code == 0, ended.out + ended.err
    return ended


def until_one_has(duly: Run, job: str, status: str) -> None:
    """Waits until a run of the job has this status."""
    deadline = time.monotonic() + PATIENCE
    while True:
        runs = done(duly("job", "runs", job, "--json")).lines
        if any(run["status"] == status for run in runs):
            return
        assert time.monotonic() < deadline, runs
        time.sleep(0.05)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(300)
def test_a_whole_cluster_in_a_schema_that_was_made_for_its_role(
    duly: Run, start: Start, store: Store, environment: dict[str, str]
) -> None:
    log_before = store.log.stat().st_size
    assert duly("doctor").code == 1
    assert "0001_baseline" in done(duly("migrate", "--dry-run")).out
    assert "0001_baseline" in done(duly("migrate")).out
    assert "nothing to do" in done(duly("migrate", "--dry-run")).out
    assert "up to date" in done(duly("migrate", "--check")).out
    processes = [start("scheduler"), start("worker", *APP, "--processes", "1"), start("api", "--port", "0")]
    processes[0].wait_for("leading 64 of 64 shards", 90)
    api = processes[2].wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    until(lambda: duly("job", "show", "weekly").code == 0)

    # One-offs, from every way in.
    ways = [
        done(duly("submit", "greet")).out.split()[0],
        done(duly("submit", "apart")).out.split()[0],
        done(duly("submit", "write")).out.split()[0],
        done(duly("--url", api, "submit", "greet")).out.split()[0],
        str(store.ask(f"select {store.schema}.submit('greet')")),
        *submitted_in_transactions(environment),
    ]
    for job_id in ways:
        until_one_has(duly, job_id, "succeeded")
    assert store.ask("select count(*) from public.effects") == 1
    assert len(done(duly("--url", api, "job", "list", "--limit", "500", "--json")).lines) >= 150

    # A retry, and the dead letters.
    retry = ("--max-retries", "1", "--retry-backoff", "immediate", "--idempotency-key-template", "{{name}}")
    done(duly("submit", "fail", "--name", "failing", *retry))
    until_one_has(duly, "failing", "dead")
    [letter] = done(duly("dead", "list", "--json")).lines
    assert len(letter["attempts"]) == 2
    done(duly("dead", "redrive", letter["run_id"]))
    until(lambda: duly("dead", "list", "--json").lines)
    done(duly("dead", "purge", "--all", "--yes"))

    # A recurring job, planned by Python and by SQL, and its changes.
    store.ask(f"select {store.schema}.submit('greet', name => 'from-sql', schedule => 'every 1s')")
    done(duly("submit", "greet", "--name", "ticking", "--schedule", "every 1s"))
    for name in ("ticking", "from-sql"):
        until_one_has(duly, name, "succeeded")
    for change in ("pause", "resume", "trigger"):
        done(duly("job", change, "ticking"))
    # The latest occurrence may have fallen into the pause; the next one fires.
    until(lambda: "fired" in done(duly("explain", "ticking")).out)
    assert done(duly("forecast", "--json")).out
    for name in ("ticking", "from-sql"):
        done(duly("job", "cancel", name))

    # A running run is told to stop.
    slow = done(duly("submit", "slow", "--name", "slow")).out.split()[0]
    until_one_has(duly, slow, "running")
    done(duly("job", "cancel", "slow", "--running"))
    until_one_has(duly, slow, "cancelled")

    # What the store knows about others.
    for command in (
        ["key", "list"],
        ["tenant", "list"],
        ["submitter", "list"],
        ["dead", "list"],
        ["status", "--shards"],
    ):
        done(duly(*command))
    until(lambda: duly("doctor").code == 0)
    report = duly("doctor").out
    shown = f"(schema {store.schema})"
    assert (shown in report) == (f"schema   {store.schema}" in duly("status").out) == (store.schema != "duly")
    for process in processes:
        process.signal(signal.SIGTERM)
        assert process.end() == 0, process.said
        assert "Traceback" not in process.said
    with store.log.open("rb") as log:
        log.seek(log_before)
        said = log.read().decode(errors="replace")
    if store.schema != "duly":
        assert not store.ask("select exists (select from pg_namespace where nspname = 'duly')")
        assert not re.findall(r'.*(?:schema "duly"|relation "duly\.|function duly\.).*', said)
    assert not re.findall(r".*permission denied.*", said)


def submitted_in_transactions(environment: dict[str, str]) -> list[str]:
    """Jobs submitted over a caller's own connection of each driver."""
    url = environment["DULY_DATABASE_URL"]
    app = Duly(settings=load_settings())
    with psycopg.connect(url) as one:
        jobs = [app.submit_sync("greet", connection=one)]
    with psycopg2.connect(url) as two:
        jobs.append(app.submit_sync("greet", connection=two))
    two.close()
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with engine.begin() as three:
        jobs.append(app.submit_sync("greet", connection=three))
    engine.dispose()

    async def over_asyncpg() -> list[str]:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            job = await app.submit("greet", connection=connection)
            # So many are copied.
            many = await app.submit_many([{"handler": "greet"}] * 150, connection=connection)
        await connection.close()
        return [job, many[-1]]

    return jobs + awaited(over_asyncpg())


def awaited(work: Coroutine[Any, Any, list[str]]) -> list[str]:
    return asyncio.run(work)


def test_a_role_that_may_create_no_schema_is_told_what_its_owner_has_to_do(duly: Run, store: Store) -> None:
    ended = duly("--schema", "third", "migrate")
    assert ended.code == 2
    assert f"create schema third authorization {store.role}" in ended.err
    assert not store.ask("select exists (select from pg_namespace where nspname = 'third')")


def test_a_store_in_another_schema_is_pointed_at(duly: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    done(duly("migrate"))
    monkeypatch.setenv("DULY_SCHEMA", "elsewhere")
    for command in (["job", "list"], ["submit", "x"]):
        ended = duly(*command)
        assert ended.code == 3
        assert f"the schema elsewhere of this database holds no Duly, and {store.schema} does" in " ".join(
            ended.err.split()
        )
        assert f"DULY_SCHEMA={store.schema}" in ended.err
    assert f"DULY_SCHEMA={store.schema}" in duly("doctor").out
    done(duly("--schema", store.schema, "job", "list"))


def test_a_submitter_may_use_the_schema_whoever_owns_it(duly: Run, store: Store) -> None:
    done(duly("migrate"))
    run_as_owner(store.url.replace(f"{store.role}@", "duly@", 1), "create role shop_of_schema login")
    try:
        done(duly("submitter", "add", "shop_of_schema", "--tenant", "shop"))
        run_as_owner(
            store.url.replace(f"{store.role}@", "shop_of_schema@", 1),
            f"select {store.schema}.submit('x', allow_unknown_handler => true)",
        )
        assert store.ask(f"select tenant from {store.schema}.jobs") == "shop"
        done(duly("submitter", "remove", "shop_of_schema"))
    finally:
        run_as_owner(
            store.url.replace(f"{store.role}@", "duly@", 1), "drop owned by shop_of_schema; drop role shop_of_schema"
        )


@pytest.mark.parametrize(
    ("name", "why"), [("Jobs", "lower-case"), ("public", "of their own"), ("table", "word of SQL")]
)
def test_a_schema_of_a_wrong_name_is_refused(duly: Run, name: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = duly("--schema", name, "status")
    assert (ended.code, why in " ".join(ended.err.split())) == (2, True)
    monkeypatch.setenv("DULY_SCHEMA", name)
    ended = duly("status")
    assert (ended.code, "setting schema" in ended.err) == (2, True)
