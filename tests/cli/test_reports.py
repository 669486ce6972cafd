"""What a supervisor makes of its processes' reports, and that it hears their last one."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from duly.cli.reports import Reports
from duly.cli.supervised import Replacing, WorkerProcess
from duly.cli.worker_messages import Report
from duly.figures import Figures
from duly.vitals import ALIVE, READY, STARTED


def report(wrong: dict[str, str | None] | None = None, *, runs: int = 0, utilization: float = 0.0) -> Report:
    figures = Figures("worker")
    figures.runs["succeeded"] = runs
    figures.schedule_lag.observe([1_000.0] * runs)
    figures.utilization = lambda: utilization
    return Report(figures.snapshot().document(), {ALIVE: None, READY: None, STARTED: None, **(wrong or {})})


@pytest.fixture
def reports() -> Reports:
    reports = Reports("worker", hung_seconds=15)
    for name in ("worker 1 of 2", "worker 2 of 2"):
        reports.expect(name)
    return reports


def begin(reports: Reports, name: str, process: object) -> None:
    reports.began(name, process)
    reports.leads(name, process)


def succeeded(reports: Reports) -> tuple[float, int]:
    snapshot = reports.snapshots()["worker"]
    return snapshot.numbers["duly_runs_total"]["succeeded"], sum(snapshot.histograms["duly_schedule_lag_seconds"][0])


def test_counters_of_processes_that_come_and_go_never_go_back(reports: Reports) -> None:
    assert succeeded(reports) == (0, 0)
    begin(reports, "worker 1 of 2", "a")
    begin(reports, "worker 2 of 2", "b")
    reports.heard("a", report(runs=3, utilization=1.0))
    reports.heard("b", report(runs=4, utilization=0.5))
    assert succeeded(reports) == (7, 7)
    assert reports.snapshots()["worker"].numbers["duly_worker_utilization"] == {"": 0.75}
    begin(reports, "worker 1 of 2", "c")  # the successor of a, which is still ending
    assert succeeded(reports) == (7, 7)
    reports.heard("a", report(runs=5))
    reports.ended("a")
    reports.heard("a", report(runs=5))  # it comes too late to count twice
    assert succeeded(reports) == (9, 9)
    reports.heard("c", report(runs=1, utilization=0.1))
    assert succeeded(reports) == (10, 10)
    reports.ended("b")
    reports.ended("c")
    assert succeeded(reports) == (10, 10)
    assert reports.snapshots()["worker"].numbers["duly_worker_utilization"] == {"": 0.0}
    reports.rescued(2, 1)
    numbers = reports.snapshots()["worker"].numbers
    assert (numbers["duly_rescued_total"], numbers["duly_runs_total"]["dead"]) == ({"": 3}, 1)


def test_figures_of_another_version_are_left_out_and_its_state_is_heard(reports: Reports) -> None:
    begin(reports, "worker 1 of 2", "a")
    reports.heard("a", Report({"of tomorrow": 1}, {ALIVE: "its loop hangs"}))
    assert succeeded(reports) == (0, 0)
    assert reports.wrong()[ALIVE] == "worker 1 of 2: its loop hangs"


def test_it_is_ready_when_each_place_has_a_process_that_is(reports: Reports) -> None:
    assert reports.wrong()[STARTED] == "worker 1 of 2 is starting"
    begin(reports, "worker 1 of 2", "a")
    begin(reports, "worker 2 of 2", "b")
    assert reports.wrong()[READY] == "worker 1 of 2 is starting"
    reports.heard("a", report())
    reports.heard("b", report({STARTED: "the worker is starting", READY: "the worker is starting"}))
    assert reports.wrong() == {
        ALIVE: None, READY: "worker 2 of 2: the worker is starting", STARTED: "worker 2 of 2 is starting",
    }  # fmt: skip
    reports.heard("b", report())
    assert set(reports.wrong().values()) == {None}
    # A process that is being replaced may be ending, and says so; its successor does the work.
    begin(reports, "worker 1 of 2", "c")
    reports.heard("c", report())
    reports.heard("a", report({READY: "the worker is stopping"}))
    assert set(reports.wrong().values()) == {None}
    reports.ended("a")
    assert set(reports.wrong().values()) == {None}
    reports.ended("b")
    assert reports.wrong() == {ALIVE: None, READY: "worker 2 of 2 does not run", STARTED: None}
    reports.heard("c", report({ALIVE: "its loop hangs"}))
    assert reports.wrong()[ALIVE] == "worker 1 of 2: its loop hangs"


def test_one_that_reported_and_falls_silent_hangs(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("duly.cli.reports.time.monotonic", lambda: now[0])
    begin(reports, "worker 1 of 2", "a")
    now[0] += 1000  # it is starting, or of a version that does not report
    assert reports.wrong()[ALIVE] is None
    reports.heard("a", report())
    now[0] += 15
    assert reports.wrong()[ALIVE] is None
    now[0] += 1
    assert reports.wrong()[ALIVE] == "worker 1 of 2 has not reported for 16 s: it hangs, or was stopped"


async def test_the_last_words_of_a_process_are_heard(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends at once after it has said them, so nothing has been read when its end is known."""
    line = json.dumps({"Report": {"figures": report(runs=5).figures, "wrong": {}}}) + "\n"

    async def give_back(*_: Any) -> None:
        pass

    process = WorkerProcess(
        "worker 1 of 2", (), {}, patience=5, give_back=give_back, replacing=Replacing(None, None), reports=reports
    )
    process._command = (sys.executable, "-c", f"import os; os.write(0, {line.encode()!r})")
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "add_reader", lambda *_: None)
        spawned = await process._spawn()
    await spawned.ended
    await asyncio.sleep(0)
    assert succeeded(reports) == (5, 5)
