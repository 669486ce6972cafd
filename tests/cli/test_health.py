"""`--health-port`: the probes and the figures of schedulers and workers, as real processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.commands import PATIENCE, Ended, Process
from harness.pids import children_of
from harness.proxy import Proxy

Run = Callable[..., Ended]
Start = Callable[..., Process]
APP = ("--app", "tasks_of_test:app")
Figures = dict[tuple[str, str], float]


class Probed:
    """A process that serves its health, and what it answers."""

    def __init__(self, process: Process, url: str | None = None) -> None:
        self.process = process
        self.url = url or process.wait_for(r"probes and metrics of this process: (http://\S+)")[1]

    def ask(self, path: str, seconds: float = 5.0) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=seconds) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def until(self, path: str, status: int, seconds: float = PATIENCE) -> str:
        deadline = time.monotonic() + seconds
        while (answer := self.ask(path))[0] != status:
            assert time.monotonic() < deadline, (path, answer, self.process.said)
            time.sleep(0.05)
        return answer[1]

    def figures(self) -> Figures:
        """By name and by the value of the label, if it has one."""
        status, text = self.ask("/metrics")
        assert status == 200
        return {
            (sample.name, next(iter(sample.labels.values()), "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def until_figure(self, name: str, label: str, value: float) -> Figures:
        deadline = time.monotonic() + PATIENCE
        while (figures := self.figures()).get((name, label)) != value:
            assert time.monotonic() < deadline, (name, label, figures.get((name, label)), self.process.said)
            time.sleep(0.05)
        return figures


def submit(duly: Run, *arguments: str) -> str:
    ended = duly("submit", *arguments)
    assert ended.code == 0, ended.err
    return ended.out.split()[0]


def check(text: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: see scripts/test-services")
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def begin(start: Start, *arguments: str, **changes: str | None) -> Probed:
    probed = Probed(start(*arguments, "--health-port", "0", **changes))
    for path in ("/startupz", "/livez", "/readyz"):
        assert probed.until(path, 200) == "ok\n"
    return probed


def health(duly: Run, process: Process, *arguments: str) -> tuple[int, str]:
    ended = duly("health", "--pid", str(process.pid), *arguments)
    return ended.code, ended.out + ended.err


def test_a_scheduler_and_a_worker_say_how_they_are_and_what_they_did(duly: Run, start: Start) -> None:
    scheduler, worker = begin(start, "scheduler"), begin(start, "worker", *APP)
    for one, kind in ((scheduler, "scheduler"), (worker, "worker")):
        assert one.ask("/nothing")[0] == 404
        for question in ("alive", "ready", "started"):
            said = health(duly, one.process, "--check", question, "--kind", kind)
            assert said == (0, f"{kind} {one.process.pid} is {question}\n")
        other = "worker" if kind == "scheduler" else "scheduler"
        code, none = health(duly, one.process, "--kind", other)
        assert (code, none.startswith(f"no {other} with the id {one.process.pid} runs here")) == (1, True)
    told = duly("health", "--pid", str(worker.process.pid), "--json").document
    wrong = {"alive": None, "ready": None, "started": None}
    mine = {"kind": "worker", "pid": worker.process.pid, "wrong": wrong}
    assert told == {"check": "alive", "healthy": True, "processes": [mine]}
    scheduler.until_figure("duly_shards_owned", "", 64)
    for name in ("greet", "greet", "fail"):
        submit(duly, name, "--schedule", (datetime.now(UTC) + timedelta(seconds=1)).isoformat())
    worker.until_figure("duly_runs_total", "succeeded", 2)
    figures = worker.until_figure("duly_runs_total", "dead", 1)
    assert figures["duly_schedule_lag_seconds_count", ""] == figures["duly_run_duration_seconds_count", ""] == 3
    assert 0 <= figures["duly_worker_utilization", ""] <= 1
    assert scheduler.figures()["duly_fire_lag_seconds_count", ""] == 3
    for one in (scheduler, worker):
        check(one.ask("/metrics")[1])
    worker.process.signal(signal.SIGTERM)
    assert worker.process.end() == 0, worker.process.said
    assert health(duly, worker.process)[0] == 1
    assert "Traceback" not in worker.process.said


def test_a_loop_that_hangs_is_not_alive_and_a_stopped_process_does_not_answer(duly: Run, start: Start) -> None:
    worker = begin(start, "worker", *APP, DULY_HEALTH_HUNG_SECONDS="1")
    submit(duly, "block", "--payload", '{"seconds": 4}')
    said = worker.until("/livez", 503)
    assert "the event loop of the worker has not turned for" in said
    code, wrong = health(duly, worker.process)
    assert (code, "is not alive: the event loop" in wrong) == (1, True)
    assert worker.until("/livez", 200) == "ok\n"
    worker.process.signal(signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            worker.ask("/livez", seconds=0.5)
        code, wrong = health(duly, worker.process)
        assert (code, "does not answer" in wrong) == (1, True)
    finally:
        worker.process.signal(signal.SIGCONT)
    assert worker.until("/livez", 200) == "ok\n"


def test_a_postgres_that_does_not_answer_makes_nothing_unlive_but_unready(
    duly: Run, start: Start, environment: dict[str, str]
) -> None:
    with Proxy(environment["DULY_DATABASE_URL"]) as proxy:
        scheduler = begin(start, "scheduler", DULY_DATABASE_URL=proxy.url)
        worker = begin(start, "worker", *APP, DULY_DATABASE_URL=proxy.url)
        proxy.black_hole()
        assert "no heartbeat of the scheduler" in scheduler.until("/readyz", 503)
        assert "last heartbeat was answered" in worker.until("/readyz", 503)
        for one in (scheduler, worker):
            assert one.ask("/livez") == (200, "ok\n")
            assert one.ask("/startupz") == (200, "ok\n")
            assert health(duly, one.process)[0] == 0
            assert health(duly, one.process, "--check", "ready")[0] == 1
            assert one.ask("/metrics")[0] == 200
        proxy.passing()
        for one in (scheduler, worker):
            assert one.until("/readyz", 200) == "ok\n"


def test_one_port_for_all_processes_of_a_worker_whose_counters_never_go_back(duly: Run, start: Start) -> None:
    worker = begin(start, "worker", *APP, "--processes", "2", DULY_HEALTH_HUNG_SECONDS="2")
    for _ in range(10):
        submit(duly, "greet")
    figures = worker.until_figure("duly_runs_total", "succeeded", 10)
    assert figures["duly_schedule_lag_seconds_count", ""] == 10
    for pid in children_of(worker.process.pid):
        os.kill(pid, signal.SIGKILL)
        assert "worker" in worker.until("/readyz", 503)
        worker.until("/readyz", 200)
        figures = worker.figures()
        assert (figures["duly_runs_total", "succeeded"], figures["duly_schedule_lag_seconds_count", ""]) == (10, 10)
    assert worker.ask("/livez") == (200, "ok\n")
    # The runs of a process that was killed are given back by its supervisor.
    submit(duly, "slow", "--payload", '{"seconds": 0.5}')
    os.kill(int(worker.process.wait_for(r"slow began in (\d+)")[1]), signal.SIGKILL)
    worker.until_figure("duly_rescued_total", "", 1)
    worker.until_figure("duly_runs_total", "succeeded", 11)
    worker.until("/readyz", 200)
    stopped = children_of(worker.process.pid)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert "has not reported for" in worker.until("/livez", 503)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert worker.until("/livez", 200) == "ok\n"
    assert health(duly, worker.process, "--kind", "worker")[0] == 0
    check(worker.ask("/metrics")[1])


def test_a_replaced_process_leaves_what_it_counted(duly: Run, start: Start) -> None:
    worker = begin(start, "worker", *APP, "--max-runs", "3", "--quiet")
    for number in range(1, 6):
        submit(duly, "greet")
        worker.until_figure("duly_runs_total", "succeeded", number)
    worker.process.wait_for("is replaced")
    submit(duly, "greet")
    worker.until_figure("duly_runs_total", "succeeded", 6)


def test_without_its_extra_metrics_say_what_to_install_and_probes_work(start: Start, project: Path) -> None:
    (project / "without" / "prometheus_client").mkdir(parents=True)
    (project / "without" / "prometheus_client" / "__init__.py").write_text(
        "raise ModuleNotFoundError('No module named prometheus_client', name='prometheus_client')\n"
    )
    scheduler = begin(start, "scheduler", PYTHONPATH=str(project / "without"))
    assert scheduler.ask("/metrics") == (501, "/metrics needs an extra: pip install 'duly[metrics]'\n")


def test_a_taken_port_is_told_before_anything_starts(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("scheduler",), ("worker", *APP), ("worker", *APP, "--processes", "2")):
            process = start(*command, "--health-port", port)
            assert process.end() == 2, process.said
            assert f"port {port} on 127.0.0.1 is taken by another program" in process.output[-1]


def test_up_shows_what_its_scheduler_and_its_worker_did(duly: Run, start: Start) -> None:
    up = start("up", *APP, "--port", "0", "--open")
    url = up.wait_for(r"Duly is up: (http://[^/]+)/")[1]
    submit(duly, "greet", "--schedule", (datetime.now(UTC) + timedelta(seconds=1)).isoformat())
    submit(duly, "fail", "--max-retries", "0")  # no worker may have offered its own number yet
    probed = Probed(up, url)
    probed.until_figure("duly_runs_total", "succeeded", 1)
    figures = probed.until_figure("duly_runs_total", "dead", 1)
    assert figures["duly_fire_lag_seconds_count", ""] == 1
    assert figures["duly_live_nodes", "worker"] == figures["duly_live_nodes", "scheduler"] == 1
    text = probed.ask("/metrics")[1]
    assert {"api", "scheduler", "worker"} == set(re.findall(r'duly_build_info{.*kind="(\w+)"', text))
    check(text)
    for path in ("/livez", "/readyz", "/startupz"):
        assert probed.ask(path)[0] == 200
    # A new API process is told again, also what was counted before it.
    os.kill(next(pid for pid in children_of(up.pid) if b"api_process" in cmdline(pid)), signal.SIGKILL)
    up.wait_for("the API is up again")
    probed.until_figure("duly_runs_total", "dead", 1)


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
