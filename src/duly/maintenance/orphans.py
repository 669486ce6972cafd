"""Pauses declared jobs that no live deploy declares any more, with that reason; they are never deleted.

A job that was removed from the code would fire for ever, into a task that no worker has. It is paused when every live
worker of its application is of a newer deploy than the last that declared it. While no worker lives, nothing happens.
"""

from __future__ import annotations

import logging

from duly.maintenance.leader import LeaderService
from duly.store import declarations
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")

# Jobs per pass.
PAGE = 500


class Orphans(LeaderService):
    """Finds and pauses jobs that no deploy declares."""

    interval = 15.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    async def work(self) -> float | None:
        await pause_orphans(self._pool)
        return None


async def pause_orphans(pool: Pool) -> int:
    if not await declarations.exist(pool):
        return 0
    count = 0
    for orphan in await declarations.orphans(pool, limit=PAGE):
        if await declarations.pause_orphan(pool, orphan):
            count += 1
            log.warning("%s is paused: %s", orphan.key, orphan.reason)
    return count
