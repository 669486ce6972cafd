"""The worker's side of its guard: starts programs, waits for them and ends them. See `guard_process`.

asyncio's own subprocesses do not suffice: depending on the version, they count as ended only when no other process
holds their pipes; they cannot end with the worker; and starting them forks the whole worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from duly.errors import DulyError
from duly.worker.processes.guard_process import HEADER

log = logging.getLogger("duly.worker")

_PROGRAM = Path(__file__).with_name("guard_process.py")
# Added to the grace. The guard reports processes that SIGKILL does not end, so only a guard that hangs takes longer.
_STOP_MARGIN_SECONDS = 1.5
_CLOSE_SECONDS = 2.0


class GuardLost(DulyError):
    """The guard has died, and with it the programs it had started."""


class NotStarted(DulyError):
    """A program could not be started. `what` names the part at fault: `argv`, `cwd`, `account` or `fork`."""

    def __init__(self, number: int, what: str, why: str) -> None:
        super().__init__(why)
        self.errno = number
        self.what = what


class Program:
    """A program that runs under the guard, with everything in its process group."""

    def __init__(self, guard: _Connection, number: int) -> None:
        loop = asyncio.get_running_loop()
        self._guard = guard
        self._number = number
        self._started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        for future in (self._started, self._ended, self._gone):
            future.add_done_callback(_heard)

    @property
    def pid(self) -> int:
        return self._started.result()

    @property
    def ended(self) -> asyncio.Future[int]:
        """The program's exit code, negative if a signal ended it. Processes that it left running are not waited for."""
        return self._ended

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def stop(self, grace: float) -> None:
        """Sends SIGTERM to the group, SIGKILL after the grace. Returns when the group is empty, even if cancelled."""
        self._guard.post({"id": self._number, "stop": grace})
        loop = asyncio.get_running_loop()
        until = loop.time() + grace + _STOP_MARGIN_SECONDS
        cancelled = False
        while not self._gone.done():
            try:
                async with asyncio.timeout_at(until):
                    await asyncio.shield(self._gone)
            except TimeoutError:
                log.error("the guard does not answer; process group %s may still run", self._pid_or_unknown())
                break
            except asyncio.CancelledError:
                cancelled = True  # raised again when the group is empty
            except GuardLost:
                break
        if cancelled:
            raise asyncio.CancelledError

    def forget(self) -> None:
        """Stops following a program that has ended; processes that it left running may go on."""
        self._guard.forget(self._number)

    def _pid_or_unknown(self) -> int | str:
        return self._started.result() if self._started.done() and not self._started.exception() else "unknown"

    # Messages from the guard

    async def _until_started(self) -> None:
        try:
            await asyncio.shield(self._started)
        except asyncio.CancelledError:
            await self.stop(0)
            raise

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "started" in message:
            _settle(self._started, message["started"])
        elif "refused" in message:
            error = NotStarted(message["refused"], message["what"], message["why"])
            for future in (self._started, self._ended):
                if not future.done():
                    future.set_exception(error)
            _settle(self._gone, None)
        elif "ended" in message:
            _settle(self._ended, message["ended"])
        elif "gone" in message:
            _settle(self._gone, None)

    def _lose(self) -> None:
        # The kernel has killed the program with the guard; the others of its group are killed here.
        if self._started.done() and not self._started.exception() and not self._gone.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._started.result(), signal.SIGKILL)
        for future in (self._started, self._ended, self._gone):
            if not future.done():
                future.set_exception(GuardLost("the process that guards this worker's programs has died"))


def ending(code: int) -> str:
    """Describes an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class Guard:
    """Starts programs. The guard process is started with the first program, and again after it was lost."""

    def __init__(self) -> None:
        self._connection: _Connection | None = None

    async def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        stdin: int,
        stdout: int,
        stderr: int,
        account: tuple[int, int] | None = None,
    ) -> Program:
        """Starts a program with these descriptors, which stay the caller's. Raises `NotStarted` or `GuardLost`.

        `account`: the user id and group id that it runs as; None: the worker's.
        """
        if self._connection is None or self._connection.lost:
            self._connection = _Connection()
        return await self._connection.start(
            {"start": list(argv), "env": dict(env), "cwd": cwd, "as": account}, (stdin, stdout, stderr)
        )

    async def close(self) -> None:
        """Ends the guard, and with it all programs that still run."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


class _Connection:
    """One guard process and the socket to it. Nothing here blocks, so that a stop is always sent at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._programs: dict[int, Program] = {}
        self._next = 0
        self._outbox: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._received = bytearray()
        self.lost = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            # -I -S: no code of the user's environment or site is loaded. Its own session: Ctrl-C does not reach it.
            # Its programs could read its environment in /proc, so it gets only what Python needs to start.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
                start_new_session=True,
            )
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._receive)

    async def start(self, message: dict[str, Any], descriptors: tuple[int, int, int]) -> Program:
        self._next += 1
        program = self._programs[self._next] = Program(self, self._next)
        # Duplicates: the caller may close its descriptors before these are sent.
        self.post({"id": self._next, **message}, tuple(os.dup(descriptor) for descriptor in descriptors))
        await program._until_started()
        return program

    def post(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        body = json.dumps(message).encode()
        self._outbox.append((memoryview(HEADER.pack(len(body), len(descriptors)) + body), descriptors))
        if len(self._outbox) == 1:
            self._flush()

    def forget(self, number: int) -> None:
        if self._programs.pop(number, None) is not None and not self.lost:
            self.post({"id": number, "forget": True})

    async def close(self) -> None:
        self._lose()
        try:
            await asyncio.to_thread(self._process.wait, _CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _flush(self) -> None:
        while self._outbox and not self.lost:
            data, descriptors = self._outbox[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [data], list(descriptors))
                else:
                    sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._socket, self._flush)
                return
            except OSError:
                self._lose()
                return
            for descriptor in descriptors:
                os.close(descriptor)
            if sent < len(data):
                self._outbox[0] = (data[sent:], ())
            else:
                self._outbox.popleft()
        if not self.lost:
            self._loop.remove_writer(self._socket)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            log.error("the process that guards this worker's programs has died; the next program gets a new one")
            self._lose()
            self._process.kill()  # it cannot do its work without the socket
            self._process.wait()
            return
        self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            program = self._programs.get(message["id"])
            if program is None:
                continue
            program._hear(message)
            if "gone" in message or "refused" in message:
                self._programs.pop(message["id"], None)

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, descriptors in self._outbox:
            for descriptor in descriptors:
                os.close(descriptor)
        self._outbox.clear()
        programs, self._programs = self._programs, {}
        for program in programs.values():
            program._lose()


def _settle(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _heard(future: asyncio.Future[Any]) -> None:
    """Marks an error as seen, so that asyncio does not log one that is not awaited."""
    if not future.cancelled():
        future.exception()
