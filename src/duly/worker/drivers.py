"""Few asyncio tasks for many runs.

A task of its own for every run costs more than many a handler does. So one task takes run after run, as long as their
handlers end without waiting for anything; when one waits, the task stays with it, and whatever still stands in line
gets another task. A handler sees no difference: while it runs it has a task to itself, and nothing that it does to that
task or to its context variables reaches another run.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic, Protocol, TypeVar

# Then the loop gets a turn for everything else: completions, claims, timers.
TURN_SECONDS = 0.005


class Drivable(Protocol):
    """Something to be executed; `task` is the one that does, None until it begins."""

    task: asyncio.Task[None] | None


Item = TypeVar("Item", bound=Drivable)


class Drivers(Generic[Item]):
    """`execute` never raises: whatever becomes of an item is its own business."""

    def __init__(self, execute: Callable[[Item], Awaitable[None]]) -> None:
        self._execute = execute
        self._line: deque[Item] = deque()
        self._pumping = False
        # The loop itself holds tasks only weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, item: Item) -> None:
        self._line.append(item)
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Called between the steps of tasks: every driver that is not done waits in some handler."""
        if not self._line:
            self._pumping = False
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._drive())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # After that task's first step: if it left some behind, they need another one.
        loop.call_soon(self._pump)

    async def _drive(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        untouched = copy_context()
        until = time.monotonic() + TURN_SECONDS
        while self._line:
            item = self._line.popleft()
            item.task = task
            await self._execute(item)
            # A task that was cancelled, or that somebody left something in, is nobody else's; and one that was away
            # for long has no turn left.
            if task.cancelling() or time.monotonic() > until or copy_context() != untouched:
                break
        if self._line and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)
