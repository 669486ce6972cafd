"""Makes the history's partitions ahead of time, so that a midnight never waits for one."""

from __future__ import annotations

import logging

from duly.maintenance.leader import LeaderService
from duly.store import maintenance
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")


class Partitions(LeaderService):
    interval = 3600.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    async def work(self) -> float | None:
        if made := await maintenance.ensure_partitions(self._pool):
            log.info("made %d partitions ahead", made)
        return None
