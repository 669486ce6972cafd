"""Takes runs from the store, as many as there is room for, when there is reason to think that some are there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from duly.clock import Clock
from duly.model import Claim
from duly.service import Service
from duly.store import runs as store
from duly.store.pool import Pool
from duly.worker.floors import Floors, Walk

# One claim's size is bounded because a completion reads its claim's arrays whole.
CLAIM_LIMIT = 1_000

# The busier a worker, the more it lets gather before it claims again: by this much for each run that the last claim
# brought, up to the longest. With a hundred a second they wait for a quarter of a millisecond; from four thousand on
# a claim brings eighty or more, and costs each of them a quarter of what a claim of ten would.
GATHER_SECONDS, LONGEST_GATHER = 0.000_25, 0.02

# When some of a worker is free and more is waiting, it is worth this much patience to see more of it become free.
PATIENCE_SECONDS = 0.01

# A claim walks over ten lanes a queue. A worker with more queues than these first asks which lanes hold anything.
MANY_QUEUES = 20

Room = Callable[[], int]
#: Names of tasks, or None for none of them.
Without = Callable[[], Sequence[str] | None]
Started = Callable[[Claim, float], None]


def weights_of(queues: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    """Queues with their weights, which are 1 where nobody gave any."""
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
        """`without`: tasks whose runs this worker does not take at the moment, though their queue is one of its own.

        `tenants`: whose runs it takes; none: everybody's.
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
        # Under load, wait until a good part of the worker is free: few large claims are cheaper than many small ones.
        self._enough_room = max(1, min(CLAIM_LIMIT, concurrency // 2))
        self._more_waiting = False
        self._waiting_for_room: asyncio.TimerHandle | None = None
        self.interval = poll_seconds

    def room_freed(self) -> None:
        """Runs were recorded. Worth a claim only if the last one left some behind."""
        if not self._more_waiting:
            return
        room = self._room()
        if room >= self._enough_room:
            self.wake()
        elif room > 0 and self._waiting_for_room is None:
            # Slow handlers may take minutes to free that much; meanwhile what is free must not stand idle.
            self._waiting_for_room = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self.wake)

    def widened(self) -> None:
        """There may be room again for tasks that the last claim left to others."""
        if self._narrowed:
            self.wake()

    async def run_once(self) -> float | None:
        if self._waiting_for_room is not None:
            self._waiting_for_room.cancel()
            self._waiting_for_room = None
        room = min(self._room(), CLAIM_LIMIT)
        if room <= 0:
            self._more_waiting = True
            return None
        without = self._without()
        self._narrowed = without is not None
        lanes = await self._lanes_now()
        sent = time.monotonic()
        served = store.Served(self._tenants, self._walk.stretch) if self._tenants else None
        claim = await store.claim(
            self._pool,
            worker_id=self._worker_id,
            lease_seconds=self._lease,
            limit=room,
            lanes=lanes,
            floors=self._floors.of(lanes, sent) if served is None else self._walk.of(lanes, sent, without),
            without=without,
            served=served,
        )
        answered = time.monotonic()
        # Before anything starts: no run may seem to have started before it was due.
        self._pool.clock.observe(claim.now, sent, answered)
        walking = False
        if served is not None:
            walking = self._walk.learn(lanes, claim, answered, full=len(claim.runs) == room)
        elif without is None:  # else nobody knows what was left in them
            self._floors.learn(lanes, claim, answered, full=len(claim.runs) == room)
        if claim.runs:
            self._started(claim, sent)
        self._more_waiting = len(claim.runs) == room
        if self._more_waiting:
            if self._room() >= self._enough_room:
                return 0.0
            self.room_freed()  # while the claim was under way, perhaps
            return None
        if walking:
            return 0.0
        if claim.next_run_at is not None:
            wait = (claim.next_run_at - self._clock.now()).total_seconds()
            return min(self.interval, max(0.001, wait, min(LONGEST_GATHER, GATHER_SECONDS * len(claim.runs))))
        return None

    async def _lanes_now(self) -> store.Lanes:
        """The lanes of one claim. Several queues come in an order drawn anew for each.

        Each is first as often as its weight says (Efraimidis and Spirakis: sort by exponential variates), so that
        queues which could each fill the worker share it by weight, and none waits for another to become empty.
        """
        if len(self._weights) > MANY_QUEUES:
            found = await store.lanes(self._pool, queues=list(self._weights))
            place = {queue: number for number, queue in enumerate(self._drawn({queue for queue, _ in found}))}
            found.sort(key=lambda lane: (-lane[1], place[lane[0]]))
            return [queue for queue, _ in found], [priority for _, priority in found]
        if len(self._weights) > 1:
            return _lanes(self._drawn(self._weights))
        return self._lanes

    def _drawn(self, queues: Iterable[str]) -> list[str]:
        return sorted(queues, key=lambda queue: random.expovariate(self._weights[queue]))


def _lanes(queues: Iterable[str]) -> store.Lanes:
    # Priority before queue: the most urgent run of any queue this worker serves goes first.
    names = list(queues)
    return names * 10, [priority for priority in range(9, -1, -1) for _ in names]
