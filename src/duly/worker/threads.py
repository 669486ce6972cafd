"""Threads for sync handlers.

A thread cannot be stopped. When its run is over (timed out, cancelled, given back) and the handler goes on, the thread
is missing until it comes back by itself: it counts as taken, so that nothing waits for it that another worker could
run. A run that finds no thread free stands in line, for a while; its time begins when its thread does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from duly.worker.handler.errors import Elsewhere

log = logging.getLogger("duly.worker")

# A run that finds every thread taken waits for this long at most; then it goes back to the queue, uncounted.
SLOT_SECONDS = 5.0
# Where one has waited for so long, no more are claimed that would have to wait behind it.
LONG_LINE_SECONDS = 1.0
# A thread that goes on for so long after its run was over hangs. Before, it may only be slow to hear of it.
HANG_SECONDS = 5.0
# Of the tasks whose threads hang, so many are named.
_NAMED = 5


class _Call:
    """One handler in a thread. `over`: the thread has come back."""

    __slots__ = ("answer", "hangs", "name", "over")

    def __init__(self, name: str, answer: asyncio.Future[tuple[bool, Any]]) -> None:
        self.name = name
        self.answer = answer
        self.over = False
        self.hangs = False


class Threads:
    """At most `limit` threads. `changed` is called when one became free, and when one hangs or no longer does."""

    def __init__(self, limit: int, changed: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self._changed = changed
        self._pool = ThreadPoolExecutor(max_workers=limit, thread_name_prefix="duly-handler")
        self._taken = 0
        # While somebody stands here every thread is taken: one that becomes free is handed to the first.
        self._line: deque[tuple[asyncio.Future[None], float]] = deque()
        # Threads whose runs are over and that have not come back.
        self._left: set[_Call] = set()
        #: Those of them that have been so for long.
        self.hanging = 0

    @property
    def free(self) -> int:
        return self.limit - self._taken

    @property
    def left(self) -> int:
        """Threads that are at work on something that is over."""
        return len(self._left)

    @property
    def crowded(self) -> bool:
        """A run that came now would wait long for a thread, or for ever."""
        if self._taken < self.limit:
            return False
        if self._left:
            return True
        return bool(self._line) and asyncio.get_running_loop().time() - self._line[0][1] > LONG_LINE_SECONDS

    async def call(self, name: str, begins: Callable[[], None], work: Callable[[], Any]) -> Any:
        """Do `work` in a thread. `begins` is called when there is one."""
        if self._taken < self.limit:
            self._taken += 1
        else:
            await self._stand_in_line()
        loop = asyncio.get_running_loop()
        call = _Call(name, loop.create_future())
        try:
            begins()
            self._pool.submit(self._work, loop, call, work)
        except BaseException:
            self._give_back()
            raise
        try:
            failed, value = await call.answer
        except asyncio.CancelledError:
            if not call.over:
                self._left.add(call)
                loop.call_later(HANG_SECONDS, self._look_after, call)
            raise
        if failed:
            raise value
        return value

    def close(self) -> None:
        # A handler that is still in one has been given up, not waited for.
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _stand_in_line(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        place = turn, loop.time()
        self._line.append(place)
        try:
            async with asyncio.timeout(SLOT_SECONDS):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._give_back()  # its turn came in this very moment
            elif place in self._line:
                self._line.remove(place)
            if isinstance(error, TimeoutError):
                raise Elsewhere(f"all {self.limit} handler threads of this worker are taken") from None
            raise

    def _work(self, loop: asyncio.AbstractEventLoop, call: _Call, work: Callable[[], Any]) -> None:
        """In the thread."""
        try:
            answer = False, work()
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything; a future would not take all of it
            answer = True, error
        try:
            loop.call_soon_threadsafe(self._came_back, call, answer)
        except RuntimeError:
            log.debug("a handler of %s ended after its worker", call.name)

    def _came_back(self, call: _Call, answer: tuple[bool, Any]) -> None:
        call.over = True
        self._left.discard(call)
        if call.hangs:
            self.hanging -= 1
            log.warning("a handler thread that hung (%s) has come back; %s", call.name, self._told())
        if not call.answer.done():
            call.answer.set_result(answer)
        self._give_back()

    def _give_back(self) -> None:
        while self._line:
            turn, _ = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1
        self._changed()

    def _look_after(self, call: _Call) -> None:
        if call not in self._left:
            return
        call.hangs = True
        self.hanging += 1
        if self.hanging < self.limit:
            log.warning(
                "a handler thread (%s) hangs: it was told to stop %g s ago and goes on; %s",
                call.name, HANG_SECONDS, self._told(),
            )  # fmt: skip
        else:
            names = Counter(call.name for call in self._left).most_common(_NAMED)
            log.error(
                "all %d handler threads of this worker hang (%s): it takes no runs of sync tasks until one of them "
                "comes back. Restart it; a task with isolation='process' can be stopped instead",
                self.limit, ", ".join(f"{count} × {name}" for name, count in names),
            )  # fmt: skip
        self._changed()

    def _told(self) -> str:
        return f"{self.hanging} of {self.limit} hang"
