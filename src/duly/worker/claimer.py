"""Takes runs from the store, as many as there is room for, when there is reason to think that some are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

from duly.clock import Clock
from duly.service import Service
from duly.store import runs as store
from duly.store.pool import Pool

# One claim's size is bounded because a completion reads its claim's arrays whole.
CLAIM_LIMIT = 1_000

Room = Callable[[], int]
Started = Callable[[store.Claim, float], None]


class Claimer(Service):
    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        *,
        worker_id: UUID,
        queues: Sequence[str],
        lease_seconds: float,
        poll_seconds: float,
        concurrency: int,
        room: Room,
        started: Started,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._clock = clock
        self._worker_id = worker_id
        # Priority before queue: the most urgent run of any queue this worker serves goes first.
        lanes = [(queue, priority) for priority in range(9, -1, -1) for queue in queues]
        self._lanes = [queue for queue, _ in lanes], [priority for _, priority in lanes]
        self._lease = lease_seconds
        self._room = room
        self._started = started
        # Under load, wait until a good part of the worker is free: few large claims are cheaper than many small ones.
        self._enough_room = max(1, min(CLAIM_LIMIT, concurrency // 2))
        self._more_waiting = False
        self.interval = poll_seconds

    def room_freed(self) -> None:
        """Runs were recorded. Worth a claim only if the last one left some behind."""
        if self._more_waiting and self._room() >= self._enough_room:
            self.wake()

    async def run_once(self) -> float | None:
        room = min(self._room(), CLAIM_LIMIT)
        if room <= 0:
            self._more_waiting = True
            return None
        sent = time.monotonic()
        claim = await store.claim(
            self._pool, worker_id=self._worker_id, lease_seconds=self._lease, limit=room, lanes=self._lanes
        )
        if claim.runs:
            self._started(claim, sent)
        self._more_waiting = len(claim.runs) == room
        if self._more_waiting:
            return 0.0 if self._room() >= self._enough_room else None
        if claim.next_run_at is not None:
            wait = (claim.next_run_at - self._clock.now()).total_seconds()
            return min(self.interval, max(0.001, wait))
        return None
