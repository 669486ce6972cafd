"""Names the async handler that blocks the event loop.

Nothing else of its worker runs meanwhile: no other async handler, no claim, no outcome. Only the heartbeat's thread
goes on, so the check runs there: it looks at what the loop's thread executes at that moment.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping
from types import CodeType

from duly.worker.handler.task import Task

log = logging.getLogger("duly.worker")

BLOCKED_SECONDS = 1.0
# Pause between two warnings about the same task.
WARN_SECONDS = 60.0
# Decorators around a handler that are looked through.
_MAX_WRAPPERS = 20


class Blocking:
    """`turned` is called by the loop while a handler runs, `look` by another thread."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._names: dict[CodeType, str] = {}
        for task in tasks.values():
            function: object = task.function if task.is_async else None
            for _ in range(_MAX_WRAPPERS):
                code = getattr(function, "__code__", None)
                if isinstance(code, CodeType):
                    self._names[code] = task.name
                function = getattr(function, "__wrapped__", None)
        self._thread = threading.get_ident()
        # The monotonic time of the loop's last free turn; None while no handler runs on it.
        self._turned_at: float | None = None
        self._warned_at: dict[str, float] = {}

    def turned(self, *, busy: bool) -> None:
        self._turned_at = time.monotonic() if busy else None

    def look(self) -> None:
        turned_at, now = self._turned_at, time.monotonic()
        if turned_at is None or now - turned_at <= BLOCKED_SECONDS:
            return
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame.f_code not in self._names:
            frame = frame.f_back
        if frame is None:
            return  # not a handler's fault: the process was stopped, or the machine is busy
        name = self._names[frame.f_code]
        if now - self._warned_at.get(name, float("-inf")) >= WARN_SECONDS:
            self._warned_at[name] = now
            log.warning(
                "the async task %s has blocked the event loop for %.1f s (%s, line %d): nothing else runs here "
                "meanwhile. Await what it waits for, or make it a plain function, which gets a thread",
                name, now - turned_at, frame.f_code.co_filename, frame.f_lineno,
            )  # fmt: skip
