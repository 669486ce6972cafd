"""How a process that runs until a signal ends: the first one asks it to, the second one makes it; so does a supervisor
that is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.process import Signals

log = logging.getLogger("duly.cli")

# After the second signal: long enough to give runs back to the queue, short enough to count as "now".
INSISTED_SECONDS = 5.0
INSISTED_EXIT_CODE = 130
# Beyond the grace of handlers, what an orderly end may take before the process ends without one: a store that hangs
# must not keep it.
ENDING_SECONDS = 10.0
UNENDED_EXIT_CODE = 1


@asynccontextmanager
async def cancelled_by(signals: Signals) -> AsyncIterator[None]:
    """While starting, the first signal cancels: there is nothing yet to end gracefully."""
    starting = asyncio.current_task()
    assert starting is not None

    async def watch() -> None:
        await signals.asked.wait()
        starting.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
        if signals.asked.is_set():
            # If it was cancelled this very moment, let that be heard here and not in the middle of an orderly end.
            await asyncio.sleep(0)
    finally:
        watcher.cancel()


@asynccontextmanager
async def ending_at_once(
    signals: Signals, stop_now: Sequence[Callable[[], None]] = (), *, patience: float | None = None
) -> AsyncIterator[None]:
    """Handle the signals around the whole life of a process; at the second one it ends, whatever else hangs.

    `patience`: how many seconds after the first one it ends as well, if that is not over by then.
    """

    async def watch() -> None:
        await signals.asked.wait()
        try:
            async with asyncio.timeout(patience):
                await signals.insisted.wait()
        except TimeoutError:
            log.error("something does not end (does PostgreSQL answer?); leaving without it")
            os._exit(UNENDED_EXIT_CODE)
        loop = asyncio.get_running_loop()
        until = loop.time() + INSISTED_SECONDS
        while loop.time() < until:
            for stop in stop_now:  # again and again, for what a claim under way still brings in
                stop()
            await asyncio.sleep(0.05)
        os._exit(INSISTED_EXIT_CODE)

    async with signals.handled():
        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not signals.asked.is_set():
                raise
        finally:
            watcher.cancel()


def exit_code(signals: Signals) -> int:
    """A graceful end at a signal is what was asked for; one that was cut short is not."""
    return INSISTED_EXIT_CODE if signals.insisted.is_set() else 0


# A worker must not outlive the supervisor that started it. Its standard input is a pipe whose other end only that one
# holds: however that process ends, the kernel closes it, on every Unix alike.


def take_lifeline() -> int:
    """Move the pipe out of the way of handlers, which find standard input empty. Returns its descriptor."""
    lifeline = os.dup(sys.stdin.fileno())  # not inherited by what handlers start
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return lifeline


def watch_lifeline(lifeline: int, signals: Signals) -> None:
    """End as at a second signal when the pipe closes. From a thread: a handler may block the event loop."""
    loop = asyncio.get_running_loop()

    def insist() -> None:
        signals.asked.set()
        signals.insisted.set()

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        with suppress(RuntimeError):  # the loop is closed: the end has come by itself
            loop.call_soon_threadsafe(insist)
        threading.Event().wait(2 * INSISTED_SECONDS)
        os._exit(INSISTED_EXIT_CODE)

    threading.Thread(target=watch, name="duly-lifeline", daemon=True).start()
