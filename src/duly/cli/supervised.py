"""The processes that `duly up` and `duly worker --processes` keep alive: workers, and the API.

Each is started again when it crashes, and ends when its supervisor ends. A worker that is worn out is replaced.
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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID, uuid4

from duly.cli.api_process import Beside, answered
from duly.cli.lost_worker import give_back_runs
from duly.cli.reports import Reports
from duly.cli.worker_messages import Hearing, Message, Ready, Report
from duly.errors import ConfigError, DulyError
from duly.formats import rough_span
from duly.sizes import size_text
from duly.worker.account import passed_names
from duly.worker.processes.guard import ending
from duly.worker.wear import Worn, resident_bytes

if TYPE_CHECKING:
    from duly.cli.api_process import Orders, Served
    from duly.config import Settings
    from duly.figures import Snapshot

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
# The next successor of a worn process is started after this time even if the last one does not run yet.
TURN_SECONDS = 30.0


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
        replacing: Replacing,
        reports: Reports,
    ) -> None:
        """`patience`: seconds that a stop may take before a process is killed."""
        self.reports = reports
        names = ["the worker"] if count == 1 else [f"worker {number} of {count}" for number in range(1, count + 1)]
        self._workers = [
            WorkerProcess(
                name,
                arguments,
                environment,
                patience=patience,
                give_back=give_back,
                replacing=replacing,
                reports=reports,
            )
            for name in names
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
        arguments = ["--log-level", settings.log_level, "--log-format", settings.log_format]
        arguments += ["--tenant", settings.tenant]
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
        if settings.worker_max_runs is not None:
            arguments += ["--max-runs", str(settings.worker_max_runs)]
        if settings.worker_max_memory is not None:
            if resident_bytes() is None:
                log.warning("--max-memory has no effect: only Linux tells how much memory a process holds")
            arguments += ["--max-memory", settings.worker_max_memory]
        if quiet:
            arguments.append("--quiet")
        reports = Reports("worker", hung_seconds=settings.health_hung_seconds)
        patience = settings.shutdown_grace_seconds + settings.worker_lease_seconds + STOP_MARGIN_SECONDS
        return cls(
            count,
            arguments,
            environment,
            patience=patience,
            give_back=partial(give_back_runs, settings, home, rescued=reports.rescued),
            replacing=Replacing(settings.worker_max_runs, settings.worker_max_memory),
            reports=reports,
        )

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
        # When the process was started, by the loop's time.
        self._since = 0.0

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

    async def _all_gone(self) -> None:
        """Wait until nothing is left of processes before the last one."""
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

    async def _first_unless_stopped(self, *futures: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait until one of these is done, or `stop` was called."""
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*futures, stopped], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    async def _restart(self) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        tasks: set[asyncio.Future[None]] = set()
        while True:
            self._since = loop.time()
            code = await self._ended()
            lost = self._lost(code)
            if self._stopping.is_set():
                await asyncio.gather(lost, self._all_gone(), *tasks)
                return
            tasks.add(giving_back := asyncio.ensure_future(lost))
            giving_back.add_done_callback(tasks.discard)
            lived = loop.time() - self._since
            if lived >= LIVED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            if lived >= STEADY_SECONDS and pause == FIRST_PAUSE_SECONDS:
                pause = 0.0
            log.error("%s ended unexpectedly (%s); starting another in %g s", self._name, ending(code), pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            if self._stopping.is_set():
                await asyncio.gather(self._all_gone(), *tasks)
                return
            pause = min(MAX_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, pause * 2))
            await self._begin()
            if self._stopping.is_set():  # a stop that came while the process was being started has not reached it
                self._send(signal.SIGTERM)


class Replacing:
    """What the worker processes of one supervisor have in common when worn ones are replaced."""

    def __init__(self, max_runs: int | None, max_memory: str | None) -> None:
        self._max_runs = max_runs
        self._max_memory = max_memory
        self._warned = False
        #: Held while a successor starts: one after the other, so that replacing never takes the whole machine.
        self.turn = asyncio.Lock()

    def why(self, worn: Worn) -> str:
        match worn.why:
            case "runs":
                return f"--max-runs {self._max_runs}"
            case "memory":
                return f"--max-memory {self._max_memory}"
            case _:
                return f"{worn.hanging} of its {worn.threads} handler threads hang"

    def heed(self, ready: Ready) -> None:
        """Warns once if a limit of memory leaves too little for the runs."""
        if ready.cramped and ready.memory is not None and not self._warned:
            self._warned = True
            log.warning(
                "a worker process takes %s before its first run: --max-memory %s leaves too little for the runs, so "
                "each is replaced once a minute at most. Give it more",
                size_text(ready.memory), self._max_memory,
            )  # fmt: skip


class _Spawned:
    """A process of a worker, and what it has said to its supervisor."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        worker_id: UUID,
        line: socket.socket,
        reported: Callable[[_Spawned, Report], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.worker_id = worker_id
        self.began = loop.time()
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.worn: asyncio.Future[Worn] = loop.create_future()
        self.ended = asyncio.create_task(process.wait())
        self._asked_to_end = False
        self._reported = reported
        self._line = line
        self._hearing = Hearing(self._heard)
        line.setblocking(False)
        loop.add_reader(line, self._listen)
        # The process ends when the socket is closed here, so that waits for its end, whatever it does to its own side.
        self.ended.add_done_callback(lambda _: self._hang_up())

    def send(self, number: signal.Signals) -> None:
        """Send a signal if it still runs; SIGTERM once only, because a second one means "at once"."""
        if self.ended.done() or (number is signal.SIGTERM and self._asked_to_end):
            return
        self._asked_to_end = self._asked_to_end or number is signal.SIGTERM
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _listen(self) -> None:
        """Reads what there is to read."""
        try:
            while data := self._line.recv(65536):
                self._hearing.receive(data)
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("a worker's lifeline cannot be read any more: %s", error)
        asyncio.get_running_loop().remove_reader(self._line)

    def _hang_up(self) -> None:
        """The process has ended: reads its last words, which may not have been read yet."""
        self._listen()
        asyncio.get_running_loop().remove_reader(self._line)
        self._line.close()

    def _heard(self, message: Message) -> None:
        if isinstance(message, Report):
            self._reported(self, message)
        elif isinstance(message, Ready):
            if not self.ready.done():
                self.ready.set_result(message)
        elif not self.worn.done():
            self.worn.set_result(message)


class WorkerProcess(ChildProcess):
    """One `duly worker` as a child process, so that a handler that blocks or crashes cannot stop the scheduler.

    A process that says it is worn out is replaced: it goes on while its successor starts, and is told to end when that
    runs. At most one process that was replaced may still be ending when the next successor is started.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        patience: float,
        give_back: GiveBack,
        replacing: Replacing,
        reports: Reports,
    ) -> None:
        super().__init__(name, patience=patience)
        reports.expect(name)
        # -P: a user's module with the name of one of ours or of the standard library must not replace it.
        self._command = (sys.executable, "-P", "-m", "duly.cli", *arguments, "--supervised")
        self._environment = environment
        self._give_back = give_back
        self._replacing = replacing
        self._reports = reports
        self._current: _Spawned
        self._alive: set[_Spawned] = set()
        # Each follows a process that is not the current one, until it has ended and its runs were given back.
        self._following: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._begin()
        self._keep_alive()

    async def _begin(self) -> None:
        self._current = await self._spawn()
        self._reports.leads(self._name, self._current)

    async def _spawn(self) -> _Spawned:
        # Chosen here, so that the supervisor knows whose runs to give back.
        worker_id = uuid4()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(worker_id),
                    env=dict(self._environment),
                    # The lifeline: see ending.py. The worker writes to it (worker_messages.py), the supervisor never.
                    stdin=theirs.fileno(),
                    # Ctrl-C reaches every process of the terminal's group. The worker must get the signal from here,
                    # once: a second one would mean "at once".
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        spawned = _Spawned(process, worker_id, ours, self._reports.heard)
        self._reports.began(self._name, spawned)
        self._alive.add(spawned)
        spawned.ended.add_done_callback(lambda _: self._reports.ended(spawned))
        spawned.ended.add_done_callback(lambda _: self._alive.discard(spawned))
        spawned.ready.add_done_callback(lambda ready: self._replacing.heed(ready.result()))
        return spawned

    async def _ended(self) -> int:
        while not self._stopping.is_set():
            current = self._current
            await self._first_unless_stopped(current.ended, current.worn)
            if current.ended.done():
                break
            if current.worn.done():
                await self._replace(current)
        return await asyncio.shield(self._current.ended)

    def _lost(self, code: int) -> Coroutine[Any, Any, None]:
        return self._clean_up_after(self._current, code)

    async def _clean_up_after(self, process: _Spawned, code: int) -> None:
        # A worker that ends in order has given its runs back itself. One that was killed, or crashed, has not.
        if code != 0:
            await self._give_back(process.pid, process.worker_id)

    async def _all_gone(self) -> None:
        while waited_for := [*self._following, *(process.ended for process in self._alive)]:
            await asyncio.wait(waited_for)

    def _send(self, number: signal.Signals) -> None:
        for process in list(self._alive):
            process.send(number)

    # Replacing

    async def _replace(self, old: _Spawned) -> None:
        """Returns when its successor is the current process, when the old one has ended, or when all are to stop."""
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            # Processes that end may take their grace: there must not be more and more of them.
            while self._following and not old.ended.done() and not self._stopping.is_set():
                await self._first_unless_stopped(*self._following, old.ended)
            try:
                successor = await self._started_beside(old)
            except OSError as error:
                why = str(error)
            else:
                if successor is None:
                    return
                if not successor.ended.done():
                    self._hand_over(old, successor)
                    return
                self._follow(successor)
                why = ending(successor.ended.result())
            log.error("the successor of %s did not start (%s); another try in %g s", self._name, why, pause)
            await self._first_unless_stopped(old.ended, seconds=pause)
            pause = min(MAX_PAUSE_SECONDS, pause * 2)

    async def _started_beside(self, old: _Spawned) -> _Spawned | None:
        """Starts a successor. Returns it when it runs or has ended, or when the old one has ended; None at a stop."""
        async with self._replacing.turn:
            if old.ended.done() or self._stopping.is_set():
                return None
            successor = await self._spawn()
            awaited = successor.ready, successor.ended, old.ended
            await self._first_unless_stopped(*awaited, seconds=TURN_SECONDS)
        await self._first_unless_stopped(*awaited)
        if self._stopping.is_set():
            self._send(signal.SIGTERM)  # the stop has not reached a process that was being started then
            self._follow(successor)
            return None
        return successor

    def _hand_over(self, old: _Spawned, successor: _Spawned) -> None:
        if old.ended.done():
            why = ending(old.ended.result())
            log.error("%s ended unexpectedly (%s) while its successor was being started", self._name, why)
        else:
            worn, now = old.worn.result(), asyncio.get_running_loop().time()
            log.info(
                "%s is replaced (%s) after %d runs and %s%s",
                self._name, self._replacing.why(worn), worn.runs, rough_span(now - old.began),
                "" if worn.memory is None else f", with {size_text(worn.memory)} of memory",
            )  # fmt: skip
            old.send(signal.SIGTERM)
        self._current = successor
        self._reports.leads(self._name, successor)
        self._since = successor.began
        self._follow(old)

    def _follow(self, process: _Spawned) -> None:
        self._following.add(task := asyncio.create_task(self._see_off(process)))
        task.add_done_callback(self._following.discard)

    async def _see_off(self, process: _Spawned) -> None:
        try:
            async with asyncio.timeout(self._patience):
                code = await asyncio.shield(process.ended)
        except TimeoutError:
            log.warning("a process of %s that was replaced does not end; killing it", self._name)
            process.send(signal.SIGKILL)
            code = await asyncio.shield(process.ended)
        await self._clean_up_after(process, code)


class ApiProcess(ChildProcess):
    """The API as a child process (`api_process.py`), so that no caller of it can hold up the scheduler.

    Started before there is an event loop; leaving the `with` block ends it if none was ever started.
    """

    def __init__(self) -> None:
        super().__init__("the API", patience=STOP_MARGIN_SECONDS)
        self._listener: socket.socket | None = None
        self._orders = b""
        # Whether the process has its orders, and the rest of a line that it has read only a part of.
        self._answered = False
        self._unsent = b""
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

    def tell(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Tell the process what the processes beside it have counted. One that does not read is told less often."""
        if not self._unsent and self._answered:
            self._unsent = Beside.line(snapshots)
        with suppress(OSError):
            self._unsent = self._unsent[self._channel.send(self._unsent) :]

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
        self._answered, self._unsent = False, b""

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
        self._answered = True
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
