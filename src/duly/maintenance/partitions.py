"""Makes the history's partitions seven days ahead, so that midnight never waits for one.

A partition cannot be attached while a query reads the history, and waiting for that lock makes all later queries wait.
So each try is given up after a moment (`duly.make_partition`) and repeated later.
"""

from __future__ import annotations

import logging

from duly.maintenance.leader import LeaderService
from duly.store import maintenance
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")

# Pauses while another lock is in the way; doubled after each try, because a try holds up all others for 50 ms.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 20.0, 600.0


class Partitions(LeaderService):
    """Makes missing partitions once an hour."""

    interval = 3600.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._next_try = _MIN_PAUSE_SECONDS

    async def work(self) -> float | None:
        done = await maintenance.ensure_partitions(self._pool)
        if done.made:
            log.info("made %d partitions ahead", done.made)
        for failure in done.failed:
            log.warning("a partition could not be made, its rows stay in the default one: %s", failure)
        if done.put_off is None:
            self._next_try = _MIN_PAUSE_SECONDS
            return None
        log.info("the partition of %s waits: the table is read or locked; tried again later", done.put_off)
        pause, self._next_try = self._next_try, min(2 * self._next_try, _MAX_PAUSE_SECONDS)
        return pause
