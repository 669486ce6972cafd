"""The bench's end of the connection to a peer's processes. `drivers/line.py` is the other end and lists the orders."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from peers.setting_up import Command, reason_in

ANSWER_SECONDS = 180.0
END_SECONDS = 20.0
_LONGEST_LINE = 64 * 1024 * 1024


class PeerFailed(Exception):
    """A measurement of a peer failed; the message says why."""


class Process:
    """One process of a peer: it submits, or it works."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.count = 0
        self.at_us = 0
        self.first = (0, 0)
        """The first count above 0, and its time."""
        self.stamps: list[tuple[int, int]] = []
        self._process = process
        self._log = log
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    def tell(self, do: str, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")

    async def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Give an order and wait for its answer."""
        self.tell(do, **order)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._answers.get()
        except TimeoutError as error:
            raise PeerFailed(f"no answer to «{do}» in {ANSWER_SECONDS:.0f} s") from error
        if answer is None:
            raise self._death()
        return answer

    def check_alive(self) -> None:
        if self._reader.done():
            raise self._death()

    async def end(self) -> None:
        """Ask a working process to end, and read its last message."""
        self.tell("end")
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._reader
                # Not left to destroy(): a signal to a process that has just ended would take its exit code away from
                # the loop's watcher.
                await self._process.wait()
        except TimeoutError as error:
            raise PeerFailed(f"a worker did not end within {END_SECONDS:.0f} s of being asked to") from error

    async def destroy(self) -> None:
        """Kill the process, whatever its state."""
        if self._process.returncode is None:
            # Together with the processes it started: it leads a session of its own.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._reader.cancel()
        await asyncio.wait([self._reader])

    def _death(self) -> PeerFailed:
        return PeerFailed(f"a process ended: {reason_in(self._log.read_text(errors='replace')[-4000:])}")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a library's own print
            if "count" in message:
                self.count, self.at_us = message["count"], message["at_us"]
                self.first = self.first if self.first[0] else (self.count, self.at_us)
                self.stamps = [(mark, at_us) for mark, at_us in message.get("stamps", ())]
            else:
                self._answers.put_nowait(message)
        self._answers.put_nowait(None)


@asynccontextmanager
async def driven(command: Command, url: str) -> AsyncIterator[Process]:
    """A process of the peer's driver, which is killed at the end in any case."""
    # Only the driver's own settings count.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "PG", "CELERY_"))}
    with tempfile.NamedTemporaryFile(prefix="duly-peer-", suffix=".log") as log:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            url,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**kept, **command.environment},
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        child = Process(process, Path(log.name))
        try:
            yield child
        finally:
            await child.destroy()


@asynccontextmanager
async def working(
    command: Command, url: str, processes: int, *, stamping: bool = False
) -> AsyncIterator[list[Process]]:
    """Workers that are ready, and wait for `go`."""
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(driven(command, url)) for _ in range(processes)]
        for worker in workers:
            await worker.ask("work", stamping=stamping)
        yield workers


async def until_counted(workers: Sequence[Process], total: int, *, stalled_seconds: float, by: float = 0.0) -> int:
    """Wait until the workers have run `total` jobs. Returns the time of the last one, in monotonic µs.

    `by`: nothing need happen before this moment of the monotonic clock, in seconds.
    """
    last_progress, last_sum = max(by, time.monotonic()), 0
    while (now := sum(worker.count for worker in workers)) < total:
        if now != last_sum:
            last_progress, last_sum = time.monotonic(), now
        if time.monotonic() - last_progress > stalled_seconds:
            ran = f"{now:,}" if now else "none"
            raise PeerFailed(f"{ran} of {total:,} ran, then nothing for {stalled_seconds:.0f} s")
        for worker in workers:
            worker.check_alive()
        await asyncio.sleep(0.01)
    return max(worker.at_us for worker in workers)
