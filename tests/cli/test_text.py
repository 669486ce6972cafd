"""Every command prints foreign text as plain text: on a terminal and into a pipe, from the store and through an API.

Foreign text never moves a cursor, reverses the reading direction, hides, or starts a line of its own. Every text in the
store is made hostile first, column by column, so that a new column is tested without being named here.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import pty
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from duly import Duly
from duly.cli.main import app, execute
from duly.config import Settings
from duly.model import MonitorDefinition
from duly.operations import Operations, StoreOperations
from duly.store import progress
from duly.store.pool import Pool
from harness.commands import PATIENCE, Ended, Process
from harness.store import take
from harness.worker import Workbench

Run = Callable[..., Ended]

# A title, a bell, a style that Duly never uses, a C1 sequence, reading directions, separators, invisible characters.
EVIL = "\x1b]0;T\x07\x1b[5;8mX\x9b2J\u202eevil\u2066\u061c\u2028\x85\u200b\xad\ufeff\x08\x7f\rR\nFORGED"
# Columns that decide how a row is read at all; every other column of text is made hostile.
STRUCTURE = {
    "api_keys.key_id", "api_keys.role", "api_keys.tenant", "history.status", "job_changes.what", "jobs.kind",
    "jobs.policy", "jobs.schedule", "jobs.status", "jobs.tenant", "jobs.timezone", "dead_letters.tenant", "ledger.key",
    "ledger.tenant", "monitors.kind", "monitors.schedule", "monitors.slug", "monitors.tenant", "monitors.timezone",
    "migrations.checksum", "migrations.name", "nodes.kind", "runs.state", "tenant_jobs.tenant",
    "zone_rules.version",
}  # fmt: skip
_TIME_OR_ID = re.compile(r"\d{4}-\d\d-\d\dT.*|[0-9a-f]{8}-[0-9a-f-]{27}")
# Duly's own sequences on a terminal: colours, weights, and the line that is overwritten.
_OURS = re.compile(r"\x1b\[(?:(?:[0-2]|3[0-7]|9[0-7])(?:;|(?=m)))*m|\r\x1b\[K")


def assert_text(shown: str, *, terminal: bool = False) -> None:
    if terminal:
        shown = _OURS.sub("", shown.replace("\r\n", "\n"))
    odd = {character for character in shown if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert odd <= {"\n", "\t"}, (odd, shown)
    assert not any(line.startswith("FORGED") for line in shown.split("\n")), shown


@dataclass(frozen=True)
class Hostile:
    """A store full of hostile texts: ids to ask for, and an API key with its id."""

    job: str
    paused: str
    run: str
    running: str
    dead: str
    key_id: str
    environment: dict[str, str]


async def make_hostile(pool: Pool) -> None:
    columns = await pool.query("""
        select c.relname, a.attname, a.atttypid::regtype::text as kind
        from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        where c.relnamespace = 'duly'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and a.attgenerated = '' and a.atttypid in ('text'::regtype, 'text[]'::regtype, 'jsonb'::regtype)
    """)
    for table, column, kind in columns:
        if f"{table}.{column}" in STRUCTURE:
            continue
        name = f'duly."{table}"'
        if kind == "text":
            await pool.query(f'update {name} set "{column}" = "{column}" || $1', EVIL)
        elif kind == "text[]":
            await pool.query(f'update {name} set "{column}" = array_append("{column}", $1)', EVIL)
        else:
            for (was,) in await pool.query(
                f'select distinct "{column}"::text from {name} where "{column}" is not null'
            ):
                given = (was, json.dumps(poisoned(json.loads(was))))
                await pool.query(f'update {name} set "{column}" = $2::jsonb where "{column}" = $1::jsonb', *given)


def poisoned(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        free = {EVIL: EVIL} if name in ("payload", "result") else {}
        return {one: poisoned(item, one) for one, item in value.items()} | free
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    kept = name == "type" and value in ("http", "command")
    if isinstance(value, str) and not kept and not _TIME_OR_ID.fullmatch(value):
        return value + EVIL
    return value


@pytest.fixture
async def hostile(
    pool: Pool, settings: Settings, operations: Operations, store_operations: StoreOperations, database_url: str
) -> Hostile:
    """Jobs and runs in every state, workers, keys and limits: all of their texts hostile."""
    tasks = Duly(settings=settings)

    @tasks.task()
    async def fine() -> dict[str, str]:
        return {"result": "x"}

    @tasks.task(max_retries=0)
    async def bad() -> None:
        raise ValueError("no")

    bench = Workbench(pool, settings, operations, tasks)
    options: dict[str, Any] = {"labels": {"team": "ops"}, "payload_ref": "s3://x"}
    job = await bench.submit("fine", schedule="every 1h", name="hourly", dedupe_key="k", **options)
    target = {"type": "http", "url": "http://example.org/x", "headers": {"x-a": "b"}}
    paused = await bench.submit(target, {"payload": {}}, schedule="0 9 * * *", name="web")
    await operations.jobs.pause(paused, reason="for now")
    done, dead = await bench.submit("fine"), await bench.submit("bad", {})
    async with bench.working():
        ended, _ = await bench.end_of(done), await bench.end_of(dead, "dead")
    running = await bench.submit("fine", queue="slow")
    claim = await take(pool, queues=["slow"], lease=600)
    assert claim.claim_id is not None
    await progress.write(pool, [(claim.claim_id, 1, 0.5, "halfway")])
    await operations.jobs.cancel(await bench.submit("fine", queue="none", run_at=operations.now() + timedelta(days=1)))
    await store_operations.tenants.set("other", max_jobs=5)
    await operations.monitors.set("noted", MonitorDefinition("@daily", description="pg_dump"))
    await operations.monitors.ping("noted", "failure", rid="r", note="no space")
    created = await store_operations.keys.create(role="admin", name="mine")
    await store_operations.keys.create(role="read", name="others", tenant="other")
    found = Hostile(
        job, paused, ended.run_id, (await bench.run_of(running)).run_id, (await bench.run_of(dead)).run_id,
        created.key.key_id, {"DULY_API_KEY": created.text},
    )  # fmt: skip
    await make_hostile(pool)
    return found


# Every command, with arguments that make it print something. None: the command runs until it is told to stop
# (test_what_processes_say_while_they_run), or prints no foreign text.
COMMANDS: dict[str, list[list[str]] | None] = {
    "up": None,
    "api": None,
    "scheduler": None,
    "worker": None,
    "bench": None,
    "health": None,
    "migrate": [[], ["--dry-run"]],
    "webhook-secret": [[]],
    "doctor": [[]],
    "status": [["--all", "--shards"]],
    "submit": [
        ["fine", "--name", "n\u202e", "--allow-unknown-handler"], [EVIL], ["fine", "--payload", EVIL],
        ["--file", "jobs"],
    ],
    "preview": [["every 5m"], [EVIL]],
    "explain": [["{job}"], ["{paused}"], ["{run_job}"], ["{dead_job}", "--from", "2020-01-01"], [EVIL]],
    "forecast": [[], ["--by", EVIL]],
    "job list": [[], ["--label", f"a={EVIL}"], ["--status", EVIL]],
    "job show": [["{job}"], ["{paused}"], ["{dead_job}"], [EVIL]],
    "job runs": [["{run_job}"], ["{dead_job}"]],
    "job trigger": [["{job}"], [EVIL]],
    "job pause": [["{job}", "--reason", "r\u202e"]],
    "job resume": [["{job}"], ["{run_job}"]],
    "dead list": [[], ["--error-type", EVIL]],
    "dead show": [["{dead}"], [EVIL]],
    "run show": [["{run}"], ["{running}"], ["{dead}"], [EVIL]],
    "run logs": [["{run}"], ["{dead}", "--tail", "3"], [EVIL]],
    "run cancel": [["{running}"], ["{run}"]],
    "dead redrive": [["{dead}"], ["--all"]],
    "dead purge": [["{dead}"], ["--all", "--yes"]],
    "job cancel": [["{job}"]],
    "audit": [[]],
    "incident list": [["--all"], ["--job", EVIL]],
    "incident ack": [[EVIL]],
    "maintenance add": [["--until", "2099-01-01T00:00:00Z", "--reason", "r\u202e"], ["--until", EVIL]],
    "maintenance list": [[]],
    "maintenance remove": [[EVIL]],
    "monitor set": [["m", "--schedule", "@daily", "--description", "d\u202e"], [EVIL, "--schedule", EVIL]],
    "monitor list": [[]],
    "monitor show": [["noted"], [EVIL]],
    "monitor ping": [["noted", "--note", EVIL], [EVIL]],
    "monitor remove": [["noted"], [EVIL]],
    "key create": [["--role", "read", "--name", "x\u202e"], ["--role", EVIL]],
    "key link": [[], [EVIL]],
    "key list": [[]],
    "key revoke": [[EVIL]],
    "tenant set": [["t\u202e", "--max-jobs", "5"], ["t", "--max-jobs", EVIL]],
    "tenant list": [[]],
    "tenant show": [["other"], [EVIL]],
    "submitter add": [["no\u202erole", "--tenant", "t"], [EVIL, "--tenant", EVIL]],
    "submitter list": [[]],
    "submitter remove": [[EVIL]],
    "import crontab": [["crontab", "--yes", "--skip-unknown"], [EVIL]],
    "monitoring rules": [["--runbooks", EVIL]],
    "monitoring prometheus": None,
    "monitoring alertmanager": None,
    "monitoring dashboard": None,
}  # fmt: skip
# Commands that work on the store itself and not through an API.
AT_THE_STORE = ("migrate", "webhook-secret", "doctor", "key", "tenant", "submitter")


def every_command() -> Iterator[tuple[str, bool]]:
    """The name of every command, and whether it can print JSON."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, (*path, name))
        if not hasattr(command, "commands"):
            yield " ".join(path), any("--json" in parameter.opts for parameter in command.params)

    return walk(typer.main.get_command(app), ())


def calls(hostile: Hostile) -> Iterator[list[str]]:
    ids = {
        "{job}": hostile.job, "{paused}": hostile.paused, "{run}": hostile.run, "{running}": hostile.running,
        "{dead}": hostile.dead, "{run_job}": hostile.run[:36],
        "{dead_job}": hostile.dead[:36],
    }  # fmt: skip
    found = dict(every_command())
    assert found.keys() == COMMANDS.keys(), "COMMANDS must name exactly the commands that exist"
    for name, tries in COMMANDS.items():
        for arguments in tries or ():
            call = [*name.split(), *(ids.get(one, one) for one in arguments)]
            yield call
            if found[name]:
                yield [*call, "--json"]


@pytest.fixture(autouse=True)
def _made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds the commands once: building them at each call takes longer than most of what is done here."""
    monkeypatch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))


@pytest.fixture
def files(project: Path) -> None:
    (project / "jobs").write_text(
        '{"handler": "fine", "name": "a\\u202eb"}\n{"handler": "\\u001b[5m\\u009b", "x\\ny": 1}\n'
    )
    (project / "crontab").write_bytes(
        b"* * * * * echo \x1b[5m \xe2\x80\xae\n61 * * * * x\x07\nX\x1b=1\n@reboot \xc2\x9b2J\n* * * * * a\r\xff\n"
    )


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Runs a command in this process, with both outputs on a pseudo-terminal."""
    master, slave = pty.openpty()
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(master, 65536):
                pieces.append(piece)
        except OSError:
            return  # closed at the other end

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, open(slave, "w", encoding="utf-8") as terminal, open(os.devnull) as nothing:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(sys, "stdin", nothing)
        code = execute(arguments)
    reader.join(PATIENCE)
    os.close(master)
    return code, b"".join(pieces).decode()


def assert_json(ended: Ended) -> None:
    if not ended.out:
        assert ended.code != 0 or not ended.err.startswith("duly:")
        return
    try:
        json.loads(ended.out)
    except json.JSONDecodeError:
        assert all(json.loads(line) is not None for line in ended.out.rstrip("\n").split("\n"))


def test_every_command_prints_text_into_a_pipe(duly: Run, hostile: Hostile, files: None) -> None:
    shown = 0
    for call in calls(hostile):
        ended = duly(*call)
        assert "unexpected error" not in ended.err, (call, ended.err)
        assert_text(ended.out)
        assert_text(ended.err)
        if "--json" in call:
            assert_json(ended)
        shown += "evil" in ended.out
    # The hostile text is printed, but only as plain text.
    assert shown > 30


def test_every_command_prints_text_on_a_terminal(
    duly: Run, hostile: Hostile, files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = 0
    for call in calls(hostile):
        if "--json" in call:
            continue  # JSON is the same everywhere
        _, shown = on_a_terminal(monkeypatch, *call)
        assert_text(shown, terminal=True)
        coloured += "\x1b[" in shown
    assert coloured > 10


def test_every_command_prints_text_through_an_api(
    duly: Run, hostile: Hostile, files: None, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = start("api", "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    monkeypatch.setenv("DULY_API_KEY", hostile.environment["DULY_API_KEY"])
    shown = 0
    for call in calls(hostile):
        if call[0] in AT_THE_STORE or EVIL in call or "--json" in call:
            continue  # no different from the tests above
        ended = duly("--url", api, *call)
        assert "unexpected error" not in ended.err, (call, ended.err)
        assert_text(ended.out + ended.err)
        shown += "evil" in ended.out
    assert shown > 8


class Liar(http.server.BaseHTTPRequestHandler):
    """Answers every request with something that no API of Duly would send."""

    answer: tuple[int, str, bytes]

    def do_GET(self) -> None:
        code, kind, body = self.answer
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(code)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        return


LIE = json.dumps(EVIL + "\ud800\x00")
PROBLEM = "application/problem+json"


@pytest.mark.parametrize(
    ("code", "kind", "body"),
    [
        *(
            (code, PROBLEM, f'{{"type": {LIE}, "title": {LIE}, "detail": {LIE}}}')
            for code in (400, 401, 403, 404, 409, 500)
        ),
        (422, PROBLEM, f'{{"detail": {LIE}, "errors": [{{"field": {LIE}, "message": {LIE}}}, {{"field": {LIE}}}]}}'),
        (200, "application/json", f'{{"items": [{{"job_id": {LIE}, {LIE}: {LIE}}}], "next_cursor": {LIE}}}'),
        (302, "text/html\x1b[5m", "\x1b[5m"),
        (200, "application/json", LIE),
    ],
)  # fmt: skip
def test_a_server_that_lies_says_only_text(
    code: int, kind: str, body: str, duly: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Liar, "answer", (code, kind, body.encode()), raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        for call in (
            ["job", "list"],
            ["job", "show", "x"],
            ["submit", "x"],
            ["status", "--json"],
            ["preview", "every 1m"],
        ):
            ended = duly("--url", url, *call)
            assert ended.code != 0
            assert_text(ended.out + ended.err)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_output_of_ascii_shows_and_parses_it_all(
    hostile: Hostile, environment: dict[str, str], project: Path
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    for extra in ([], ["--json"]):
        ended = subprocess.run(
            [sys.executable, "-m", "duly.cli", "dead", "show", hostile.dead, *extra],
            env={**clean, **environment, "PYTHONIOENCODING": "ascii"},
            cwd=project,
            capture_output=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert_text(ended.stdout.decode("ascii"))
        if extra:
            assert json.loads(ended.stdout)["name"].endswith(EVIL)


async def test_what_processes_say_while_they_run(pool: Pool, start: Callable[..., Process], project: Path) -> None:
    """Checks live lines, tracebacks and log lines: a record that quotes a line break is still one line."""
    (project / "loud.py").write_text(
        "import logging\nfrom duly import Duly, Permanent\napp = Duly()\n"
        f"EVIL = {EVIL!r}\n"
        "@app.task()\nasync def loud():\n"
        "    logging.getLogger('duly.loud').warning('it said %s', EVIL)\n"
        "    logging.getLogger('duly.loud').error('and', exc_info=ValueError(EVIL))\n"
        "    raise Permanent(EVIL)\n"
    )
    # By SQL, past the checks of names. The second job is refused, and the refusal quotes a field of its handler.
    await pool.query("select duly.submit('loud', name => 'n')")
    await pool.query("update duly.jobs set name = name || $1", EVIL)
    await pool.query(
        "select duly.submit($1)",
        json.dumps({"type": "command", "argv": ["id"], f"x\n2030-01-01 03:00:03 INFO {EVIL}": 1}),
    )
    process = start("up", "--app", "loud:app", "--port", "0")
    for _ in range(2):  # in either order
        process.wait_for(r"\\x1b\]0;T.*dead.*attempt 1|x\\n2030-01-01 03:00:03 INFO")
    process.press_ctrl_c()
    process.end()
    assert_text(process.said)
    assert any(line.startswith("    ValueError: ") for line in process.output)
    assert not any(line.startswith("2030-") for line in process.output)
