"""Turns on the event loop, by time: how long a piece of work takes is its sender's choice; no count of them says it.

Two things keep a loop quick for those who need little of it. Who works long lets others go on after a few milliseconds
(`Turns`), and of those who work long only one goes on in each pass of the loop (`turn`): however many of them there
are, whoever waits for an answer of the database or for the next bytes of a request waits for one of them, not for all.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

SECONDS = 0.005


class _Line:
    """Those who wait for a turn on one event loop. The first of a pass has it at once."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._taken:
            place = loop.create_future()
            self._waiting.append(place)
            await place
        else:
            self._taken = True
            loop.call_soon(self._next_pass, loop)

    def _next_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # it is where its task was cancelled meanwhile
                place.set_result(None)
                # Its task goes on in the pass that comes now, and the next one in the pass after that.
                loop.call_soon(self._next_pass, loop)
                return
        self._taken = False


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


async def turn() -> None:
    """Wait until this pass of the loop has no other long work. Costs a microsecond where nobody else has any."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line()
    await line.turn(loop)


class Turns:
    """Whoever works through many pieces asks after each; when the turn has lasted long enough, others have theirs."""

    __slots__ = ("_until", "given")

    def __init__(self) -> None:
        self._until = time.monotonic() + SECONDS
        self.given = 0

    async def give(self) -> None:
        if time.monotonic() >= self._until:
            self.given += 1
            await asyncio.sleep(0)
            await turn()
            self._until = time.monotonic() + SECONDS
