"""A database that restarts, crashes, or has no room: workers keep running, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from duly.config import load_settings
from duly.errors import StoreUnavailable
from duly.model import DEFAULT_TENANT, JobRequest
from duly.operations import Operations, StoreOperations
from duly.store import embedded
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.processes import Spawn, executions
from harness.store import count, running_url
from harness.waiting import eventually

FULL_SECONDS = float(os.environ.get("DULY_TEST_DISK_FULL_SECONDS", "5"))
# Committed rows must survive a crash of the server, but need not survive one of the machine.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "100", "restart_after_crash": "on"}


class Database:
    """A PostgreSQL server for one test alone."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._claims = [embedded.start(home, settings=SETTINGS)]
        self.url = self._claims[0].url

    @property
    def data(self) -> Path:
        return self._home / "postgres" / "data"

    @property
    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().partition("\n")[0])

    def end(self, how: signal.Signals) -> None:
        """Ends the server. SIGINT: all sessions end in order. SIGQUIT: at once, and the next start recovers."""
        pid = self.postmaster
        os.kill(pid, how)
        deadline = time.monotonic() + 60
        while running_url(self._home) is not None or (self.data / "postmaster.pid").exists():
            assert time.monotonic() < deadline, "PostgreSQL does not stop"
            time.sleep(0.01)

    def start(self) -> None:
        self._claims.append(embedded.start(self._home, settings=SETTINGS))

    def release(self) -> None:
        for claim in self._claims:
            claim.release()


@pytest.fixture
def database() -> Iterator[Database]:
    # Not below pytest's own folder, which other accounts cannot enter.
    with tempfile.TemporaryDirectory(prefix="duly-tests-") as home:
        database = Database(Path(home))
        try:
            yield database
        finally:
            database.release()


@contextlib.asynccontextmanager
async def store_at(url: str) -> AsyncIterator[tuple[Pool, Operations]]:
    pool = await Pool.connect(url, size=4)
    try:
        await migrate(pool)
        await pool.measure_clock()
        store = await StoreOperations.open(pool, load_settings(database_url=url))
        yield pool, store.for_tenant(DEFAULT_TENANT)
    finally:
        await pool.close()


async def submit(operations: Operations, runs: int, *, seconds: float) -> None:
    requests = [JobRequest("record", payload={"seconds": seconds}) for _ in range(runs)]
    await operations.submit_many(requests, allow_unknown_handler=True)


async def recorded(pool: Pool) -> int:
    """The number of runs that have ended, or 0 while the database is away."""
    try:
        return await count(pool, "history")
    except StoreUnavailable:
        return 0


async def test_workers_survive_restarts_and_crashes_of_the_database_and_lose_nothing(
    database: Database, sink: Path, tmp_path: Path
) -> None:
    spawn = Spawn(tmp_path, sink, database.url)
    batch = 2000
    try:
        async with store_at(database.url) as (pool, operations):
            processes = [spawn("scheduler"), *(spawn("worker", "--concurrency", "50") for _ in range(2))]

            # Wait for all: a process that is still starting when the database goes away ends with an error.
            async def all_there() -> bool:
                return await count(pool, "nodes") == 3

            await eventually(all_there, seconds=60)
            for turn, how in enumerate(("fast", "immediate", "one backend")):
                # Two seconds of work, so that it has not ended when `before` is counted.
                await submit(operations, batch, seconds=0.1)
                await until_recorded(pool, turn * batch + 300)
                before = await recorded(pool)
                if how == "one backend":
                    # A backend dies as if killed by the kernel: PostgreSQL ends all sessions and restarts by itself.
                    rows = await pool.query("select pid from pg_stat_activity where application_name = 'duly'")
                    os.kill(rows[-1]["pid"], signal.SIGKILL)
                else:
                    await asyncio.to_thread(database.end, signal.SIGINT if how == "fast" else signal.SIGQUIT)
                    await asyncio.sleep(1)
                    await asyncio.to_thread(database.start)
                assert before < (turn + 1) * batch, "all runs were recorded before: this tests nothing"
                await until_recorded(pool, (turn + 1) * batch)

            async def nothing_left() -> bool:
                return await count(pool, "runs") == await count(pool, "claims") == 0

            await eventually(nothing_left)
            assert [process.poll() for process in processes] == [None] * 3
            assert await count(pool, "history", "status = 'succeeded'") == 3 * batch == await count(pool, "history")
            assert len(executions(sink)) == 3 * batch
    finally:
        spawn.end()


async def until_recorded(pool: Pool, runs: int) -> None:
    async def enough() -> bool:
        return await recorded(pool) >= runs

    await eventually(enough, seconds=60)


@pytest.fixture
def small_disk(database: Database) -> Iterator[Path]:
    """A file system of 64 MB for tables alone: the write-ahead log lies elsewhere, so PostgreSQL itself stays up."""
    with tempfile.TemporaryDirectory(prefix="duly-tests-") as folder:
        place = Path(folder) / "disk"
        place.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        try:
            owner = database.data.stat()
            Path(folder).chmod(0o711)
            tables = place / "tables"
            tables.mkdir(mode=0o700)
            os.chown(tables, owner.st_uid, owner.st_gid)
            yield place
        finally:
            # The server must end first, because it keeps its files open.
            database.release()
            subprocess.run(["umount", place], check=True)


async def test_a_disk_that_is_full_for_a_while_stops_claims_and_nothing_acknowledged_is_lost(
    database: Database, small_disk: Path, sink: Path, tmp_path: Path
) -> None:
    connection = await asyncpg.connect(database.url)
    await connection.execute(f"create tablespace small location '{small_disk / 'tables'}'")
    await connection.execute("create database small template template0 tablespace small")
    await connection.close()
    url = database.url.replace("/duly?", "/small?", 1)
    spawn = Spawn(tmp_path, sink, url)
    try:
        async with store_at(url) as (pool, operations):
            processes = [spawn("scheduler"), *(spawn("worker", "--concurrency", "50") for _ in range(2))]
            acknowledged = 0

            async def submit_more() -> None:
                nonlocal acknowledged
                await submit(operations, 500, seconds=0.05)
                acknowledged += 500

            await submit_more()
            await until_recorded(pool, 100)
            ballast = small_disk / "ballast"
            _fill(ballast)
            # Submits are refused once there is no room left inside pages.
            refused = False
            while not refused:
                try:
                    await submit_more()
                except StoreUnavailable:
                    refused = True
            full = time.monotonic()

            async def stands_still() -> bool:
                before = await count(pool, "history")
                await asyncio.sleep(1)
                return await count(pool, "history") == before

            await eventually(stands_still, seconds=30)
            waiting, held = await count(pool, "runs"), await count(pool, "claims")
            assert waiting + held > 0, "everything was done before the disk was full: this tests nothing"
            await asyncio.sleep(max(0.0, FULL_SECONDS - (time.monotonic() - full)))
            assert [process.poll() for process in processes] == [None] * 3
            assert await stands_still()

            ballast.unlink()
            await submit_more()

            async def all_ended() -> bool:
                return await count(pool, "history") >= acknowledged and await count(pool, "runs") == 0

            await eventually(all_ended, seconds=60)
            print(f"{acknowledged} acknowledged, {waiting} waiting while the disk was full")
            # A refused submit left nothing: there are no more jobs than were acknowledged.
            assert await count(pool, "jobs") == acknowledged == len(executions(sink))
            assert await count(pool, "history", "status = 'succeeded'") == acknowledged
            assert [process.poll() for process in processes] == [None] * 3
    finally:
        spawn.end()


def _fill(ballast: Path) -> None:
    """Writes into the file until no byte of the disk is left."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
