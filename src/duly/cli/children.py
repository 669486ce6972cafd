"""The worker process that `duly up` keeps alive: started again when it crashes, ended when `duly up` ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

log = logging.getLogger("duly.cli")

# A worker that cannot even start is tried again less and less often; one that lived this long starts afresh.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LIVED_SECONDS = 30.0


class WorkerProcess:
    """One `duly worker` as a child process, so that a handler that blocks or crashes cannot stop the scheduler."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], *, patience: float) -> None:
        """`patience`: seconds that a stop may take before the process is killed."""
        # -P: a module of the user's that is called as one of ours or of the standard library must not replace it.
        self._command = (sys.executable, "-P", "-m", "duly.cli", *arguments, "--supervised")
        self._environment = environment
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._spawn()
        self._task = asyncio.create_task(self._keep_alive(), name="duly-up-worker")

    async def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        self._stopping.set()
        self._send(signal.SIGTERM)
        if self._task is not None:
            try:
                async with asyncio.timeout(self._patience):
                    await asyncio.shield(self._task)
            except TimeoutError:
                log.warning("the worker does not stop; killing it")
                self._send(signal.SIGKILL)
                await self._task

    def stop_now(self) -> None:
        """A second word to the worker: give everything back at once."""
        self._stopping.set()
        self._send(signal.SIGTERM)

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
            log.error("the worker ended unexpectedly (%s); starting another in %g s", _ending(code), pause)
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


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
