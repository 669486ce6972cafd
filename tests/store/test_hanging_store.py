"""A PostgreSQL that hangs: it accepts connections and statements and never answers. Processes and server are real."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from duly.config import load_settings
from duly.errors import StoreUnavailable
from duly.model import DEFAULT_TENANT, JobRequest
from duly.operations import StoreOperations
from duly.store import embedded
from duly.store import pool as pool_module
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.processes import Spawn, executions
from harness.store import count, take
from harness.waiting import eventually

GRACE = 2.0
# After 10 s a process ends even if something in it does not end by itself; 3 s are for a slow machine.
FEW_SECONDS = 10.0 + 3.0
USUAL = {
    "DULY_LEADER_LEASE_SECONDS": "5", "DULY_WORKER_LEASE_SECONDS": "15", "DULY_SHUTDOWN_GRACE_SECONDS": f"{GRACE:g}",
}  # fmt: skip


class Hanging:
    """A PostgreSQL whose processes can all be stopped."""

    def __init__(self, url: str, postmaster: int) -> None:
        self.url = url
        self._postmaster = postmaster

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        # The postmaster comes first, because it starts the other processes.
        os.kill(self._postmaster, number)
        for child in Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split():
            with suppress(ProcessLookupError):  # a session may have ended meanwhile
                os.kill(int(child), number)


@pytest.fixture
async def hanging() -> AsyncIterator[Hanging]:
    with tempfile.TemporaryDirectory(prefix="duly-hanging-") as home:
        server = await asyncio.to_thread(embedded.start, Path(home), settings={"fsync": "off"})
        try:
            pool = await Pool.connect(server.url)
            await migrate(pool)
            await pool.close()
            pid = int((Path(home) / "postgres/data/postmaster.pid").read_text().split()[0])
            yield Hanging(server.url, pid)
        finally:
            await asyncio.to_thread(server.release)


async def test_whoever_is_told_to_end_while_postgresql_hangs_ends_within_its_grace_and_a_few_seconds(
    hanging: Hanging, sink: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spawn = Spawn(tmp_path, sink, hanging.url)
    pool = await Pool.connect(hanging.url)
    try:
        operations = (
            await StoreOperations.open(pool, load_settings(database_url=hanging.url), local_handlers=["hold"])
        ).for_tenant(DEFAULT_TENANT)
        nodes = [spawn(kind, settings=USUAL) for kind in ("scheduler", "worker", "worker")]

        async def ready() -> bool:
            led = await count(pool, "shards", "node_id is not null") == 64
            return led and await count(pool, "nodes", "kind = 'worker'") == 2

        await eventually(ready, seconds=60)
        # In one of the workers, a handler ends while nothing can be written.
        await operations.submit(JobRequest(handler="hold", payload={"seconds": 1.5}))
        await eventually(lambda: len(executions(sink)) == 1)
        with hanging.stopped():
            await asyncio.sleep(0.5)
            began = time.monotonic()
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            for node in nodes:
                await asyncio.to_thread(node.wait, 60)
            assert time.monotonic() - began < GRACE + FEW_SECONDS
    finally:
        spawn.end()
        await pool.close()


async def test_a_server_that_stands_still_for_a_while_is_not_cut_off_and_what_was_sent_counts_once(
    hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands still longer than a prompt statement waits, while a bulk submit and a claim are under way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool_module, "PROMPT_SECONDS", 1.0)
    pool = await Pool.connect(hanging.url)
    try:
        operations = (
            await StoreOperations.open(pool, load_settings(database_url=hanging.url), local_handlers=["hold"])
        ).for_tenant(DEFAULT_TENANT)
        await operations.submit(JobRequest(handler="hold"))
        later = JobRequest(handler="hold", schedule="every 1h")
        with hanging.stopped():
            submitting = asyncio.create_task(operations.submit_many([later] * 8_000))
            claiming = asyncio.create_task(take(pool))
            await asyncio.sleep(4)
        assert len(await submitting) == 8_000
        with pytest.raises(StoreUnavailable):
            await claiming

        # Whether or not the claim had its effect when the server went on, the run is in one place.
        async def in_one_place() -> bool:
            await take(pool)
            return await count(pool, "runs") == 0 and await count(pool, "claims") == 1

        await eventually(in_one_place)
        assert await count(pool, "jobs") == 8_001
    finally:
        await pool.close()
