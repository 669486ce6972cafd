"""With --url every command about jobs goes through an API, and does and says the same as on the store itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from duly.cli.main import execute
from harness.commands import PATIENCE, Ended, Process

Run = Callable[..., Ended]


@pytest.fixture
def api(start: Callable[..., Process]) -> str:
    """The address of an API on this test's store: a process of its own, started as a user would."""
    return start("api", "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]


@pytest.fixture
def remote(duly: Run, api: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command through the API, where the store itself is out of reach."""

    def run(*arguments: str) -> Ended:
        with monkeypatch.context() as patch:
            patch.setenv("DULY_DATABASE_URL", "postgresql://nobody@nowhere.invalid/nothing")
            return duly("--url", api, *arguments)

    return run


def done(ended: Ended) -> Ended:
    assert ended.code == 0, ended.err
    return ended


def until_dead(duly: Run, number: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(duly("dead", "list", "--json").lines) < number:
        assert time.monotonic() < deadline


def test_a_job_is_submitted_found_and_changed_through_the_api_as_on_the_store(duly: Run, remote: Run) -> None:
    job = done(
        remote(
            *("submit", "greet", "--payload", '{"name": "Zoë"}', "--schedule", "0 9 * * MON", "--name", "weekly"),
            *("--timezone", "America/New_York", "--label", "team=ops", "--max-retries", "2", "--json"),
        )
    ).document
    job_id = job["job_id"]
    assert job == done(duly("job", "show", "weekly", "--json")).document
    for text in (job_id, job_id[:20], job_id.upper(), "weekly"):
        assert done(remote("job", "show", text, "--json")).document["job_id"] == job_id
    for command in (["job", "list"], ["job", "list", "--label", "team=ops", "--json"], ["job", "list", "--json"]):
        assert done(remote(*command)).out == done(duly(*command)).out
    here, there = (done(run("job", "show", "weekly")).out.splitlines() for run in (duly, remote))
    assert any(line.startswith("runs ") for line in there)
    # The line `created` also shows the age of the job, which changes meanwhile.
    assert [line for line in here if not line.startswith("created ")] == [
        line for line in there if not line.startswith("created ")
    ]
    assert done(remote("job", "pause", "weekly", "--reason", "for now", "--json")).document["status"] == "paused"
    assert done(duly("job", "show", "weekly", "--json")).document["status_reason"] == "for now"
    assert "next " in done(remote("job", "resume", "weekly")).out
    assert done(remote("job", "cancel", "weekly", "--running", "--json")).document["status"] == "cancelled"
    again = remote("job", "resume", "weekly")
    assert (again.code, again.err) == (5, duly("job", "resume", "weekly").err)


def test_a_task_that_no_worker_has_is_submitted_through_the_api_only_when_that_is_allowed(
    duly: Run, remote: Run, start: Callable[..., Process], tmp_path: Path
) -> None:
    worker = start("worker", "--app", "tasks_of_test:app")
    worker.wait_for("is running")
    worker.close()
    (tmp_path / "jobs").write_text('{"handler": "unheard"}\n')
    for command in (["submit", "unheard"], ["submit", "--file", "jobs"]):
        refused = remote(*command)
        assert refused.code == 2
        assert "no worker has a task" in refused.err
        done(remote(*command, "--allow-unknown-handler"))
    assert [job["handler"] for job in duly("job", "list", "--json").lines].count("unheard") == 2


def test_runs_are_triggered_listed_shown_and_cancelled_through_the_api(duly: Run, remote: Run) -> None:
    done(remote("submit", "greet", "--schedule", "every 1h", "--name", "hourly"))
    run_id = done(remote("job", "trigger", "hourly", "--json")).document["run_id"]
    for command in (
        ["job", "runs", "hourly", "--json"], ["job", "runs", "hourly"], ["run", "show", run_id, "--json"],
    ):  # fmt: skip
        assert done(remote(*command)).out == done(duly(*command)).out
    assert done(remote("run", "cancel", run_id, "--json")).document["status"] == "cancelled"
    assert remote("run", "show", "nonsense").code == 4


def test_times_are_told_through_the_api_as_on_this_machine(duly: Run, remote: Run) -> None:
    gap = ["preview", "30 2 * * *", "--timezone", "America/New_York", "--after", "2026-03-07", "--dst-gap", "skip"]
    for command in (gap, [*gap, "--json"]):
        assert done(remote(*command)).out == done(duly(*command)).out
    assert remote("preview", "77 * * * *").err == duly("preview", "77 * * * *").err
    done(remote("submit", "greet", "--schedule", "0 0 1 1 *", "--name", "rare"))
    here, there = (done(run("explain", "rare", "2027-01-01T00:00", "--json")).document for run in (duly, remote))
    assert here.keys() == there.keys()
    assert here["facts"].keys() == there["facts"].keys()  # the time left is a fact too, and differs
    for field in ("job_id", "scheduled_at", "local", "verdict", "sentence", "note", "run"):
        assert here[field] == there[field]
    assert "not due" in done(remote("explain", "rare")).out
    ranged = ["explain", "rare", "--from", "2027-01-01", "--to", "2032-01-01"]
    here, there = (done(run(*ranged, "--json")).lines for run in (duly, remote))
    assert [(one["scheduled_at"], one["verdict"]) for one in there] == [
        (one["scheduled_at"], one["verdict"]) for one in here
    ]
    assert len(there) == 6
    assert done(remote(*ranged)).out.startswith("6 occurrences: 6 not due")
    assert len(done(remote(*ranged, "--limit", "2", "--json")).lines) == 2


def test_the_forecast_is_the_same_through_the_api(duly: Run, remote: Run) -> None:
    done(duly("submit", "greet", "--schedule", "* * * * *", "--name", "often", "--queue", "busy"))
    done(duly("submit", "greet", "--schedule", "every 20m", "--name", "seldom"))
    forecast = done(remote("forecast", "--minutes", "30", "--json")).document
    assert {item["queue"] for item in forecast["items"]} == {"busy", "default"}
    assert forecast["total"] == 31
    assert forecast.keys() == done(duly("forecast", "--minutes", "30", "--json")).document.keys()
    only = done(remote("forecast", "--minutes", "30", "--queue", "busy", "--json")).document
    assert (only["total"], {item["queue"] for item in only["items"]}) == (30, {"busy"})
    for run in (duly, remote):
        table = done(run("forecast", "--minutes", "30", "--by", "hour"))
        assert "busy" in table.out
        assert "31 fires until" in table.out
        assert run("forecast", "--minutes", "0").code == 2
        assert run("forecast", "--by", "day").code == 2


def test_dead_letters_are_listed_redriven_and_purged_through_the_api(
    duly: Run, remote: Run, start: Callable[..., Process]
) -> None:
    worker = start("worker", "--app", "tasks_of_test:app")
    worker.wait_for("is running")
    for _ in range(3):
        done(remote("submit", "fail", "--max-retries", "0"))
    until_dead(duly, 3)
    worker.close()
    run_id = done(remote("dead", "list", "--json")).lines[0]["run_id"]
    for command in (["dead", "list", "--json"], ["dead", "show", run_id, "--json"], ["dead", "show", run_id]):
        assert done(remote(*command)).out == done(duly(*command)).out
    assert done(remote("dead", "redrive", run_id, "--json")).document == {"redriven": 1, "refused": 0}
    assert remote("dead", "redrive", run_id).code == 4
    run_id = done(remote("dead", "list", "--json")).lines[0]["run_id"]
    assert done(remote("dead", "purge", run_id)).out == "1 purged\n"
    assert done(remote("dead", "redrive", "--error-type", "NoSuchError", "--json")).document["redriven"] == 0
    assert done(remote("dead", "redrive", "--error-type", "ValueError", "--json")).document["redriven"] == 1
    assert done(remote("dead", "purge", "--all", "--yes", "--json")).document == {"purged": 0, "refused": 0}
    assert done(duly("dead", "list", "--json")).lines == []


def test_all_dead_letters_are_purged_through_the_api(duly: Run, remote: Run, start: Callable[..., Process]) -> None:
    worker = start("worker", "--app", "tasks_of_test:app")
    for name in ("a", "b", "a"):
        done(remote("submit", "fail", "--name", name, "--max-retries", "0"))
    until_dead(duly, 3)
    worker.close()
    assert done(remote("dead", "purge", "--name", "a", "--yes")).out == "2 purged\n"
    assert [letter["name"] for letter in duly("dead", "list", "--json").lines] == ["b"]


def test_status_is_told_through_the_api(duly: Run, remote: Run) -> None:
    here, there = (done(run("status", "--json")).document for run in (duly, remote))
    assert here.keys() == there.keys()
    assert here["counts"] == there["counts"]
    assert len(there["shards"]) == 64
    assert "0 of 64" in done(remote("status")).out


def test_a_file_of_jobs_is_submitted_through_the_api(duly: Run, remote: Run, tmp_path: Path) -> None:
    jobs = [{"handler": "greet", "dedupe_key": f"k{number}"} for number in range(30)]
    (tmp_path / "jobs").write_text("\n".join(map(json.dumps, [*jobs, {"handler": "greet", "schedule": "nonsense"}])))
    first = remote("submit", "--file", "jobs")
    assert (first.code, first.out) == (2, "30 submitted, 1 refused\n")
    assert "line 31: schedule" in first.err
    assert remote("submit", "--file", "jobs").out == "0 submitted, 30 were there already, 1 refused\n"
    refused = remote("submit", "--file", "jobs", "--atomic")
    assert refused.code == 2
    assert "schedule" in refused.err
    assert len(duly("job", "list", "--json").lines) == 30


def test_a_crontab_is_imported_through_the_api(duly: Run, remote: Run, tmp_path: Path) -> None:
    (tmp_path / "table").write_text("30 2 * * * backup\n")
    done(remote("import", "crontab", "table", "--yes"))
    assert "was there already" in done(remote("import", "crontab", "table", "--yes")).out
    assert [job["name"] for job in duly("job", "list", "--json").lines] == ["backup"]


def test_the_address_and_the_key_come_from_the_environment(
    duly: Run, api: str, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.setenv("DULY_URL", api)
    done(duly("submit", "greet", "--name", "first"))
    key = done(duly("key", "create", "--role", "read", "--json")).document["key"]
    done(duly("job", "list"))  # the local key is found by itself, and stays valid beside the keys of the store
    (local,) = Path(environment["DULY_HOME"], "keys").iterdir()
    local.unlink()
    refused = duly("job", "list")
    assert refused.code == 7
    for told in ("API key", "DULY_API_KEY", "duly key create", "the user who started"):
        assert told in refused.err
    monkeypatch.setenv("DULY_API_KEY", key)
    assert [job["name"] for job in done(duly("job", "list", "--json")).lines] == ["first"]
    forbidden = duly("submit", "greet")
    assert forbidden.code == 7
    assert "write" in forbidden.err
    monkeypatch.setenv("DULY_API_KEY", "two words")
    assert duly("job", "list").code == 2
    # A store that is named by a flag has precedence over DULY_URL.
    monkeypatch.setenv("DULY_URL", "http://127.0.0.1:1")
    store = duly("--database-url", "postgresql://nobody@127.0.0.1:1/nothing", "job", "list")
    assert store.code == 3
    assert "postgresql" in store.err


def test_an_api_that_is_not_there_is_said_to_be_so(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from duly.cli import invocation

    monkeypatch.setattr(invocation, "_PATIENCE_SECONDS", 0.3)
    ended = duly("--url", "http://127.0.0.1:1", "job", "list")
    assert ended.code == 3
    assert ended.err.startswith("duly: GET http://127.0.0.1:1/api/v1/jobs: no connection")
    assert ended.err.count("\n") == 1
    assert duly("--url", "nonsense", "job", "list").code == 2
    both = duly("--url", "http://127.0.0.1:1", "--home", "x", "job", "list")
    assert both.code == 2
    assert "omit --url or the others" in both.err
    after = duly("job", "list", "--url", "http://127.0.0.1:1")
    assert after.code == 2
    assert "duly --url … job list" in after.err


@pytest.mark.parametrize(
    "command",
    [
        ["migrate"], ["scheduler"], ["worker", "--app", "tasks_of_test:app"], ["up"], ["api"], ["doctor"], ["bench"],
        ["webhook-secret"], ["key", "list"],
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_commands_that_need_the_store_itself_say_so(duly: Run, project: Path, command: list[str]) -> None:
    ended = duly("--url", "http://127.0.0.1:1", *command)
    assert ended.code == 2
    assert "--url" in ended.err
    assert ended.err.count("\n") == 1


def test_without_the_extra_a_remote_command_says_which_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    for name in [name for name in sys.modules if name == "duly.client" or name.startswith("duly.client.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert execute(["--url", "http://127.0.0.1:1", "job", "list"]) == 2
    assert "duly[client]" in capsys.readouterr().err
