"""The jobs that a node has taken from the near future and not fired yet, and the order in which it fires them.

A due job is in one of three queues. Jobs on time are fired first: behind the late jobs of an outage, perhaps half a
million, they would become late as well. The peak and the late jobs go on beside them, a batch at a time.

Jobs are collected a little ahead of their time (`ahead`), and those due soon after the first join its batch, so that a
steady load is fired by the quarter of a second. When more jobs are due at one moment than can be fired in time (a peak:
half a million at midnight), they are collected early enough.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from uuid import UUID

from duly.cluster.coordinator import Term
from duly.model import from_micros, to_micros
from duly.scheduler.near_future import NearFuture
from duly.store.sifting import Apart

# Larger batches gain little (78,000 jobs/s at 5,000) and hold the shard's row longer.
MAX_BATCH_JOBS = 2_000
# Two connections keep the database busy while Python plans; more only wait for its cores.
PARALLEL_BATCHES = 2
# Pause before a job whose row was changed or locked while it was fired is tried again, for as long as it is locked. The
# pause grows with the number of such jobs: a try costs 20 µs per job, and the jobs that nobody locks must be fired too.
TOUCHED_PAUSE_US = 50_000
_TOUCHED_PAUSE_US_PER_JOB = 200
_MAX_TOUCHED_PAUSE_US = 5_000_000
# Jobs that one node fires per second, with some capacity to spare, and the longest head start of a peak.
FIRES_PER_SECOND = 25_000
MAX_HEAD_START_SECONDS = 30
# Pause between two looks for a peak: each counts all jobs of the near future.
_PEAK_LOOK_US = 500_000

Queue = dict[int, deque[tuple[bytes, int]]]
"""Due jobs by shard: the 16 bytes of the id and the due time in microseconds since 1970, soonest first."""
_due = itemgetter(1)


@dataclass(slots=True)
class DueBatch:
    """Jobs taken from one queue: their due times and shards by id, and the terms under which they were taken."""

    queue: Queue
    late: bool
    ahead: timedelta
    """The longest time before they are due at which these jobs may be fired, by the database's clock."""
    terms: dict[int, Term] = field(default_factory=dict)
    dues: dict[bytes, int] = field(default_factory=dict)
    shards: dict[bytes, int] = field(default_factory=dict)
    fruitful: bool = False
    """Whether a part of the batch was fired."""

    @property
    def on_time_from(self) -> datetime | None:
        """Jobs due at or after this moment count as on time; None: the misfire grace alone decides."""
        return None if self.late else from_micros(min(self.dues.values()))


class Backlog:
    """The queues of one node, for the shards that it leads."""

    def __init__(self, future: NearFuture, *, misfire_grace: timedelta, ahead: timedelta) -> None:
        self._future = future
        self._misfire_grace_us = round(misfire_grace.total_seconds() * 1e6)
        self._ahead = ahead
        self._ahead_us = round(ahead.total_seconds() * 1e6)
        # Once the first job is as near as `ahead`, jobs due soon after it are taken as well: large batches cost less.
        self._together_us = self._ahead_us * 3 // 2
        self._terms: dict[int, Term] = {}
        self._on_time: Queue = {}
        """Jobs found within the misfire grace."""
        self._peak: Queue = {}
        """Jobs of a moment at which more are due than can be fired in time, collected with a head start."""
        self._late: Queue = {}
        """Jobs found after the misfire grace."""
        self._unsorted: Queue = {}
        """Jobs on time or of a peak when the store failed. The next `collect` decides whether they still are."""
        self._not_before: list[tuple[int, int, bytes]] = []
        """Heap of jobs (due time, shard, id) that are fired at their due time and not ahead of it, because an earlier
        run is unfinished."""
        self._retry_at: dict[bytes, tuple[int, int, int]] = {}
        """Touched jobs: id to (time of the next try, shard, due time), in the order of the next try."""
        self.apart: Apart[bytes, tuple[int, int]] = Apart()
        """Jobs (shard, due time) that make their batch fail. They are tried alone, so that the others are fired."""
        self._peaks_turn = False
        """Whether the last batch beside the on-time jobs was of the peak: peak and late jobs take turns."""
        self._looked_us = 0
        """When the last look for a peak was."""

    def lead(self, term: Term) -> None:
        self._terms[term.shard] = term

    def drop(self, shard: int) -> None:
        self._terms.pop(shard, None)
        for queue in self._queues:
            queue.pop(shard, None)
        self._not_before = [entry for entry in self._not_before if entry[1] != shard]
        heapq.heapify(self._not_before)
        self._retry_at = {raw: entry for raw, entry in self._retry_at.items() if entry[1] != shard}
        self.apart.keep(lambda entry: entry[0] != shard)

    @property
    def shards(self) -> frozenset[int]:
        """The shards that this node leads."""
        return frozenset(self._terms)

    def waiting(self, shard: int) -> int:
        """The number of a shard's jobs in the backlog, without those kept until they are due."""
        count = sum(entry[1] == shard for entry in self._retry_at.values())
        count += sum(entry[0] == shard for entry in self.apart.waiting)
        return count + sum(len(queue.get(shard, ())) for queue in self._queues)

    def __len__(self) -> int:
        queued = sum(len(entries) for queue in self._queues for entries in queue.values())
        return queued + len(self._not_before) + len(self._retry_at) + sum(1 for _ in self.apart.waiting)

    @property
    def _queues(self) -> tuple[Queue, ...]:
        return self._on_time, self._peak, self._late, self._unsorted

    def seconds_to_next(self, at_most: float) -> float:
        """Seconds until `collect` has something to do."""
        now_us, waits = self._future.now_us, [at_most]
        if (wait := self._future.seconds_to_next()) is not None:
            waits.append(wait - self._ahead.total_seconds())
        if self._not_before:
            waits.append((self._not_before[0][0] - now_us) / 1e6)
        if self._retry_at:
            waits.append((next(iter(self._retry_at.values()))[0] - now_us) / 1e6)
        if (wait := self.apart.seconds_to_next(now_us / 1e6)) is not None:
            waits.append(wait)
        return max(0.0, min(waits))

    def collect(self) -> None:
        """Queues every job whose time to be fired, or to be tried again, has come."""
        for shard, unsorted in self._unsorted.items():
            self._queue(shard, sorted(unsorted, key=_due))
        self._unsorted = {}
        now_us = self._future.now_us
        while self._not_before and self._not_before[0][0] <= now_us:
            due_us, shard, raw = heapq.heappop(self._not_before)
            self._queue(shard, [(raw, due_us)])
        for raw, (retry_us, shard, due_us) in list(self._retry_at.items()):
            if now_us < retry_us <= now_us + _MAX_TOUCHED_PAUSE_US:  # a later time means that the clock was set back
                break
            del self._retry_at[raw]
            self._queue(shard, [(raw, due_us)])
        for raw, (shard, due_us) in self.apart.take(now_us / 1e6):
            self._queue(shard, [(raw, due_us)])
        wait = self._future.seconds_to_next()
        if wait is not None and wait * 1e6 <= self._ahead_us:
            for shard, entries in self._future.take_due(self._together_us):
                self._queue(shard, entries)
        if self._ahead_us:
            self._collect_peak()

    def _collect_peak(self) -> None:
        now_us = self._future.now_us
        if abs(now_us - self._looked_us) < _PEAK_LOOK_US:
            return
        self._looked_us = now_us
        head_start_us = self._future.head_start_us(
            per_second=FIRES_PER_SECOND, max_us=MAX_HEAD_START_SECONDS * 1_000_000
        )
        if head_start_us <= self._ahead_us:
            return
        for shard, entries in self._future.take_due(head_start_us):
            if shard in self._terms:
                self._peak.setdefault(shard, deque()).extend(entries)

    def _queue(self, shard: int, entries: Sequence[tuple[bytes, int]]) -> None:
        """Queues entries, sorted by due time, as on time or late. A job on time stays so, however long its queue is."""
        if shard not in self._terms:
            return
        on_time_from_us = self._future.now_us - self._misfire_grace_us
        if queued := self._on_time.get(shard):
            # A re-read brings jobs again that are still in a long queue: that does not make them late.
            on_time_from_us = min(on_time_from_us, queued[0][1])
        late = bisect_left(entries, on_time_from_us, key=_due)
        if late:
            self._late.setdefault(shard, deque()).extend(entries[:late])
        if late < len(entries):
            self._on_time.setdefault(shard, deque()).extend(entries[late:])

    def next_batches(self) -> list[DueBatch]:
        """The batches to fire side by side now. While several queues have jobs, each gets its share of the batches."""
        queues = [queue for queue in (self._on_time, self._peak, self._late) if queue]
        if len(queues) == 1:
            return [batch for _ in range(PARALLEL_BATCHES) if (batch := self._next_batch(queues[0])).dues]
        if len(queues) > PARALLEL_BATCHES:
            # The peak and the late jobs take turns.
            self._peaks_turn = not self._peaks_turn
            queues.pop(2 if self._peaks_turn else 1)
        return [batch for queue in queues if (batch := self._next_batch(queue)).dues]

    def _next_batch(self, queue: Queue) -> DueBatch:
        """The first jobs of a queue, of as many shards as it takes to fill a batch."""
        late = queue is self._late
        # The database's clock never quite agrees with this node's: allow a little more than was collected.
        ahead = timedelta(seconds=MAX_HEAD_START_SECONDS + 1) if queue is self._peak else 2 * self._ahead
        batch, left = DueBatch(queue, late, ahead), MAX_BATCH_JOBS
        for shard in list(queue):
            entries, term = queue.pop(shard), self._terms.get(shard)
            if term is None:
                continue
            size = min(left, len(entries))
            if late and size < len(entries):
                # From both ends: the newest late jobs must not wait until the oldest are done.
                taken = [entries.popleft() for _ in range(size // 2)] + [entries.pop() for _ in range(size - size // 2)]
            else:
                taken = [entries.popleft() for _ in range(size)]
            batch.terms[shard] = term
            batch.dues.update(taken)
            batch.shards.update((raw, shard) for raw, _ in taken)
            # The rest goes behind the other shards, so that a shard with many jobs does not hold them up.
            if entries:
                queue[shard] = entries
            left -= size
            if not left:
                break
        return batch

    def put_back(self, batch: DueBatch, raws: Sequence[bytes]) -> None:
        """Returns jobs of a batch to its queue, unless their shard's term has ended."""
        for raw in raws:
            if self._is_led(batch, raw):
                batch.queue.setdefault(batch.shards[raw], deque()).append((raw, batch.dues[raw]))

    def set_apart(self, batch: DueBatch, raw: bytes) -> bool:
        """Takes a job out of its batch, to be tried alone after a pause. Returns whether this is its first time."""
        entry = batch.shards[raw], batch.dues[raw]
        return self._is_led(batch, raw) and self.apart.put(raw, entry, self._future.now_us / 1e6)

    def _is_led(self, batch: DueBatch, raw: bytes) -> bool:
        shard = batch.shards[raw]
        return self._terms.get(shard) is batch.terms[shard]

    def keep_until_due(self, shard: int, job_id: UUID, due_us: int) -> None:
        """For a job whose overlap cannot be decided before it is due."""
        heapq.heappush(self._not_before, (due_us, shard, job_id.bytes))

    def retry(self, shard: int, job_id: UUID, due: datetime) -> None:
        """Tries a touched job again after a pause. If it is still due then, it is fired; otherwise it is forgotten."""
        if shard in self._terms:
            self._retry_at.pop(job_id.bytes, None)
            pause_us = max(TOUCHED_PAUSE_US, _TOUCHED_PAUSE_US_PER_JOB * len(self._retry_at))
            retry_us = self._future.now_us + min(pause_us, _MAX_TOUCHED_PAUSE_US)
            last_us = next(reversed(self._retry_at.values()), (retry_us,))[0]
            self._retry_at[job_id.bytes] = (max(retry_us, last_us), shard, to_micros(due))

    def unsort(self) -> None:
        """Sorts on-time and peak jobs again at the next `collect`, after a failure of the store of unknown length."""
        for queue in (self._on_time, self._peak):
            for shard, entries in queue.items():
                self._unsorted.setdefault(shard, deque()).extend(entries)
            queue.clear()
