"""The event loop of a Duly process, and the signals that end it."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

log = logging.getLogger("duly.node")
T = TypeVar("T")

_PR_SET_DUMPABLE = 4


class Signals:
    """SIGINT and SIGTERM: the first signal asks for a graceful end, the second for an immediate one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    @asynccontextmanager
    async def handled(self) -> AsyncIterator[Signals]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not by signal.signal: uvloop runs such handlers only when something else wakes it up.
            loop.add_signal_handler(number, self._heard)
        try:
            yield self
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _heard(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()


def conceal() -> None:
    """Hides this process's memory, open files and environment from other processes of the same account.

    A program that a worker runs under its own account could otherwise read the store's password there. Root still can.
    Only Linux has this protection.
    """
    if sys.platform.startswith("linux"):
        try:
            nothing = ctypes.c_ulong(0)
            ctypes.CDLL(None).prctl(ctypes.c_int(_PR_SET_DUMPABLE), nothing, nothing, nothing, nothing)
        except (OSError, AttributeError) as error:
            log.debug("this process cannot be concealed: %s", error)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`asyncio.run` on uvloop where that exists."""
    if sys.platform != "win32":
        try:
            import uvloop
        except ImportError:
            log.debug("uvloop is not installed; using asyncio's own loop")
        else:
            return uvloop.run(main())
    return asyncio.run(main())
