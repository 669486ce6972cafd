"""Every mistake ends with one clear sentence on stderr and an exit code for its kind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from duly.cli.commands import job, submit
from duly.cli.main import execute
from duly.store import cluster
from duly.store.pool import Pool
from duly.timing import load_zone
from harness.commands import Ended
from harness.store import put_now

Run = Callable[..., Ended]


def refused(ended: Ended, code: int, *words: str) -> None:
    """Checks that the command failed with this code and said why in one sentence that contains these words."""
    assert ended.code == code, ended
    assert ended.out == ""
    assert ended.err.startswith("duly: ")
    assert ended.err.count("\n") == 1, ended.err
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err


BAD_SUBMITS: list[tuple[list[str], list[str]]] = [
    (["--timezone", "Mars/Olympus"], ["timezone", "Mars/Olympus"]),
    (["--timezone", "../../etc/passwd"], ["timezone"]),
    (["--schedule", "61 * * * *"], ["schedule", "61"]),
    (["--schedule", "* * *"], ["schedule"]),
    (["--schedule", "0 0 30 2 *"], ["schedule"]),
    (["--schedule", "every -5m"], ["schedule"]),
    (["--schedule", ""], ["schedule"]),
    (["--payload", r'{"a": "nul \u0000 here"}'], ["payload", "NUL"]),
    (["--payload", r'{"a": "\ud800"}'], ["payload"]),
    (["--payload", "{"], ["payload", "JSON"]),
    (["--payload", "hello"], ["payload", "JSON", "quotes"]),
    (["--payload", "NaN"], ["payload", "JSON"]),
    (["--payload", "[" * 100_000], ["payload", "deep"]),
    (["--payload", "@no-such-file.json"], ["payload", "no-such-file.json"]),
    (["--payload", json.dumps("x" * 300_000)], ["payload", "262144"]),
    (["--run-at", "tomorrow"], ["run_at", "ISO 8601"]),
    (["--run-at", "every 5m"], ["run_at", "ISO 8601"]),
    (["--run-at", "2030-01-01T00:00Z", "--schedule", "every 5m"], ["run_at", "schedule"]),
    (["--start-at", "soon", "--schedule", "every 5m"], ["start_at"]),
    (["--start-at", "2030-01-01T00:00", "--schedule", "every 5m"], ["start_at", "offset"]),
    (["--label", "nothing"], ["label", "key=value"]),
    (["--overlap", "never"], ["overlap", "skip, queue, parallel"]),
    (["--missed-window", "always"], ["missed_window", "RUN_ONCE"]),
    (["--max-retries", "-1"], ["max_retries"]),
    (["--priority", "10"], ["priority"]),
    (["--priority", "high"], ["--priority", "duly submit --help"]),
    (["--retry-delay-seconds", "nan"], ["retry_delay_seconds"]),
    (["--name", "two\nlines"], ["name", "control"]),
    (["--queue", ""], ["queue"]),
    (["--no-such-option"], ["--no-such-option", "duly submit --help"]),
]


def test_bad_input_to_submit_is_one_sentence_and_exit_code_2(duly: Run) -> None:
    for arguments, words in BAD_SUBMITS:
        refused(duly("submit", "greet", *arguments), 2, *words)
    assert duly("job", "list", "--json").out == "", "a refused submit left something behind"


async def test_an_unknown_handler_is_refused_once_workers_are_known(pool: Pool, duly: Run) -> None:
    await cluster.offer_handlers(pool, ["greet", "report"])
    # In a thread, because a command has an event loop of its own.
    refused(await asyncio.to_thread(duly, "submit", "gret"), 2, "handler", "gret", "greet, report")
    assert (await asyncio.to_thread(duly, "submit", "gret", "--allow-unknown-handler")).code == 0


def test_an_unknown_handler_is_refused_when_the_app_is_named(project: Path, duly: Run) -> None:
    refused(duly("submit", "gret", "--app", "tasks_of_test:app"), 2, "handler", "gret", "greet")


BAD_APPS: list[tuple[str, list[str]]] = [
    ("tasks_of_test", ["module:attribute"]),
    (":app", ["module:attribute"]),
    ("no_such_module:app", ["no_such_module", "no module"]),
    ("tasks_of_test.deeper:app", ["tasks_of_test.deeper"]),
    ("tasks_of_test:nothing", ["tasks_of_test", "'nothing'", "'app'"]),
    ("tasks_of_test:other", ["int", "not a Duly application"]),
    ("needs_more:app", ["needs_more", "no_such_library", "needs_more.py, line 1"]),
    ("raises:app", ["ZeroDivisionError", "raises.py, line 2"]),
    ("leaves:app", ["SystemExit"]),
    ("unreadable:app", ["SyntaxError", "unreadable.py"]),
    ("wrong_task:app", ["cannot be given by name"]),
]


def test_an_app_that_cannot_be_loaded_is_one_sentence(project: Path, duly: Run) -> None:
    (project / "needs_more.py").write_text("import no_such_library\n")
    (project / "raises.py").write_text("def f():\n    return 1 / 0\nf()\n")
    (project / "leaves.py").write_text("import sys\nsys.exit('goodbye')\n")
    (project / "unreadable.py").write_text("def f(:\n")
    (project / "wrong_task.py").write_text("from duly import Duly\napp = Duly()\n@app.task()\ndef f(*args): ...\n")
    for app, words in BAD_APPS:
        for command in (["worker"], ["submit", "x"], ["up"]):
            refused(duly(*command, "--app", app), 2, "--app", *words)


def test_a_database_that_cannot_be_reached_is_one_sentence(duly: Run) -> None:
    away = "postgresql://duly:secret@127.0.0.1:1/duly"
    for command in (["job", "list"], ["submit", "greet"], ["status"], ["migrate"], ["scheduler"]):
        ended = duly("--database-url", away, *command)
        refused(ended, 3, "127.0.0.1:1", "cannot be reached")
        assert "secret" not in ended.err
    refused(duly("--database-url", "mysql://somewhere", "job", "list"), 2, "DULY_DATABASE_URL", "address")


def test_a_database_that_does_not_exist_is_one_sentence(duly: Run, environment: dict[str, str]) -> None:
    url = environment["DULY_DATABASE_URL"].replace("/test_", "/not_test_", 1)
    refused(duly("--database-url", url, "job", "list"), 2, "does not exist")


def test_an_empty_database_asks_for_migrate_with_exit_code_3(duly: Run, empty_url: str) -> None:
    for command in (["job", "list"], ["submit", "greet"], ["status"], ["scheduler"]):
        refused(duly("--database-url", empty_url, *command), 3, "empty", "duly migrate")


def test_a_job_that_is_not_there_is_exit_code_4(duly: Run) -> None:
    for command in ("show", "runs", "pause", "resume", "trigger", "cancel"):
        refused(duly("job", command, "no-such-job"), 4, "no-such-job")
        refused(duly("job", command, "0197c1f2-0000-7000-8000-000000000000"), 4)


def test_the_same_dedupe_key_with_other_content_is_exit_code_5(duly: Run) -> None:
    assert duly("submit", "greet", "--dedupe-key", "k").code == 0
    refused(duly("submit", "greet", "--dedupe-key", "k", "--priority", "9"), 5, "'k'")


def test_wrong_settings_are_one_sentence(duly: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused(duly("--log-level", "LOUD", "job", "list"), 2, "log_level", "LOUD")
    refused(duly("--home", "/tmp/x", "--database-url", "postgresql:///x", "status"), 2, "--home", "--database-url")
    refused(duly("up", "--demo", "--app", "tasks_of_test:app"), 2, "--demo", "--app")
    monkeypatch.setenv("DULY_HEARTBEAT_SECONDS", "2")
    refused(duly("job", "list"), 2, "heartbeat_seconds", "worker_lease_seconds")
    monkeypatch.delenv("DULY_HEARTBEAT_SECONDS")
    (tmp_path / "duly.toml").write_text("this is not toml")
    refused(duly("job", "list"), 2, "duly.toml")


def test_a_wrong_command_line_names_the_help_to_read(duly: Run) -> None:
    refused(duly("jobs"), 2, "jobs", "duly --help")
    refused(duly("job", "lst"), 2, "lst", "duly job --help")
    refused(duly("job", "show"), 2, "JOB", "duly job show --help")
    refused(duly("job", "list", "--limit", "0"), 2, "--limit")
    refused(duly("job", "list", "--home", "/tmp/x"), 2, "duly --home … job list")
    refused(duly("job", "list", "--status", "sleepy"), 2, "status", "sleepy")


def test_no_command_shows_the_help_and_is_no_success(duly: Run) -> None:
    ended = duly()
    assert ended.code == 2
    assert "duly up --demo" in ended.out
    assert "Usage: duly job" in duly("job").out


def test_an_unexpected_error_is_one_sentence_and_a_hint(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setattr(job, "with_operations", broken)
    refused(duly("job", "list"), 1, "ZeroDivisionError: by nothing", "--log-level DEBUG")
    monkeypatch.setattr(submit, "with_operations", broken)
    ended = duly("--log-level", "DEBUG", "submit", "greet")
    assert ended.code == 1
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1] == "duly: unexpected error: ZeroDivisionError: by nothing"


def test_an_interrupt_is_exit_code_130(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "with_operations", interrupted)
    assert duly("job", "list") == Ended(130, "", "")


async def test_a_closed_pipe_is_silent(pool: Pool, environment: dict[str, str], tmp_path: Path) -> None:
    await put_now(pool, 500)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duly.cli", "job", "list", "--limit", "500", "--json"),
        env={**os.environ, **environment},
        cwd=tmp_path,
        stdout=(writing := _closed_pipe()),
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(writing)
    assert (await process.communicate())[1] == b""


def _closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def test_the_version_needs_no_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out.startswith("duly ")
    command = Path(sys.executable).with_name("duly")
    assert subprocess.check_output([command, "--version"], text=True).startswith("duly ")


def test_every_command_has_a_help_text(duly: Run) -> None:
    for command in ("up", "scheduler", "worker", "submit", "migrate", "doctor", "status", "job", "preview", "explain"):
        assert f"duly {command}" in duly(command, "--help").out
    for command in ("list", "show", "runs", "pause", "resume", "trigger", "cancel"):
        ended = duly("job", command, "--help")
        assert ended.code == 0
        assert f"duly job {command}" in ended.out


def test_doctor_knows_zones_that_exist() -> None:
    from duly.cli.commands.doctor import _ZONES

    for name in _ZONES:
        assert load_zone(name).key == name
