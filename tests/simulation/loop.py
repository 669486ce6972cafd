"""Virtual time: event loops whose clock jumps to the next timer, and a seeded choice of the loop that runs next.

Every thread of every simulated process has its own loop. Within a loop, callbacks run in the order that asyncio
promises; between loops, the seed decides. No loop ever waits, and nothing here touches a socket or a real clock.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from datetime import UTC, datetime, timedelta, tzinfo
from random import Random
from typing import Any

#: The database's time when a simulation begins.
BEGINNING = datetime(2031, 3, 3, 12, 0, tzinfo=UTC)


class Timeline:
    """The true time, which no simulated process sees directly, and all events to come."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now = 0.0
        self.steps = 0
        self.errors: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._coming: list[tuple[float, int, NodeLoop | None, Any]] = []
        self._number = 0
        self._runnable: list[NodeLoop] = []

    @property
    def database_now(self) -> datetime:
        return BEGINNING + timedelta(microseconds=int(self.now * 1e6))

    def at(self, moment: float, callback: Callable[[], None]) -> None:
        """Schedules an event outside of all nodes: in the database, on the network, or a fault."""
        self._push(moment, None, callback)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._push(self.now + seconds, None, callback)

    def _push(self, moment: float, loop: NodeLoop | None, what: Any) -> None:
        self._number += 1
        heapq.heappush(self._coming, (moment, self._number, loop, what))

    def ready(self, loop: NodeLoop) -> None:
        self._runnable.append(loop)

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Runs step by step, up to a moment or until `done`, which is called whenever time moves on."""
        try:
            self._run(until, done)
        finally:
            events._set_running_loop(None)

    def bury(self) -> None:
        """Ends all unfinished tasks after the simulation and frees what they hold, without a warning from asyncio.

        A task that answers its end by awaiting something is an error: its process is dead, so what it calls would never
        be awaited, and would fail whichever test runs when it is collected.
        """
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                try:
                    coroutine.close()
                except BaseException as error:
                    if "ignored GeneratorExit" in str(error):
                        raise
        self.tasks.clear()

    def _run(self, until: float, done: Callable[[], bool]) -> None:
        runnable, coming, random = self._runnable, self._coming, self.dice.random
        running: NodeLoop | None = None
        while True:
            while runnable:
                index = int(random() * len(runnable)) if len(runnable) > 1 else 0
                loop = runnable[index]
                if loop.frozen or not loop.waiting:
                    loop.listed = False
                    runnable[index] = runnable[-1]
                    runnable.pop()
                    continue
                self.steps += 1
                if loop is not running:
                    events._set_running_loop(loop)
                    running = loop
                loop.run_next()
            if not coming or coming[0][0] > until or done():
                return
            moment, _, owner, what = heapq.heappop(coming)
            self.now = max(self.now, moment)
            if owner is None:
                what()
            elif not what._cancelled:
                owner.enqueue(what)


class NodeLoop(asyncio.AbstractEventLoop):
    """One thread's event loop. Its clock has an origin and a speed of its own."""

    def __init__(self, timeline: Timeline, name: str, *, origin: float = 0.0, speed: float = 1.0) -> None:
        self.timeline = timeline
        self.name = name
        self.origin = origin
        self.speed = speed
        self.waiting: deque[events.Handle] = deque()
        self.listed = False
        self.frozen = False
        self.dead = False

    # Faults.

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        if not self.dead:
            self.frozen = False
            self._list()

    def kill(self) -> None:
        self.frozen = self.dead = True
        self.waiting.clear()

    @property
    def behind(self) -> bool:
        """Whether the loop is frozen or has callbacks that it should have run by now."""
        return self.frozen or bool(self.waiting)

    # Running.

    def enqueue(self, handle: events.Handle) -> None:
        if not self.dead:
            self.waiting.append(handle)
            self._list()

    def _list(self) -> None:
        if not self.listed and not self.frozen:
            self.listed = True
            self.timeline.ready(self)

    def run_next(self) -> None:
        handle: Any = self.waiting.popleft()
        if not handle._cancelled:
            handle._context.run(handle._callback, *handle._args)

    def begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.call_soon(lambda: self.create_task(work()))

    # The methods that asyncio needs.

    def time(self) -> float:
        return self.timeline.now * self.speed + self.origin

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self.enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        # A little later, so that no timer is early by a rounding error: no time would pass until it is due.
        self.timeline._push((when - self.origin) / self.speed + 1e-9, self, handle)
        return handle

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.timeline.tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self.timeline.errors.append(f"{self.name}: {context.get('message')}: {context.get('exception')!r}")


class VirtualTime:
    """Stands in for the module `time` in the product."""

    @staticmethod
    def monotonic() -> float:
        return events._get_running_loop().time()  # type: ignore[union-attr]

    @staticmethod
    def monotonic_ns() -> int:
        return int(events._get_running_loop().time() * 1e9)  # type: ignore[union-attr]

    @staticmethod
    def thread_time() -> float:
        """Always 0: work takes no time in the simulation."""
        return 0.0


class VirtualDatetime:
    """Stands in for `datetime` where the product reads the machine's own clock, which may be minutes off."""

    @staticmethod
    def now(_zone: tzinfo | None = None) -> datetime:
        loop: Any = events._get_running_loop()
        return BEGINNING + timedelta(seconds=loop.time())
