"""The processes that `duly up` and `duly worker --processes` keep alive: workers, and the API.

Each is started again when it crashes, and ends when its supervisor ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID, uuid4

from duly.cli.api_process import answered
from duly.cli.lost_worker import give_back_runs
from duly.errors import ConfigError, DulyError
from duly.worker.account import passed_names
from duly.worker.processes.guard import ending

if TYPE_CHECKING:
    from duly.cli.api_process import Orders, Served
    from duly.config import Settings

log = logging.getLogger("duly.cli")

#: Gives back the runs of a dead worker, by its pid and its id.
GiveBack = Callable[[int, UUID], Awaitable[None]]

# Pause before a child that ended is restarted: doubled each time, up to the maximum, and reset once a child has lived
# for LIVED_SECONDS.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
LIVED_SECONDS = 30.0
# A child that has lived for this long is replaced at once the first time.
STEADY_SECONDS = 5.0
# Time that a worker may need to end, beyond the grace of its handlers and the lease that bounds its last writes.
STOP_MARGIN_SECONDS = 10.0


class WorkerProcesses:
    """`count` processes of the same `duly worker`. The supervisor itself holds no connection to the store for them."""

    def __init__(
        self,
        count: int,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        patience: float,
        give_back: GiveBack,
    ) -> None:
        """`patience`: seconds that a stop may take before a process is killed."""
        names = ["the worker"] if count == 1 else [f"worker {number} of {count}" for number in range(1, count + 1)]
        self._workers = [
            WorkerProcess(name, arguments, environment, patience=patience, give_back=give_back) for name in names
        ]
        self._insisted = 0

    @classmethod
    def of(
        cls,
        settings: Settings,
        app_name: str | None,
        *,
        home: Path | None,
        queues: Mapping[str, int],
        tenants: Sequence[str] = (),
        concurrency: int | None,
        count: int = 1,
        quiet: bool = False,
    ) -> WorkerProcesses:
        """`home`: the folder of the embedded PostgreSQL, if that is the store."""
        environment = dict(os.environ)
        environment["DULY_SCHEMA"] = settings.schema
        arguments = ["--log-level", settings.log_level, "--tenant", settings.tenant]
        if home is not None:
            # By its home, not by its address: a worker then counts as a user of the embedded PostgreSQL and, if it
            # is the last one, stops it, even after a `kill -9` of this process.
            arguments += ["--home", str(home)]
        else:
            assert settings.database_url is not None
            environment["DULY_DATABASE_URL"] = settings.database_url  # not as an argument: every user can read those
        arguments += ["worker"] if app_name is None else ["worker", "--app", app_name]
        for queue, weight in queues.items():
            arguments += ["--queue", f"{queue}={weight}"]
        for tenant in tenants:
            arguments += ["--tenant", tenant]
        if concurrency is not None:
            arguments += ["--concurrency", str(concurrency)]
        if isinstance(settings.allow_commands, tuple):
            for program in settings.allow_commands:
                arguments += ["--allow-command", program]
        elif settings.allow_commands:
            arguments.append("--allow-commands")
        if settings.command_user is not None:
            arguments += ["--command-user", settings.command_user]
        for name in sorted(passed_names(settings.pass_env)):
            arguments += ["--pass-env", name]
        if quiet:
            arguments.append("--quiet")
        patience = settings.shutdown_grace_seconds + settings.worker_lease_seconds + STOP_MARGIN_SECONDS
        return cls(count, arguments, environment, patience=patience, give_back=partial(give_back_runs, settings, home))

    async def start(self) -> None:
        for worker in self._workers:
            await worker.start()

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    def hasten(self) -> None:
        """After a second signal: signals every worker again, and later kills those that are still running."""
        # Called 20 times per second, for INSISTED_SECONDS.
        self._insisted += 1
        for worker in self._workers:
            if self._insisted == 1:
                worker.stop_now()
            elif self._insisted == 80:
                worker.kill()


class ChildProcess(ABC):
    """A child process that is restarted when it ends by itself, after growing pauses if it ends soon."""

    def __init__(self, name: str, *, patience: float) -> None:
        self._name = name
        self._patience = patience
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _begin(self) -> None:
        """Start a new process."""

    @abstractmethod
    async def _ended(self) -> int:
        """Wait until the process has ended; returns its exit code."""

    @abstractmethod
    def _send(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""

    async def _lost(self, code: int) -> None:
        """Cleans up after a process that has ended, beside the start of the next."""
        return

    def _keep_alive(self) -> None:
        """Restart the process from now on whenever it ends."""
        self._task = asyncio.create_task(self._restart(), name=f"duly-child-{self._name}")

    async def stop(self) -> None:
        """Ask the process to end, and kill it if it does not in time."""
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
        """Send the second signal: the worker gives all its runs back at once."""
        self._stopping.set()
        # Not SIGTERM again: two pending signals of the same kind are delivered as one.
        self._send(signal.SIGINT)

    def kill(self) -> None:
        self._stopping.set()
        self._send(signal.SIGKILL)

    async def _restart(self) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        tasks: set[asyncio.Future[None]] = set()
        while True:
            started = loop.time()
            code = await self._ended()
            lost = self._lost(code)
            if self._stopping.is_set():
                await lost
                return
            tasks.add(giving_back := asyncio.ensure_future(lost))
            giving_back.add_done_callback(tasks.discard)
            lived = loop.time() - started
            if lived >= LIVED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            if lived >= STEADY_SECONDS and pause == FIRST_PAUSE_SECONDS:
                pause = 0.0
            log.error("%s ended unexpectedly (%s); starting another in %g s", self._name, ending(code), pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            pause = min(MAX_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, pause * 2))
            await self._begin()
            if self._stopping.is_set():  # a stop that came while the process was being started has not reached it
                self._send(signal.SIGTERM)


class WorkerProcess(ChildProcess):
    """One `duly worker` as a child process, so that a handler that blocks or crashes cannot stop the scheduler."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        patience: float,
        give_back: GiveBack,
    ) -> None:
        super().__init__(name, patience=patience)
        # -P: a user's module with the name of one of ours or of the standard library must not replace it.
        self._command = (sys.executable, "-P", "-m", "duly.cli", *arguments, "--supervised")
        self._environment = environment
        self._give_back = give_back
        self._worker_id = uuid4()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        await self._begin()
        self._keep_alive()

    async def _begin(self) -> None:
        # Chosen here, so that the supervisor knows whose runs to give back.
        self._worker_id = uuid4()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            str(self._worker_id),
            env=dict(self._environment),
            # The lifeline: see ending.py. Nothing is ever written to it.
            stdin=asyncio.subprocess.PIPE,
            # Ctrl-C reaches every process of the terminal's group. The worker must get the signal from here, once:
            # a second one would mean "at once".
            start_new_session=True,
        )

    async def _ended(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def _lost(self, code: int) -> None:
        # A worker that ends in order has given its runs back itself. One that was killed, or crashed, has not.
        if code != 0:
            assert self._process is not None
            await self._give_back(self._process.pid, self._worker_id)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


class ApiProcess(ChildProcess):
    """The API as a child process (`api_process.py`), so that no caller of it can hold up the scheduler.

    Started before there is an event loop; leaving the `with` block ends it if none was ever started.
    """

    def __init__(self) -> None:
        super().__init__("the API", patience=STOP_MARGIN_SECONDS)
        self._listener: socket.socket | None = None
        self._orders = b""
        self._insisted = 0
        self._spawn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()
        self._close()

    async def serve(self, listener: socket.socket, orders: Orders) -> Served:
        """Start serving and return the address, or raise the error of the start. From then on it is kept alive."""
        self._listener, self._orders = listener, orders.line()
        served = await self._give_orders()
        self._keep_alive()
        return served

    async def stop(self) -> None:
        self._stopping.set()
        if self._listener is not None:
            self._listener.close()  # new callers are refused at once instead of waiting
        if self._task is None:
            self._task = asyncio.create_task(self._seen_off())
        await super().stop()
        self._close()

    def hasten(self) -> None:
        """After a second signal: signals the process again, then kills it. Called 20 times per second."""
        self._insisted += 1
        if self._insisted == 1:
            self.stop_now()
        elif self._insisted == 20:
            self.kill()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", "duly.cli.api_process"),
                stdin=theirs.fileno(),
                # As with a worker: Ctrl-C is handled here, and passed on.
                start_new_session=True,
            )
        ours.setblocking(False)
        self._channel = ours

    async def _begin(self) -> None:
        self._close()
        self._spawn()
        try:
            await self._give_orders()
        except DulyError as error:
            if not self._stopping.is_set():
                log.error("the API did not start: %s", error)
        else:
            log.warning("the API is up again")

    async def _give_orders(self) -> Served:
        """Send the process its orders and wait for its answer."""
        assert self._listener is not None
        with suppress(OSError):  # it has ended already; its last words are read below
            socket.send_fds(self._channel, [b"\n"], [self._listener.fileno()])
            await asyncio.get_running_loop().sock_sendall(self._channel, self._orders)
        line = b""
        while not line.endswith(b"\n"):
            if not (part := await self._heard()):
                code = await self._ended()
                raise ConfigError(f"the API ended before it answered ({ending(code)})")
            line += part
        return answered(line)

    async def _heard(self) -> bytes:
        """The next bytes from the process; empty once it has ended."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._channel, 65536)
        except OSError:
            return b""

    async def _ended(self) -> int:
        while await self._heard():
            pass
        return await asyncio.to_thread(self._process.wait)

    async def _seen_off(self) -> None:
        await self._ended()

    def _send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)  # Popen checks first whether it still runs

    def _close(self) -> None:
        self._channel.close()
