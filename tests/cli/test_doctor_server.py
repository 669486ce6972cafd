"""`duly doctor` about the server: every condition is produced on a real PostgreSQL, and the advice is followed."""

from __future__ import annotations

import asyncio
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psycopg
import psycopg2
import psycopg2.extras
import pytest

from duly.cli import diagnosis
from duly.store import cluster, embedded
from duly.store import pool as pools
from duly.store.diagnosis import Server
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.commands import Ended
from harness.processes import clean_environment
from harness.servers import PgBouncerServer
from harness.store import folder_in_memory

Run = Callable[..., Ended]
Told = dict[str, tuple[str, str]]

#: Autovacuum is on and never comes by itself.
_SETTINGS = {
    "max_connections": "30", "superuser_reserved_connections": "3", "wal_level": "logical", "max_wal_senders": "3",
    "max_prepared_transactions": "3", "max_notify_queue_pages": "64", "autovacuum_naptime": "1d",
}  # fmt: skip


async def make_store(url: str, schema: str = "duly") -> None:
    pool = await Pool.connect(url, schema=schema)
    await migrate(pool)
    await pool.close()


@pytest.fixture(scope="module")
def own_url() -> Iterator[str]:
    """A store on a server of its own, with PostgreSQL's own durability."""
    with TemporaryDirectory(prefix="duly-doctor-", dir=folder_in_memory()) as home:
        running = embedded.start(Path(home), settings=_SETTINGS)
        try:
            asyncio.run(make_store(running.url))
            yield running.url
        finally:
            running.release()


@pytest.fixture
def ask(duly: Run, own_url: str) -> Callable[..., Told]:
    def ask(url: str = own_url) -> Told:
        checks = duly("--database-url", url, "doctor", "--json").document["checks"]
        return {check["name"]: (check["status"], check["message"]) for check in checks}

    return ask


@pytest.fixture
def admin(own_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(own_url, autocommit=True, application_name="admin") as connection:
        yield connection


@pytest.fixture
def ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps PostgreSQL from cleaning up has done so for too long."""
    monkeypatch.setattr(diagnosis, "HELD_SECONDS", 0.5)
    monkeypatch.setattr(diagnosis, "HELD_TRANSACTIONS", 1)


@contextmanager
def session(url: str, name: str, *, autocommit: bool = False) -> Iterator[psycopg.Connection[Any]]:
    """A connection that is closed and not committed: it may have been ended."""
    connection = psycopg.connect(url, application_name=name, autocommit=autocommit)
    try:
        yield connection
    finally:
        connection.close()


def follow(admin: psycopg.Connection[Any], message: str, pattern: str) -> None:
    """Runs the commands that the message ends with or contains."""
    found = re.search(pattern, message)
    assert found is not None, message
    for command in found[0].split("; "):
        admin.execute(command)


def until(happened: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def server_setting(admin: psycopg.Connection[Any], name: str, value: str) -> Iterator[None]:
    def set_to(command: str, expected: Callable[[str], bool]) -> None:
        admin.execute(command)
        admin.execute("select pg_reload_conf()")
        until(lambda: expected(admin.execute(f"show {name}").fetchone()[0]))  # type: ignore[index]

    before = admin.execute(f"show {name}").fetchone()[0]  # type: ignore[index]
    set_to(f"alter system set {name} = {value}", lambda now: now != before)
    try:
        yield
    finally:
        set_to(f"alter system reset {name}", lambda now: now == before)


def fill(admin: psycopg.Connection[Any], rows: int) -> None:
    """Puts rows of 1,000 bytes into the ledger."""
    admin.execute(
        "insert into duly.ledger (tenant, key, job_id, scheduled_at, completed_at) "
        "select 'default', n || repeat('x', 1000), gen_random_uuid(), now(), now() from generate_series(1, %s) n",
        [rows],
    )


SERVER = {
    "durability", "wraparound", "connections", "partitions", "vacuum", "autovacuum", "bloat", "pooler", "notifications",
    "extras",
}  # fmt: skip


def test_a_healthy_server_is_all_ok(ask: Callable[..., Told]) -> None:
    began = time.monotonic()
    told = ask()
    assert time.monotonic() - began < 10, "each look is bounded"
    assert told.keys() >= SERVER
    assert {name: told[name] for name in SERVER if told[name][0] != "ok"} == {}
    assert told["pooler"][1] == "there is none: DULY_DATABASE_URL leads to PostgreSQL itself"
    assert re.fullmatch(r"[1-9] of 27 connections are in use, [1-9] of them by Duly here", told["connections"][1])
    assert "one arrives in" in told["notifications"][1]
    assert told["extras"][1] == "none is used"


@pytest.mark.usefixtures("ages")
def test_it_names_an_idle_transaction(ask: Callable[..., Told], own_url: str, admin: psycopg.Connection[Any]) -> None:
    with session(own_url, "report") as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select count(*) from duly.jobs")
        admin.execute("select pg_current_xact_id()")
        until(lambda: ask()["vacuum"][0] == "warn")
        message = ask()["vacuum"][1]
        assert f"process {reader.info.backend_pid} (report, user {reader.info.user}, idle in transaction)" in message
        assert re.search(r"for \S+ \S+ and \d+ transactions?; let it end", message), message
        follow(admin, message, r"select pg_terminate_backend\(\d+\)")
    until(lambda: ask()["vacuum"][0] == "ok")


@pytest.mark.usefixtures("ages")
def test_it_names_a_prepared_transaction(ask: Callable[..., Told], admin: psycopg.Connection[Any]) -> None:
    admin.execute("begin")
    admin.execute("select pg_current_xact_id()")
    admin.execute("prepare transaction 'left''behind'")
    until(lambda: ask()["vacuum"][0] == "warn")
    message = ask()["vacuum"][1]
    assert "the prepared transaction left'behind of user" in message
    follow(admin, message, r"rollback prepared '.*'")
    assert ask()["vacuum"][0] == "ok"


def test_it_names_a_replication_slot_without_a_reader(ask: Callable[..., Told], admin: psycopg.Connection[Any]) -> None:
    admin.execute("select pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    status, message = ask()["vacuum"]
    assert (status, "the replication slot left_behind (nobody reads it)" in message) == ("warn", True)
    follow(admin, message, r"select pg_drop_replication_slot\('left_behind'\)")
    assert ask()["vacuum"][0] == "ok"


@pytest.mark.usefixtures("ages")
def test_it_names_a_standby_that_reports_its_queries(
    ask: Callable[..., Told], own_url: str, admin: psycopg.Connection[Any]
) -> None:
    standby = psycopg2.connect(
        own_url, connection_factory=psycopg2.extras.PhysicalReplicationConnection, application_name="east"
    )
    (written,) = admin.execute("select pg_current_wal_flush_lsn()::text").fetchone()  # type: ignore[misc]
    replication = standby.cursor()
    replication.start_replication(start_lsn=written)
    (xid,) = admin.execute("select pg_current_xact_id()::text::bigint").fetchone()  # type: ignore[misc]
    # A standby's feedback, as its WAL receiver sends it: time, xmin and its epoch, and no catalog_xmin.
    feedback = struct.pack("!cqIIII", b"h", 0, xid % 2**32, xid >> 32, 0, 0)
    os.write(standby.fileno(), b"d" + struct.pack("!I", len(feedback) + 4) + feedback)
    admin.execute("select pg_current_xact_id()")
    until(lambda: ask()["vacuum"][0] == "warn")
    message = ask()["vacuum"][1]
    assert re.search(r"the standby east \(process \d+\), whose queries hot_standby_feedback reports", message)
    assert "look for long queries on the standby" in message
    standby.close()
    until(lambda: ask()["vacuum"][0] == "ok")


def test_it_finds_autovacuum_turned_off_or_behind(
    ask: Callable[..., Told], admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute("alter table duly.ledger set (autovacuum_enabled = off)")
    fill(admin, 2_000)
    admin.execute("delete from duly.ledger where key not like '7x%'")
    admin.execute("select pg_stat_force_next_flush()")
    status, message = ask()["autovacuum"]
    assert status == "warn"
    assert "turned off for duly.ledger, which has 1,999 dead rows beside 1 live ones" in message
    monkeypatch.setattr(diagnosis, "DEAD_ROWS", 1_000)
    admin.execute("alter table duly.ledger reset (autovacuum_enabled)")
    status, behind = ask()["autovacuum"]
    assert (status, "behind with duly.ledger: 1,999 dead rows" in behind, "vacuumed never" in behind) == (
        "warn", True, True,
    )  # fmt: skip
    follow(admin, message, r"alter table .*")
    until(lambda: ask()["autovacuum"][0] == "ok")
    with server_setting(admin, "autovacuum", "off"):
        assert "off on the whole server" in ask()["autovacuum"][1]


def test_it_estimates_bloat_without_reading_the_tables(
    ask: Callable[..., Told], admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "BLOAT_BYTES", 300_000)
    admin.execute("truncate duly.ledger")
    fill(admin, 5_000)
    admin.execute("vacuum analyze duly.ledger")
    assert ask()["bloat"][0] == "ok", "a full table is not bloated"
    # The last rows stay, so the file keeps its size.
    admin.execute("delete from duly.ledger where ctid < (select max(ctid) from duly.ledger)")
    admin.execute("vacuum analyze duly.ledger")
    status, message = ask()["bloat"]
    assert status == "warn"
    assert re.search(r"the table duly\.ledger has [5-9] MiB, and its rows need about 0 MiB", message), message
    for _ in range(3):
        if "reindex" in message:
            follow(admin, message, r"reindex index concurrently duly\.\w+")
            status, message = ask()["bloat"]
    assert "index" not in message
    admin.execute("truncate duly.ledger")
    assert ask()["bloat"][0] == "ok"


def test_it_finds_rows_whose_day_has_no_partition(ask: Callable[..., Told], admin: psycopg.Connection[Any]) -> None:
    admin.execute(
        "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status) "
        "values (gen_random_uuid(), now() + interval '40 days', now(), 1, 'succeeded'), "
        "(gen_random_uuid(), now() - interval '400 days', now(), 1, 'succeeded')"
    )
    status, message = ask()["partitions"]
    assert (status, "holds rows of days from today on (1)" in message) == ("warn", True)
    admin.execute("delete from duly.history")
    assert ask()["partitions"][0] == "ok"


def test_it_says_what_a_crash_would_cost(ask: Callable[..., Told], admin: psycopg.Connection[Any]) -> None:
    for name, words in (("fsync", "damage the whole store"), ("full_page_writes", "damage the whole store")):
        with server_setting(admin, name, "off"):
            status, message = ask()["durability"]
            assert (status, f"{name} is off" in message, words in message) == ("warn", True, True)
    admin.execute("alter database duly set synchronous_commit = off")
    assert "loses what it confirmed in the last second" in ask()["durability"][1]
    admin.execute("alter database duly reset synchronous_commit")
    assert ask()["durability"][0] == "ok"


def test_it_counts_connections(ask: Callable[..., Told], own_url: str, admin: psycopg.Connection[Any]) -> None:
    with ExitStack() as stack:
        for _ in range(19):
            stack.enter_context(psycopg.connect(own_url))
        status, message = ask()["connections"]
        assert (status, "of 27 connections are in use" in message) == ("warn", True)

    async def join() -> None:
        pool = await Pool.connect(own_url)
        for _ in range(5):
            await cluster.join(
                pool, node_id=uuid4(), kind="worker", name="w", version="0", lease_seconds=60, info={"queues": []}
            )  # fmt: skip
        await pool.close()

    asyncio.run(join())
    told = ask()
    admin.execute("delete from duly.nodes")
    assert "the 5 live nodes may open 30 (DULY_POOL_SIZE 4)" in told["connections"][1]
    status, message = told["notifications"]
    assert (status, "announcements arrive, but none of the 5 live nodes listens" in message) == ("warn", True)


def test_it_sees_a_queue_of_notifications_that_fills_up(
    ask: Callable[..., Told], own_url: str, admin: psycopg.Connection[Any]
) -> None:
    with session(own_url, "sleeper", autocommit=True) as sleeper:
        sleeper.execute("listen elsewhere")
        sleeper.execute("begin")
        sleeper.execute("select 1")
        for _ in range(30):
            admin.execute("select pg_notify('elsewhere', repeat('x', 7000) || clock_timestamp())")
        status, message = ask()["notifications"]
        assert status == "warn"
        assert re.search(r"queue is \d\d% full, and when it is full nothing can be submitted", message), message
        assert f"process {sleeper.info.backend_pid} (sleeper, user {sleeper.info.user}, idle in transaction" in message
        with suppress(psycopg.Error):  # until it is full
            for _ in range(100):
                admin.execute("select pg_notify('elsewhere', repeat('x', 7000) || clock_timestamp())")
        status, message = ask()["notifications"]
        assert status == "fail"
        follow(admin, message, r"select pg_terminate_backend\(\d+\)")
    until(lambda: ask()["notifications"][0] == "ok")


def test_it_goes_on_where_a_table_is_locked(ask: Callable[..., Told], own_url: str) -> None:
    with psycopg.connect(own_url) as locking:
        locking.execute("lock table duly.history_default")
        told = ask()
        for name in ("partitions", "autovacuum", "bloat"):
            assert told[name][0] == "warn"
            assert "could not be looked at within 1 s" in told[name][1]
    assert {ask()[name][0] for name in ("partitions", "autovacuum", "bloat")} == {"ok"}


def test_it_says_what_its_user_may_not_see(
    ask: Callable[..., Told], own_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute("create role modest login")
    admin.execute("create database modest owner modest")
    url = re.sub(r"/duly\?", "/modest?", re.sub(r"//\w+", "//modest", own_url))
    try:
        asyncio.run(make_store(url))
        with session(re.sub(r"/duly\?", "/modest?", own_url), "report") as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("select 1")
            told = ask(url)
            unseen = "(of other users' sessions only with the role pg_read_all_stats or pg_monitor)"
            assert told["vacuum"] == ("ok", f"no old transaction keeps PostgreSQL from cleaning up {unseen}")
            assert {name: told[name] for name in SERVER if told[name][0] != "ok"} == {}
            monkeypatch.setattr(diagnosis, "HELD_TRANSACTIONS", 0)
            status, message = ask(url)["vacuum"]
            assert (status, f"process {reader.info.backend_pid} (report, user" in message) == ("warn", True)
            assert "of another user)" in message
            admin.execute("grant pg_read_all_stats to modest")
            assert ask(url)["vacuum"][0] == "ok", "its age is known now"
        asyncio.run(make_store(url, "shop"))
        monkeypatch.setenv("DULY_SCHEMA", "shop")
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("alter table shop.ledger set (autovacuum_enabled = off)")
        told = ask(url)
        assert "turned off for shop.ledger" in told["autovacuum"][1]
        assert {name for name in SERVER if told[name][0] != "ok"} == {"autovacuum"}
    finally:
        admin.execute("drop database modest with (force)")
        admin.execute("drop role modest")


def test_it_finds_poolers_by_what_they_do(
    ask: Callable[..., Told], own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := PgBouncerServer.missing():
        pytest.skip(reason)
    lenient = ", ".join([*pools._SETTINGS, "statement_timeout"])
    by_name = {
        "transaction": PgBouncerServer(own_url, pool_size=3),
        "lenient": PgBouncerServer(own_url, pool_size=3, ignored=lenient),
        "session": PgBouncerServer(own_url, pool_size=12, mode="session", ignored=lenient),
    }
    try:
        for server in by_name.values():
            server.start()
        strict = by_name["transaction"].url
        refused = ask(strict)["database"]
        assert (refused[0], "this is a pooler: set DULY_PGBOUNCER=1" in refused[1]) == ("fail", True)
        status, message = ask(by_name["lenient"].url)["pooler"]
        assert (status, "DULY_DATABASE_URL leads to a pooler in transaction mode" in message) == ("fail", True)
        assert ask(by_name["session"].url)["pooler"] == ("ok", "there is one in session mode, as the settings say")

        monkeypatch.setenv("DULY_PGBOUNCER", "1")
        told = ask(strict)
        assert told["pooler"] == ("ok", "there is one in transaction mode, as the settings say")
        status, message = told["notifications"]
        assert (status, "set DULY_DIRECT_URL to PostgreSQL itself" in message) == ("warn", True)
        assert "idle workers look every 200 ms, and schedulers read the next seconds every 3.3 s" in message
        assert "planned anew for nothing" in ask()["pooler"][1]

        monkeypatch.setenv("DULY_DIRECT_URL", own_url)
        told = ask(strict)
        assert {name: told[name] for name in SERVER if told[name][0] != "ok"} == {}
        monkeypatch.setenv("DULY_DIRECT_URL", strict)
        status, message = ask(strict)["pooler"]
        assert (status, "DULY_DIRECT_URL leads to a pooler in transaction mode" in message) == ("fail", True)
        monkeypatch.delenv("DULY_DIRECT_URL")
        monkeypatch.setenv("DULY_NOTIFICATIONS", "0")
        assert "they are turned off (DULY_NOTIFICATIONS)" in ask(strict)["notifications"][1]
    finally:
        for server in by_name.values():
            server.remove()


def test_it_finds_extras_that_are_used_and_missing(duly: Run, own_url: str, tmp_path: Path) -> None:
    assert (
        duly(
            "--database-url", own_url, "submit", "--call", "https://example.com/hook", "--run-at", "2100-01-01T00:00Z"
        ).code
        == 0
    )

    def told(*missing: str, **settings: str) -> tuple[str, str]:
        block = f"import sys\nfor name in {missing!r}: sys.modules[name] = None\n"
        run = "from duly.cli.main import execute\nsys.exit(execute(sys.argv[1:]))"
        ended = subprocess.run(
            [sys.executable, "-c", block + run, "--database-url", own_url, "doctor", "--json"],
            env={**clean_environment(), "DULY_HOME": str(tmp_path), **settings}, cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        (found,) = [one for one in Ended(0, ended.stdout, "").document["checks"] if one["name"] == "extras"]
        return found["status"], found["message"]

    (here,) = [
        one for one in duly("--database-url", own_url, "doctor", "--json").document["checks"] if one["name"] == "extras"
    ]
    assert (here["status"], here["message"]) == ("ok", "all that is used is installed here: http")
    assert told("httpx") == (
        "warn", "HTTP endpoints are called by active jobs (1), and a worker here cannot; run: pip install 'duly[http]'",
    )  # fmt: skip
    status, message = told(
        "kazoo", "prometheus_client", DULY_COORDINATOR="zookeeper://127.0.0.1:1/duly", DULY_HEALTH_PORT="9100"
    )
    assert (status, "pip install 'duly[metrics,zookeeper]'" in message) == ("fail", True)


def test_it_warns_long_before_transaction_ids_run_out() -> None:
    def status(age: int, freeze_max_age: int = 200_000_000) -> str:
        server = Server(
            180000, True, True, "on", True, freeze_max_age, age, 0, connections_allowed=97, connections=1,
            own_connections=1, sees_all=True,
        )  # fmt: skip
        return diagnosis.check_wraparound(server).status

    assert [status(age) for age in (210_000_000, 399_999_999, 400_000_000, 1_999_999_999, 2_000_000_000)] == [
        "ok", "ok", "warn", "warn", "fail",
    ]  # fmt: skip
    assert [status(age, 1_600_000_000) for age in (1_600_000_000, 1_690_000_000)] == ["ok", "warn"]
