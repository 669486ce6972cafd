"""Rescues the runs of lost workers: by the end of their lease, never by age."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from duly.figures import Figures
from duly.maintenance.claim_floor import ClaimFloor
from duly.maintenance.leader import LeaderService
from duly.store import maintenance
from duly.store.maintenance import Look
from duly.store.pool import Pool

log = logging.getLogger("duly.maintenance")

# Claims per pass.
MAX_CLAIMS = 100
# Pause between looks while no worker holds a claim. Still only seconds, because a lease may be very short.
IDLE_SECONDS = 2.5
# A look that takes the database longer than this is slow: in the index of leases, deleted claims lie in the way while
# vacuum may not remove them. Then all claims are read from the floor on, and the index is tried again when half of the
# dead rows are gone, or after a while.
SLOW_SECONDS = 0.002
MAX_SECONDS_WITHOUT_INDEX = 600.0
# If reading all claims is slow as well, because very many are held, leases that had ended by the last look are read
# again only after a pause of up to this, for a claim whose transaction took longer to commit than its lease.
MAX_PAUSE_SECONDS = 10.0


class Rescuer(LeaderService):
    """Returns runs of expired claims to the queue, or buries them, and lets waiting runs go that were missed."""

    interval = 1.0

    def __init__(self, pool: Pool, *, figures: Figures | None = None) -> None:
        super().__init__()
        self._figures = figures or Figures("scheduler")
        self._pool = pool
        self._passes = 0
        self._floor = ClaimFloor(pool)
        self._since: datetime | None = None
        # When each of the two ways to look at everything is tried again, and the dead rows at the last slow look.
        self._leases_at = self._claims_at = 0.0
        self._dead = 0

    async def work(self) -> float | None:
        now = time.monotonic()
        by_leases, by_claims = now >= self._leases_at, now >= self._claims_at
        rescued = await maintenance.rescue(
            self._pool,
            limit=MAX_CLAIMS,
            since=None if by_leases or by_claims else self._since,
            read_claims=by_claims and not by_leases,
        )
        if rescued.claims:
            self._figures.rescued += rescued.requeued + rescued.buried
            self._figures.runs["dead"] += rescued.buried
            log.warning(
                "rescued %d expired claims: %d runs back in the queue, %d to the dead letters",
                rescued.claims, rescued.requeued, rescued.buried,
            )  # fmt: skip
        for run in rescued.given_up:
            log.error("a run of a lost worker cannot be taken back: %s", run)
        if rescued.look is not None:
            self._learn(rescued.look, by_leases=by_leases, by_claims=by_claims)
            await self._floor.work(rescued.look.dead)
        # Needed far more rarely than a rescue: see free_waiting.sql.
        if self._passes % 5 == 0:
            await maintenance.free_waiting(self._pool)
        self._passes += 1
        if rescued.claims == MAX_CLAIMS:
            return 0.0
        return None if rescued.any_claims else IDLE_SECONDS

    def _learn(self, look: Look, *, by_leases: bool, by_claims: bool) -> None:
        slow = look.took > SLOW_SECONDS
        if by_leases:
            self._leases_at = time.monotonic() + min(MAX_SECONDS_WITHOUT_INDEX, 1000 * look.took) if slow else 0.0
            self._dead = look.dead
        elif look.dead < self._dead // 2:
            self._leases_at = 0.0
        elif by_claims:
            self._claims_at = time.monotonic() + min(MAX_PAUSE_SECONDS, 100 * look.took) if slow else 0.0
        if not look.expired:
            self._since = look.now
        elif self._since is not None:
            # After a clock was set back, by hand or by a promotion, leases end before the time of the last look.
            self._since = min(self._since, look.now)
