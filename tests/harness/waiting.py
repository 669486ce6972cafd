"""Waits for conditions that must be polled, and draws the seed of a random search."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable


async def eventually(holds: Callable[[], bool | Awaitable[bool]], *, seconds: float = 20) -> None:
    """Returns when the condition holds: a row in the database, a state of another process. Fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            answer = holds()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.01)


def drawn_seed(variable: str = "DULY_TEST_SEED") -> int:
    """The seed with which a search begins.

    The environment variable sets it. Without the variable, the seed is always the same in CI, so that a red run is due
    to the change, and random elsewhere.
    """
    if given := os.environ.get(variable):
        return int(given)
    return 20_260 if os.environ.get("CI") else random.randrange(2**32)
