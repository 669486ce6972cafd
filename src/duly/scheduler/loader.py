"""Keeps the near future of this node's shards in memory. The cost follows what falls due, not what is in memory.

With ten million jobs and 2,800 fires per second the horizon holds 1.7 million entries. They are read once, when a term
begins. After that an entry comes in by one of four ways:

1. The node's own fires: a fire knows the next occurrence of the job it moves.
2. Announcements (`NOTIFY duly_due`) of jobs that were submitted, changed or resumed. Few jobs are named one by one; a
   bulk submit names the range of its ids, which ascend with the time they were made, and that range of the primary key
   is read; for more than that the announcement is `*`, and the next two ways find the jobs.
3. The horizon moves on: only the slice between its old and its new end is read. Every occurrence is read once this way.
4. The re-read, for lost announcements: everything due before now + two intervals is read again. So each entry is read
   again twice before its time, whenever its announcement was lost, and one re-read may fail without any job being late.
   A job whose announcement was lost less than an interval before its time fires at the next re-read. Jobs further ahead
   need not be read again yet. A re-read only adds missing entries: none is kept twice.

Where no announcement arrives (notifications are off, only a pooler is known, or the listening connection is being
replaced) the loader reads the next seconds every few seconds (`silent_seconds`), often enough that a job submitted for
soon is fired before it counts as missed. Each such look reads the jobs due within two of these pauses.

So the work of an interval is to read (3 × the jobs due in an interval) rows from an index range, in bytes that Python
does not take apart unless the slot of the wheel has an entry already. An index of jobs by the time of their last change
would find lost announcements with less reading, but every fire would have to write to it.

A term is rebuilt, never merged: the entries of a shard are dropped when a new term begins, and read in pages, all
shards side by side, soonest first, so that firing begins with the first page. Jobs long overdue (after an outage
perhaps all jobs) are read beside the coming ones, not before them.

An outdated entry (its job was moved, paused or cancelled) stays until its time comes, and costs one probe.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from uuid import UUID

from duly.model import from_micros, to_micros
from duly.scheduler.near_future import NearFuture
from duly.service import Service
from duly.store import fires
from duly.store.fires import LONG_AGO, Slice
from duly.store.pool import Pool

log = logging.getLogger("duly.scheduler")

# Entries per statement over all shards: a few milliseconds of the event loop, so that fires beside it stay on time.
MAX_PAGE = 8_000
# Entries per statement of one shard: enough to be worth a statement, few enough that PostgreSQL walks the index.
MAX_SHARD_PAGE = 1_000
# Slices per statement: both slices of each of 64 shards.
MAX_SLICES = 128
# Pages read of one announced range of ids: a longer range is not that of one bulk submit.
_MAX_RANGE_PAGES = 25
# Announced ranges kept to be read one by one.
_MAX_RANGES = 50
# Overdue jobs of a shard are not read again while this many of its jobs wait in the backlog: they would be the same.
_MAX_WAITING = 1_000
# Jobs overdue by more than this when a term begins are read beside the coming ones, not before them.
_OVERDUE = timedelta(seconds=10)
# A look at all overdue jobs is slow if it takes longer than this, plus a time per job that it found. A job that moved
# leaves a dead index entry before the first due one, and while a long transaction keeps a snapshot, vacuum may not
# remove it (0.7 s with 800,000). After a slow look, looks begin at the oldest job that the last one found, and only one
# per pause (100 times as long as it took, at most 10 minutes) looks further back. Submits and changes are announced;
# the whole look is for a job of a long transaction whose announcement was lost as well.
_SLOW_SECONDS = 0.25
_SLOW_SECONDS_PER_JOB = 50e-6
_MAX_WHOLE_PAUSE_SECONDS = 600.0
# Looks begin at least this long ago, for jobs whose transaction commits late.
_LATE_COMMIT = timedelta(minutes=1)


def _none_waiting(_shard: int) -> int:
    return 0


def _always() -> bool:
    return True


class Loader(Service):
    def __init__(
        self,
        pool: Pool,
        future: NearFuture,
        *,
        interval: float,
        changed: Callable[[], None],
        waiting: Callable[[int], int] = _none_waiting,
        hearing: Callable[[], bool] = _always,
        silent_seconds: float = 1.0,
    ) -> None:
        """`changed` is called when entries were added.
        `waiting`: how many jobs of a shard were taken from the near future and wait in the backlog.
        `hearing`: whether announcements reach this node now; `silent_seconds`: between two looks while they do not.
        """
        super().__init__()
        self._pool = pool
        self._future = future
        self._changed = changed
        self._waiting = waiting
        self._hearing = hearing
        self._shards: set[int] = set()
        self._until: dict[int, datetime] = {}
        """The time up to which each shard was read."""
        self._oldest: dict[int, datetime] = {}
        """The time from which a look reads each shard while whole looks are slow."""
        self._whole_at = 0.0
        """When the next look reads all overdue jobs, by the monotonic clock."""
        self._fresh: set[int] = set()
        """Shards to read from nothing: their term began, or a fire's answer was lost."""
        self._ranges: set[tuple[UUID, UUID]] = set()
        """Announced ranges of job ids, first and last, to be read."""
        self._asked = False
        """Whether an announcement asked for a look without saying at which jobs."""
        # The horizon must not be used up before it moves on, however long the configured interval is.
        self.interval = min(interval, future.horizon_us / 4e6)
        self._next_look = time.monotonic() + self.interval
        self._reach = timedelta(seconds=2 * self.interval)
        self._silent_seconds = min(silent_seconds, self.interval)

    def lead(self, shard: int) -> None:
        """Starts a term: its shard is loaded at once, from nothing."""
        self._shards.add(shard)
        self._until.pop(shard, None)
        self._oldest.pop(shard, None)
        self._fresh.add(shard)
        self._future.lead(shard)
        self.wake()

    def drop(self, shard: int) -> None:
        self._shards.discard(shard)
        self._until.pop(shard, None)
        self._oldest.pop(shard, None)
        self._fresh.discard(shard)
        self._future.drop(shard)

    def doubt(self, shard: int) -> None:
        """Reads a shard again after a fire whose answer was lost: it may have moved jobs, and nobody announces that."""
        if shard in self._shards:
            self._fresh.add(shard)
            self.wake()

    def heard(self, payload: str | None) -> None:
        """Reads an announcement: `shard:job_id:due_us`, `*:first_id:last_id` (several by commas), or `*` (any job)."""
        if payload is None or payload == "*":
            self._look_now()
            return
        for entry in payload.split(","):
            try:
                shard, job_id, due = entry.split(":")
                if shard == "*":
                    self._heard_range(UUID(job_id), UUID(due))
                else:
                    self._future.add(int(shard), UUID(job_id), int(due))
            except ValueError:
                log.warning("a notification could not be read: %r", entry[:100])
                self._look_now()
        self._changed()

    def _heard_range(self, first: UUID, last: UUID) -> None:
        if not self._shards:
            return
        self._ranges.add((first, last))
        if len(self._ranges) > _MAX_RANGES:
            # Ranges come faster than they can be read one by one: a look finds the jobs that are due soon.
            self._ranges.clear()
            self._asked = True
        self.wake()

    def _look_now(self) -> None:
        self._asked = True
        self.wake()

    async def run_once(self) -> float | None:
        """Does the work that woke it; at the interval, or if nothing woke it, also the regular re-read.

        While no announcement arrives, every pass between two regular re-reads looks at the next seconds.
        """
        hearing = self._hearing()
        woken = bool(self._fresh or self._ranges or self._asked)
        regular = time.monotonic() >= self._next_look or (hearing and not woken)
        if self._fresh:
            await self._fill()
        while self._ranges:
            await self._load_range(*next(iter(self._ranges)))
        if self._asked or regular:
            await self._look()
        elif not hearing:
            await self._look(near=True)
        if regular:
            await self._pool.measure_clock()
            self._next_look = time.monotonic() + self.interval
        if self._fresh or self._ranges or self._asked:
            return 0.0
        if not self._hearing():
            return self._silent_seconds
        return None if regular else max(0.0, self._next_look - time.monotonic())

    async def _fill(self) -> None:
        """Reads the whole horizon of fresh shards."""
        shards, self._fresh = self._fresh, set()
        upto = from_micros(self._future.horizon_end_us)
        overdue = from_micros(self._future.now_us) - _OVERDUE
        try:
            coming = [Slice(shard, overdue, upto) for shard in sorted(shards)]
            await self._read(coming + [Slice(shard, LONG_AGO, overdue) for shard in sorted(shards)])
        except BaseException:
            self._fresh |= shards & self._shards
            raise
        self._has_read(shards, upto)

    async def _look(self, *, near: bool = False) -> None:
        """Reads the new end of the horizon, and its nearest part again. `near`: only the next seconds."""
        asked, self._asked = self._asked or not near, False
        reach = timedelta(seconds=2 * self._silent_seconds) if near else self._reach
        upto = from_micros(self._future.horizon_end_us)
        now = from_micros(self._future.now_us)
        began = time.monotonic()
        whole = began >= self._whole_at or not self._oldest.keys() >= self._until.keys()
        slices = []
        for shard, until in sorted(self._until.items()):
            # A shard read beyond the present horizon was read by a wrong clock, which was corrected since.
            known = self._until[shard] = min(until, upto)
            after = (LONG_AGO if whole else self._oldest[shard]) if self._waiting(shard) < _MAX_WAITING else now
            slices.append(Slice(shard, after, min(now + reach, known)))
            if known < upto and not near:
                slices.append(Slice(shard, known, upto))
        shards = set(self._until)
        try:
            oldest, found = await self._read(slices)
        except BaseException:
            self._asked = self._asked or asked
            raise
        for part in slices:
            if part.after < now:
                # Before the first job that was found, and before jobs that may be committed late.
                first = oldest.get(part.shard, now) - timedelta(microseconds=1)
                self._oldest[part.shard] = min(now - _LATE_COMMIT, first)
        if whole:
            took = time.monotonic() - began
            slow = took > _SLOW_SECONDS + _SLOW_SECONDS_PER_JOB * found
            self._whole_at = began + min(_MAX_WHOLE_PAUSE_SECONDS, 100 * took) if slow else 0.0
        if not near:
            self._has_read(shards, upto)

    def _has_read(self, shards: Iterable[int], upto: datetime) -> None:
        for shard in shards:
            # A shard whose term began anew meanwhile is in `_fresh`, whatever the older term has read.
            if shard in self._shards and shard not in self._fresh:
                self._until[shard] = upto

    async def _read(self, slices: list[Slice]) -> tuple[dict[int, datetime], int]:
        """Reads a page of every slice, then the next page of the slices that have more.

        Returns the first due time of each shard with due jobs, and how many jobs were read.
        """
        first_us: dict[int, int] = {}
        found = 0
        waiting = deque(slices)
        while waiting:
            slices = [waiting.popleft() for _ in range(min(MAX_SLICES, len(waiting)))]
            pages = await fires.load(
                self._pool, slices=slices, page=min(MAX_SHARD_PAGE, max(1, MAX_PAGE // len(slices)))
            )
            new = sum([self._future.load(page.shard, page.job_ids, page.dues_us) for page in pages])
            if new:
                self._changed()
            for page in pages:
                found += len(page.dues_us)
                first_us[page.shard] = min(page.dues_us[0], first_us.get(page.shard, page.dues_us[0]))
            waiting.extend(page.rest for page in pages if page.rest is not None and page.shard in self._shards)
        return {shard: from_micros(due_us) for shard, due_us in first_us.items()}, found

    async def _load_range(self, first: UUID, last: UUID) -> None:
        horizon_us = self._future.horizon_end_us
        after = UUID(int=max(0, first.int - 1))
        for _ in range(_MAX_RANGE_PAGES):
            page = await fires.load_range(self._pool, after=after, upto=last, page=MAX_PAGE)
            by_shard: dict[int, list[tuple[UUID, int]]] = {}
            for job_id, shard, due in page:
                if due is not None and (due_us := to_micros(due)) <= horizon_us:
                    by_shard.setdefault(shard, []).append((job_id, due_us))
            for shard, entries in by_shard.items():
                ids = b"".join([job_id.bytes for job_id, _ in entries])
                self._future.load(shard, ids, array("q", [due_us for _, due_us in entries]))
            self._changed()
            if len(page) < MAX_PAGE:
                break
            after = page[-1][0]
        else:
            self._asked = True
        self._ranges.discard((first, last))
