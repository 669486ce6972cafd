"""The application under torture. Each task reports its begin, its effect and its end to the sink.

Besides `empty_app` and `shop_app`, this is the only module of the torture that imports `duly` as a user's application
does. The random
choices of a handler depend on its run and the seed, so that a seed repeats them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

from duly import Context, Duly, Permanent, Snooze

from . import SHOP_DEPLOYS

app = Duly()

# A handler tries for PATIENCE seconds to reach the sink; then the attempt fails. A cancelled handler has only
# LAST_WORDS seconds to report its end.
PATIENCE = 8.0
LAST_WORDS = 0.7
_PAUSE = 0.1
# Timeout of one exchange with the sink, which usually takes milliseconds.
_EXCHANGE = 3.0
_WORKER = f"{os.environ.get('TORTURE_NODE') or socket.gethostname()}:{os.getpid()}"


# Not time.sleep, which fails under libfaketime: see world/sleeping/sitecustomize.py.
_sleep = threading.Event().wait


class SinkAway(Exception):
    """The sink could not be reached in time."""


class Refused(Exception):
    """The sink has seen a newer token of this run: this execution is a zombie."""


class Line:
    """One execution's conversation with the sink, over a connection of its own that is renewed when it breaks."""

    def __init__(self, ctx: Context) -> None:
        self._said = {
            "job": ctx.job_name,
            "job_id": ctx.job_id,
            "run_id": ctx.run_id,
            "scheduled_at": ctx.scheduled_at.timestamp(),
            "attempt": ctx.attempt,
            "token": ctx.fencing_token,
            "worker": _WORKER,
            "execution": uuid4().hex,
        }
        self._socket: socket.socket | None = None
        # A cancelled handler may report its end while another thread still reports an earlier word.
        self._lock = threading.Lock()

    def tell(self, word: str, note: str | None = None, patience: float = PATIENCE) -> None:
        """Blocks until the sink has the word on its disk."""
        line = json.dumps({**self._said, "word": word, "note": note}).encode() + b"\n"
        until = time.monotonic() + patience
        while True:
            try:
                with self._lock:
                    accepted = self._exchange(line)
                break
            except (OSError, ValueError) as error:
                self.close()
                if time.monotonic() + _PAUSE > until:
                    raise SinkAway(f"{word}: {error}") from error
                _sleep(_PAUSE)
        if word == "effect" and not accepted:
            raise Refused("the sink has seen a newer token")

    def _exchange(self, line: bytes) -> bool:
        if self._socket is None:
            self._socket = _connect()
        self._socket.sendall(line)
        answer = b""
        while not answer.endswith(b"\n"):
            piece = self._socket.recv(4096)
            if not piece:
                raise ConnectionError("the sink hung up")
            answer += piece
        return bool(json.loads(answer)["accepted"])

    def close(self) -> None:
        held, self._socket = self._socket, None
        if held is not None:
            held.close()


def _connect() -> socket.socket:
    kind, _, place = os.environ["TORTURE_SINK"].partition("://")
    if kind == "unix":
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(_EXCHANGE)
        made.connect(place)
        return made
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)), _EXCHANGE)


def _dice(ctx: Context, *more: object) -> random.Random:
    return random.Random(f"{os.environ.get('TORTURE_SEED')}:{ctx.run_id}:{more}")


async def _witnessed(ctx: Context, work: Callable[[Line], Awaitable[None]]) -> None:
    """Reports the begin, does the work, and reports the end however the work ended."""
    line = Line(ctx)

    async def tell(word: str, note: str | None = None, patience: float = PATIENCE) -> None:
        # In a thread, because a sink that does not answer must not block the worker's loop.
        await asyncio.to_thread(line.tell, word, note, patience)

    try:
        await tell("begin")
        try:
            await work(line)
        except asyncio.CancelledError:
            note = "told" if ctx.cancelled else "cancelled"
            await asyncio.shield(tell("end", note, LAST_WORDS))
            raise
        except Exception as error:
            await tell("end", type(error).__name__)
            raise
        await tell("end", "done")
    finally:
        line.close()


def _witnessed_here(ctx: Context, work: Callable[[Line], str]) -> None:
    """The same for a handler in a thread or a process."""
    line = Line(ctx)
    try:
        line.tell("begin")
        try:
            note = work(line)
        except Exception as error:
            line.tell("end", type(error).__name__)
            raise
        line.tell("end", note)
    finally:
        line.close()


async def _effect(line: Line) -> None:
    await asyncio.to_thread(line.tell, "effect")


@app.task()
async def quick(ctx: Context, seconds: float = 0) -> None:
    """The quick handler; with more seconds than a lease it is the slow one."""

    async def work(line: Line) -> None:
        await asyncio.sleep(seconds / 2)
        await _effect(line)
        await asyncio.sleep(seconds / 2)

    await _witnessed(ctx, work)


#: What `shop_app` declares. These workers have its tasks as well, so that runs end when no deploy of it lives.
SHOP_TASKS = ["shop_tick"] + [f"shop_{what}_{n}" for what in ("report", "extra") for n in range(1, SHOP_DEPLOYS + 1)]
for shop_task in SHOP_TASKS:
    app.task(shop_task)(quick)


@app.task()
def threaded(ctx: Context, seconds: float = 0) -> None:
    def work(line: Line) -> str:
        told = _sleep_or_be_told(ctx, seconds)
        if not told:
            line.tell("effect")
        return "told" if told else "done"

    _witnessed_here(ctx, work)


@app.task(isolation="process")
def isolated(ctx: Context, seconds: float = 0) -> None:
    def work(line: Line) -> str:
        told = _sleep_or_be_told(ctx, seconds)
        if not told:
            line.tell("effect")
        return "told" if told else "done"

    _witnessed_here(ctx, work)


def _sleep_or_be_told(ctx: Context, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if ctx.cancelled:
            return True
        _sleep(0.05)
    return False


@app.task()
async def flaky(ctx: Context, rate: float, seconds: float = 0) -> None:
    """Fails now and then, before or after its effect."""
    dice = _dice(ctx, ctx.attempt)

    async def work(line: Line) -> None:
        fails = dice.random() < rate
        early = dice.random() < 0.5
        await asyncio.sleep(seconds)
        if fails and early:
            raise ValueError("as drawn, before the effect")
        await _effect(line)
        if fails:
            raise ValueError("as drawn, after the effect")

    await _witnessed(ctx, work)


@app.task()
async def doomed(ctx: Context, rate: float) -> None:
    """Sometimes fails permanently, so that the run is buried at once."""

    async def work(line: Line) -> None:
        if _dice(ctx).random() < rate:
            raise Permanent("as drawn")
        await _effect(line)

    await _witnessed(ctx, work)


@app.task()
async def drowsy(ctx: Context, rate: float, seconds: float = 1) -> None:
    """Sometimes snoozes. Drawn anew for every claim, so that the run ends at last."""

    async def work(line: Line) -> None:
        if _dice(ctx, ctx.fencing_token).random() < rate:
            raise Snooze(seconds)
        await _effect(line)

    await _witnessed(ctx, work)


@app.task()
async def transacted(ctx: Context, seconds: float = 0) -> None:
    """Commits a row of the user's own together with the end of the run. The table has no unique key: only Duly prevents
    a second row."""

    async def work(line: Line) -> None:
        await _effect(line)
        async with ctx.transaction() as connection:
            await connection.execute(
                "insert into torture.effects (run_id, job_id, scheduled_at, token, attempt) "
                "values ($1, $2, $3, $4, $5)",
                ctx.run_id, ctx.job_id, ctx.scheduled_at, ctx.fencing_token, ctx.attempt,
            )  # fmt: skip
            await asyncio.sleep(seconds)

    await _witnessed(ctx, work)


@app.task()
async def long(ctx: Context, seconds: float) -> None:
    """Works in small steps until it is done or cancelled."""

    async def work(line: Line) -> None:
        await _effect(line)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ctx.progress(min(1.0, max(0.0, 1 - (until - time.monotonic()) / seconds)))
            await asyncio.sleep(0.2)

    await _witnessed(ctx, work)
