"""Makes what handlers say of their progress visible: at most once a second, all runs in one statement."""

from __future__ import annotations

import asyncio
import logging
import threading
from uuid import UUID

from duly.errors import DataRefused
from duly.model import ClaimedRun
from duly.service import Service
from duly.store import progress as store
from duly.store.pool import Pool
from duly.worker.handler.errors import clean

log = logging.getLogger("duly.worker")

NOTE_LIMIT = 500
_PAUSE = 0.5


class Progress(Service):
    interval = 3600.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._home = asyncio.get_running_loop()
        # Handlers say it from their threads, too.
        self._lock = threading.Lock()
        self._said: dict[tuple[UUID, int], tuple[float, str]] = {}

    def say(self, run: ClaimedRun, fraction: float, note: str) -> None:
        with self._lock:
            first = not self._said
            self._said[run.claim_id, run.ordinal] = (float(fraction), clean(str(note)[:NOTE_LIMIT]))
        if first and not self._home.is_closed():
            self._home.call_soon_threadsafe(self.wake)

    async def run_once(self) -> float | None:
        with self._lock:
            said, self._said = self._said, {}
        if not said:
            return None
        try:
            await store.write(self._pool, [(*run, *what) for run, what in sorted(said.items())])
        except DataRefused as error:
            # Whoever goes on says more soon. To send the same again would be refused again, for all.
            log.warning("what %d runs said of their progress could not be stored: %s", len(said), error)
        except Exception:
            with self._lock:
                self._said = said | self._said
            raise
        await asyncio.sleep(_PAUSE)
        return 0.0
