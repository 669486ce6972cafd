"""Claims runs from the store, as many as the worker has room for, when runs are likely to be there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from duly.clock import Clock
from duly.model import Claim
from duly.service import Service
from duly.store import runs
from duly.store.pool import Pool
from duly.worker.floors import Floors, Walk

# Runs per claim. Bounded because a completion reads its claim's arrays whole.
MAX_CLAIM = 1_000

# The busier a worker, the more runs it lets gather before it claims again: 0.25 ms per run of the last claim, at most
# 20 ms. At 100 runs per second a run waits 0.25 ms; from 4,000 per second on a claim brings 80 or more, and costs each
# of them a quarter of what a claim of 10 would.
GATHER_SECONDS_PER_RUN = 0.000_25
MAX_GATHER_SECONDS = 0.02

# When runs wait and the worker has a little room, it waits this long for more room before it claims.
PATIENCE_SECONDS = 0.01

# A claim walks over ten lanes per queue. A worker with more queues than this first asks which lanes hold runs.
MANY_QUEUES = 20

Room = Callable[[], int]
#: Names of the tasks to leave to other workers, or None.
Without = Callable[[], Sequence[str] | None]
Started = Callable[[Claim, float], None]


def weights_of(queues: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    """Queues with their weights; the default weight is 1."""
    return dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)


class Claimer(Service):
    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        *,
        worker_id: UUID,
        queues: Sequence[str] | Mapping[str, int],
        lease_seconds: float,
        poll_seconds: float,
        concurrency: int,
        room: Room,
        started: Started,
        without: Without = lambda: None,
        tenants: Sequence[str] = (),
    ) -> None:
        """`without`: tasks whose runs this worker does not claim at the moment, though their queue is one of its own.

        `tenants`: the tenants whose runs it claims; empty: all tenants.
        """
        super().__init__()
        self._pool = pool
        self._clock = clock
        self._worker_id = worker_id
        self._weights = weights_of(queues)
        self._lanes = _lanes(self._weights)
        self._floors = Floors()
        self._tenants = list(tenants)
        self._walk = Walk()
        self._lease = lease_seconds
        self._room = room
        self._started = started
        self._without = without
        self._narrowed = False
        # Under load, wait until half of the worker is free: few large claims are cheaper than many small ones.
        self._enough_room = max(1, min(MAX_CLAIM, concurrency // 2))
        self._more_waiting = False
        self._waiting_for_room: asyncio.TimerHandle | None = None
        self.interval = poll_seconds
        #: When the store last answered, or there was no room to ask for more: by the monotonic clock.
        self.looked_at = time.monotonic()

    def room_freed(self) -> None:
        """Called when runs were recorded. Claims only if the last claim left runs behind."""
        if not self._more_waiting:
            return
        room = self._room()
        if room >= self._enough_room:
            self.wake()
        elif room > 0 and self._waiting_for_room is None:
            # Slow handlers may take minutes to free that much; the free part must not stand idle meanwhile.
            self._waiting_for_room = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self.wake)

    def widened(self) -> None:
        """Called when there may be room again for tasks that the last claim left to others."""
        if self._narrowed:
            self.wake()

    async def run_once(self) -> float | None:
        if self._waiting_for_room is not None:
            self._waiting_for_room.cancel()
            self._waiting_for_room = None
        room = min(self._room(), MAX_CLAIM)
        if room <= 0:
            self._more_waiting = True
            self.looked_at = time.monotonic()
            return None
        without = self._without()
        self._narrowed = without is not None
        lanes = await self._lanes_now()
        sent = time.monotonic()
        served = None
        if self._tenants or without is not None:
            served = runs.Served(self._tenants or None, self._walk.stretch)
        claim = await runs.claim(
            self._pool,
            worker_id=self._worker_id,
            lease_seconds=self._lease,
            limit=room,
            lanes=lanes,
            floors=self._floors.of(lanes, sent) if served is None else self._walk.of(lanes, sent, without),
            without=without or (),
            served=served,
        )
        answered = self.looked_at = time.monotonic()
        # Before anything starts: no run may seem to have started before it was due.
        self._pool.clock.observe(claim.now, sent, answered)
        walking = False
        if served is not None:
            walking = self._walk.learn(lanes, claim, answered, full=len(claim.runs) == room)
        else:
            self._floors.learn(lanes, claim, answered, full=len(claim.runs) == room)
        if claim.runs:
            self._started(claim, sent)
        self._more_waiting = len(claim.runs) == room
        if self._more_waiting:
            if self._room() >= self._enough_room:
                return 0.0
            self.room_freed()  # room may have come free during the claim
            return None
        if walking:
            return 0.0
        if claim.next_run_at is not None:
            wait = (claim.next_run_at - self._clock.now()).total_seconds()
            return min(
                self.interval, max(0.001, wait, min(MAX_GATHER_SECONDS, GATHER_SECONDS_PER_RUN * len(claim.runs)))
            )
        return None

    async def _lanes_now(self) -> runs.Lanes:
        """The lanes of one claim. The order of several queues is drawn anew for each claim.

        A queue comes first in proportion to its weight (Efraimidis and Spirakis: sort by exponential variates), so that
        queues which could each fill the worker share it by weight, and none waits for another to become empty.
        """
        if len(self._weights) > MANY_QUEUES:
            found = await runs.lanes(self._pool, queues=list(self._weights))
            rank = {queue: number for number, queue in enumerate(self._drawn({queue for queue, _ in found}))}
            found.sort(key=lambda lane: (-lane[1], rank[lane[0]]))
            return [queue for queue, _ in found], [priority for _, priority in found]
        if len(self._weights) > 1:
            return _lanes(self._drawn(self._weights))
        return self._lanes

    def _drawn(self, queues: Iterable[str]) -> list[str]:
        return sorted(queues, key=lambda queue: random.expovariate(self._weights[queue]))


def _lanes(queues: Iterable[str]) -> runs.Lanes:
    # Priority before queue: the most urgent run of any queue this worker serves goes first.
    names = list(queues)
    return names * 10, [priority for priority in range(9, -1, -1) for _ in names]
