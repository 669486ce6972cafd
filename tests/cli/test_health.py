"""`--health-port`: the probes and the figures of schedulers and workers, as real processes."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.commands import PATIENCE, Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]
APP = ("--app", "tasks_of_test:app")
Figures = dict[tuple[str, str], float]


class Probed:
    """A process that serves its health, and what it answers."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.url = process.wait_for(r"probes and metrics of this process: (http://\S+)")[1]

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
        while (figures := self.figures())[name, label] != value:
            assert time.monotonic() < deadline, (name, label, figures[name, label], self.process.said)
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


def test_a_scheduler_and_a_worker_say_how_they_are_and_what_they_did(duly: Run, start: Start) -> None:
    scheduler = Probed(start("scheduler", "--health-port", "0"))
    worker = Probed(start("worker", *APP, "--health-port", "0"))
    for one in (scheduler, worker):
        for path in ("/startupz", "/livez", "/readyz"):
            assert one.until(path, 200) == "ok\n"
        check(one.ask("/metrics")[1])
        assert one.ask("/nothing")[0] == 404
    scheduler.until_figure("duly_shards_owned", "", 64)
    for name in ("greet", "greet", "fail"):
        submit(duly, name, "--schedule", (datetime.now(UTC) + timedelta(seconds=1)).isoformat())
    worker.until_figure("duly_runs_total", "succeeded", 2)
    figures = worker.until_figure("duly_runs_total", "dead", 1)
    assert figures["duly_schedule_lag_seconds_count", ""] == figures["duly_run_duration_seconds_count", ""] == 3
    assert scheduler.figures()["duly_fire_lag_seconds_count", ""] == 3
