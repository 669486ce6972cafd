"""Takes back the runs of workers that are gone: by lease expiry, never by age."""

from __future__ import annotations

import logging

from duly.maintenance.leader import LeaderService
from duly.store import maintenance
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")

BATCH = 100
# Between two looks when no worker holds anything. Still only seconds, because a worker may have a very short lease.
IDLE_SECONDS = 2.5


class Rescuer(LeaderService):
    interval = 1.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._passes = 0

    async def work(self) -> float | None:
        rescued = await maintenance.rescue(self._pool, limit=BATCH)
        if rescued.claims:
            log.warning(
                "rescued %d expired claims: %d runs back in the queue, %d to the dead letters",
                rescued.claims, rescued.requeued, rescued.buried,
            )  # fmt: skip
        # Far rarer than a lost worker: see free_waiting.sql.
        if self._passes % 5 == 0:
            await maintenance.free_waiting(self._pool)
        self._passes += 1
        if rescued.claims == BATCH:
            return 0.0
        return None if rescued.held else IDLE_SECONDS
