"""Turns on the event loop, by time: how long a piece of work takes is its sender's choice; no count of them says it."""

from __future__ import annotations

import asyncio
import time

SECONDS = 0.005


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
            self._until = time.monotonic() + SECONDS
