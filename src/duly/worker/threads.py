"""Threads for sync handlers.

A thread cannot be stopped. When its run is over (timed out, cancelled, returned) and the handler goes on, the thread is
missing until the handler returns by itself: it counts as taken, so that no run waits for it that another worker could
execute. A run that finds no free thread waits for one, for a while; its timeout begins when it has its thread.
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

# A run waits at most this long for a thread; then it goes back to the queue, and no attempt counts.
MAX_WAIT_SECONDS = 5.0
# Once a run has waited this long for a thread, no more runs are claimed that would need one.
CROWDED_SECONDS = 1.0
# A thread hangs if it goes on this long after its run was over. Until then it may only be slow to notice.
HANG_SECONDS = 5.0
# Number of tasks with hanging threads that a log line names.
_MAX_NAMED = 5


class _Call:
    """One handler in a thread. `over`: the thread has come back."""

    __slots__ = ("answer", "hangs", "name", "over")

    def __init__(self, name: str, answer: asyncio.Future[tuple[bool, Any]]) -> None:
        self.name = name
        self.answer = answer
        self.over = False
        self.hangs = False


class Threads:
    """At most `limit` threads. `changed` is called when a thread comes free, hangs, or no longer hangs.

    `spares`: a thread that hangs is made up for by another one, up to `limit` of them. That is for a process which is
    replaced once half of its threads hang: until its successor runs, the others must not be used up.
    """

    def __init__(self, limit: int, changed: Callable[[], None] = lambda: None, *, spares: bool = False) -> None:
        self.limit = limit
        self._changed = changed
        self._spares = spares
        self._extra = 0
        self._pool = ThreadPoolExecutor(max_workers=2 * limit if spares else limit, thread_name_prefix="duly-handler")
        self._taken = 0
        # Runs that wait for a thread, with the loop's time since when. A thread that comes free goes to the first.
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        # Calls whose run is over and whose thread has not come back.
        self._overdue: set[_Call] = set()
        #: Number of overdue threads that hang.
        self.hanging = 0

    @property
    def free(self) -> int:
        return self.limit + self._extra - self._taken

    @property
    def overdue(self) -> int:
        """Number of threads whose run is over and that go on, without those that are made up for."""
        return max(0, len(self._overdue) - self._extra)

    @property
    def crowded(self) -> bool:
        """Whether a run that came now would wait long for a thread, or forever."""
        if self.free > 0:
            return False
        if self.overdue:
            return True
        return bool(self._waiting) and asyncio.get_running_loop().time() - self._waiting[0][1] > CROWDED_SECONDS

    async def call(self, name: str, begins: Callable[[], None], work: Callable[[], Any]) -> Any:
        """Calls `work` in a thread. `begins` is called once there is one."""
        if self.free > 0:
            self._taken += 1
        else:
            await self._wait_for_thread()
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
                self._overdue.add(call)
                loop.call_later(HANG_SECONDS, self._look_after, call)
            raise
        if failed:
            raise value
        return value

    def close(self) -> None:
        # A handler that still runs in a thread has been given up: it is not waited for.
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_thread(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        waiter = turn, loop.time()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._give_back()  # the thread came at this very moment
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            if isinstance(error, TimeoutError):
                raise Elsewhere(f"all {self.limit} handler threads of this worker are taken") from None
            raise

    def _work(self, loop: asyncio.AbstractEventLoop, call: _Call, work: Callable[[], Any]) -> None:
        """Runs in the thread."""
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
        self._overdue.discard(call)
        if call.hangs:
            self.hanging -= 1
            self._extra = min(self._extra, self.hanging)
            log.warning("a handler thread that hung (%s) has come back; %s", call.name, self._summary())
        if not call.answer.done():
            call.answer.set_result(answer)
        self._give_back()

    def _give_back(self) -> None:
        while self._waiting and self.free >= 0:
            turn, _ = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1
        self._changed()

    def _look_after(self, call: _Call) -> None:
        if call not in self._overdue:
            return
        call.hangs = True
        self.hanging += 1
        if self._spares and self._extra < self.limit:
            self._extra += 1
            self._taken += 1
            self._give_back()
        if self.hanging < self.limit:
            log.warning(
                "a handler thread (%s) hangs: it was told to stop %g s ago and goes on; %s",
                call.name, HANG_SECONDS, self._summary(),
            )  # fmt: skip
        else:
            names = Counter(call.name for call in self._overdue).most_common(_MAX_NAMED)
            log.error(
                "all %d handler threads of this worker hang (%s): it takes no runs of sync tasks until one of them "
                "comes back. Restart it; a task with isolation='process' can be stopped instead",
                self.limit, ", ".join(f"{count} × {name}" for name, count in names),
            )  # fmt: skip
        self._changed()

    def _summary(self) -> str:
        return f"{self.hanging} of {self.limit} hang"
