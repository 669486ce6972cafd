"""Sharing the event loop between long and short work. Turns are measured by time and not by number of items, because
clients choose how long an item takes.

Two rules keep the loop quick for short work. Long work yields after a few milliseconds (`Turns`), and only one piece of
long work continues in each pass of the loop (`turn`). So a task that waits for the database or for the next bytes of a
request waits for one piece of long work, however many there are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

#: Longest turn of one piece of work.
SECONDS = 0.005


class _Waiting:
    """Tasks that wait for a turn on one event loop. The first of a pass gets it at once."""

    __slots__ = ("_taken", "_waiters")

    def __init__(self) -> None:
        self._taken = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._taken:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            await waiter
        else:
            self._taken = True
            loop.call_soon(self._next_pass, loop)

    def _next_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # done: its task was cancelled meanwhile
                waiter.set_result(None)
                # Its task continues in the pass that comes now, the next task in the pass after that.
                loop.call_soon(self._next_pass, loop)
                return
        self._taken = False


_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = WeakKeyDictionary()


async def turn() -> None:
    """Waits until this pass of the loop has no other long work. Costs a microsecond if there is none."""
    loop = asyncio.get_running_loop()
    waiting = _waiting.get(loop)
    if waiting is None:
        waiting = _waiting[loop] = _Waiting()
    await waiting.turn(loop)


class Turns:
    """A turn of work over many items. Its owner calls `give` after each; a turn that has lasted long enough ends."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.monotonic() + SECONDS

    async def give(self) -> None:
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            await turn()
            self._until = time.monotonic() + SECONDS
