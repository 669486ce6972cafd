"""The next minutes of the shards this node leads: which job is due when.

The store is the truth. A wrong entry here does no harm, because a fire re-checks everything: entries only decide when
this node looks.
"""

from __future__ import annotations

from array import array
from uuid import UUID

from duly.clock import Clock
from duly.timing import Wheel


class NearFuture:
    """A timing wheel over a horizon. The entries of a shard are kept for one term; the next term starts empty."""

    def __init__(self, clock: Clock, *, horizon_us: int) -> None:
        self._clock = clock
        self.horizon_us = horizon_us
        self._wheel = Wheel(horizon_us=horizon_us)
        self._shards: set[int] = set()

    def __len__(self) -> int:
        return len(self._wheel)

    @property
    def now_us(self) -> int:
        return self._clock.now_us()

    @property
    def horizon_end_us(self) -> int:
        return self._clock.now_us() + self.horizon_us

    def add(self, shard: int, job_id: UUID, due_us: int) -> bool:
        """Adds one job. Returns False for a job of another shard, or beyond the horizon: the loader reads it later."""
        if shard not in self._shards or due_us > self.horizon_end_us:
            return False
        self._wheel.add(shard, job_id.bytes, due_us)
        return True

    def load(self, shard: int, job_ids: bytes, dues_us: array[int]) -> int:
        """Adds many jobs, with 16 bytes of id for each. Returns how many of them were new."""
        return self._wheel.load(shard, job_ids, dues_us) if shard in self._shards else 0

    def lead(self, shard: int) -> None:
        """Starts a term: the entries of an earlier term are dropped."""
        self._wheel.drop_shard(shard)
        self._shards.add(shard)

    def drop(self, shard: int) -> None:
        self._shards.discard(shard)
        self._wheel.drop_shard(shard)

    def take_due(self, ahead_us: int = 0) -> list[tuple[int, list[tuple[bytes, int]]]]:
        """Removes and returns the entries due by now + `ahead_us`, by shard."""
        return self._wheel.advance(self._clock.now_us() + ahead_us)

    def head_start_us(self, *, per_second: int, max_us: int) -> int:
        """The head start needed so that nothing is late at `per_second` jobs per second; 0 if none is needed.

        More jobs than can be done in time are a peak, half a million at midnight: work on it begins before it is due.
        """
        if len(self._wheel) < per_second:
            return 0
        now_us, total, head_start_us = self._clock.now_us(), 0, 0
        for due_us, count in self._wheel.crowds(now_us + max_us):
            total += count
            needed_us = total * 1_000_000 // per_second
            if needed_us > due_us - now_us:
                head_start_us = needed_us
        return min(head_start_us, max_us)

    def seconds_to_next(self) -> float | None:
        """Seconds until the earliest entry; None if there is no entry."""
        next_us = self._wheel.next_due_us()
        return None if next_us is None else max(0.0, (next_us - self._clock.now_us()) / 1e6)
