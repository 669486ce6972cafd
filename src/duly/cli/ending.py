"""The end of a process that runs until a signal: the first signal asks it to end, the second one ends it at once, and
so does the loss of its supervisor."""

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

# Time after the second signal: long enough to give runs back to the queue, short enough to count as "at once".
INSISTED_SECONDS = 5.0
INSISTED_EXIT_CODE = 130
# Time that an orderly end may take beyond the grace of handlers. After it the process exits anyway: a store that hangs
# must not keep it alive.
ENDING_SECONDS = 10.0
UNENDED_EXIT_CODE = 1


@asynccontextmanager
async def cancelled_by(signals: Signals) -> AsyncIterator[None]:
    """While the process starts, the first signal cancels it: there is nothing yet to end gracefully."""
    starting = asyncio.current_task()
    assert starting is not None

    async def watch() -> None:
        await signals.asked.wait()
        starting.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
        if signals.asked.is_set():
            # A cancellation of this very moment must be raised here, not in the middle of an orderly end.
            await asyncio.sleep(0)
    finally:
        watcher.cancel()


@asynccontextmanager
async def ending_at_once(
    signals: Signals, stop_now: Sequence[Callable[[], None]] = (), *, patience: float | None = None
) -> AsyncIterator[None]:
    """Handle the signals for the whole life of a process. The second signal ends it, even if something hangs.

    `patience`: seconds after the first signal at which the process is ended if it has not ended by itself.
    """

    async def watch() -> None:
        await signals.asked.wait()
        try:
            async with asyncio.timeout(patience):
                await signals.insisted.wait()
        except TimeoutError:
            log.error("shutdown takes too long (does PostgreSQL answer?); exiting without waiting for it")
            os._exit(UNENDED_EXIT_CODE)
        loop = asyncio.get_running_loop()
        until = loop.time() + INSISTED_SECONDS
        while loop.time() < until:
            for stop in stop_now:  # repeatedly, because a claim under way may still bring in runs
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
    """0 after a graceful end; 130 if a second signal cut it short."""
    return INSISTED_EXIT_CODE if signals.insisted.is_set() else 0


# A worker must not outlive the supervisor that started it. Its standard input is a socket or a pipe whose other end
# only the supervisor holds: however the supervisor ends, the kernel closes that end, on every Unix.


def take_lifeline() -> int:
    """Replace standard input by /dev/null, so that handlers find it empty. Returns the descriptor of the lifeline."""
    lifeline = os.dup(sys.stdin.fileno())  # not inherited by programs that handlers start
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return lifeline


def watch_lifeline(lifeline: int, signals: Signals, heard: Callable[[bytes], None] = lambda _: None) -> None:
    """End as after a second signal when the lifeline closes. In a thread: a handler may block the event loop.

    `heard` is called in that thread with what the supervisor says.
    """
    loop = asyncio.get_running_loop()

    def insist() -> None:
        signals.asked.set()
        signals.insisted.set()

    def watch() -> None:
        # A socket that was closed there with something unread in it is reset here, not at its end.
        with suppress(ConnectionResetError):
            while said := os.read(lifeline, 65536):
                heard(said)
        with suppress(RuntimeError):  # the loop is closed: the process is ending already
            loop.call_soon_threadsafe(insist)
        threading.Event().wait(2 * INSISTED_SECONDS)
        os._exit(INSISTED_EXIT_CODE)

    threading.Thread(target=watch, name="duly-lifeline", daemon=True).start()
