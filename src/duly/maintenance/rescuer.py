"""Takes back the runs of workers that are gone: by lease expiry, never by age."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from duly.maintenance.claim_floor import ClaimFloor
from duly.maintenance.leader import LeaderService
from duly.store import maintenance
from duly.store.maintenance import Rescued
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")

BATCH = 100
# Between two looks when no worker holds anything. Still only seconds, because a worker may have a very short lease.
IDLE_SECONDS = 2.5
# A look at all leases that takes the database longer than this is slow: dead rows lie in its way, and vacuum may not
# remove them. Then what had ended by the last look is looked at again only every now and then, for a claim whose
# transaction took longer to commit than its lease.
SLOW_SECONDS = 0.005
LEAST_PAUSE, LONGEST_PAUSE = 1.0, 10.0


class Rescuer(LeaderService):
    interval = 1.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._passes = 0
        self._floor = ClaimFloor(pool)
        self._since: datetime | None = None
        self._whole_at = 0.0

    async def work(self) -> float | None:
        whole = time.monotonic() >= self._whole_at
        rescued = await maintenance.rescue(self._pool, limit=BATCH, since=None if whole else self._since)
        if rescued.claims:
            log.warning(
                "rescued %d expired claims: %d runs back in the queue, %d to the dead letters",
                rescued.claims, rescued.requeued, rescued.buried,
            )  # fmt: skip
        for run in rescued.given_up:
            log.error("a run of a lost worker cannot be taken back: %s", run)
        await self._learn(rescued, whole=whole)
        # Far rarer than a lost worker: see free_waiting.sql.
        if self._passes % 5 == 0:
            await maintenance.free_waiting(self._pool)
        self._passes += 1
        if rescued.claims == BATCH:
            return 0.0
        return None if rescued.held else IDLE_SECONDS

    async def _learn(self, rescued: Rescued, *, whole: bool) -> None:
        look = rescued.look
        if look is None:
            return
        if whole:
            pause = min(LONGEST_PAUSE, max(LEAST_PAUSE, 100 * look.took))
            self._whole_at = time.monotonic() + pause if look.took > SLOW_SECONDS else 0.0
        if not look.expired:
            self._since = look.now
        elif self._since is not None:
            # A clock that was set back, by hand or by a promotion, gives leases that end before what was seen.
            self._since = min(self._since, look.now)
        await self._floor.work(look.dead)
