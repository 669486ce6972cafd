"""Makes the history's partitions ahead of time, so that a midnight never waits for one.

A partition cannot be attached while somebody reads the history, and who waits for such a lock makes everybody wait. So
each try is given up after a moment (`duly.make_partition`) and made again later: there are seven days.
"""

from __future__ import annotations

import logging

from duly.maintenance.leader import LeaderService
from duly.store import maintenance
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")

# Pauses while somebody's lock is in the way: all others stand still for a twentieth of a second at each try.
_FIRST_PAUSE, _LONGEST_PAUSE = 20.0, 600.0


class Partitions(LeaderService):
    interval = 3600.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._next_try = _FIRST_PAUSE

    async def work(self) -> float | None:
        done = await maintenance.ensure_partitions(self._pool)
        if done.made:
            log.info("made %d partitions ahead", done.made)
        for failure in done.failed:
            log.warning("a partition could not be made, its rows stay in the default one: %s", failure)
        if done.put_off is None:
            self._next_try = _FIRST_PAUSE
            return None
        log.info("the partition of %s waits: somebody reads or locks the table; tried again later", done.put_off)
        pause, self._next_try = self._next_try, min(2 * self._next_try, _LONGEST_PAUSE)
        return pause
