"""Calls tasks with `isolation="process"` in child processes, which can be killed where a thread cannot.

Children are reused: a new one costs a Python start and the import of the user's code, a call in a warm one about a
millisecond. The worker's guard (`duly.worker.processes.guard`) starts and kills them: none outlives the worker.

Worker and child exchange frames: four bytes of length, then JSON. Nothing is pickled: the child imports the function by
its module and name, and errors come back as text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from duly.errors import DulyError, InvalidInput, Permanent, Snooze, Unable
from duly.logs import ToStderr
from duly.sizes import size_text
from duly.tracing import TraceContext, tracing
from duly.worker.handler.context import Context
from duly.worker.handler.errors import RemoteError, RemotePermanent, RemoteRetryAfter
from duly.worker.handler.task import Task
from duly.worker.processes.guard import Guard, GuardLost, NotStarted, Program, ending
from duly.worker.wear import Limits

if TYPE_CHECKING:
    from duly.model import ClaimedRun
    from duly.worker.execution import Execution

log = logging.getLogger("duly.worker")

LENGTH = struct.Struct(">I")
# More than any result or error can take; a longer frame was not written by Duly.
MAX_FRAME_BYTES = 4 * 1024 * 1024
# From telling a handler to stop to killing its process. With the kill, well within the executor's ABANDON_SECONDS.
CANCEL_SECONDS = 1.0
# Longest wait for a free child, because the wait counts against the run's own timeout; then the run goes back to the
# queue, where another worker may have a free child.
MAX_CHILD_WAIT_SECONDS = 5.0
# A child that was idle for this long ends.
IDLE_SECONDS = 300.0
# Time for an idle child to end by itself.
_CLOSE_SECONDS = 1.0
# Longest wait for a dead child's remaining output.
_LAST_WORDS_SECONDS = 0.5
_NEVER = Limits()


class Children:
    """A pool of child processes. Each runs one handler at a time."""

    def __init__(self, limit: int | None = None, worn_at: Limits = _NEVER) -> None:
        """`limit`: number of handlers that run at once; by default one per core. `worn_at`: when a child is replaced
        between two runs."""
        self._worn_at = worn_at
        self._limit = limit or os.cpu_count() or 1
        self._free = asyncio.Semaphore(self._limit)
        self._guard = Guard()
        self._idle: list[_Child] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, task: Task, execution: Execution, arguments: Mapping[str, Any]) -> Any:
        try:
            where = locate(task)
        except InvalidInput as error:
            raise Permanent(str(error)) from None
        run = execution.run
        try:
            async with asyncio.timeout(min(MAX_CHILD_WAIT_SECONDS, run.policy.timeout_seconds / 4)):
                await self._free.acquire()
        except TimeoutError:
            raise Unable(f"all {self._limit} child processes of this worker are busy") from None
        try:
            child = await self._take()
            try:
                told = described(run)
                if tracing() is not None:
                    # The spans of a run that is not traced are not sampled in its child process either.
                    found = TraceContext.from_headers(execution.trace_headers)
                    told["trace"] = None if found is None else found.to_stored()
                request = {"task": where, "run": told, "arguments": dict(arguments)}
                return await child.call({**request, "log": logged(execution)}, execution)
            finally:
                self._give_back(child)
        except (NotStarted, GuardLost) as error:
            raise RemoteError("ProcessDied", f"the child process could not be started or was lost: {error}") from None
        finally:
            self._free.release()

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        idle, self._idle = self._idle, []
        try:
            await asyncio.gather(*(child.close() for child in idle), *self._closing)
        finally:
            await self._guard.close()

    async def _take(self) -> _Child:
        while self._idle:
            child = self._idle.pop()  # the one used last, so that the others become idle long enough to end
            if child.usable:
                return child
            await child.kill()
        return await _Child.start(self._guard, weigh=self._worn_at.memory is not None)

    def _give_back(self, child: _Child) -> None:
        if not child.usable:
            return
        if self._worn_at.reached(child.calls, child.memory):
            size = "" if child.memory is None else f", {size_text(child.memory)}"
            log.info("an isolated child process is replaced after %d runs%s", child.calls, size)
            self._let_go(child)
            return
        loop = asyncio.get_running_loop()
        child.idle_since = loop.time()
        self._idle.append(child)
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_SECONDS, self._end_idle)

    def _end_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = None
        long_ago = loop.time() - IDLE_SECONDS + 0.001
        for child in [child for child in self._idle if child.idle_since <= long_ago]:
            self._idle.remove(child)
            self._let_go(child)
        if self._idle:
            self._sweep = loop.call_at(self._idle[0].idle_since + IDLE_SECONDS, self._end_idle)

    def _let_go(self, child: _Child) -> None:
        closing = asyncio.get_running_loop().create_task(child.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _Child(asyncio.Protocol):
    """One child process, as the worker sees it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        #: Number of calls so far.
        self.calls = 0
        #: Its resident memory after the last call, if it was asked to weigh itself.
        self.memory: int | None = None
        self._weigh = False
        self._broken = False
        self._received = bytearray()
        self._answer: asyncio.Future[Mapping[str, Any]] | None = None
        self._context: Context | None = None
        self._execution: Execution | None = None
        self._silent: asyncio.Future[None] = loop.create_future()
        self._program: Program
        self._requests: asyncio.WriteTransport
        self._answers: asyncio.ReadTransport

    @classmethod
    async def start(cls, guard: Guard, *, weigh: bool) -> _Child:
        """`weigh`: let it say after each call how much memory it holds."""
        loop = asyncio.get_running_loop()
        child = cls()
        child._weigh = weigh
        requests, our_requests = os.pipe()
        our_answers, answers = os.pipe()
        try:
            child._requests, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(our_requests, "wb", 0))
            child._answers, _ = await loop.connect_read_pipe(lambda: child, os.fdopen(our_answers, "rb", 0))
            try:
                child._program = await guard.start(
                    # -P: a module of the user's that is called as one of ours must not replace it.
                    [sys.executable, "-P", "-m", "duly.worker.processes.child"],
                    env=os.environ,
                    cwd=None,
                    stdin=requests,
                    stdout=answers,
                    stderr=2,
                )
            except BaseException:
                child._close_pipes()
                raise
        finally:
            os.close(requests)
            os.close(answers)
        child._send({"path": sys.path})
        return child

    @property
    def usable(self) -> bool:
        return not self._broken and not self._silent.done()

    async def call(self, request: Mapping[str, Any], execution: Execution) -> Any:
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._context, self._execution = Context(execution), execution
        try:
            execution.begin()  # the run may have waited for a child
            self.calls += 1
            self._send({"call": request, "number": self.calls, **({"weigh": True} if self._weigh else {})})
            try:
                await _first_of(answer, self._program.ended)
                if not answer.done():
                    await _first_of(answer, self._silent, seconds=_LAST_WORDS_SECONDS)
            except asyncio.CancelledError:
                await self._cancel(answer)
                raise
            if answer.done() and answer.exception() is None:
                return _result_of(answer.result())
            await self.kill()
            if answer.done():
                answer.result()
            raise RemoteError("ProcessDied", await self._how_it_died())
        finally:
            self._answer = self._context = self._execution = None

    async def _cancel(self, answer: asyncio.Future[Mapping[str, Any]]) -> None:
        """Tells the handler to stop, and kills its process if it does not end in time."""
        try:
            self._send({"cancel": self.calls})
            await _first_of(answer, self._program.ended, seconds=CANCEL_SECONDS)
        finally:
            if not answer.done() or answer.exception() is not None:
                await self.kill()

    async def kill(self) -> None:
        """Kills the process and all of its group."""
        self._broken = True
        try:
            await self._program.stop(0)
        finally:
            self._close_pipes()

    async def close(self) -> None:
        """Lets an idle child end by itself, and kills it if it does not."""
        self._broken = True
        self._requests.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._program.wait()
        except (TimeoutError, GuardLost):
            pass
        finally:
            await self.kill()

    async def _how_it_died(self) -> str:
        try:
            code = await self._program.wait()
        except GuardLost as lost:
            return str(lost)
        hint = "; was there too little memory?" if code == -9 else ""
        return f"the handler's process ended before the handler did: {ending(code)}{hint}"

    def _send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._requests.write(LENGTH.pack(len(body)) + body)

    def _close_pipes(self) -> None:
        if not self._requests.is_closing():  # asyncio raises if it is closed twice
            self._requests.abort()
        self._answers.close()

    # Messages from the child

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            if length > MAX_FRAME_BYTES:
                self._spoke_nonsense(f"a frame of {length} bytes")
                return
            end = LENGTH.size + length
            if len(self._received) < end:
                return
            body = bytes(self._received[LENGTH.size : end])
            del self._received[:end]
            try:
                self._heard(json.loads(body))
            except (ValueError, TypeError, KeyError) as error:
                self._spoke_nonsense(f"{type(error).__name__}: {error}")
                return

    def connection_lost(self, error: Exception | None) -> None:
        if not self._silent.done():
            self._silent.set_result(None)

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "said" in message:
            for level, source, text in message["said"]:
                if self._execution is None:
                    return
                if level is None:
                    self._execution.printed(source, text)
                else:
                    self._execution.logged(level, source, text)
        elif "progress" in message:
            fraction, note = message["progress"]
            if self._context is not None and not self._context.cancelled:
                try:
                    self._context.progress(fraction, note)
                except (RuntimeError, ValueError) as error:
                    log.debug("progress of a child was not taken: %s", error)
        elif self._answer is not None and not self._answer.done():
            self.memory = message.get("memory")
            self._answer.set_result(message)

    def _spoke_nonsense(self, what: str) -> None:
        self._broken = True
        self._received.clear()
        if self._answer is not None and not self._answer.done():
            message = f"the handler's process wrote into the pipe that Duly uses ({what})"
            self._answer.set_exception(RemoteError("ProcessDied", message))


async def _first_of(*futures: asyncio.Future[Any], seconds: float | None = None) -> None:
    await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def _result_of(answer: Mapping[str, Any]) -> Any:
    """Returns the handler's result, or raises its error as one with the same meaning."""
    if "result" in answer:
        return answer["result"]
    kind, message, trace = answer["error"]["type"], answer["error"]["message"], answer["error"]["traceback"]
    match answer["signal"]:
        case ["permanent"]:
            raise RemotePermanent(kind, message, trace)
        case ["retry_after", seconds]:
            raise RemoteRetryAfter(seconds, kind, message, trace)
        case ["snooze", seconds]:
            raise Snooze(seconds, message)
        case ["unable"]:
            raise Unable(message)
        case _:
            raise RemoteError(kind, message, trace)


# Describing a function and a run to another process


def check_isolated(tasks: Mapping[str, Task]) -> bool:
    """Whether any task runs in a child process. Raises `InvalidInput` for a task that a child could not find."""
    wanting = [task for task in tasks.values() if task.isolation == "process"]
    for task in wanting:
        locate(task)
    return bool(wanting)


def locate(task: Task) -> dict[str, Any]:
    """Describes the task's function for a child: its module, its name there, and the number of wrappers around it."""
    function = task.function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _not_locatable(task, "only functions of a module can run in another process")
    if module == "__main__":
        raise _not_locatable(
            task, "it is in the script that was started, which a child process cannot import; move it to a module"
        )
    if "<" in name:
        raise _not_locatable(task, f"{name} is made inside another function; move it to the top of its module")
    try:
        found: Any = resolve(module, name)
    except (ImportError, AttributeError):
        raise _not_locatable(task, f"{module} has no {name}") from None
    for wrappers in range(20):
        if found == function:
            return {"module": module, "name": name, "wrappers": wrappers, "context": task.takes_context}
        if (found := getattr(found, "__wrapped__", None)) is None:
            break
    raise _not_locatable(task, f"{module}.{name} is something else by now")


def resolve(module: str, name: str) -> Callable[..., Any]:
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _not_locatable(task: Task, why: str) -> DulyError:
    return InvalidInput("isolation", f"task {task.name} cannot have 'process': {why}")


def logged(execution: Execution) -> dict[str, Any]:
    """What the child needs for its log records: the run's fields, its secrets, and this process's way of logging."""
    root = logging.getLogger()
    formats = [handler.log_format for handler in root.handlers if isinstance(handler, ToStderr)]
    return {
        "fields": dict(execution.log_fields or {}),
        "secrets": [] if execution.mask is None else execution.mask.secrets,
        "levels": [root.level, logging.getLogger("duly").level],
        "format": formats[0] if formats else "text",
    }


def described(run: ClaimedRun) -> dict[str, Any]:
    return {
        "claim_id": str(run.claim_id),
        "ordinal": run.ordinal,
        "job_id": str(run.job_id),
        "scheduled_at": run.scheduled_at.isoformat(),
        "attempt": run.attempt,
        "flags": run.flags,
        "name": run.name,
        "handler": run.handler,
        "payload_ref": run.payload_ref,
        "timezone": run.timezone,
        "policy_text": run.policy_text,
        "trace": run.trace,
    }
