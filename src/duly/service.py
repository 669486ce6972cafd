"""The base of every background loop.

A service does one piece of work, `run_once`, again and again: at its interval, at once when woken, with growing pauses
while it fails. Tests never start the loop; they call `run_once`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod

from duly.errors import CoordinatorUnavailable, StoreUnavailable

log = logging.getLogger("duly.service")


class Service(ABC):
    """Start it, wake it, stop it. A failing `run_once` is logged and tried again; only `stop` ends the loop."""

    #: Seconds between two passes, unless the service is woken.
    interval: float = 1.0
    #: Spread of the interval, as a fraction, so that many nodes do not run at the same moments.
    jitter: float = 0.1
    #: Shortest and longest pause after an error, in seconds. Pauses double with each error.
    backoff: tuple[float, float] = (0.1, 5.0)
    #: Seconds that `stop` waits for the current pass. A pass that takes longer waits for a server that does not answer.
    patience: float = 3.0

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @abstractmethod
    async def run_once(self) -> float | None:
        """One pass. Returns the seconds until the next pass, or None for the interval."""

    def wake(self) -> None:
        """Starts the next pass now. Several calls before it starts count as one."""
        self._wake.set()

    async def start(self) -> None:
        if self._task is None:
            self._stopping = False
            self._task = asyncio.create_task(self._loop(), name=f"duly-{self.name}")

    async def stop(self) -> None:
        """Ends the loop after the current pass, or after `patience` seconds.

        A pass may be cut short at any point, as it is when the process is killed: each of its statements is atomic.
        """
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            task, self._task = self._task, None
            ended, _ = await asyncio.wait([task], timeout=self.patience)
            if not ended:
                log.warning("%s: its last pass does not end; stopping without it", self.name)
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    @property
    def stopping(self) -> bool:
        return self._stopping

    async def _loop(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            try:
                wanted = await self.run_once()
                failures = 0
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the loop must go on
                failures += 1
                wanted = self._pause_after(failures, error)
                # A wake-up would only run into the same error: the pause is needed.
                self._wake.clear()
            await self._pause(self.interval * random.uniform(1 - self.jitter, 1) if wanted is None else wanted)  # noqa: S311

    def _pause_after(self, failures: int, error: Exception) -> float:
        first, longest = self.backoff
        pause: float = min(longest, first * 2.0 ** min(failures - 1, 20)) * random.uniform(0.75, 1)  # noqa: S311
        if isinstance(error, (StoreUnavailable, CoordinatorUnavailable)):
            if failures in (1, 10) or failures % 100 == 0:
                log.warning("%s: %s; trying again (%d failures so far)", self.name, error, failures)
        else:
            log.error("%s failed; trying again in %.1f s", self.name, pause, exc_info=error)
        return pause

    async def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            # Give the loop a turn even when there is always more to do.
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
