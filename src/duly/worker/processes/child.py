"""A child process: runs handlers for `duly.worker.processes.children`: `python -m duly.worker.processes.child`.

Frames come in by standard input and go out by standard output. Both descriptors are replaced before any of the user's
code is imported: handlers find an empty input, and their prints go to the worker's standard error.

The main thread runs handlers, one after the other. Another thread reads the frames, so that a running handler hears of
a cancel, and so that the process ends when the worker does: the kernel then closes the pipe. (A handler that holds the
interpreter's lock forever blocks that thread; the worker's guard, which runs no handlers, ends the process then.)

A child has no connection to the store and imports no database driver.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from duly.errors import Permanent, RetryAfter, Snooze, Unable
from duly.logs import current_run, log_to_stderr
from duly.masking import Mask
from duly.model import ClaimedRun
from duly.process import conceal
from duly.tracing import TraceContext, within
from duly.worker.execution import Execution, StopReason
from duly.worker.handler.context import Context
from duly.worker.handler.errors import cut, exception_text, isinstance_of, result_text
from duly.worker.handler.output import listening
from duly.worker.processes.children import LENGTH, resolve
from duly.worker.wear import resident_bytes

if TYPE_CHECKING:
    from duly.store.pool import Connection

# Shortest pause between two progress reports to the worker; the last report is always sent.
PROGRESS_SECONDS = 0.1
# Characters of a handler's output that are sent at once, and that one piece of it may have.
MAX_SAID = 256 * 1024
# Time for an idle child to end in the usual way, with atexit handlers, once its worker has let it go.
LEAVE_SECONDS = 2.0


class Child:
    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._sending = threading.Lock()
        self._calls: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._call: _Call | None = None
        self._runner = asyncio.Runner()
        self._logs: tuple[Sequence[int], str] | None = None

    def run(self) -> None:
        threading.Thread(target=self._listen, name="duly-frames", daemon=True).start()
        with self._runner:
            while (message := self._calls.get()) is not None:
                call = self._call = _Call(self, message["number"], message["call"])
                answer = call.answer()
                self._call = None
                if "weigh" in message:
                    answer["memory"] = resident_bytes()
                for stream in (sys.stdout, sys.stderr):
                    with suppress(OSError, ValueError, AttributeError):  # the handler may have closed it
                        stream.flush()
                self.send(answer)

    def send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        frame = memoryview(LENGTH.pack(len(body)) + body)
        with self._sending:
            while frame:
                frame = frame[os.write(self._answers, frame) :]

    def log_as(self, levels: Sequence[int], log_format: str) -> None:
        """Log as the worker does."""
        if self._logs != (levels, log_format):
            self._logs = levels, log_format
            log_to_stderr(levels[0], log_format)
            logging.getLogger("duly").setLevel(levels[1])

    def run_async(self, function: Callable[[], Any], call: _Call) -> Any:
        async def main() -> Any:
            call.cancelled_by(asyncio.get_running_loop(), asyncio.current_task())
            return await function()

        # One loop for all calls: connections and the like that a module keeps belong to a loop.
        return self._runner.run(main())

    # In the thread that reads frames

    def _listen(self) -> None:
        while True:
            message = self._receive()
            if message is None:
                self._leave()
            elif "path" in message:
                sys.path[:] = message["path"]
            elif "call" in message:
                self._calls.put(message)
            elif (call := self._call) is not None and call.number == message["cancel"]:
                call.cancel()

    def _receive(self) -> Any:
        header = self._read(LENGTH.size)
        body = None if header is None else self._read(LENGTH.unpack(header)[0])
        return None if body is None else json.loads(body)

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = os.read(self._requests, count - len(data))
            if not part:
                return None
            data += part
        return bytes(data)

    def _leave(self) -> NoReturn:
        """Ends this process: the worker is gone, or has let the child go."""
        if self._call is None:
            self._calls.put(None)
            time.sleep(LEAVE_SECONDS)
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with all processes that the handler has started
        os._exit(1)


class _Call:
    """One call of a handler, and the host of its execution."""

    node: str | None = None
    shards: int | None = None

    def __init__(self, child: Child, number: int, request: Mapping[str, Any]) -> None:
        self._child = child
        self.number = number
        self._task = request["task"]
        self._arguments = request["arguments"]
        self._execution = execution = Execution(_run_from(request["run"]), self)
        logged = request["log"]
        execution.known_by(logged["fields"])
        if logged["secrets"]:
            execution.mask = Mask(logged["secrets"])
        child.log_as(logged["levels"], logged["format"])
        self._lock = threading.Lock()
        self._cancel_task: Callable[[], object] | None = None
        self._progress: tuple[float, str] | None = None
        self._reported_at = 0.0
        self._over = False
        self._saying = threading.Lock()
        self._said: list[tuple[str | None, str, str]] = []
        self._said_size = 0
        self._said_at = 0.0
        self._silent = False

    def answer(self) -> dict[str, Any]:
        token = current_run.set(self._execution)
        try:
            text = result_text(self._execute())
            answer = {"result": None if text is None else json.loads(text)}
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything, and the child goes on
            answer = {"error": json.loads(exception_text(error)), "signal": _signal_of(error)}
        self._send_progress(over=True)
        self._send_said(over=True)
        current_run.reset(token)
        self._execution.over = True
        return answer

    def _execute(self) -> Any:
        function = resolve(self._task["module"], self._task["name"])
        for _ in range(self._task["wrappers"]):
            function = function.__wrapped__  # type: ignore[attr-defined]
        given = (Context(self._execution),) if self._task["context"] else ()
        parent, _ = TraceContext.of_run(self._execution.run.trace)
        with within(parent):
            if inspect.iscoroutinefunction(function):
                return self._child.run_async(lambda: function(*given, **self._arguments), self)
            return function(*given, **self._arguments)

    # The host: the calls that the handler makes through its context.

    def transaction(self, execution: Execution) -> AbstractAsyncContextManager[Connection]:
        raise RuntimeError(
            "ctx.transaction() does not work in a child process, which has no connection to the store; "
            "use isolation='thread' for this task"
        )

    def holds(self, run: ClaimedRun) -> bool:
        return True  # the worker has checked the lease before it sent the call

    def progress(self, run: ClaimedRun, fraction: float, note: str) -> None:
        with self._lock:
            pending = self._progress is not None
            self._progress = (float(fraction), str(note)[:1000])
            wait = self._reported_at + PROGRESS_SECONDS - time.monotonic()
        if wait <= 0:
            self._send_progress()
        elif not pending:
            timer = threading.Timer(wait, self._send_progress)
            timer.daemon = True
            timer.start()

    def _send_progress(self, *, over: bool = False) -> None:
        with self._lock:  # held while sending: a report after the answer would be taken for the next call's
            report, self._progress = self._progress, None
            self._reported_at = time.monotonic()
            if report is not None and not self._over:
                self._child.send({"progress": report})
            self._over = self._over or over

    # What the handler logs and prints. The worker puts lines together, bounds and masks them.

    def logged(self, execution: Execution, level: str, source: str, text: str) -> None:
        self._say(level, source, text)

    def printed(self, execution: Execution, stream: str, text: str) -> None:
        self._say(None, stream, text)

    def log_ended(self, execution: Execution) -> None:
        pass  # only an executor calls it

    def _say(self, level: str | None, source: str, text: str) -> None:
        text = text if len(text) <= MAX_SAID else cut(text, MAX_SAID)
        with self._saying:
            pending = bool(self._said)
            self._said.append((level, source, text))
            self._said_size += len(text)
            wait = self._said_at + PROGRESS_SECONDS - time.monotonic()
            full = self._said_size > MAX_SAID
        if full or wait <= 0:
            self._send_said()
        elif not pending:
            timer = threading.Timer(wait, self._send_said)
            timer.daemon = True
            timer.start()

    def _send_said(self, *, over: bool = False) -> None:
        with self._saying:  # held while sending, to keep the order
            said, self._said, self._said_size = self._said, [], 0
            self._said_at = time.monotonic()
            if said and not self._silent:
                self._child.send({"said": said})
            self._silent = self._silent or over

    # Cancelling, from the thread that reads frames

    def cancelled_by(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> None:
        assert task is not None
        with self._lock:
            self._cancel_task = lambda: loop.call_soon_threadsafe(task.cancel)
            if self._execution.stop is not None:
                task.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._execution.stop = StopReason.CANCELLED
            if self._cancel_task is not None:
                with suppress(RuntimeError):  # the loop has been closed
                    self._cancel_task()


def _signal_of(error: BaseException) -> list[Any]:
    """The error's meaning for the run: the signal it is, or none."""
    try:
        if isinstance_of(error, Permanent):
            return ["permanent"]
        if isinstance_of(error, RetryAfter):
            return ["retry_after", float(error.seconds)]
        if isinstance_of(error, Snooze):
            return ["snooze", float(error.seconds)]
        if isinstance_of(error, Unable):
            return ["unable"]
    except BaseException:  # noqa: BLE001, S110 - a kind of the user's own may have lost its seconds; then it just failed
        pass
    return []


def _run_from(described: Mapping[str, Any]) -> ClaimedRun:
    """The run as the worker described it. The parts needed to claim or complete it stay in the worker."""
    run = ClaimedRun()
    for name, value in described.items():
        setattr(run, name, value)
    run.claim_id, run.job_id = UUID(described["claim_id"]), UUID(described["job_id"])
    run.scheduled_at = datetime.fromisoformat(described["scheduled_at"])
    run.target, run.payload = None, "{}"
    return run


def main() -> None:
    conceal()
    requests, answers = os.dup(0), os.dup(1)  # not inherited by processes that handlers start
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number in (signal.SIGINT, signal.SIGTERM):
        # A signal to a whole group of processes is meant for the worker, which lets its handlers finish. Not SIG_IGN,
        # which programs that a handler starts would inherit.
        signal.signal(number, lambda *_: None)
    log_to_stderr()
    faulthandler.enable()  # a crash leaves its traceback in the worker's log
    with listening():
        Child(requests, answers).run()


if __name__ == "__main__":
    main()
