"""Takes back the runs of workers that are gone: by lease expiry, never by age."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from duly.maintenance.claim_floor import ClaimFloor
from duly.maintenance.leader import LeaderService
from duly.store import maintenance
from duly.store.maintenance import Look
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")

BATCH = 100
# Between two looks when no worker holds anything. Still only seconds, because a worker may have a very short lease.
IDLE_SECONDS = 2.5
# A look that takes the database longer than this is slow. In the index of leases, claims that are gone lie in the way
# while vacuum may not remove them. Then all claims are read, from the floor on, and the index is tried again when many
# of the dead rows are gone, or after a while.
SLOW_SECONDS = 0.002
LONGEST_WITHOUT_INDEX = 600.0
# If that is slow as well, because very many are held, what had ended by the last look is looked at again only every now
# and then, for a claim whose transaction took longer to commit than its lease.
LONGEST_PAUSE = 10.0


class Rescuer(LeaderService):
    interval = 1.0

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._passes = 0
        self._floor = ClaimFloor(pool)
        self._since: datetime | None = None
        # When each of the two ways to look at everything is tried again, and how many dead rows made one slow.
        self._leases_at = self._claims_at = 0.0
        self._dead = 0

    async def work(self) -> float | None:
        now = time.monotonic()
        by_leases, by_claims = now >= self._leases_at, now >= self._claims_at
        rescued = await maintenance.rescue(
            self._pool,
            limit=BATCH,
            since=None if by_leases or by_claims else self._since,
            read_claims=by_claims and not by_leases,
        )
        if rescued.claims:
            log.warning(
                "rescued %d expired claims: %d runs back in the queue, %d to the dead letters",
                rescued.claims, rescued.requeued, rescued.buried,
            )  # fmt: skip
        for run in rescued.given_up:
            log.error("a run of a lost worker cannot be taken back: %s", run)
        if rescued.look is not None:
            self._learn(rescued.look, by_leases=by_leases, by_claims=by_claims)
            await self._floor.work(rescued.look.dead)
        # Far rarer than a lost worker: see free_waiting.sql.
        if self._passes % 5 == 0:
            await maintenance.free_waiting(self._pool)
        self._passes += 1
        if rescued.claims == BATCH:
            return 0.0
        return None if rescued.held else IDLE_SECONDS

    def _learn(self, look: Look, *, by_leases: bool, by_claims: bool) -> None:
        slow = look.took > SLOW_SECONDS
        if by_leases:
            self._leases_at = time.monotonic() + min(LONGEST_WITHOUT_INDEX, 1000 * look.took) if slow else 0.0
            self._dead = look.dead
        elif look.dead < self._dead // 2:
            self._leases_at = 0.0
        elif by_claims:
            self._claims_at = time.monotonic() + min(LONGEST_PAUSE, 100 * look.took) if slow else 0.0
        if not look.expired:
            self._since = look.now
        elif self._since is not None:
            # A clock that was set back, by hand or by a promotion, gives leases that end before what was seen.
            self._since = min(self._since, look.now)
