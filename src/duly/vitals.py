"""Whether this process is alive, ready and started, for probes: three questions, each answered by what is wrong.

- *Alive*: its event loop turns, and the threads that it cannot do without run. It does not touch the database: an
  outage of PostgreSQL must not make anybody restart healthy processes.
- *Ready*: it does its work: a worker claims, a scheduler's heartbeats come through.
- *Started*: the application is imported, the store was open, the node has joined.

The probes are answered in a thread of their own (`health.py`), so a loop that hangs is reported and not just silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from duly.figures import Figures, Snapshot

#: Says what is wrong, or None.
Check = Callable[[], str | None]

ALIVE, READY, STARTED = "alive", "ready", "started"
# Pause between two turns of the loop that are noted.
PULSE_SECONDS = 0.25


class Vitals:
    """The figures and the state of one process that works: a scheduler or a worker."""

    def __init__(self, kind: str, *, hung_seconds: float) -> None:
        """`hung_seconds`: an event loop that has not turned for longer hangs."""
        self.kind = kind
        self.figures = Figures(kind)
        self._hung_seconds = hung_seconds
        self._turned: float | None = None
        self._pulse: asyncio.TimerHandle | None = None
        self._started = False
        self._alive: Check = _nothing
        self._ready: Check = _nothing

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the event loop that runs here."""
        self._turn()
        try:
            yield
        finally:
            if self._pulse is not None:
                self._pulse.cancel()

    def _turn(self) -> None:
        self._turned = time.monotonic()
        self._pulse = asyncio.get_running_loop().call_later(PULSE_SECONDS, self._turn)

    def started(self, *, alive: Check, ready: Check) -> None:
        """The start is over. From now on these are asked as well, from other threads."""
        self._alive, self._ready = alive, ready
        self._started = True

    def snapshots(self) -> dict[str, Snapshot]:
        """The figures, by what runs here. Called from any thread."""
        return {self.kind: self.figures.snapshot()}

    def wrong(self) -> dict[str, str | None]:
        """What is wrong, by question. Called from any thread."""
        not_alive = self._hung() or self._alive()
        not_started = None if self._started else f"the {self.kind} is starting"
        not_ready = not_alive or not_started or self._ready()
        return {ALIVE: not_alive, READY: not_ready, STARTED: not_started}

    def _hung(self) -> str | None:
        if self._turned is None:
            return None
        silent = time.monotonic() - self._turned
        if silent <= self._hung_seconds:
            return None
        return f"the event loop of the {self.kind} has not turned for {silent:.0f} s: a handler or a library blocks it"


def _nothing() -> str | None:
    return None
