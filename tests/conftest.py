"""Fixtures: a real PostgreSQL for the whole session, and a fresh store for every test that asks for one."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import hypothesis
import pytest

import tiers
from duly.config import Settings, load_settings
from duly.model import DEFAULT_TENANT
from duly.operations import Operations, StoreOperations
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.processes import Spawn
from harness.servers import servers
from harness.store import hasty_postgres
from harness.worker import Workbench

__all__ = ["servers"]

_numbers = itertools.count(1)

# Examples have no deadline unless a test sets one, because their time depends on the machine. In CI the examples are
# always the same (see harness.waiting.drawn_seed).
hypothesis.settings.register_profile("duly", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("duly")


@dataclass(frozen=True)
class Server:
    """The PostgreSQL of this test session, with a migrated template database."""

    url: str

    def database_url(self, name: str) -> str:
        return self.url.replace("/duly?", f"/{name}?", 1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The embedded PostgreSQL, or the one that DULY_TEST_SERVER names (a superuser's URL ending in /duly?…)."""
    if given := os.environ.get("DULY_TEST_SERVER"):
        server = Server(given)
        asyncio.run(_make_template(server))
        yield server
        return
    with hasty_postgres() as url:
        server = Server(url)
        asyncio.run(_make_template(server))
        yield server


async def _make_template(server: Server) -> None:
    connection = await asyncpg.connect(server.url)
    await connection.execute("drop database if exists template_duly with (force)")
    await connection.execute("create database template_duly")
    await connection.close()
    pool = await Pool.connect(server.database_url("template_duly"))
    await migrate(pool)
    await pool.close()


@pytest.fixture
async def database_url(server: Server) -> AsyncIterator[str]:
    """The URL of a store for this test alone, cloned from the template."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"create database {name} template template_duly")
    try:
        yield server.database_url(name)
    finally:
        await connection.execute(f"drop database {name} with (force)")
        await connection.close()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    pool = await Pool.connect(database_url, size=8)
    await pool.read_steps()  # as every process does that opens a store
    yield pool
    await pool.close()


@pytest.fixture
def settings(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Settings with short leases, for tests of expiry, and with an API that needs no key until one is created.

    The developer's own duly.toml is not read.
    """
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DULY_") and not name.startswith("DULY_TEST_")]:
        monkeypatch.delenv(name)
    return load_settings(
        database_url=database_url, open_api=True, worker_lease_seconds=3, leader_lease_seconds=2, poll_seconds=0.2
    )


@pytest.fixture
async def store_operations(pool: Pool, settings: Settings) -> StoreOperations:
    return await StoreOperations.open(pool, settings)


@pytest.fixture
async def operations(store_operations: StoreOperations) -> Operations:
    """The operations of the default tenant."""
    return store_operations.for_tenant(DEFAULT_TENANT)


@pytest.fixture
async def bench(pool: Pool, settings: Settings, operations: Operations) -> AsyncIterator[Workbench]:
    """An app and a worker in this process, over this test's store."""
    bench = Workbench(pool, settings, operations)
    yield bench
    await bench.app.close()


@pytest.fixture
def sink(tmp_path: Path) -> Path:
    """The file into which handlers write a line for each execution."""
    path = tmp_path / "sink"
    path.touch()
    return path


@pytest.fixture
def spawn(database_url: str, sink: Path, tmp_path: Path) -> Iterator[Spawn]:
    """Starts Duly's commands over this test's store, and kills them after the test."""
    spawn = Spawn(tmp_path, sink, database_url)
    yield spawn
    spawn.end()


# Fixtures that start real processes.
_PROCESSES = {"spawn", "servers", "start"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    paths = {item: item.path.relative_to(here).as_posix() for item in items}
    for item, path in paths.items():
        for marker in tiers.markers(path):
            item.add_marker(marker)
        if not _PROCESSES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("search")
    items.sort(key=lambda item: tiers.rank(paths[item]))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if skipped := len(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_sep("!", f"{skipped} tests were SKIPPED: their promises were not tested here", red=True)
