"""`duly scheduler` and `duly worker` as real processes: the runs they execute, their output, and their end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.commands import PATIENCE, Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]
APP = ("--app", "tasks_of_test:app")


def runs_when(duly: Run, job: str, *statuses: str) -> list[dict[str, Any]]:
    """The job's runs, once they have these statuses: a worker prints an outcome a moment before it is recorded."""
    deadline = time.monotonic() + PATIENCE
    while True:
        runs: list[dict[str, Any]] = duly("job", "runs", job, "--json").lines
        if [run["status"] for run in runs] == list(statuses):
            return runs
        assert time.monotonic() < deadline, runs
        time.sleep(0.05)


def submit(duly: Run, *arguments: str) -> str:
    ended = duly("submit", *arguments)
    assert ended.code == 0, ended.err
    return ended.out.split()[0]


def test_a_submitted_job_is_run_and_its_run_shown(duly: Run, start: Start) -> None:
    job_id = submit(duly, "greet", "--payload", '{"name": "Ada"}', "--name", "greeting")
    failing = submit(duly, "fail", *APP)
    worker = start("worker", *APP)
    worker.wait_for("worker .* is running: 8 tasks, queues default, reports")
    lines = {worker.wait_for(r"  (greeting|fail)  ")[1]: worker.output[-1] for _ in range(2)}
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    assert re.fullmatch(moment + r"  greeting +succeeded +attempt 1  [\d.]+ m?s  lag .+", lines["greeting"])
    assert re.search(r"  fail +dead +attempt 1 .*ValueError: it does not\\x1b\[31m work$", lines["fail"])
    (run,) = runs_when(duly, job_id, "succeeded")
    assert run["result"] == "hello, Ada"
    (run,) = runs_when(duly, failing, "dead")
    assert run["error"]["type"] == "ValueError"
    assert "hello, Ada" in duly("job", "runs", job_id).out
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert "Traceback" not in worker.said


def test_a_worker_declares_the_jobs_of_its_code_and_serves_the_queues_it_is_told_to(duly: Run, start: Start) -> None:
    submit(duly, "report", *APP, "--name", "unwanted")
    wanted = submit(duly, "greet", "--queue", "mine")
    worker = start("worker", *APP, "--queue", "mine", "--queue", "mine", "--concurrency", "2")
    worker.wait_for("queues mine$")
    worker.wait_for("greet +succeeded")
    runs_when(duly, wanted, "succeeded")
    runs_when(duly, "unwanted", "queued")
    weekly = duly("job", "show", "weekly", "--json").document
    assert (weekly["schedule"], weekly["timezone"]) == ("0 9 * * MON", "America/New_York")
    worker.press_ctrl_c()
    assert worker.end() == 0


def test_a_quiet_worker_says_nothing_about_runs(duly: Run, start: Start) -> None:
    job_id = submit(duly, "greet")
    worker = start("worker", *APP, "--quiet")
    runs_when(duly, job_id, "succeeded")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert "succeeded" not in worker.said


def test_the_first_signal_lets_handlers_finish(duly: Run, start: Start) -> None:
    job_id = submit(duly, "slow", "--payload", '{"seconds": 0.5}')
    worker = start("worker", *APP)
    worker.wait_for("slow began")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert re.search("slow +succeeded", worker.said)
    runs_when(duly, job_id, "succeeded")


def test_the_second_signal_gives_runs_back_at_once_even_from_a_thread(duly: Run, start: Start) -> None:
    jobs = [submit(duly, "slow"), submit(duly, "stubborn")]
    worker = start("worker", *APP)
    worker.wait_for("(slow|stubborn) began")
    worker.wait_for("(slow|stubborn) began")
    worker.signal(signal.SIGINT)
    worker.wait_for("stopping")
    began = time.monotonic()
    worker.signal(signal.SIGINT)
    assert worker.end() == 130
    assert time.monotonic() - began < 10
    assert len(re.findall(r"(?:slow|stubborn) +returned", worker.said)) == 2
    for job_id in jobs:
        runs_when(duly, job_id, "queued")
    assert "Traceback" not in worker.said


def test_a_scheduler_fires_what_is_due_and_leaves_its_shards_when_it_stops(duly: Run, start: Start) -> None:
    scheduler = start("scheduler")
    scheduler.wait_for("leading 64 of 64 shards")
    job_id = submit(duly, "greet", "--schedule", "every 1s")
    deadline = time.monotonic() + PATIENCE
    while not duly("job", "runs", job_id, "--json").lines:
        assert time.monotonic() < deadline
    scheduler.signal(signal.SIGTERM)
    assert scheduler.end() == 0
    assert "Traceback" not in scheduler.said
    assert {shard["alive"] for shard in duly("status", "--json").document["shards"]} == {False}


def test_status_shows_who_leads_what_by_which_coordinator_who_works_and_how_late_firing_is(
    duly: Run, start: Start
) -> None:
    # The job is due, and no scheduler fires it.
    submit(duly, "greet", "--schedule", "2020-01-01T00:00:00Z")
    before = duly("status", "--json").document
    assert before["counts"]["overdue"] == 1
    assert before["lag_seconds"] > 365 * 86400
    assert re.search(r"1 overdue, the oldest by \d+", duly("status").out)
    worker = start("worker", *APP, "--queue", "slow", "--concurrency", "3")
    worker.wait_for("is running")
    scheduler = start("scheduler")
    scheduler.wait_for("leading 64 of 64 shards")
    submit(duly, "slow", "--queue", "slow", "--payload", '{"seconds": 30}')
    worker.wait_for("slow began")
    deadline = time.monotonic() + PATIENCE
    while (found := duly("status", "--json").document)["counts"]["overdue"]:
        assert time.monotonic() < deadline
    assert found["lag_seconds"] == 0
    nodes = {node["kind"]: node for node in found["nodes"]}
    assert (nodes["scheduler"]["info"]["coordinator"], nodes["scheduler"]["shards"]) == ("postgres", 64)
    assert (nodes["worker"]["info"]["queues"], nodes["worker"]["info"]["concurrency"]) == (["slow"], 3)
    assert nodes["worker"]["held"] == 1
    assert {(shard["node"], shard["alive"]) for shard in found["shards"]} == {(nodes["scheduler"]["name"], True)}
    assert all(shard["epoch"] >= 1 for shard in found["shards"])
    shown = duly("status", "--shards").out
    assert re.search(r"scheduler .* alive +64 +\d.* postgres ", shown)
    assert re.search(r"worker .* alive +1 of 3 +slow ", shown)
    assert len(re.findall(r"^ *\d+ +\d+ +\S+ +alive ", shown, re.MULTILINE)) == 64
    assert "0 overdue" in shown


def test_a_flag_chooses_the_store_for_the_app_as_well(
    duly: Run, start: Start, project: Path, environment: dict[str, str]
) -> None:
    (project / "chained.py").write_text(
        "from duly import Duly\n"
        "app = Duly()\n"
        "@app.task()\n"
        "async def first() -> None:\n"
        "    await app.submit('second', dedupe_key='chained')\n"
        "@app.task()\n"
        "async def second() -> None: ...\n"
    )
    submit(duly, "first")
    url = environment["DULY_DATABASE_URL"]
    worker = start("--database-url", url, "worker", "--app", "chained:app", DULY_DATABASE_URL="postgresql:///nowhere")
    # `second` may well end before `first`: it runs as soon as it is submitted.
    worker.wait_for("second +succeeded")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0


def test_a_store_that_the_apps_own_code_names_is_the_one_used(
    start: Start, project: Path, environment: dict[str, str]
) -> None:
    (project / "own_store.py").write_text(
        f"from duly import Duly\napp = Duly({environment['DULY_DATABASE_URL']!r})\n@app.task()\ndef f(): ...\n"
    )
    elsewhere = {"DULY_DATABASE_URL": "postgresql://duly@127.0.0.1:1/duly"}
    submitted = start("submit", "f", "--app", "own_store:app", **elsewhere)
    assert submitted.end() == 0, submitted.said
    worker = start("worker", "--app", "own_store:app", **elsewhere)
    worker.wait_for("f +succeeded")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0


def test_a_worker_whose_supervisor_is_gone_ends_though_a_handler_runs(
    duly: Run, project: Path, environment: dict[str, str]
) -> None:
    job_id = submit(duly, "stubborn")
    command = [sys.executable, "-m", "duly.cli", "worker", *APP, "--supervised", str(uuid4())]
    with subprocess.Popen(
        command, env=os.environ | environment, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "stubborn began\n"
        worker.stdin.close()
        assert worker.wait(PATIENCE) == 130
    runs_when(duly, job_id, "queued")
    assert json.dumps(duly("status", "--json").document["counts"]["running"]) == "0"


def test_a_worker_whose_supervisor_died_with_messages_unread_ends(project: Path, environment: dict[str, str]) -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "duly.cli", "worker", *APP, "--supervised", str(uuid4())]
    with theirs:
        worker = subprocess.Popen(command, env=os.environ | environment, cwd=project, stdin=theirs.fileno())
    try:
        with ours:
            ours.settimeout(PATIENCE)
            assert ours.recv(1, socket.MSG_PEEK), "the worker says that it is ready"
        assert worker.wait(PATIENCE) == 130
    finally:
        worker.kill()
        worker.wait()
