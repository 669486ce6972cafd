"""`duly up`: everything with one command, and nothing of it left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp

import pytest

from duly.local_keys import key_for
from harness.commands import Ended, Process
from harness.pids import processes_that_name, wait_until_gone

Run = Callable[..., Ended]
Start = Callable[..., Process]

SLOW_TO_START = """
import asyncio
from pathlib import Path

from duly.cli import supervised
from tasks_of_test import app

serve = supervised.ApiProcess.serve


async def serve_later(self, *given):
    while not Path("go-on").exists():
        await asyncio.sleep(0.02)
    return await serve(self, *given)


supervised.ApiProcess.serve = serve_later
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home for an embedded PostgreSQL that does not exist yet. In /tmp, where any account may go."""
    folder = Path(mkdtemp(prefix="duly-up-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "home"
    shutil.rmtree(folder)


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            pass  # another process has the port, so it is taken all the same
        yield


def answers(address: str, path: str = "/healthz", body: object = None) -> str:
    """The answer to a request with the local key, as a client of the same user would send it."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    if (found := key_for(address)) is not None:
        headers["Authorization"] = f"Bearer {found[1]}"
    request = urllib.request.Request(address + path, data, headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status in (200, 201)
        return str(response.read().decode())


def children(pid: int, *, like: bytes = b"--supervised") -> dict[int, str]:
    """The worker processes of a `duly up`, or its API."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid and like in (command := (entry / "cmdline").read_bytes()):
                    found[int(entry.name)] = command.decode()
            except OSError:
                continue
    return found


def test_the_demo_on_a_fresh_home_fires_answers_and_stops_without_a_trace(home: Path, start: Start) -> None:
    up = start("up", "--demo", "--port", "0", DULY_HOME=str(home), DULY_DATABASE_URL=None)
    address = up.wait_for(r"Duly is up: (http://127\.0\.0\.1:\d+)")[1]
    up.wait_for("hello +succeeded +attempt 1")
    assert "ok" in answers(address)
    jobs = json.loads(answers(address, "/api/v1/jobs"))["items"]
    assert {job["name"]: job["schedule"] for job in jobs} == {
        **{job["name"]: job["schedule"] for job in jobs},
        "heartbeat": "every 10s",
        "flaky": "every 20s",
        "new_york_minute": "* * * * *",
    }
    assert {job["name"] for job in jobs if job["timezone"] == "America/New_York"} == {"new_york_minute"}
    up.wait_for("doomed +retrying in .*ValueError")
    assert len(processes_that_name(str(home))) >= 3, "too few processes: this test would not notice one that is left"

    up.press_ctrl_c()
    assert up.end() == 0, up.said
    assert processes_that_name(str(home)) == {}
    assert "Traceback" not in up.said
    assert " ERROR " not in up.said

    # After a second start the data is still there, no job exists twice, and a run is shown at once.
    again = start("up", "--demo", "--port", "0", DULY_HOME=str(home), DULY_DATABASE_URL=None)
    address = again.wait_for(r"Duly is up: (http://127\.0\.0\.1:\d+)")[1]
    again.wait_for("hello +succeeded")
    assert {job["job_id"] for job in json.loads(answers(address, "/api/v1/jobs"))["items"]} == {
        job["job_id"] for job in jobs
    }
    again.signal(signal.SIGTERM)
    assert again.end() == 0, again.said
    assert processes_that_name(str(home)) == {}


def test_a_demo_without_a_home_leaves_the_users_own_alone(home: Path, start: Start) -> None:
    """The next application that the user runs must not find the sample jobs in its store."""
    users_own = {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "TMPDIR": str(home)}
    home.mkdir(mode=0o755)
    up = start("up", "--demo", "--port", "0", DULY_HOME=None, DULY_DATABASE_URL=None, **users_own)
    where = Path(up.wait_for(r"store: embedded PostgreSQL in (\S+)")[1])
    assert where.parent == home
    up.wait_for("hello +succeeded +attempt 1")
    assert where.exists()
    up.press_ctrl_c()
    assert up.end() == 0, up.said
    assert list(home.iterdir()) == [], "the demo leaves nothing behind"


def test_an_application_beside_and_after_a_demo_shares_nothing_with_it(home: Path, start: Start) -> None:
    home.mkdir(mode=0o755)
    own: dict[str, str | None] = {"TMPDIR": str(home), "DULY_DATABASE_URL": None}
    demo = start("up", "--demo", "--port", "0", DULY_HOME=None, **own)
    demos = demo.wait_for(r"Duly is up: (http://127\.0\.0\.1:\d+)")[1]
    mine = start("up", "--app", "tasks_of_test:app", "--port", "0", DULY_HOME=str(home / "own"), **own)
    address = mine.wait_for(r"Duly is up: (http://127\.0\.0\.1:\d+)")[1]
    mine.wait_for("worker .* is running")

    def names(of: str) -> set[str]:
        return {job["name"] for job in json.loads(answers(of, "/api/v1/jobs"))["items"]}

    assert names(address) == {"weekly"}
    assert "heartbeat" in names(demos)
    assert "weekly" not in names(demos)
    demo.press_ctrl_c()
    assert demo.end() == 0, demo.said
    assert names(address) == {"weekly"}
    assert sorted(path.name for path in home.iterdir()) == ["own"]


def test_the_next_demo_removes_what_a_killed_one_left(home: Path, start: Start) -> None:
    own: dict[str, str | None] = {"TMPDIR": str(home), "DULY_HOME": None, "DULY_DATABASE_URL": None}
    home.mkdir(mode=0o755)
    killed = start("up", "--demo", "--port", "0", **own)
    where = Path(killed.wait_for(r"store: embedded PostgreSQL in (\S+)")[1])
    running = start("up", "--demo", "--port", "0", **own)
    kept = Path(running.wait_for(r"store: embedded PostgreSQL in (\S+)")[1])
    assert where.exists(), "the first demo was still running"
    killed.signal(signal.SIGKILL)
    killed.end()
    wait_until_gone(str(where))
    next_one = start("up", "--demo", "--port", "0", **own)
    next_one.wait_for("Duly is up")
    assert not where.exists()
    assert kept.exists()


def test_without_an_application_it_runs_commands_and_endpoints(home: Path, start: Start, tmp_path: Path) -> None:
    """A crontab needs no Python file."""
    output, table = tmp_path / "output", tmp_path / "table"
    table.write_text(f"@yearly echo ran > {output}\n")
    own: dict[str, str | None] = {"DULY_HOME": str(home), "DULY_DATABASE_URL": None}
    up = start("up", "--allow-commands", "--port", "0", **own)
    up.wait_for("worker: no Python tasks, only HTTP endpoints and commands, queues default")
    up.wait_for("worker .* is running: no Python tasks, only HTTP endpoints and commands")
    imported = start("import", "crontab", str(table), "--yes", "--json", **own)
    assert imported.end() == 0, imported.said
    job_id = json.loads(imported.said)["jobs"][0]["job_id"]
    assert start("job", "trigger", job_id, **own).end() == 0
    up.wait_for("succeeded")
    assert output.read_text() == "ran\n"


def test_ctrl_c_while_it_still_starts_leaves_nothing_either(home: Path, start: Start) -> None:
    up = start("up", "--demo", "--port", "0", DULY_HOME=str(home), DULY_DATABASE_URL=None)
    up.wait_for("opening the embedded PostgreSQL")
    up.press_ctrl_c()
    assert up.end() == 0, up.said
    assert processes_that_name(str(home)) == {}
    assert "Traceback" not in up.said
    assert "Duly is up" not in up.said


def test_killing_up_leaves_neither_worker_nor_postgres_behind(home: Path, start: Start) -> None:
    up = start("up", "--app", "tasks_of_test:app", "--port", "0", DULY_HOME=str(home), DULY_DATABASE_URL=None)
    up.wait_for("worker .* is running")
    (worker,) = children(up.pid)
    assert worker in processes_that_name(str(home))
    up.signal(signal.SIGKILL)
    wait_until_gone(str(home))


def test_an_embedded_postgres_that_is_killed_is_started_again_and_nothing_is_lost(home: Path, start: Start) -> None:
    up = start("up", "--app", "tasks_of_test:app", "--port", "0", DULY_HOME=str(home), DULY_DATABASE_URL=None)
    address = up.wait_for(r"Duly is up: (http://127\.0\.0\.1:\d+)")[1]
    up.wait_for("worker .* is running")
    request = {
        "name": "often", "handler": "greet", "schedule": "every 1s",
        "missed_window": "RUN_ALL", "overlap": "parallel",
    }  # fmt: skip
    job = json.loads(answers(address, "/api/v1/jobs", request))
    runs = f"/api/v1/jobs/{job['job_id']}/runs?limit=100"
    up.wait_for("often +succeeded")
    for _ in range(2):
        postmaster = int((home / "postgres/data/postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        up.wait_for("the embedded PostgreSQL in .* is up again")
        for _ in range(2):
            up.wait_for("often +succeeded")

    def succeeded() -> list[datetime]:
        items = json.loads(answers(address, runs))["items"]
        return sorted(datetime.fromisoformat(run["scheduled_at"]) for run in items if run["status"] == "succeeded")

    # Every second has its run, also during the outages; the last runs may be under way.
    deadline = time.monotonic() + 30
    while True:
        times = succeeded()
        if times == [times[0] + n * timedelta(seconds=1) for n in range(len(times))] and len(times) > 6:
            break
        assert time.monotonic() < deadline, times
        time.sleep(0.2)
    assert times[0] - datetime.fromisoformat(job["created_at"]) < timedelta(seconds=3)
    up.press_ctrl_c()
    assert up.end() == 0, up.said
    assert processes_that_name(str(home)) == {}
    assert "Traceback" not in up.said


def test_a_crashed_worker_is_replaced(duly: Run, start: Start) -> None:
    up = start("up", "--app", "tasks_of_test:app", "--port", "0")
    up.wait_for("worker .* is running")
    (worker,) = children(up.pid)
    os.kill(worker, signal.SIGKILL)
    up.wait_for(r"the worker ended unexpectedly \(killed by SIGKILL\)")
    up.wait_for("worker .* is running")
    assert worker not in children(up.pid)
    assert duly("submit", "greet").code == 0
    up.wait_for("greet +succeeded")
    # One Ctrl-C counts once for the worker too, so it lets its handlers finish.
    assert duly("submit", "slow", "--payload", '{"seconds": 0.5}').code == 0
    up.wait_for("slow began")
    up.press_ctrl_c()
    assert up.end() == 0, up.said
    assert re.search("slow +succeeded", up.said)


def test_a_second_ctrl_c_ends_at_once_whatever_handlers_do(duly: Run, start: Start) -> None:
    up = start("up", "--app", "tasks_of_test:app", "--port", "0")
    up.wait_for("worker .* is running")
    (worker,) = children(up.pid)
    assert duly("submit", "stubborn").code == 0
    up.wait_for("stubborn began")
    up.press_ctrl_c()
    up.wait_for("stopping")
    up.press_ctrl_c()
    assert up.end(15) == 130, up.said
    assert not Path(f"/proc/{worker}").exists()
    assert [run["status"] for run in duly("job", "runs", "stubborn", "--json").lines] == ["queued"]


def test_ctrl_c_while_it_starts_is_answered_although_a_handler_runs(duly: Run, start: Start, project: Path) -> None:
    """The worker starts first; the API of this test does not start until the file `go-on` exists."""
    (project / "slow_to_start.py").write_text(SLOW_TO_START)
    up = start("up", "--app", "slow_to_start:app", "--port", "0")
    up.wait_for("worker .* is running")
    assert duly("submit", "stubborn").code == 0
    up.wait_for("stubborn began")
    up.press_ctrl_c()
    up.wait_for("stopping")
    assert "Duly is up" not in up.said
    (project / "go-on").touch()
    up.press_ctrl_c()
    assert up.end(15) == 130, up.said
    assert "Traceback" not in up.said


def test_a_taken_port_is_stepped_over_unless_it_was_asked_for(start: Start) -> None:
    with taken(8080):
        up = start("up")
        told = up.wait_for(r"port 8080 is taken; using (\d+)")[1]
        address = up.wait_for(r"Duly is up: (http://\S+)/#key=")[1]
        up.wait_for("worker: no Python tasks, only HTTP endpoints, queues default")
        assert address == f"http://127.0.0.1:{told}"
        assert "ok" in answers(address)
        for arguments, changes in ((["--port", "8080"], {}), ([], {"DULY_PORT": "8080"})):
            refused = start("up", *arguments, **changes)
            assert refused.end() == 2
            assert refused.output[-1].startswith("duly: ")
            assert "8080" in refused.output[-1]
            assert "Traceback" not in refused.said
        up.signal(signal.SIGTERM)
        assert up.end() == 0


def test_serving_the_world_without_keys_is_refused(start: Start) -> None:
    up = start("up", "--host", "0.0.0.0", "--port", "0", "--app", "tasks_of_test:app")
    assert up.end() == 2
    assert "loopback" in up.output[-1]
    assert "Traceback" not in up.said


def api_of(pid: int) -> int:
    (found,) = children(pid, like=b"duly.cli.api_process")
    return found


SECONDLY = {"name": "often", "handler": "greet", "schedule": "every 1s", "overlap": "parallel"}


def test_the_api_is_a_process_of_its_own_and_comes_back_on_its_port(start: Start) -> None:
    up = start("up", "--app", "tasks_of_test:app", "--port", "0")
    address = up.wait_for(r"Duly is up: (http://127\.0\.0\.1:\d+)")[1]
    answers(address, "/api/v1/jobs", SECONDLY)
    up.wait_for("often +succeeded")
    for _ in range(2):
        killed = api_of(up.pid)
        os.kill(killed, signal.SIGKILL)
        up.wait_for(r"the API ended unexpectedly \(killed by SIGKILL\); starting another")
        # A request meanwhile waits for the next API, which knows the app's tasks as the first did.
        assert "ok" in answers(address)
        answers(address, "/api/v1/jobs", {"name": "once", "handler": "greet"})
        up.wait_for("once +succeeded")
        assert api_of(up.pid) != killed
    up.wait_for("often +succeeded")
    assert "stepping down" not in up.said
    up.press_ctrl_c()
    assert up.end() == 0, up.said
    assert "Traceback" not in up.said


def test_an_api_that_is_stopped_keeps_nothing_from_firing(duly: Run, start: Start) -> None:
    """The stop is longer than the leader's lease (2 s here), as if a request took seconds of the API's event loop."""
    up = start("up", "--app", "tasks_of_test:app", "--port", "0")
    address = up.wait_for(r"Duly is up: (http://127\.0\.0\.1:\d+)")[1]
    answers(address, "/api/v1/jobs", SECONDLY)
    up.wait_for("often +succeeded")
    api = api_of(up.pid)
    before = duly("status", "--shards", "--json").document["shards"]
    os.kill(api, signal.SIGSTOP)
    try:
        for _ in range(5):
            up.wait_for("often +succeeded")
    finally:
        os.kill(api, signal.SIGCONT)
    assert duly("status", "--shards", "--json").document["shards"] == before, "a shard has changed its leader"
    assert {run["status"] for run in duly("job", "runs", "often", "--json").lines} <= {"succeeded", "queued", "running"}
    assert "ok" in answers(address)
    # An API that does not end when it is told to does not keep the other processes from ending.
    os.kill(api, signal.SIGSTOP)
    up.press_ctrl_c()
    up.wait_for("stopping")
    up.press_ctrl_c()
    assert up.end(15) == 130, up.said
    assert not Path(f"/proc/{api}").exists()


def test_killing_up_leaves_no_api_behind_either(home: Path, start: Start) -> None:
    up = start("up", "--port", "0", DULY_HOME=str(home), DULY_DATABASE_URL=None)
    up.wait_for(r"Duly is up")
    assert api_of(up.pid) in processes_that_name(str(home))
    up.signal(signal.SIGKILL)
    wait_until_gone(str(home))


def test_what_the_api_cannot_start_for_is_told_as_if_it_were_no_child(start: Start, project: Path) -> None:
    for name in ("fastapi", "uvicorn"):
        (project / "without" / name).mkdir(parents=True)
        (project / "without" / name / "__init__.py").write_text(
            f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n"
        )
    up = start("up", "--port", "0", PYTHONPATH=str(project / "without"))
    assert up.end() == 2, up.said
    assert up.output[-1] == "duly: the HTTP API needs an extra: pip install 'duly[api]'"
    assert "Traceback" not in up.said
