"""While one tenant does its worst, another tenant's jobs are on time, its submits are answered, and no leader changes.

`DULY_TEST_SIEGE_SECONDS=120` runs the full siege, on a million ended jobs; in the suite it is short.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.commands import Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]

SECONDS = float(os.environ.get("DULY_TEST_SIEGE_SECONDS", "12"))
LONG = SECONDS >= 60
ENDED_JOBS = 1_000_000 if LONG else 100_000
LARGE_JOBS = 1_020 if LONG else 300

LATEST_START = timedelta(seconds=2)
SLOWEST_SUBMIT = 1.0
MOST_MEMORY = 400 << 20

FILL = """
insert into duly.jobs (job_id, created_at, updated_at, shard, priority, status, kind, tenant, name, queue, handler,
    schedule, timezone, payload)
select job_id, duly.now(), duly.now(), duly.shard_of(job_id, store.shard_count), 5, 'ended', 'once', 'a', filler.name,
    'default', 'greet', 'now', 'UTC', jsonb_build_object('filler', repeat('x', filler.length))
from (values (%s::int, %s, %s)) as filler (count, name, length)
cross join lateral (select duly.new_job_id(now()) as job_id from generate_series(1, filler.count) offset 0) made
cross join duly.store
"""


def key(duly: Run, tenant: str, role: str) -> str:
    return str(duly("key", "create", "--tenant", tenant, "--role", role).out.strip())


def api_of(pid: int) -> int:
    """The process id of the API of a `duly up`."""
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "api_process"], capture_output=True, text=True, check=True)
    return int(found.stdout)


def peak_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class Neighbour:
    """Another tenant, who submits a job now and then."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self.seconds: list[float] = []
        self.failed: list[str] = []

    @contextmanager
    def living(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def submit(self, **fields: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            body = json.dumps({"name": "submitted", "handler": "greet", **fields})
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request("POST", "/api/v1/jobs", body, headers)
            answer = connection.getresponse()
            document = answer.read().decode()
            assert answer.status == 201, f"{answer.status} {document}"
            return json.loads(document)
        finally:
            connection.close()

    def _live(self) -> None:
        while not self._over.wait(0.2):
            began = time.perf_counter()
            try:
                self.submit()
            except (AssertionError, OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
            self.seconds.append(time.perf_counter() - began)


@contextmanager
def besieged(port: int, *, read_key: str, write_key: str) -> Iterator[subprocess.Popen[str]]:
    siege = subprocess.Popen(
        [sys.executable, "-m", "cli.besieging", str(port), str(SECONDS)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "READ_KEY": read_key, "WRITE_KEY": write_key},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with siege:
        try:
            yield siege
        finally:
            siege.kill()


@pytest.fixture
def store(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def leaders(store: psycopg.Connection) -> list[Any]:
    return store.execute("select shard, epoch, node_id from duly.shards order by shard").fetchall()


def now(store: psycopg.Connection) -> datetime:
    row = store.execute("select clock_timestamp()").fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


@pytest.mark.timeout(SECONDS + 170)
def test_one_tenants_worst_stops_no_other(duly: Run, start: Start, store: psycopg.Connection) -> None:
    a_reads, a_writes, b_writes = key(duly, "a", "read"), key(duly, "a", "write"), key(duly, "b", "write")
    store.execute(FILL, (ENDED_JOBS, "ended", 1))
    store.execute(FILL, (LARGE_JOBS, "large", 256 * 1000))
    store.execute("vacuum analyze duly.jobs")

    up = start("up", "--app", "tasks_of_test:app", "--port", "0", DULY_LEADER_LEASE_SECONDS=None)
    port = int(up.wait_for(r"Duly is up: http://127\.0\.0\.1:(\d+)")[1])
    api = api_of(up.pid)
    neighbour = Neighbour(port, b_writes)
    secondly = neighbour.submit(name="secondly", schedule="every 1s")["job_id"]
    with besieged(port, read_key=a_reads, write_key=a_writes) as siege:
        assert siege.stdout is not None
        assert siege.stdin is not None
        assert siege.stdout.readline() == "ready\n"
        before, began = leaders(store), now(store)
        with neighbour.living():
            siege.stdin.write("go\n")
            siege.stdin.flush()
            answers = json.loads(siege.stdout.readline())
        ended = now(store)
    memory = peak_memory(api)
    # Occurrences that were due in the last seconds get their time too.
    store.execute("select pg_sleep(2.5)")
    runs = store.execute(
        "select scheduled_at, started_at, status from duly.history where job_id = %s"
        " and scheduled_at between %s and %s order by scheduled_at",
        (secondly, began, ended),
    ).fetchall()
    lags = [started_at - scheduled_at for scheduled_at, started_at, _ in runs if started_at is not None]
    slowest = max(neighbour.seconds)
    told = (
        f"answers {json.dumps(answers)}; {len(runs)} runs, latest {max(lags, default=None)}; "
        f"{len(neighbour.seconds)} submits, slowest {slowest:.2f} s; memory {memory >> 20} MB"
    )
    print(told)
    assert api_of(up.pid) == api, "the API has ended and was started again"
    assert leaders(store) == before, told
    assert {status for *_, status in runs} == {"succeeded"}, told
    assert len(runs) >= int((ended - began).total_seconds()), told
    assert max(lags) <= LATEST_START, told
    assert not neighbour.failed, told
    assert slowest <= SLOWEST_SUBMIT, told
    assert memory < MOST_MEMORY, told
    assert all(sum(counts.values()) > 0 for counts in answers.values()), "an attack was never carried out"
