"""The PostgreSQL of the measurements, and a fresh store on it for every figure.

Databases of the bench's own are made and dropped; whatever else the server holds is not touched.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from duly.bench.child import monotonic_us
from duly.bench.figures import percentile
from duly.bench.statements import bench_statement
from duly.config import Settings
from duly.errors import ConfigError
from duly.node import duly_version
from duly.store import embedded
from duly.store.migrate import migrate
from duly.store.pool import Pool, connection_options, translated_errors

_SETTINGS = (
    "fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size", "work_mem",
    "autovacuum",
)  # fmt: skip
_COMMITS = 200


def bench_settings(url: str) -> Settings:
    """Duly's defaults; the environment and duly.toml are ignored."""
    return Settings.model_construct(database_url=url)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The contents of a store after a measurement."""

    recorded: int
    succeeded: int
    queued: int
    claims: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Store:
    """One database with Duly's tables in it."""

    name: str
    url: str

    async def outcome(self) -> Outcome:
        connection = await connect(self.url)
        try:
            row = await connection.fetchrow(bench_statement("outcome"))
        finally:
            await connection.close()
        assert row is not None
        return Outcome(**row)

    async def analyze(self) -> None:
        """Vacuum and analyze now, because autovacuum would do it within a minute, during the measurement."""
        connection = await connect(self.url)
        try:
            await connection.execute(bench_statement("analyze"), timeout=600)
        finally:
            await connection.close()


async def connect(url: str) -> asyncpg.Connection[asyncpg.Record]:
    with translated_errors(url):
        return await asyncpg.connect(url, timeout=30, **connection_options(url))


class Server:
    """Makes stores. The first is migrated; the others are copies of it, or of a given template."""

    def __init__(self, url: str, admin: asyncpg.Connection[asyncpg.Record]) -> None:
        self._url = url
        self._admin = admin
        self._made = 0
        self._empty: Store | None = None
        # Copying files is fast and leaves no WAL to be written during the measurement.
        self._strategy = "strategy file_copy" if admin.get_server_version().major >= 15 else ""

    @asynccontextmanager
    async def store(self, template: Store | None = None) -> AsyncIterator[Store]:
        """An empty store, or a copy of `template`, to which nobody may be connected."""
        if template is None:
            template = self._empty = self._empty or await self._make_empty()
        store = await self._create(template.name)
        try:
            yield store
        finally:
            await self._drop(store.name)

    async def settle(self) -> None:
        """Make a checkpoint, so that every measurement begins without unwritten pages."""
        with suppress(asyncpg.InsufficientPrivilegeError):
            await self._admin.execute(bench_statement("checkpoint"), timeout=600)

    async def close(self) -> None:
        if self._empty is not None:
            await self._drop(self._empty.name)
        await self._admin.close()

    async def facts(self) -> dict[str, str]:
        """The settings and versions on which the figures depend."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        rows = await self._admin.fetch(bench_statement("settings"), list(_SETTINGS))
        number = self._admin.get_server_version()
        return {
            "cores": str(cores),
            "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
            "system": f"{platform.system()} {platform.machine()}",
            "PostgreSQL": f"{number.major}.{number.minor}",
            "one commit": await self._commit_time(),
            "settings": ", ".join(f"{row['name']} {row['value']}" for row in rows),
            "Python": f"{platform.python_implementation()} {platform.python_version()}",
            "Duly": duly_version(),
            "libraries": ", ".join(f"{name} {_version_of(name)}" for name in ("asyncpg", "uvloop")),
        }

    async def _commit_time(self) -> str:
        """The time that the disk needs to make one small transaction durable: the larger part of a latency."""
        times_us = []
        for _ in range(_COMMITS):
            began = monotonic_us()
            await self._admin.execute(bench_statement("commit"))
            times_us.append(monotonic_us() - began)
            await asyncio.sleep(0.005)
        return f"p50 {percentile(times_us, 50) / 1000:.1f} ms, p99 {percentile(times_us, 99) / 1000:.1f} ms"

    async def _make_empty(self) -> Store:
        store = await self._create("template1")
        pool = await Pool.connect(store.url)
        try:
            await migrate(pool)
        finally:
            await pool.close()
        return store

    async def _create(self, template: str) -> Store:
        self._made += 1
        name = f"duly_bench_{os.getpid()}_{self._made}"
        sql = bench_statement("create_database").format(
            name=_quoted(name), template=_quoted(template), strategy=self._strategy
        )
        try:
            await self._admin.execute(sql, timeout=600)
        except asyncpg.InsufficientPrivilegeError as error:
            raise ConfigError(f"the bench makes databases of its own, and this user may not: {error}") from error
        return Store(name, urlunsplit(urlsplit(self._url)._replace(path=f"/{name}")))

    async def _drop(self, name: str) -> None:
        await self._admin.execute(bench_statement("drop_database").format(name=_quoted(name)), timeout=600)


@asynccontextmanager
async def running_server(database_url: str | None, home: Path | None) -> AsyncIterator[Server]:
    """The user's PostgreSQL, the embedded one of `home`, or a temporary one."""
    if database_url is not None:
        async with _server_at(database_url) as server:
            yield server
    elif home is not None:
        async with _embedded_server(home) as server:
            yield server
    else:
        with tempfile.TemporaryDirectory(prefix="duly-bench-", ignore_cleanup_errors=True) as folder:
            async with _embedded_server(Path(folder)) as server:
                yield server


@asynccontextmanager
async def _embedded_server(home: Path) -> AsyncIterator[Server]:
    running = await asyncio.to_thread(embedded.start, home)
    try:
        async with _server_at(running.url) as server:
            yield server
    finally:
        # Not in a thread: this must finish even if the bench was cancelled.
        running.release()


@asynccontextmanager
async def _server_at(url: str) -> AsyncIterator[Server]:
    server = Server(url, await connect(url))
    try:
        yield server
    finally:
        await server.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
