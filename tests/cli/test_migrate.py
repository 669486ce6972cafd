"""`duly migrate`."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conftest import Server
from duly.store import catalogue, steps
from duly.store import migrate as migrations
from duly.store.pool import Pool
from duly.store.steps import Release, Step, this_release
from duly.version import VERSION
from harness.commands import Ended, Process
from harness.old_store import make_first_store

Run = Callable[..., Ended]
Start = Callable[..., Process]
NEWEST = this_release().steps[-1]


def test_migrate_says_what_it_would_do_and_then_what_it_did(duly: Run, empty_url: str) -> None:
    def migrate(*arguments: str) -> Ended:
        return duly("--database-url", empty_url, "migrate", *arguments)

    planned = migrate("--plan")
    assert planned.code == 0
    lines = [line.split()[:3] for line in planned.out.splitlines()]
    assert lines == [
        ["step", "phase", "kind"],
        *([step.label, "before", "additive"] for step in this_release().steps),
    ]
    assert migrate("--dry-run").out == planned.out, "a dry run changed something"
    done = migrate()
    assert done.code == 0
    assert done.out == "".join(f"applied {step.label}\n" for step in this_release().steps)
    assert migrate().out == "nothing to do: the store is up to date\n"
    for look in ("--plan", "--dry-run"):
        assert migrate(look).out == "nothing to do: the store is up to date\n"
    assert duly("--database-url", empty_url, "submit", "greet").code == 0


async def test_a_store_that_is_newer_is_refused(pool: Pool, start: Start) -> None:
    await pool.query("insert into duly.migrations (version, name, checksum) values (0, '9.0.0', '')")
    for command in (["migrate"], ["migrate", "--dry-run"], ["job", "list"]):
        process = start(*command)
        assert process.end() == 3
        assert "newer than this Duly" in process.said


def test_looking_at_the_embedded_store_starts_nothing(duly: Run) -> None:
    for look in ("--dry-run", "--plan", "--check"):
        ended = duly("--home", "/nonexistent/duly-home", "migrate", look)
        assert ended.code == 0
        assert "whenever it is opened" in ended.out


Store = Callable[[str], list[Any]]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Runs a statement on this test's store."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield lambda sql: run_sql(connection, sql)


def run_sql(on: str | psycopg.Connection, sql: str) -> list[Any]:
    if isinstance(on, str):
        with psycopg.connect(on, autocommit=True) as connection:
            return run_sql(connection, sql)
    cursor = on.execute(sql.encode())
    return cursor.fetchall() if cursor.description else []


@pytest.fixture
async def first_url(server: Server) -> str:
    """A store as 0.1.0 makes it."""
    return await make_first_store(server)


@pytest.fixture
def two_more(monkeypatch: pytest.MonkeyPatch) -> Release:
    """This Duly with two more steps: 0100_drop, which is destructive, and 0101_index, which is built concurrently."""
    own = this_release()
    more = (
        Step(100, "drop", f"-- min_version: {VERSION}\ndrop table duly.parked;", "after"),
        Step(101, "index", "-- concurrently\ncreate index concurrently if not exists by_name on duly.jobs (name);\n"),
    )
    release = replace(own, steps=(*own.steps, *more))
    for module in (steps, migrations, catalogue):
        monkeypatch.setattr(module, "this_release", lambda: release)
    known = catalogue.manifest()
    made: dict[int, dict[str, str | None]] = {
        100: {key: None for key in known.after(known.steps) if "parked" in key},
        101: {"index jobs.by_name": "CREATE INDEX by_name ON duly.jobs USING btree (name)"},
    }
    monkeypatch.setattr(catalogue, "manifest", lambda: replace(known, steps={**known.steps, **made}))
    return release


class TestPlan:
    def test_a_step_with_all_that_is_to_know_about_it(self, duly: Run, two_more: Release, database_url: str) -> None:
        document = duly("migrate", "--plan", "--json").document
        assert document == {
            "up_to_date": False,
            "pending": [
                {
                    "name": "0101_index", "number": 101, "phase": "before", "kind": "additive", "concurrent": True,
                    "min_version": None, "waits_for": [],
                },
                {
                    "name": "0100_drop", "number": 100, "phase": "after", "kind": "destructive", "concurrent": False,
                    "min_version": VERSION, "waits_for": [],
                },
            ],
        }  # fmt: skip

    def test_what_it_waits_for(self, duly: Run, two_more: Release, store: Store) -> None:
        old_node(store)
        ended = duly("migrate", "--plan")
        assert "0101_index  before  additive     beside all writers, outside a transaction" in ended.out
        assert f"0100_drop   after   destructive  from then on Duly {VERSION} or newer is needed" in ended.out
        assert ended.out.splitlines()[-1] == "0100_drop waits until these older nodes have ended: worker shop (0.1.0)"
        assert duly("migrate", "--plan", "--json").document["pending"][1]["waits_for"] == ["worker shop (0.1.0)"]

    def test_routines(self, duly: Run, first_url: str) -> None:
        document = duly("--database-url", first_url, "migrate", "--plan", "--json").document
        assert document["pending"][-1]["kind"] == "functions"
        assert duly("--database-url", first_url, "migrate", "--plan").out.splitlines()[-1].split()[-1] == "functions"


def old_node(store: Store) -> None:
    store(
        "insert into duly.nodes (node_id, kind, name, version, started_at, lease_until) "
        "values (gen_random_uuid(), 'worker', 'shop', '0.1.0', now(), now() + interval '1 hour')"
    )


class TestPhases:
    def test_one_after_the_other(self, duly: Run, two_more: Release, store: Store) -> None:
        old_node(store)
        assert duly("migrate", "--check", "--phase", "before").code == 3
        ended = duly("migrate", "--phase", "before")
        assert (ended.code, ended.out) == (0, "applied 0101_index\n")
        assert duly("migrate", "--check", "--phase", "before").code == 0
        ended = duly("migrate", "--phase", "after")
        assert (ended.code, ended.out) == (3, "")
        assert ended.err == "0100_drop waits until these older nodes have ended: worker shop (0.1.0)\n"
        ended = duly("migrate")
        assert (ended.code, ended.out) == (0, ""), "a deploy goes on; the step is left for the next time"
        store("update duly.nodes set stopped_at = now()")
        ended = duly("migrate", "--phase", "after")
        assert (ended.code, ended.out) == (0, "applied 0100_drop\n")
        assert duly("migrate", "--check").out == "up to date, and as Duly made it\n"

    def test_a_target(self, duly: Run, first_url: str) -> None:
        def migrate(*arguments: str) -> Ended:
            return duly("--database-url", first_url, "migrate", *arguments)

        assert migrate("--target", "2").out == "applied 0002_versions\n"
        assert migrate("--target", "2").out == "nothing to do: the store is up to date\n"
        assert migrate("--check", "--target", "2").code == 0
        assert migrate("--check").code == 3
        assert [one["number"] for one in migrate("--plan", "--target", "3", "--json").document["pending"]][:1] == [3]

    @pytest.mark.parametrize("mode", [[], ["--plan"], ["--check"], ["--sql"], ["--sql", "--from", "0"]])
    def test_a_number_that_does_not_exist(self, duly: Run, database_url: str, mode: list[str]) -> None:
        ended = duly("migrate", *mode, "--target", "7777")
        assert ended.code == 2
        assert ended.err == (
            f"duly: target: there is no step 7777; the newest of this Duly is {NEWEST.number} ({NEWEST.label})\n"
        )

    def test_a_phase_that_does_not_exist(self, duly: Run) -> None:
        assert duly("migrate", "--phase", "during").code == 2


class TestCheck:
    def test_codes(self, duly: Run, empty_url: str) -> None:
        def check() -> Ended:
            return duly("--database-url", empty_url, "migrate", "--check")

        ended = check()
        assert ended.code == 3
        assert ended.out.splitlines()[0] == "pending: 0001_baseline (before, additive)"
        assert check().out == ended.out, "a check changed something"
        duly("--database-url", empty_url, "migrate")
        assert (check().code, check().out) == (0, "up to date, and as Duly made it\n")

    def test_drift(self, duly: Run, store: Store) -> None:
        store("drop index duly.runs_lane")
        ended = duly("migrate", "--check")
        assert ended.code == 4
        assert ended.out.startswith("drift: index runs_lane of table runs is missing; run: CREATE INDEX CONCURRENTLY ")
        assert duly("migrate", "--check", "--json").document == {
            "up_to_date": False,
            "pending": [],
            "drift": [
                {
                    "what": "index runs_lane of table runs",
                    "is": "is missing",
                    "advice": "run: CREATE INDEX CONCURRENTLY runs_lane ON duly.runs USING btree (queue, priority, "
                    "run_at)",
                }
            ],
        }
        store("delete from duly.migrations where version = -3")
        ended = duly("migrate", "--check")
        assert ended.code == 4, "drift comes before what is pending"
        assert "pending: 0003_declarations" in ended.out
        assert "table declarations is there, but 0003_declarations, which makes it, is not recorded" in ended.out

    def test_a_store_that_cannot_be_checked(self, duly: Run, store: Store, server: Server) -> None:
        for url, why in (
            (server.database_url("no_such_database"), "does not exist"),
            ("postgresql://nobody@127.0.0.1:1/nothing", "cannot be reached"),
        ):
            ended = duly("--database-url", url, "migrate", "--check")
            assert ended.code == 4
            assert why in ended.err
            assert why in duly("--database-url", url, "migrate", "--check", "--json").document["error"]
        store("insert into duly.migrations (version, name, checksum) values (0, '9.0.0', '')")
        ended = duly("migrate", "--check")
        assert ended.code == 4
        assert "newer than this Duly" in ended.err

    def test_doctor_warns_of_drift(self, duly: Run, store: Store) -> None:
        def schema() -> dict[str, str]:
            checks: list[dict[str, str]] = duly("doctor", "--json").document["checks"]
            return next(check for check in checks if check["name"] == "schema")

        assert schema()["status"] == "ok"
        store("drop index duly.runs_lane")
        store("create index jobs_mine on duly.jobs (name)")
        assert schema()["status"] == "warn"
        message = schema()["message"]
        assert message.startswith("index runs_lane of table runs is missing; run: CREATE INDEX CONCURRENTLY")
        assert message.endswith("(and 1 more difference: duly migrate --check)")


class TestSql:
    def test_a_new_store_is_written_without_a_database(
        self, duly: Run, empty_url: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("DULY_DATABASE_URL")
        ended = duly("--home", "/nonexistent/duly-home", "migrate", "--sql", "--from", "0", "--shards", "16")
        assert (ended.code, ended.err) == (0, "")
        run_sql(empty_url, ended.out)
        assert duly("--database-url", empty_url, "migrate", "--check").code == 0
        assert run_sql(empty_url, "select count(*) from duly.shards") == [(16,)]

    def test_what_the_store_lacks_is_looked_up(self, duly: Run, first_url: str) -> None:
        ended = duly("--database-url", first_url, "migrate", "--sql")
        assert ended.out == duly("migrate", "--sql", "--from", "1").out
        run_sql(first_url, ended.out)
        assert duly("--database-url", first_url, "migrate", "--check").code == 0
        assert "It lacks nothing" in duly("--database-url", first_url, "migrate", "--sql").out

    def test_only_a_part(self, duly: Run) -> None:
        text = duly("migrate", "--sql", "--from", "1", "--target", "2").out
        assert "-- 0002_versions" in text
        assert "-- 0003_declarations" not in text
        assert "It lacks nothing" in duly("migrate", "--sql", "--from", "1", "--phase", "after").out

    def test_into_a_pipe(self, start: Start) -> None:
        process = start("migrate", "--sql", "--from", "0")
        assert process.end() == 0
        assert process.output[0].startswith("-- Duly")

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--from", "1"], "--from: goes with --sql"),
            (["--sql", "--from", "7777"], "from: there is no step 7777"),
            (["--sql", "--from", "3", "--target", "2"], "target: is before --from 3"),
            (["--sql", "--check"], "take one of them"),
            (["--json"], "--json: goes with --plan or --check"),
        ],
    )
    def test_options_that_do_not_fit(self, duly: Run, arguments: list[str], why: str) -> None:
        ended = duly("migrate", *arguments)
        assert ended.code == 2
        assert why in ended.err

    def test_of_an_embedded_store(
        self, duly: Run, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
    ) -> None:
        monkeypatch.delenv("DULY_DATABASE_URL")
        ended = duly("--home", "/nonexistent/duly-home", "migrate", "--sql")
        assert ended.code == 2
        assert "--from 0" in ended.err


class TestOtherOptions:
    def test_no_create_schema(self, duly: Run, empty_url: str) -> None:
        ended = duly("--database-url", empty_url, "migrate", "--no-create-schema")
        assert ended.code == 2
        assert "let the database's owner run: create schema duly" in ended.err

    def test_timeout(self, duly: Run, first_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(migrations, "PAUSE_SECONDS", 0.1)
        with psycopg.connect(first_url, application_name="monthly report") as connection:
            connection.execute("lock table duly.jobs in row exclusive mode")
            connection.execute("select pg_advisory_xact_lock(1685417081)")
            ended = duly("--database-url", first_url, "migrate", "--timeout", "0")
        assert ended.code == 3
        assert "0002_versions could not be applied" in ended.err
        assert "monthly report" in ended.err

    def test_the_shards_of_a_new_store(self, duly: Run, empty_url: str) -> None:
        assert duly("--database-url", empty_url, "migrate", "--shards", "8").code == 0
        assert run_sql(empty_url, "select count(*) from duly.shards") == [(8,)]


@pytest.mark.parametrize(
    "command", ["duly migrate --plan", "duly migrate --phase after", "--from 0", "docs/upgrading.md"]
)
def test_the_help_teaches(duly: Run, command: str) -> None:
    text = " ".join(duly("migrate", "--help").out.split())
    assert command in text


GUIDE = (Path(__file__).parents[2] / "docs/upgrading.md").read_text()
COMMANDS = re.findall(r"^(duly [^>#\n]*)", "\n".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)), re.MULTILINE)


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) == 7


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_guide_works(duly: Run, command: str) -> None:
    ended = duly(*shlex.split(command)[1:])
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
def test_the_sql_pipes_into_psql_as_the_help_says(duly: Run, empty_url: str) -> None:
    (line,) = re.findall(r"duly migrate --sql --from 0 .*psql .*", " ".join(duly("migrate", "--help").out.split()))
    before, psql = line.split(" | ")[0], line.split(" | ")[1].split(" #")[0]
    text = duly(*before.split()[1:]).out
    ended = subprocess.run([*psql.split(), empty_url], input=text, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert duly("--database-url", empty_url, "migrate", "--check").code == 0
    again = subprocess.run([*psql.split(), empty_url], input=text, capture_output=True, text=True, timeout=60)
    assert again.returncode == 3
    assert "a schema duly with a store in it" in again.stderr
