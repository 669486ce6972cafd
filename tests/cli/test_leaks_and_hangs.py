"""Handlers that leak and handlers that hang, in threads and in children, beside innocent runs: only they suffer.

`DULY_TEST_LEAKS_AND_HANGS=1000` for a thousand of each, which takes some minutes; `DULY_TEST_LEAKS_AND_HANGS_RATE=2` of
each per second on a machine that has other work. `DULY_TEST_SEED` repeats an order.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly.operations import Operations
from duly.store.pool import Pool
from harness.commands import Process
from harness.pids import children_of
from harness.store import count
from harness.waiting import drawn_seed, eventually
from harness.worker import Workbench

Start = Callable[..., Process]
COUNT = int(os.environ.get("DULY_TEST_LEAKS_AND_HANGS", "60"))
# Of leaks and of hangs each, per second; and of each kind of innocent runs.
RATE, INNOCENT_RATE = float(os.environ.get("DULY_TEST_LEAKS_AND_HANGS_RATE", "5")), 10.0
INNOCENT_TIMEOUT, HANG_TIMEOUT = 30, 1
HANG_ATTEMPTS = 2
PROCESSES, SLOTS, LIMIT = 2, 8, 160

HOSTILE = """
import os
import time

from duly import Duly

app = Duly()
kept = []


def leak():
    kept.append(os.urandom(1_000_000) * 5)


def hang():
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass


@app.task()
def leak_in_thread() -> None:
    leak()


@app.task(isolation="process")
def leak_in_child() -> None:
    leak()


@app.task()
def hang_in_thread() -> None:
    hang()


@app.task(isolation="process")
def hang_in_child() -> None:
    hang()


@app.task()
async def innocent_on_loop() -> None:
    pass


@app.task()
def innocent_in_thread() -> None:
    pass


@app.task(isolation="process")
def innocent_in_child() -> None:
    pass
"""
INNOCENT = ("innocent_on_loop", "innocent_in_thread", "innocent_in_child")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hostile_app.py").write_text(HOSTILE)
    return tmp_path


@pytest.fixture
async def bench(pool: Pool, settings: Any, operations: Operations) -> AsyncIterator[Workbench]:
    bench = Workbench(pool, settings, operations)
    yield bench
    await bench.app.close()


class Memory:
    """The resident memory of a process and all below it, sampled; `largest` is that of the sum."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.largest = 0
        self.largest_process = 0

    async def __aenter__(self) -> Memory:
        self._sampling = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sampling.cancel()

    async def _sample(self) -> None:
        while True:
            sizes = await asyncio.to_thread(lambda: [resident(pid) for pid in below(self._pid)])
            self.largest = max(self.largest, sum(sizes))
            self.largest_process = max(self.largest_process, *sizes)
            await asyncio.sleep(0.5)


def below(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        found += children_of(one)
    return found


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


@pytest.mark.timeout(120 + 2 * COUNT)
async def test_handlers_that_leak_and_hang_harm_no_innocent_run(
    bench: Workbench, pool: Pool, database_url: str, start: Start, project: Path
) -> None:
    seed = drawn_seed()
    print(f"DULY_TEST_SEED={seed}")
    supervisor = start(
        "worker", "--app", "hostile_app:app", "--quiet",
        "--processes", str(PROCESSES), "--concurrency", "32", "--max-memory", f"{LIMIT}MB",
        DULY_PROCESS_SLOTS=str(SLOTS),
    )  # fmt: skip
    for _ in range(PROCESSES):
        await asyncio.to_thread(supervisor.wait_for, "worker .* is running", 60)
    # So that a run which is lost comes back, as it would anywhere, and is seen by its second attempt.
    start("scheduler")
    hostile = [(f"{what}_in_{where}", what) for what in ("leak", "hang") for where in ("thread", "child")] * (
        COUNT // 2
    )
    random.Random(seed).shuffle(hostile)
    async with Memory(supervisor.pid) as memory:
        submitted = await supply(bench, hostile)
        sums = Counter(submitted)

        async def all_ended() -> bool:
            return await count(pool, "history") == sums.total()

        # What the hangs need: each takes a slot, or a thread until its process is replaced.
        await eventually(all_ended, seconds=60 + COUNT * 0.2)
    connection = await asyncpg.connect(database_url)
    found = await connection.fetch(
        """
        select j.handler, h.status, h.attempt, h.error ->> 'type' as error, count(*) as number,
            max(extract(epoch from h.started_at - h.scheduled_at))::float8 as lag
        from duly.history h join duly.jobs j using (job_id)
        group by 1, 2, 3, 4 order by 1, 2, 3, 4
        """
    )
    await connection.close()
    for row in found:
        print(*(f"{value:.3f}" if isinstance(value, float) else value for value in row))
    said = await ended(supervisor)
    replaced = Counter(
        "threads" if "threads hang" in line else "memory" for line in said.splitlines() if "is replaced (" in line
    )
    children = said.count("an isolated child process is replaced")
    print(
        f"{sums.total()} runs; worker processes replaced: {dict(replaced)}, children: {children}; "
        f"at most {memory.largest / 1e6:.0f} MB together, {memory.largest_process / 1e6:.0f} MB in one process"
    )

    for row in found:
        if row["handler"].startswith("hang"):
            assert (row["status"], row["attempt"], row["error"]) == ("dead", HANG_ATTEMPTS, "timeout")
        else:
            assert (row["status"], row["attempt"]) == ("succeeded", 1)
        if row["handler"].startswith("innocent"):
            assert row["lag"] < INNOCENT_TIMEOUT
    assert Counter({row["handler"]: row["number"] for row in found}) == sums
    assert replaced.total() >= 1
    if COUNT >= 500:
        assert min(replaced["threads"], replaced["memory"]) >= 1
    assert "ended unexpectedly" not in said
    assert "does not end" not in said
    # Of each worker: the one that works and one that ends, at twice the limit, and one that starts; and the children.
    assert memory.largest < (PROCESSES * (2 * 2 + 1) + PROCESSES * SLOTS * 1.5) * LIMIT * 1e6


async def supply(bench: Workbench, hostile: list[tuple[str, str]]) -> list[str]:
    """Submits them at their rate, and innocent ones all the while. Returns the task of each run."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    submitted: list[str] = []
    innocent = 0
    while hostile:
        await asyncio.sleep(0.05)
        now = loop.time() - began
        batch = []
        while hostile and len(submitted) - 3 * innocent < now * 2 * RATE:
            task, what = hostile.pop()
            options: dict[str, Any] = {"max_retries": HANG_ATTEMPTS - 1, "retry_backoff": "immediate"}
            batch.append(bench.app.request(task, timeout_seconds=HANG_TIMEOUT if what == "hang" else 60, **options))
            submitted.append(task)
        while innocent < now * INNOCENT_RATE:
            innocent += 1
            batch += [bench.app.request(task, timeout_seconds=INNOCENT_TIMEOUT) for task in INNOCENT]
            submitted += INNOCENT
        if batch:
            await bench.operations.submit_many(batch, allow_unknown_handler=True)
    return submitted


async def ended(supervisor: Process) -> str:
    supervisor.signal(signal.SIGTERM)
    assert await asyncio.to_thread(supervisor.end) == 0, supervisor.said
    return supervisor.said
