"""Worker processes that are worn out (`--max-runs`, `--max-memory`, hanging threads) are replaced while runs go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from duly.operations import Operations
from duly.store.pool import Pool
from harness.commands import Ended, Process
from harness.pids import gone, is_alive
from harness.proxy import Proxy
from harness.waiting import eventually
from harness.worker import Workbench

Run = Callable[..., Ended]
Start = Callable[..., Process]
APP = ("--app", "wearing_app:app", "--quiet")
REPLACED = r"is replaced \((?P<why>.*)\) after (?P<runs>\d+) runs and (?P<age>[^,]*)(, with .* of memory)?$"

WEARING = """
import asyncio
import os
import time
from pathlib import Path

from duly import Duly

app = Duly()
kept = []


def told(word):
    with open("told", "a", buffering=1) as file:
        file.write(f"{time.time()} {os.getpid()} {word}\\n")


@app.task()
async def quick(number: int = 0) -> None:
    told(f"quick {number}")


@app.task()
def in_thread(number: int = 0) -> None:
    told(f"in_thread {number}")


@app.task()
def leak(megabytes: int = 5) -> None:
    kept.append(os.urandom(1_000_000) * megabytes)
    told("leak")


@app.task()
async def lasting(seconds: float) -> None:
    told("begun")
    await asyncio.sleep(seconds)
    told("done")


@app.task()
def hang() -> None:
    told("hang")
    while True:
        time.sleep(1)


@app.task()
async def block(once: str) -> None:
    told("block")
    if not Path(once).exists():
        Path(once).touch()
        time.sleep(600)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "wearing_app.py").write_text(WEARING)
    (tmp_path / "told").touch()
    return tmp_path


@dataclass(frozen=True)
class Told:
    at: float
    pid: int
    word: str


def told(project: Path, word: str = "") -> list[Told]:
    found = [line.split(" ", 2) for line in (project / "told").read_text().splitlines()]
    return [Told(float(at), int(pid), said) for at, pid, said in found if said.startswith(word)]


def children(process: Process) -> set[int]:
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    # Not one that is being forked: it still has the supervisor's command line.
    return {int(pid) for pid in pids if is_alive(int(pid)) and is_worker(int(pid))}


def is_worker(pid: int) -> bool:
    try:
        return b"--supervised" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def told_line(supervisor: Process, pattern: str, seconds: float = 60) -> Any:
    return asyncio.to_thread(supervisor.wait_for, pattern, seconds)


class Supply:
    """Submits runs of a task at a steady rate, numbered, until the block ends."""

    def __init__(self, bench: Workbench, task: str, rate: float) -> None:
        self._bench, self._task, self._rate = bench, task, rate
        self.submitted: list[float] = []

    async def __aenter__(self) -> Supply:
        self._supplying = asyncio.create_task(self._supply())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._supplying.cancel()

    async def _supply(self) -> None:
        while True:
            self.submitted.append(time.time())
            await self._bench.submit(self._task, {"number": len(self.submitted) - 1})
            await asyncio.sleep(1 / self._rate)


@pytest.fixture
async def bench(pool: Pool, settings: Any, operations: Operations) -> AsyncIterator[Workbench]:
    bench = Workbench(pool, settings, operations)
    yield bench
    await bench.app.close()


@pytest.mark.parametrize("task", ["quick", "in_thread"])
async def test_runs_go_on_without_a_pause_while_a_process_is_replaced(
    bench: Workbench, start: Start, project: Path, task: str
) -> None:
    supervisor = start("worker", *APP, "--max-runs", "100")
    await told_line(supervisor, "worker .* is running")
    async with Supply(bench, task, 50) as supply:
        for _ in range(3):
            line = await told_line(supervisor, REPLACED)
            assert line["why"] == "--max-runs 100"
            assert int(line["runs"]) >= 100
        await asyncio.sleep(0.5)
    number = len(supply.submitted)

    await eventually(lambda: len(told(project)) >= number - 1)
    begun = told(project)
    starts = {int(one.word.split()[1]): one for one in begun}
    assert len(starts) == len(begun)
    lag = max(starts[n].at - supply.submitted[n] for n in starts)
    pids = [starts[n].pid for n in sorted(starts)]
    print(f"{len(starts)} runs in {len(set(pids))} processes, the longest lag {lag:.3f} s")
    assert len(set(pids)) >= 3
    supervisor.signal(signal.SIGTERM)
    assert supervisor.end() == 0, supervisor.said
    assert "ended unexpectedly" not in supervisor.said
    assert "Traceback" not in supervisor.said
    assert lag < 0.6


async def test_a_process_that_leaks_is_replaced_and_its_memory_comes_back(
    bench: Workbench, start: Start, project: Path
) -> None:
    supervisor = start("worker", *APP, "--max-memory", "200MB")
    await told_line(supervisor, "worker .* is running")
    jobs: list[str] = []
    replaced = 0
    largest = 0
    while replaced < 2:
        jobs.append(await bench.submit("leak"))
        await asyncio.sleep(0.03)
        largest = max(largest, *(resident(pid) for pid in children(supervisor)))
        replaced = sum("is replaced (--max-memory 200MB)" in line for line in heard(supervisor))
    for job_id in jobs:
        assert (await bench.succeeded(job_id)).attempt == 1
    await eventually(lambda: len(children(supervisor)) == 1, seconds=30)
    print(f"{len(jobs)} leaks of 5 MB; the largest process had {largest / 1e6:.0f} MB")
    assert 200e6 < largest < 500e6
    assert "ended unexpectedly" not in supervisor.said


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def heard(process: Process) -> list[str]:
    """All lines so far, without waiting for one."""
    with contextlib.suppress(AssertionError):
        process.wait_for("(?!)", seconds=0)
    return process.output


async def test_a_process_of_which_half_the_threads_hang_is_replaced(
    bench: Workbench, start: Start, project: Path
) -> None:
    supervisor = start("worker", *APP, "--processes", "1", "--concurrency", "4")
    await told_line(supervisor, "worker .* is running")
    (old,) = children(supervisor)
    hanging = [await bench.submit("hang", timeout_seconds=0.5, max_retries=0) for _ in range(2)]
    line = await told_line(supervisor, REPLACED)
    assert line["why"] == "2 of its 4 handler threads hang"
    # The threads that hang do not keep the process from ending.
    await gone(old)
    assert [(await bench.end_of(job_id)).status for job_id in hanging] == ["dead", "dead"]
    job_ids = [await bench.submit("in_thread") for _ in range(4)]
    for job_id in job_ids:
        assert (await bench.succeeded(job_id)).attempt == 1
    assert old not in {one.pid for one in told(project, "in_thread")}


async def test_a_handler_may_finish_within_the_grace_and_is_given_back_after_it(
    bench: Workbench, start: Start, project: Path
) -> None:
    supervisor = start("worker", *APP, "--max-runs", "20", DULY_SHUTDOWN_GRACE_SECONDS="4")
    await told_line(supervisor, "worker .* is running")
    (old,) = children(supervisor)
    endless = await bench.submit("lasting", {"seconds": 3600})
    await eventually(lambda: len(told(project, "begun")) == 1)
    async with Supply(bench, "quick", 20):
        await told_line(supervisor, REPLACED)
        # Begun just before the end, it has the grace: the old process claims no more, so this is in the new one.
        await gone(old)
    await eventually(lambda: len(told(project, "begun")) == 2)
    first, second = told(project, "begun")
    assert first.pid == old != second.pid
    run = await bench.run_of(endless)
    assert (run.status, run.attempt) == ("running", 1)
    assert 4 <= second.at - max(one.at for one in told(project, "quick") if one.pid == old) < 15
    supervisor.press_ctrl_c()
    supervisor.wait_for("stopping")
    supervisor.press_ctrl_c()
    assert supervisor.end(15) == 130, supervisor.said


async def test_a_handler_that_ends_within_the_grace_is_left_to_finish(
    bench: Workbench, start: Start, project: Path
) -> None:
    supervisor = start("worker", *APP, DULY_WORKER_MAX_RUNS="20")
    await told_line(supervisor, "worker .* is running")
    (old,) = children(supervisor)
    lasting = await bench.submit("lasting", {"seconds": 8})
    async with Supply(bench, "quick", 20):
        await told_line(supervisor, REPLACED)
    assert is_alive(old)
    assert (await bench.succeeded(lasting)).attempt == 1
    assert [one.pid for one in told(project, "done")] == [old]
    await gone(old)


async def test_a_limit_below_what_a_process_needs_is_said_once_and_does_not_spin(
    bench: Workbench, start: Start, project: Path
) -> None:
    supervisor = start("worker", *APP, "--processes", "2", "--max-memory", "30MB")
    for _ in range(2):
        await told_line(supervisor, "worker .* is running")
    before = children(supervisor)
    async with Supply(bench, "quick", 50):
        await eventually(lambda: len(told(project)) > 200, seconds=60)
    assert children(supervisor) == before
    assert {one.pid for one in told(project)} == before
    assert sum("--max-memory 30MB leaves too little for the runs" in line for line in heard(supervisor)) == 1
    assert not re.search(REPLACED, supervisor.said)


async def test_duly_up_replaces_its_worker_too(bench: Workbench, start: Start, project: Path) -> None:
    up = start("up", "--app", "wearing_app:app", "--port", "0", "--max-runs", "20")
    await told_line(up, "Duly is up")
    async with Supply(bench, "quick", 20):
        line = await told_line(up, REPLACED)
    assert line["why"] == "--max-runs 20"
    up.signal(signal.SIGTERM)
    assert await asyncio.to_thread(up.end) == 0, up.said
    assert len({one.pid for one in told(project)}) >= 1


# What if it dies, hangs or is stopped right then?


class Replacing:
    """A worker whose process is worn while its successor has not started: the successor is held up at its start."""

    def __init__(self, supervisor: Process, old: int, successor: int) -> None:
        self.supervisor, self.old, self.successor = supervisor, old, successor


async def held_up(bench: Workbench, start: Start, **settings: str) -> Replacing:
    supervisor = start("worker", *APP, "--max-runs", "20", **settings)
    await told_line(supervisor, "worker .* is running")
    (old,) = children(supervisor)
    async with Supply(bench, "quick", 30):
        await eventually(lambda: len(children(supervisor)) == 2, seconds=60)
        (successor,) = children(supervisor) - {old}
        os.kill(successor, signal.SIGSTOP)
    return Replacing(supervisor, old, successor)


async def test_a_worn_process_that_is_killed_loses_nothing(bench: Workbench, start: Start, project: Path) -> None:
    """Its successor is on its way already: it takes over, and the runs are given back at once."""
    replacing = await held_up(bench, start, DULY_WORKER_LEASE_SECONDS="120", DULY_HEARTBEAT_SECONDS="1")
    lasting = await bench.submit("lasting", {"seconds": 2})
    await eventually(lambda: len(told(project, "begun")) == 1)
    os.kill(replacing.old, signal.SIGKILL)
    await told_line(replacing.supervisor, "ended unexpectedly .*killed by SIGKILL.* its successor was being started")
    os.kill(replacing.successor, signal.SIGCONT)
    assert (await bench.succeeded(lasting)).attempt == 2
    assert {one.pid for one in told(project, "done")} == {replacing.successor}
    assert children(replacing.supervisor) == {replacing.successor}


async def test_a_process_that_is_killed_while_it_ends_loses_nothing(
    bench: Workbench, start: Start, project: Path
) -> None:
    replacing = await held_up(bench, start, DULY_WORKER_LEASE_SECONDS="120", DULY_HEARTBEAT_SECONDS="1")
    lasting = await bench.submit("lasting", {"seconds": 5})
    await eventually(lambda: len(told(project, "begun")) == 1)
    os.kill(replacing.successor, signal.SIGCONT)
    await told_line(replacing.supervisor, REPLACED)
    os.kill(replacing.old, signal.SIGKILL)
    run = await bench.succeeded(lasting)
    assert run.attempt == 2
    assert children(replacing.supervisor) == {replacing.successor}


async def test_a_successor_that_dies_at_its_start_is_tried_again_while_the_old_process_works(
    bench: Workbench, start: Start, project: Path
) -> None:
    replacing = await held_up(bench, start)
    os.kill(replacing.successor, signal.SIGKILL)
    await told_line(replacing.supervisor, r"successor of the worker did not start \(killed by SIGKILL\); another try")
    job_id = await bench.submit("quick", {"number": -1})
    await bench.succeeded(job_id)
    assert {one.pid for one in told(project, "quick -1")} == {replacing.old}
    await told_line(replacing.supervisor, REPLACED)
    await gone(replacing.old)


@pytest.mark.parametrize("stopping", ["before the successor runs", "while the old one ends"])
async def test_a_stop_of_the_supervisor_ends_both_processes_within_the_grace(
    bench: Workbench, start: Start, project: Path, stopping: str
) -> None:
    replacing = await held_up(bench, start)
    lasting = await bench.submit("lasting", {"seconds": 3})
    await eventually(lambda: len(told(project, "begun")) == 1)
    if stopping == "while the old one ends":
        os.kill(replacing.successor, signal.SIGCONT)
        await told_line(replacing.supervisor, REPLACED)
    replacing.supervisor.signal(signal.SIGTERM)
    await asyncio.to_thread(replacing.supervisor.wait_for, "stopping")
    os.kill(replacing.successor, signal.SIGCONT)
    assert await asyncio.to_thread(replacing.supervisor.end) == 0, replacing.supervisor.said
    assert not is_alive(replacing.old)
    assert not is_alive(replacing.successor)
    run = await bench.run_of(lasting)
    # A second SIGTERM to the old process would have given its run back at once.
    assert (run.status, run.attempt) == ("succeeded", 1)


async def test_a_process_that_hangs_in_its_end_is_killed_and_its_runs_given_back(
    bench: Workbench, start: Start, project: Path
) -> None:
    supervisor = start("worker", *APP, "--max-runs", "20", DULY_SHUTDOWN_GRACE_SECONDS="1")
    await told_line(supervisor, "worker .* is running")
    (old,) = children(supervisor)
    async with Supply(bench, "quick", 30):
        await eventually(lambda: len(children(supervisor)) == 2, seconds=60)
    blocked = await bench.submit("block", {"once": str(project / "once")}, retry_backoff="immediate")
    await told_line(supervisor, REPLACED)
    await told_line(supervisor, "that was replaced does not end; killing it")
    assert (await bench.succeeded(blocked)).attempt == 2
    assert not is_alive(old)
    assert [one.pid == old for one in told(project, "block")] == [True, False]


async def test_a_store_that_is_away_holds_the_replacement_up_and_no_more(
    bench: Workbench, start: Start, project: Path, database_url: str
) -> None:
    with Proxy(database_url) as proxy:
        supervisor = start("worker", *APP, "--max-runs", "20", DULY_DATABASE_URL=proxy.url)
        await told_line(supervisor, "worker .* is running")
        (old,) = children(supervisor)
        async with Supply(bench, "quick", 30):
            await eventually(lambda: len(children(supervisor)) == 2, seconds=60)
            proxy.refuse()
            await told_line(supervisor, "successor of the worker did not start .* another try")
            proxy.passing()
            line = await told_line(supervisor, REPLACED)
            assert line["why"] == "--max-runs 20"
            await gone(old)
            last = await bench.submit("quick", {"number": -1})
            await bench.succeeded(last)
    starts = [one.word for one in told(project)]
    assert len(starts) == len(set(starts))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-runs", "0"), ("--max-runs", "1")),
        (("--max-memory", "512"), ("--max-memory", "'512'", "512MB")),
        (("--max-memory", "lots"), ("--max-memory", "'lots'", "1.5GiB")),
        (("--max-memory", "64KB"), ("--max-memory", "64KB", "16MiB")),
    ],
)
def test_a_bad_limit_is_refused_by_name(
    duly: Run, project: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    for command in ("worker", "up"):
        ended = duly(command, "--app", "wearing_app:app", *arguments)
        assert ended.code == 2
        assert len(ended.err.splitlines()) == 1
        for word in words:
            assert word in ended.err
