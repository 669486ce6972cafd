"""Fixtures of the command-line tests: `duly` runs a command in this process, `start` as a process of its own."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from duly.cli.main import execute
from duly.config import Settings
from harness.commands import Ended, Process

if TYPE_CHECKING:
    from conftest import Server

_numbers = itertools.count(1)

TASKS = """
import time
from pathlib import Path

from duly import Duly, Permanent, Snooze

app = Duly()
other = 5


@app.task()
async def greet(name: str = "world") -> str:
    return f"hello, {name}"


@app.task(max_retries=0)
async def fail() -> None:
    raise ValueError("it does\\nnot\\x1b[31m work")


@app.task(queue="reports", priority=7, max_retries=9)
def report() -> None:
    pass


@app.task()
async def slow(seconds: float = 60) -> None:
    import asyncio
    import os

    print(f"slow began in {os.getpid()}", flush=True)
    await asyncio.sleep(seconds)


@app.task()
def stubborn() -> None:
    print("stubborn began", flush=True)
    time.sleep(60)


@app.task()
async def block(seconds: float) -> None:
    time.sleep(seconds)


@app.task()
def crash() -> None:
    import os

    os._exit(7)


@app.cron("0 9 * * MON", timezone="America/New_York")
def weekly() -> None:
    pass
"""


@pytest.fixture
def environment(settings: Settings, tmp_path: Path) -> dict[str, str]:
    """The settings with which a command finds this test's store, and leases short enough to wait for."""
    assert settings.database_url is not None
    return {
        "DULY_DATABASE_URL": settings.database_url,
        "DULY_HOME": str(tmp_path / "home"),
        "DULY_WORKER_LEASE_SECONDS": "3",
        "DULY_LEADER_LEASE_SECONDS": "2",
        "DULY_POLL_SECONDS": "0.2",
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the application `tasks_of_test:app`; the current folder of commands."""
    (tmp_path / "tasks_of_test.py").write_text(TASKS)
    return tmp_path


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command in this process sets up logging, to a stderr that is closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("duly").setLevel(logging.NOTSET)


@pytest.fixture
def duly(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ended]]:
    """Run a command in this process, on this test's store."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # --app puts the current folder on the path and imports from it.
    monkeypatch.setattr(sys, "path", sys.path[:])

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = execute(arguments)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    yield run
    sys.modules.pop("tasks_of_test", None)


@pytest.fixture
def start(environment: dict[str, str], project: Path) -> Iterator[Callable[..., Process]]:
    """Start a command as a process of its own, on this test's store and with the project as its folder."""
    started: list[Process] = []

    def run(*arguments: str, **changes: str | None) -> Process:
        merged: dict[str, str | None] = {**environment, **changes}
        process = Process(arguments, {name: value for name, value in merged.items() if value is not None}, project)
        started.append(process)
        return process

    yield run
    for process in started:
        process.close()


@pytest.fixture
async def empty_url(server: Server) -> AsyncIterator[str]:
    """A database without a store in it."""
    name = f"empty_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"create database {name}")
    yield server.database_url(name)
    await connection.execute(f"drop database {name} with (force)")
    await connection.close()
