"""Tasks that run in child processes. They have their own module, because children import it by this name."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duly import Context, Duly, Permanent, RetryAfter, Snooze

app = Duly()
FIELDS = (
    "job_id", "run_id", "attempt", "idempotency_key", "fencing_token", "missed", "trace_id", "payload_ref", "job_name",
    "cancelled",
)  # fmt: skip
_loops: set[int] = set()


@app.task(isolation="process")
def look(ctx: Context, **payload: Any) -> dict[str, Any]:
    fields = {name: getattr(ctx, name) for name in FIELDS}
    return fields | {"scheduled_at": ctx.scheduled_at.isoformat(), "pid": os.getpid(), "payload": payload}


@app.task(isolation="process")
def talk(word: str, rest: int) -> None:
    print("printed", word)
    logging.getLogger(__name__).warning("logged %s", word)
    print("to stderr", file=sys.stderr)
    for number in range(rest):
        print(number)


_kept: list[bytes] = []


@app.task(isolation="process")
def leak(megabytes: int) -> int:
    _kept.append(os.urandom(1_000_000) * megabytes)
    return os.getpid()


@app.task(isolation="process")
def loaded() -> list[str]:
    return sorted(sys.modules)


@app.task()
def look_here(ctx: Context) -> dict[str, Any]:
    return look(ctx)


@app.task(isolation="process")
async def look_async(ctx: Context, seconds: float = 0.01) -> dict[str, Any]:
    await asyncio.sleep(seconds)
    _loops.add(id(asyncio.get_running_loop()))
    return {"pid": os.getpid(), "loops": len(_loops)}


@app.task(isolation="process")
def speak(ctx: Context) -> list[Any]:
    print("a line of the handler's", flush=True)
    sys.stderr.write("and another\n")
    os.write(1, b"straight to descriptor 1\n")
    subprocess.run(["echo", "of a program"], check=True)
    return [sys.stdin.read(), subprocess.run(["cat"], capture_output=True, check=True).stdout.decode()]


@app.task(isolation="process")
def step(ctx: Context, file: str) -> None:
    ctx.progress(0.1, "begun")
    ctx.progress(0.25, "a quarter")
    while not Path(file).exists():
        time.sleep(0.01)


class OfOurOwn(Permanent):
    pass


@app.task(isolation="process", max_retries=1, retry_backoff="immediate")
def fail(ctx: Context, how: str) -> Any:
    match how:
        case "value":
            raise ValueError("not\x00 good")
        case "permanent":
            raise Permanent("never again")
        case "own":
            raise OfOurOwn("never again")
        case "later":
            raise RetryAfter(0.01, "in a moment")
        case "snooze" if ctx.attempt == 1 and not Path("snoozed").exists():
            Path("snoozed").touch()
            raise Snooze(0.01)
        case "exit":
            sys.exit("enough")
        case "die":
            os._exit(7)
        case "crash":
            ctypes.string_at(0)
        case "transaction":
            ctx.transaction()
        case "nonsense":
            for descriptor in range(3, 30):
                try:
                    os.write(descriptor, b"\xff" * 64)
                except OSError:
                    continue
            time.sleep(60)
        case "unspeakable":
            return {"when": Context, "nan": float("nan")}
    return ctx.attempt


@app.task(isolation="process", max_retries=0, timeout_seconds=4)
def hang(file: str, programs: int = 0) -> None:
    pids = [subprocess.Popen(["sleep", "300"]).pid for _ in range(programs)]
    Path(file).write_text(" ".join(map(str, [os.getpid(), *pids])))
    # The regular expression engine does not release the interpreter's lock: no other thread of this process runs.
    re.match(r"(a+)+$", "a" * 64 + "b")


@app.task(isolation="process")
def hang_on(file: str, programs: int = 0) -> None:
    hang(file, programs)


@app.task(isolation="process")
async def tidy(file: str) -> None:
    try:
        Path(file).write_text("begun")
        await asyncio.sleep(300)
    finally:
        Path(file).write_text(f"tidied {os.getpid()}")


@app.task(isolation="process")
def attentive(ctx: Context, file: str) -> None:
    Path(file).write_text("begun")
    while not ctx.cancelled:
        time.sleep(0.01)
    Path(file).write_text(f"tidied {os.getpid()}")


@app.task(isolation="process", max_retries=0)
def wait_for(file: str) -> int:
    deadline = time.monotonic() + 60
    while not Path(file).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return os.getpid()


def doubled(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def twice(*arguments: Any, **named: Any) -> int:
        return 2 * function(*arguments, **named)

    return twice


@doubled
@app.task(isolation="process")
def wrapped() -> int:
    return 21


def no_such_customer(ctx: Context) -> None:
    raise Permanent("no such customer")


async def no_such_customer_async(ctx: Context) -> None:
    raise Permanent("no such customer")
