"""The bench's end of the channel to the processes that it measures."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from duly.bench.child import DATABASE_URL, monotonic_us

READY_SECONDS = 60.0
# Maximum time without progress before a measurement fails.
STALLED_SECONDS = 60.0
END_SECONDS = 60.0
_MAX_LINE_BYTES = 64 * 1024 * 1024


class BenchFailed(Exception):
    """A measurement is invalid: a process died, work stalled, or counts do not add up."""


class Process:
    """One measured process: its count so far, and its report at the end."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.count = 0
        self.counted_at_us = 0
        self.cpu_us = 0
        self.memory = 0
        self.stamps: list[tuple[int, int]] = []
        self._process = process
        self._ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        waiting = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait([waiting, self._reader], timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.is_set():
                raise BenchFailed(f"{self.name} did not become ready")
        finally:
            waiting.cancel()

    def release(self) -> None:
        """Order it to begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    def check_alive(self) -> None:
        if self._reader.done():
            raise BenchFailed(f"{self.name} ended before its time, at {self.count}")

    async def end(self) -> None:
        """Ask it to end, and read its final report."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._reader
                code = await self._process.wait()
        except TimeoutError as error:
            raise BenchFailed(f"{self.name} did not end when asked to") from error
        if code != 0:
            raise BenchFailed(f"{self.name} ended with exit code {code}")

    async def destroy(self) -> None:
        """Kill the process, in any state."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "count" in message:
                self.count, self.counted_at_us = message["count"], message["at_us"]
            if "cpu_us" in message:
                self.cpu_us = message["cpu_us"]
            if "memory" in message:
                self.memory = message["memory"]
            if "stamps" in message:
                self.stamps = [(mark, at_us) for mark, at_us in message["stamps"]]
            if "ready" in message:
                self._ready.set()


@asynccontextmanager
async def running(module: str, *arguments: str, name: str) -> AsyncIterator[Process]:
    """Start `duly.bench.<module>` and wait until it is ready; always ended afterwards."""
    # Only the command line decides what it does; and only the bench handles Ctrl-C.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DULY_")}
    arguments, environment[DATABASE_URL] = _without_address(arguments)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"duly.bench.{module}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
        limit=_MAX_LINE_BYTES,
    )
    child = Process(name, process)
    try:
        await child.ready()
        yield child
    finally:
        await child.destroy()


@asynccontextmanager
async def running_all(commands: Sequence[Sequence[str]], *, name: str) -> AsyncIterator[list[Process]]:
    """Start several processes, one after the other."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running(command[0], *command[1:], name=f"{name} {number}"))
            for number, command in enumerate(commands, start=1)
        ]


async def until_counted(processes: Sequence[Process], total: int) -> int:
    """Wait until the processes together have counted `total`. Returns the time of the last count, in monotonic µs."""
    last_progress, last_sum = time.monotonic(), 0
    while (now := sum(process.count for process in processes)) < total:
        if now != last_sum:
            last_progress, last_sum = time.monotonic(), now
        if time.monotonic() - last_progress > STALLED_SECONDS:
            raise BenchFailed(f"{processes[0].name}: stalled at {now:,} of {total:,}")
        for process in processes:
            process.check_alive()
        await asyncio.sleep(0.01)
    return max(process.counted_at_us for process in processes)


async def timed(processes: Sequence[Process], total: int) -> float:
    """Let all begin; returns the seconds until `total` is counted."""
    released_us = monotonic_us()
    for process in processes:
        process.release()
    seconds = (await until_counted(processes, total) - released_us) / 1e6
    for process in processes:
        await process.end()
    return seconds


def _without_address(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The address goes into the environment: it may hold a password, and every user can read a command line."""
    at = arguments.index("--database-url")
    return arguments[:at] + arguments[at + 2 :], arguments[at + 1]


def as_arguments(**options: Any) -> list[str]:
    """`concurrency=5` as `--concurrency 5`; None is left out."""
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name.replace('_', '-')}")
        elif value is not None and value is not False:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments
