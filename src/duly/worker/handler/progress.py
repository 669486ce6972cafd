"""Writes the progress that handlers report: at most twice a second, all runs in one statement."""

from __future__ import annotations

import asyncio
import logging
import threading
from uuid import UUID

from duly.errors import DataRefused
from duly.model import ClaimedRun
from duly.service import Service
from duly.store import progress
from duly.store.pool import Pool
from duly.worker.handler.errors import clean

log = logging.getLogger("duly.worker")

MAX_NOTE_CHARACTERS = 500
# Pause between two writes.
_PAUSE_SECONDS = 0.5


class ProgressWriter(Service):
    """Keeps the latest report of each run until it is written."""

    interval = 3600.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._home = asyncio.get_running_loop()
        # Handlers in threads report as well.
        self._lock = threading.Lock()
        self._reports: dict[tuple[UUID, int], tuple[float, str]] = {}

    def say(self, run: ClaimedRun, fraction: float, note: str) -> None:
        with self._lock:
            first = not self._reports
            self._reports[run.claim_id, run.ordinal] = (float(fraction), clean(str(note)[:MAX_NOTE_CHARACTERS]))
        if first and not self._home.is_closed():
            self._home.call_soon_threadsafe(self.wake)

    async def run_once(self) -> float | None:
        with self._lock:
            reports, self._reports = self._reports, {}
        if not reports:
            return None
        try:
            await progress.write(self._pool, [(*run, *report) for run, report in sorted(reports.items())])
        except DataRefused as error:
            # The same reports would be refused again, for all runs; a handler that goes on reports again soon.
            log.warning("the progress of %d runs could not be stored: %s", len(reports), error)
        except Exception:
            with self._lock:
                self._reports = reports | self._reports
            raise
        await asyncio.sleep(_PAUSE_SECONDS)
        return 0.0
