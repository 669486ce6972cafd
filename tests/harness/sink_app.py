"""The application of the cluster tests: every execution leaves a line in a file that no fault touches."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from duly import Context, Duly

app = Duly()
_sink = os.open(os.environ["SINK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def say(ctx: Context, word: str) -> None:
    # One write with O_APPEND: lines of several processes do not mix.
    line = f"{ctx.run_id} {ctx.attempt} {ctx.fencing_token} {os.getpid()} {word} {time.time():.6f}\n"
    os.write(_sink, line.encode())


@app.task()
async def record(ctx: Context, seconds: float = 0) -> None:
    say(ctx, "started")
    await asyncio.sleep(seconds)


@app.task()
async def talk(ctx: Context, lines: int, pause: float) -> None:
    """Prints lines, and leaves each in the sink as well."""
    for number in range(1, lines + 1):
        print(f"line {number}")
        say(ctx, str(number))
        await asyncio.sleep(pause)


@app.task()
async def hold(ctx: Context, seconds: float, again: float | None = None) -> str:
    """Works for `seconds` (a later attempt for `again`), and leaves a line if it is stopped."""
    say(ctx, "started")
    try:
        await asyncio.sleep(seconds if ctx.attempt == 1 or again is None else again)
    except asyncio.CancelledError:
        say(ctx, "told" if ctx.cancelled else "cancelled")
        raise
    say(ctx, "ended")
    return str(os.getpid())


@app.task()
def hold_thread(ctx: Context, seconds: float, again: float | None = None) -> str:
    """Works in a thread, which must check by itself whether its run was cancelled."""
    say(ctx, "started")
    until = time.monotonic() + (seconds if ctx.attempt == 1 or again is None else again)
    while time.monotonic() < until:
        if ctx.cancelled:
            say(ctx, "told")
            return "told"
        time.sleep(0.01)
    say(ctx, "ended")
    return str(os.getpid())


@app.task()
async def block(ctx: Context, seconds: float) -> None:
    """Blocks the event loop: nothing else on this worker's loop runs meanwhile."""
    say(ctx, "started")
    time.sleep(seconds)  # noqa: ASYNC251
    say(ctx, "ended")


@app.task()
def compute(ctx: Context, seconds: float) -> None:
    """Keeps the interpreter's lock as much as a thread can."""
    say(ctx, "started")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(n * n for n in range(20_000))
    say(ctx, "ended")


@app.task()
async def crash(ctx: Context, how: str) -> None:
    """Crashes its whole process."""
    say(ctx, "started")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


@app.task()
async def fail(ctx: Context) -> None:
    say(ctx, "started")
    raise ValueError("as every time")


@app.task()
async def write_once(ctx: Context, seconds: float = 0) -> None:
    """Writes a row of the user's own and ends the run, in one commit."""
    say(ctx, "started")
    await asyncio.sleep(seconds)
    async with ctx.transaction() as connection:
        await connection.execute("insert into effects values ($1, $2)", ctx.run_id, ctx.fencing_token)
        await asyncio.sleep(seconds)
    await asyncio.sleep(seconds)
    say(ctx, "ended")


@app.task()
async def wait_for_file(ctx: Context, path: str) -> None:
    """Works until the file exists."""
    say(ctx, "started")
    while not os.path.exists(path):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
