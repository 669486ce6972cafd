"""The worker processes that `duly up` and `duly worker --processes` keep alive.

Each is started again when it crashes, and ends when its supervisor ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from duly.worker.guard import ending

if TYPE_CHECKING:
    from duly.config import Settings

log = logging.getLogger("duly.cli")

# A worker that cannot even start is tried again less and less often; one that lived this long starts afresh.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LIVED_SECONDS = 30.0
# Beyond the grace of the handlers and the lease that bounds its last writes, what a worker may need to end.
STOP_MARGIN_SECONDS = 10.0


class WorkerProcesses:
    """So many times the same `duly worker`. The supervisor itself holds no connection to the store for them."""

    def __init__(
        self, count: int, arguments: Sequence[str], environment: Mapping[str, str], *, patience: float
    ) -> None:
        """`patience`: seconds that a stop may take before a process is killed."""
        names = ["the worker"] if count == 1 else [f"worker {number} of {count}" for number in range(1, count + 1)]
        self._workers = [WorkerProcess(name, arguments, environment, patience=patience) for name in names]
        self._insisted = 0

    @classmethod
    def of(
        cls,
        settings: Settings,
        app_name: str,
        *,
        home: Path | None,
        queues: Mapping[str, int],
        concurrency: int | None,
        count: int = 1,
        quiet: bool = False,
    ) -> WorkerProcesses:
        """`home`: the folder of the embedded PostgreSQL, if that is the store."""
        environment = dict(os.environ)
        arguments = ["--log-level", settings.log_level]
        if home is not None:
            # By its home, not by its address: so a worker is a user of the embedded PostgreSQL in its own right and
            # stops it when it is the last one left, after a `kill -9` of this process.
            arguments += ["--home", str(home)]
        else:
            assert settings.database_url is not None
            environment["DULY_DATABASE_URL"] = settings.database_url  # not as an argument: everybody can read those
        arguments += ["worker", "--app", app_name]
        for queue, weight in queues.items():
            arguments += ["--queue", f"{queue}={weight}"]
        if concurrency is not None:
            arguments += ["--concurrency", str(concurrency)]
        if settings.allow_commands:
            arguments.append("--allow-commands")
        if quiet:
            arguments.append("--quiet")
        patience = settings.shutdown_grace_seconds + settings.worker_lease_seconds + STOP_MARGIN_SECONDS
        return cls(count, arguments, environment, patience=patience)

    async def start(self) -> None:
        for worker in self._workers:
            await worker.start()

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    def hasten(self) -> None:
        """What a second signal does: tell them once more, and kill those that still do not listen."""
        # Called twenty times a second, for INSISTED_SECONDS.
        self._insisted += 1
        for worker in self._workers:
            if self._insisted == 1:
                worker.stop_now()
            elif self._insisted == 80:
                worker.kill()


class WorkerProcess:
    """One `duly worker` as a child process, so that a handler that blocks or crashes cannot stop the scheduler."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], *, patience: float) -> None:
        self._name = name
        # -P: a module of the user's that is called as one of ours or of the standard library must not replace it.
        self._command = (sys.executable, "-P", "-m", "duly.cli", *arguments, "--supervised")
        self._environment = environment
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._spawn()
        self._task = asyncio.create_task(self._keep_alive(), name="duly-worker-process")

    async def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        self._stopping.set()
        self._send(signal.SIGTERM)
        if self._task is not None:
            try:
                async with asyncio.timeout(self._patience):
                    await asyncio.shield(self._task)
            except TimeoutError:
                log.warning("%s does not stop; killing it", self._name)
                self._send(signal.SIGKILL)
                await self._task

    def stop_now(self) -> None:
        """A second word to the worker: give everything back at once."""
        self._stopping.set()
        # Not the same signal again: two of one kind that come before it looks are one.
        self._send(signal.SIGINT)

    def kill(self) -> None:
        self._stopping.set()
        self._send(signal.SIGKILL)

    async def _spawn(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=dict(self._environment),
            # The lifeline: see run.py. Nothing is ever written to it.
            stdin=asyncio.subprocess.PIPE,
            # Ctrl-C reaches every process of the terminal's group. The worker hears of it from here instead, once:
            # twice would mean "now".
            start_new_session=True,
        )

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while True:
            assert self._process is not None
            started = loop.time()
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            if loop.time() - started >= LIVED_SECONDS:
                pause = FIRST_PAUSE
            log.error("%s ended unexpectedly (%s); starting another in %g s", self._name, ending(code), pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            pause = min(LONGEST_PAUSE, pause * 2)
            await self._spawn()
            if self._stopping.is_set():  # a stop that came while it was being made did not find it
                self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)
