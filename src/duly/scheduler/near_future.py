"""The next minutes of the shards this node leads: which job is due when.

The store is the truth. What is held here may be wrong in any way without harm, because a fire re-checks everything; it
only decides when this node looks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from uuid import UUID

from duly.clock import Clock
from duly.timing import Wheel


class NearFuture:
    """A timing wheel over a horizon, rebuilt shard by shard."""

    def __init__(self, clock: Clock, *, horizon_us: int) -> None:
        self._clock = clock
        self._horizon_us = horizon_us
        self._wheel = Wheel(horizon_us=horizon_us)
        # What was added to a shard while its pages were still coming in: the pages may be older than it.
        self._added_meanwhile: dict[int, list[tuple[bytes, int]]] = {}
        self._shards: set[int] = set()

    def __len__(self) -> int:
        return len(self._wheel)

    @property
    def horizon_end_us(self) -> int:
        return self._clock.now_us() + self._horizon_us

    def add(self, shard: int, job_id: UUID, due_us: int) -> bool:
        """One job that will be due. Beyond the horizon it is left to the next re-read."""
        if shard not in self._shards or due_us > self.horizon_end_us:
            return False
        self._wheel.add(shard, job_id.bytes, due_us)
        if (added := self._added_meanwhile.get(shard)) is not None:
            added.append((job_id.bytes, due_us))
        return True

    def lead(self, shard: int) -> None:
        self._shards.add(shard)

    def drop(self, shard: int) -> None:
        self._shards.discard(shard)
        self._added_meanwhile.pop(shard, None)
        self._wheel.drop_shard(shard)

    def begin_load(self, shard: int) -> None:
        self._added_meanwhile[shard] = []

    def end_load(self, shard: int, entries: Iterable[tuple[UUID, int]]) -> None:
        """Replace all of a shard by what was read, and what came in while reading."""
        meanwhile = self._added_meanwhile.pop(shard, [])
        if shard not in self._shards:
            return
        ids = bytearray()
        dues = array("q")
        for job_id, due_us in entries:
            ids += job_id.bytes
            dues.append(due_us)
        for raw_id, due_us in meanwhile:
            ids += raw_id
            dues.append(due_us)
        self._wheel.drop_shard(shard)
        self._wheel.load(shard, bytes(ids), dues)

    def take_due(self) -> list[tuple[int, list[tuple[bytes, int]]]]:
        """Everything due by now, by shard. It is no longer held here."""
        return self._wheel.advance(self._clock.now_us())

    def seconds_to_next(self) -> float | None:
        """Until the earliest entry; None if there is none."""
        next_us = self._wheel.next_due_us()
        return None if next_us is None else max(0.0, (next_us - self._clock.now_us()) / 1e6)
