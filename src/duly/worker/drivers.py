"""Few asyncio tasks for many runs.

An asyncio task per run costs more than many handlers do. So one task executes run after run, as long as their handlers
end without waiting. When a handler waits, the task stays with it, and the runs still queued get another task. A handler
sees no difference: while it runs it has a task to itself, and nothing that it does to that task or to its context
variables reaches another run.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic, Protocol, TypeVar

# Longest time that a task executes run after run; then completions, claims and timers get a turn of the loop.
TURN_SECONDS = 0.005


class Drivable(Protocol):
    """An item to execute. `task` is the asyncio task that executes it, None until it begins."""

    task: asyncio.Task[None] | None


Item = TypeVar("Item", bound=Drivable)


class Drivers(Generic[Item]):
    """Executes items in few asyncio tasks. `execute` never raises: an item's errors are its own."""

    def __init__(self, execute: Callable[[Item], Awaitable[None]], begin: Callable[[], None] = lambda: None) -> None:
        """`begin` is called in each task first; context variables that it sets are set for all of its items."""
        self._execute = execute
        self._begin = begin
        self._queue: deque[Item] = deque()
        self._pumping = False
        # The loop itself holds tasks only weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, item: Item) -> None:
        self._queue.append(item)
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Starts a task if items are queued. Between steps of tasks every unfinished driver waits in a handler."""
        if not self._queue:
            self._pumping = False
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._drive())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # After that task's first step: items that it left behind need another task.
        loop.call_soon(self._pump)

    async def _drive(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._begin()
        untouched = copy_context()
        until = time.monotonic() + TURN_SECONDS
        while self._queue:
            item = self._queue.popleft()
            item.task = task
            await self._execute(item)
            # A task that was cancelled, or whose context variables changed, is not used for another item; one whose
            # turn is over is not either.
            if task.cancelling() or time.monotonic() > until or copy_context() != untouched:
                break
        if self._queue and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)
