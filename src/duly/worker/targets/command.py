"""Runs a job's command: a program with its arguments, without a shell, under the worker's guard.

The program gets the payload's JSON text on standard input and facts about the run in `DULY_*` variables. The guard
(`worker/processes/guard.py`) starts it, ends it with everything in its process group, and keeps it from outliving
the worker.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import fcntl
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from duly.config import Settings
from duly.errors import Permanent, Unable
from duly.masking import Mask
from duly.worker.account import Account, clean_environment, passed_names
from duly.worker.handler.context import Context
from duly.worker.handler.errors import RemoteError, clean
from duly.worker.processes.guard import Guard, GuardLost, NotStarted, Program, ending
from duly.worker.targets.programs import Programs

if TYPE_CHECKING:
    from duly.worker.execution import Execution

# Bytes kept of the end of each output: that is where programs say why they failed.
TAIL_BYTES = 8 * 1024
# Bytes of an output in an error's message and in its traceback, which errors.py cuts at a quarter and at half of an
# error's size.
_MESSAGE_BYTES = 1_500
_TRACE_BYTES = 3_800
# From SIGTERM to SIGKILL; with the kill itself well within the executor's ABANDON_SECONDS.
GRACE_SECONDS = 2.0
# Longest wait for the end of the output: a process that the program left in the background may hold it open.
_LINGER_SECONDS = 0.5
# Errors that a retry does not fix: the job or the machine has to change.
_HOPELESS = frozenset(
    {
        errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR,
        errno.EPERM, errno.E2BIG, errno.EINVAL,
    }
)  # fmt: skip


class CommandTarget:
    """Runs commands, if the worker's settings allow them."""

    def __init__(self, settings: Settings) -> None:
        allowed = settings.allow_commands
        self._allowed = bool(allowed)
        self._programs = Programs(allowed) if isinstance(allowed, tuple) else None
        self._passed = passed_names(settings.pass_env)
        self._account = None if settings.command_user is None else Account.parse(settings.command_user)
        self._guard = Guard()

    async def call(self, execution: Execution, target: Mapping[str, Any], payload: str) -> dict[str, Any]:
        if not self._allowed:
            raise Unable("this worker does not run commands; one that does is started with --allow-commands")
        argv: list[str] = target["argv"]
        if self._programs is not None:
            folder = os.getcwd() if self._account is None else self._account.home
            argv = self._programs.started_as(target, path=os.environ.get("PATH", os.defpath), folder=folder)
        outputs = Output(partial(execution.printed, "stdout")), Output(partial(execution.printed, "stderr"))
        try:
            with _holding(payload.encode()) as stdin:
                program = await self._start(execution, target, argv, stdin, outputs)
            code = await _end_of(program, outputs)
        finally:
            for output in outputs:
                output.close()
        stdout, stderr = (output.text(execution.mask) for output in outputs)
        if code != 0:
            raise _failed(code, stdout, stderr)
        return {"exit_code": 0, "stdout": stdout, "stderr": stderr}

    async def _start(
        self,
        execution: Execution,
        target: Mapping[str, Any],
        argv: list[str],
        stdin: int,
        outputs: tuple[Output, Output],
    ) -> Program:
        with ExitStack() as stack:
            stdout, stderr = [stack.enter_context(await output.open()) for output in outputs]
            execution.begin()
            try:
                return await self._guard.start(
                    argv,
                    env=self._environment(execution, target),
                    cwd=target.get("cwd"),
                    stdin=stdin,
                    stdout=stdout.fileno(),
                    stderr=stderr.fileno(),
                    account=None if self._account is None else (self._account.uid, self._account.gid),
                )
            except NotStarted as error:
                raise _start_failed(target, error) from None
            except GuardLost as lost:
                raise RemoteError("CommandFailed", str(lost)) from None

    def _environment(self, execution: Execution, target: Mapping[str, Any]) -> dict[str, str]:
        """The listed variables of the worker, then the job's own, then the run's."""
        variables = clean_environment(os.environ, passed=self._passed, account=self._account)
        variables |= target.get("env", {})
        variables |= target.get("secret_env", {})
        return variables | _of_run(Context(execution), execution.trace_headers)

    async def close(self) -> None:
        await self._guard.close()


async def _end_of(program: Program, outputs: tuple[Output, Output]) -> int:
    try:
        code = await program.wait()
        async with asyncio.timeout(_LINGER_SECONDS):
            for output in outputs:
                await output.closed.wait()
    except TimeoutError:
        pass  # a process in the background still holds the output; the run does not wait for it
    except asyncio.CancelledError:
        await program.stop(GRACE_SECONDS)
        raise
    except GuardLost as lost:
        raise RemoteError("CommandFailed", f"{lost}; the command was ended") from None
    program.forget()
    return code


def _of_run(context: Context, trace_headers: Mapping[str, str]) -> dict[str, str]:
    variables = {
        "DULY_RUN_ID": context.run_id,
        "DULY_JOB_ID": context.job_id,
        "DULY_ATTEMPT": str(context.attempt),
        "DULY_SCHEDULED_AT": context.scheduled_at.isoformat().replace("+00:00", "Z"),
        "DULY_IDEMPOTENCY_KEY": context.idempotency_key,
        "DULY_FENCING_TOKEN": context.fencing_token,
        # As OpenTelemetry names them in an environment: TRACEPARENT, and TRACESTATE and BAGGAGE if there are any.
        **{name.upper().replace("-", "_"): value for name, value in trace_headers.items()},
    }
    if context.payload_ref is not None:
        variables["DULY_PAYLOAD_REF"] = context.payload_ref
    return variables


# Errors


def _start_failed(target: Mapping[str, Any], error: NotStarted) -> Exception:
    if error.what == "cwd":
        message = f"the folder {target['cwd']!r} cannot be entered: {error}"
    elif error.what == "account":
        message = f"the account of the worker's --command-user cannot be taken on: {error}"
    else:
        message = f"the command {target['argv'][0]!r} cannot be started: {error}"
        if error.errno == errno.ENOENT:
            message += "; is it installed on this worker, and in its PATH?"
    message = clean(message)
    return Permanent(message) if error.errno in _HOPELESS else RemoteError("CommandFailed", message)


def _failed(code: int, stdout: str, stderr: str) -> RemoteError:
    outputs = [(name, text) for name, text in (("stderr", stderr), ("stdout", stdout)) if text.strip()]
    message = "\n".join([ending(code), *(f"{name}: {_last(text.rstrip(), _MESSAGE_BYTES)}" for name, text in outputs)])
    trace = "\n".join(f"--- end of {name}\n{_last(text, _TRACE_BYTES)}" for name, text in outputs)
    return RemoteError("CommandFailed", message, trace or None)


def _last(text: str, limit: int) -> str:
    raw = text.encode()
    return text if len(raw) <= limit else "…" + raw[-limit:].decode(errors="ignore")


# Input and output


class Output(asyncio.Protocol):
    """Reads an output to its end, whatever its size, and keeps the last bytes of it. `said` is told all of it."""

    def __init__(self, said: Callable[[str], None] = lambda _: None) -> None:
        self._said = said
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.closed = asyncio.Event()
        self._tail = bytearray()
        self._size = 0
        self._transport: asyncio.ReadTransport | None = None

    async def open(self) -> io.FileIO:
        """Starts reading. Returns the writing end."""
        reading, writing = os.pipe()
        ours, theirs = os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)
        try:
            self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return theirs

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._said(self._decoder.decode(data))
        self._size += len(data)
        self._tail += data[-TAIL_BYTES:]
        if len(self._tail) > 8 * TAIL_BYTES:  # not each time: moving the kept bytes costs time as well
            del self._tail[:-TAIL_BYTES]

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def text(self, mask: Mask | None) -> str:
        kept = bytes(self._tail[-TAIL_BYTES:])
        was_cut, ended = self._size > TAIL_BYTES, self.closed.is_set()
        if was_cut:
            kept = kept.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character whose first byte was cut off
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept, final=ended)
        return clean(text if mask is None else mask.text(text, begins_amid=was_cut, ends_amid=not ended))


@contextmanager
def _holding(data: bytes) -> Iterator[int]:
    """A descriptor to read `data` from, all of it written already: a program that reads nothing blocks nothing.

    It is a pipe, as programs expect, or an unnamed file if the data does not fit into a pipe.
    """
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        if len(data) > 65536 and sys.platform == "linux":
            with suppress(OSError):  # the kernel limits an account's total pipe size
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, len(data))
        try:
            fits = os.write(writing, data) == len(data)
        except BlockingIOError:
            fits = False
        os.close(writing)
        writing = -1
        if fits:
            yield reading
        else:
            with tempfile.TemporaryFile() as file:
                file.write(data)
                file.seek(0)  # flushes as well
                yield file.fileno()
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
