"""This version and the one before on one store: code rolls forward and back, the store is migrated, work goes on.

The processes of the version before run its own code, from the repository's history.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from harness.processes import HERE, clean_environment, duly_command
from harness.versions import previous_source
from harness.waiting import eventually

# No fire and no completion may pause for longer, whatever is being started, stopped or migrated.
LONGEST_PAUSE_SECONDS = 2.0
# Time for which the cluster works in each state. A larger number by hand: DULY_TEST_UPGRADE_SECONDS=30.
STATE_SECONDS = float(os.environ.get("DULY_TEST_UPGRADE_SECONDS", "1"))
RECURRING = 20


class Versions:
    """Processes of both versions over one store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        (folder / "sink").touch()
        common = {
            **clean_environment(),
            "DULY_DATABASE_URL": url,
            "DULY_LOG_LEVEL": "INFO",
            "SINK": str(folder / "sink"),
        }
        previous = previous_source(folder)
        self._environments = {
            "old": {**common, "PYTHONPATH": f"{previous}{os.pathsep}{HERE}"},
            "new": {**common, "PYTHONPATH": f"{HERE.parents[1] / 'src'}{os.pathsep}{HERE}"},
        }

    def run(self, version: str, *arguments: str) -> str:
        done = subprocess.run(
            duly_command(*arguments), env=self._environments[version], cwd=self._folder, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{version} duly {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, version: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self._start(version, arguments[0], duly_command(*arguments))

    def submitter(self, version: str) -> subprocess.Popen[bytes]:
        name = f"{version}{len(self._started)}"
        return self._start(version, f"submitter-{name}", [sys.executable, str(HERE / "submitter.py"), name])

    def _start(self, version: str, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{len(self._started):02}-{version}-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=self._environments[version], cwd=self._folder, stdin=subprocess.PIPE, stdout=log,
                stderr=log,
            )  # fmt: skip
        self._started.append(process)
        return process

    def submits(self) -> dict[str, str]:
        """What became of each order, by its name."""
        found: dict[str, str] = {}
        for log in self._folder.glob("*-submitter-*.log"):
            for line in log.read_text().splitlines():
                order, _, result = line.split(" ", 2)
                found[order] = result
        return found

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for log in sorted(self._folder.glob("*.log")):
            if "-submitter-" not in log.name:
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")


@pytest.fixture
async def empty_database(database_url: str) -> str:
    """A database without a store."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("drop schema duly cascade")
    await connection.close()
    return database_url


@pytest.fixture
def versions(empty_database: str, tmp_path: Path) -> Iterator[Versions]:
    versions = Versions(tmp_path, empty_database)
    yield versions
    versions.end()


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """Ends processes as a deploy does: by SIGTERM, and they leave when their work is handed over."""
    for process in processes:
        process.send_signal(signal.SIGTERM)


async def ended(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        code = await asyncio.to_thread(process.wait, 30)
        assert code == 0, f"process {process.args!r} ended with {code}"


@pytest.mark.timeout(120 + 7 * STATE_SECONDS)
async def test_a_rolling_upgrade_and_a_rollback_under_load_refuse_no_submit_and_pause_nothing(
    versions: Versions, tmp_path: Path
) -> None:
    assert "applied" in versions.run("old", "migrate")
    connection = await asyncpg.connect(versions.url)
    await connection.execute("create table public.orders (name text primary key, job_id text not null)")

    async def alive(kind: str, count: int) -> None:
        """Waits until that many nodes of a kind take part."""

        async def joined() -> bool:
            statement = "select count(*) from duly.nodes where kind = $1 and lease_until > now() and stopped_at is null"
            return int(await connection.fetchval(statement, kind)) == count

        await eventually(joined, seconds=30)

    async def work_on(seconds: float = STATE_SECONDS) -> None:
        await asyncio.sleep(seconds)

    def node(version: str) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        worker = versions.start(version, "worker", "--app", "sink_app:app", "--quiet")
        return versions.start(version, "scheduler"), worker

    old = [node("old"), node("old")]
    await alive("scheduler", 2)
    await alive("worker", 2)
    tick = '{"handler": "record", "schedule": "every 1s"}\n'
    (tmp_path / "ticks").write_text(tick * RECURRING)
    versions.run("old", "submit", "--file", "ticks")
    submitters = [versions.submitter("old"), versions.submitter("new")]

    async def both_submit() -> bool:
        results = versions.submits()
        return all(any(order.startswith(version) for order in results) for version in ("old", "new"))

    await eventually(both_submit, seconds=30)
    began = await connection.fetchval("select clock_timestamp()")
    await work_on()

    # The code first: nodes of this version on a store of the version before.
    new = [node("new")]
    await alive("scheduler", 3)
    await alive("worker", 3)
    await work_on()

    # The store, while both work.
    assert "applied" in versions.run("new", "migrate")
    await work_on()

    # A node of the version before restarts on the migrated store, and a web process too.
    stop(*old[0])
    old.append(node("old"))
    submitters.append(versions.submitter("old"))
    await ended(*old.pop(0))
    await alive("scheduler", 3)
    await work_on()

    # Forward: only this version.
    new.append(node("new"))
    await alive("scheduler", 4)
    await alive("worker", 4)
    for one in old:
        stop(*one)
    for one in old:
        await ended(*one)
    await work_on()

    # Back: only the version before, on the migrated store.
    old = [node("old"), node("old")]
    await alive("scheduler", 4)
    await alive("worker", 4)
    for one in new:
        stop(*one)
    for one in new:
        await ended(*one)
    await work_on()

    finished = await connection.fetchval("select clock_timestamp()")
    for submitter in submitters:
        assert submitter.stdin is not None
        submitter.stdin.close()
    await ended(*submitters)
    results = versions.submits()
    refused = {order: result for order, result in results.items() if result.startswith("refused")}
    assert not refused, f"{len(refused)} of {len(results)} submits were refused: {list(refused.items())[:5]}"
    committed = {order for order, result in results.items() if result == "committed"}
    assert len(committed) > 100

    async def quiet() -> bool:
        unfinished = "select count(*) from duly.runs r join duly.jobs j using (job_id) where j.kind = 'once'"
        return int(await connection.fetchval(unfinished)) == 0

    await eventually(quiet, seconds=20)
    for one in old:
        stop(*one)
    for one in old:
        await ended(*one)

    await each_order_ran_once(connection, committed)
    await nothing_paused(connection, began, finished)
    await connection.close()


async def each_order_ran_once(connection: asyncpg.Connection[asyncpg.Record], committed: set[str]) -> None:
    orders = {row["name"]: row["job_id"] for row in await connection.fetch("select name, job_id from public.orders")}
    assert set(orders) == committed
    once = await connection.fetch(
        "select j.job_id::text as job_id, count(h.*) as outcomes, "
        "count(*) filter (where h.status = 'succeeded') as good "
        "from duly.jobs j left join duly.history h using (job_id) where j.kind = 'once' group by 1"
    )
    assert {row["job_id"] for row in once} == set(orders.values())
    assert [dict(row) for row in once if (row["outcomes"], row["good"]) != (1, 1)] == []


async def nothing_paused(connection: asyncpg.Connection[asyncpg.Record], began: datetime, finished: datetime) -> None:
    """Every second of every recurring job ran, and neither starts nor ends of runs have a long gap."""
    ends = await connection.fetch(
        "select finished_at from duly.history where finished_at between $1 and $2 order by 1", began, finished
    )
    pause = longest_gap([began, *(row["finished_at"] for row in ends), finished])
    ticks = await connection.fetch(
        "select h.job_id, h.scheduled_at, h.started_at, h.status from duly.history h join duly.jobs j using (job_id) "
        "where j.kind = 'interval' and h.scheduled_at between $1 and $2 order by 1, 2",
        began,
        finished - timedelta(seconds=2),
    )
    assert [dict(row) for row in ticks if row["status"] != "succeeded"] == []
    late = max((row["started_at"] - row["scheduled_at"]).total_seconds() for row in ticks)
    print(f"{len(ends)} runs, longest pause {pause:.2f} s, latest start {late:.2f} s")
    assert pause <= LONGEST_PAUSE_SECONDS
    assert late <= LONGEST_PAUSE_SECONDS
    for _, of_job in itertools.groupby(ticks, key=lambda row: row["job_id"]):
        moments = [row["scheduled_at"] for row in of_job]
        assert {after - before for before, after in itertools.pairwise(moments)} == {timedelta(seconds=1)}


def longest_gap(moments: list[datetime]) -> float:
    return max((after - before).total_seconds() for before, after in itertools.pairwise(moments))
