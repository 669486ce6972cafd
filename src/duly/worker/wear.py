"""Decides when a process that runs handlers is worn out.

Handlers leak memory, and a thread that hangs cannot be ended: only a new process helps. The supervisor replaces a
worker process (`cli/supervised.py`), the worker its isolated children (`processes/children.py`).

A worn worker process goes on until its successor runs, so that its queues are never without a worker. Only one that
has grown to twice its limit before that claims no more runs.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Of this process alone, without its children, and in pages: total, resident, …
_MEMORY = Path("/proc/self/statm")
# The processes of one worker do not all reach their number of runs at once: each adds up to this part of it.
SPREAD = 0.1
# A process is not replaced for its runs before it has lived this long: starting one takes a good part of a second of a
# core, and a small limit on a busy queue would leave no time for the runs.
YOUNG_SECONDS = 2.0
# Pause between two looks at the memory. Nothing looks while no run is under way.
WEIGH_SECONDS = 0.2
# A process whose memory before its first run is more than this part of the limit has little to grow. It is replaced no
# sooner than CRAMPED_SECONDS after its start: otherwise it would do little but start.
CRAMPED = 0.75
CRAMPED_SECONDS = 60.0
# A process of this many times its limit claims no more runs, and above the limit only this many at a time: what it has
# claimed it executes, so a full claim of runs that leak could take it far beyond.
BLOATED = 2
HEAVY_ROOM = 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Number of runs, and of resident bytes, at which a process is replaced. None: never."""

    runs: int | None = None
    memory: int | None = None

    def reached(self, runs: int, memory: int | None) -> bool:
        return (self.runs is not None and runs >= self.runs) or (
            self.memory is not None and memory is not None and memory > self.memory
        )


@dataclass(frozen=True, slots=True)
class Worn:
    """Why a worker process is to be replaced: `runs`, `memory` or `threads`; with its numbers at that moment."""

    why: str
    runs: int
    memory: int | None
    hanging: int
    threads: int


def resident_bytes() -> int | None:
    """The resident memory of this process. None on a system that does not tell (only Linux does)."""
    try:
        return int(_MEMORY.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class Wear:
    """The wear of one worker process. `tell` is called once, when it is worn."""

    def __init__(self, limits: Limits, tell: Callable[[Worn], None]) -> None:
        self._memory_limit = limits.memory
        self._runs_limit = float("inf")
        if limits.runs is not None:
            self._runs_limit = limits.runs + random.randint(0, int(limits.runs * SPREAD))  # noqa: S311
        self._tell = tell
        self._told = False
        self._busy: Callable[[], bool] = lambda: False
        self._runs = 0
        self._claimed_since = False
        self._hanging = self._threads = 0
        self._weighing: asyncio.TimerHandle | None = None
        self._began = 0.0
        #: The resident memory before the first run.
        self.baseline: int | None = None
        #: Whether the process is so large that `room` must be asked before a claim.
        self.heavy = False

    @property
    def cramped(self) -> bool:
        """Whether the limit of memory leaves too little for the runs."""
        return (
            self._memory_limit is not None
            and self.baseline is not None
            and self.baseline > CRAMPED * self._memory_limit
        )

    def start(self, busy: Callable[[], bool]) -> None:
        """Called before the first claim. `busy`: whether any run is under way."""
        self._busy = busy
        self._began = asyncio.get_running_loop().time()
        self.baseline = resident_bytes()

    def room(self, room: int) -> int:
        """Number of runs that may be claimed of those that there is room for."""
        memory = resident_bytes()
        return 0 if memory is not None and memory > self._bloated_at else min(room, HEAVY_ROOM)

    @property
    def _bloated_at(self) -> float:
        return BLOATED * max(self._memory_limit or 0, self.baseline or 0)

    def stop(self) -> None:
        if self._weighing is not None:
            self._weighing.cancel()

    def claimed(self, count: int) -> None:
        """Called for every claim."""
        self._runs += count
        self._claimed_since = True
        if self._runs >= self._runs_limit and not self._told:
            wait = self._began + YOUNG_SECONDS - asyncio.get_running_loop().time()
            if wait <= 0:
                self._say("runs")
            else:
                asyncio.get_running_loop().call_later(wait, self._say, "runs")
                self._runs_limit = float("inf")
        if self._memory_limit is not None and self._weighing is None:
            self._weigh_later()

    def threads_changed(self, hanging: int, limit: int) -> None:
        """Called when a handler thread hangs or comes back. With half of them gone, the process is worn."""
        self._hanging, self._threads = hanging, limit
        if 2 * hanging >= limit:
            self._say("threads")

    def _weigh_later(self) -> None:
        self._weighing = asyncio.get_running_loop().call_later(WEIGH_SECONDS, self._weigh)

    def _weigh(self) -> None:
        self._weighing = None
        memory = resident_bytes()
        if memory is None or self._memory_limit is None:
            return
        young = asyncio.get_running_loop().time() - self._began < CRAMPED_SECONDS
        if memory > self._memory_limit and not (self.cramped and young):
            self._say("memory")
        self.heavy = memory > (self._bloated_at if self.cramped else self._memory_limit)
        if self._claimed_since or self.heavy or self._busy():
            self._claimed_since = False
            self._weigh_later()

    def _say(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._tell(Worn(why, self._runs, resident_bytes(), self._hanging, self._threads))
