"""Keeps the near future of this node's shards in memory, at a cost that follows what falls due and not what is held.

With ten million jobs and 2,800 fires a second the horizon holds 1.7 million entries. They are read once, when a term
begins. After that an entry comes in by one of four ways:

1. The node's own fires: whoever moves a job knows where to.
2. Announcements (`NOTIFY duly_due`) of what was submitted, changed or resumed. Few jobs are named one by one; a bulk
   submit names the range of its ids, which ascend with the time they were made, and that range of the primary key is
   read; more than that is `*`, and is found by the next two.
3. The horizon moves on: only the slice between its old and its new end is read. Every occurrence is read once this way.
4. The re-read, for what an announcement lost: everything due before now + two intervals, again. So each entry is read
   again twice before its time, whenever it was lost, and one such look may fail without anything being late. A job
   whose announcement was lost less than an interval before its time fires at the next look. What lies further ahead
   need not be read again: its turn comes. What is known is not held twice: a look only adds what was missing.

Where nobody listens (notifications are off, only a pooler is known, or the listening connection is being replaced)
announcements are lost as a rule. Then a look at the next seconds comes every few seconds (`untold`), often enough that
whatever was submitted for soon is fired before it counts as missed. Each reads what is due within two such pauses.

So an interval's work is (3 × what falls due in an interval) rows read from an index range, in bytes that Python never
takes apart unless a slot of the wheel holds something already. An index of jobs by the time of their last change would
find lost announcements with less reading, but every fire would have to write to it.

A term is rebuilt, never merged: what was known of a shard is dropped when a new term begins, and read in pages, all
shards side by side, soonest first, so that firing begins with the first page. What is long overdue (after an outage:
perhaps everything) is read beside what is coming, not before it.

An entry that is no longer true (its job was moved, paused, cancelled) stays until its time comes, and costs one probe.
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
PAGE = 8_000
# And of one shard: enough to be worth a statement, few enough that the planner walks the index to them.
SHARD_PAGE = 1_000
# Slices per statement: both of each of 64 shards.
TOGETHER = 128
# A range of ids with more pages than this is no bulk submit of this moment.
_RANGE_PAGES = 25
_RANGES = 50
# Overdue jobs of a shard are not read again while this many of its jobs wait in the backlog: they would be the same.
_MAX_WAITING = 1_000
# What is later than this when a term begins is read beside what is coming, not before it.
_OVERDUE = timedelta(seconds=10)
# A look at all that is overdue is slow from here on (and so much more for each job that it found): a job that moved
# leaves a dead entry before the first that is due, and while somebody's report keeps a snapshot, vacuum may not remove
# it (0.7 s with 800,000). Then looks begin at the oldest job that the last one found, and only one in so many seconds
# looks further back. What is submitted or changed is announced; this is for a job of a long transaction whose
# announcement was lost as well.
_SLOW_SECONDS = 0.25
_SLOW_SECONDS_A_JOB = 50e-6
_LONGEST_WHOLE_PAUSE = 600.0
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
        told: Callable[[], bool] = _always,
        untold: float = 1.0,
    ) -> None:
        """`waiting`: how many jobs of a shard were taken from the near future and wait in the backlog.
        `told`: whether announcements reach this node now; `untold`: seconds between two looks while they do not.
        """
        super().__init__()
        self._pool = pool
        self._future = future
        self._changed = changed
        self._waiting = waiting
        self._told = told
        self._shards: set[int] = set()
        # Up to where each shard was read.
        self._until: dict[int, datetime] = {}
        self._oldest: dict[int, datetime] = {}
        self._whole_at = 0.0
        self._fresh: set[int] = set()
        self._ranges: set[tuple[UUID, UUID]] = set()
        self._asked = False
        # The horizon must not be used up before it moves on, however rarely somebody wants a re-read.
        self.interval = min(interval, future.horizon_us / 4e6)
        self._next_look = time.monotonic() + self.interval
        self._reach = timedelta(seconds=2 * self.interval)
        self._untold = min(untold, self.interval)

    def lead(self, shard: int) -> None:
        """A term began: its shard is loaded at once, from nothing."""
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
        """An answer was lost: jobs of this shard may have been moved by ourselves, and nobody announces where to."""
        if shard in self._shards:
            self._fresh.add(shard)
            self.wake()

    def heard(self, payload: str | None) -> None:
        """A notification: `shard:job_id:due_us` (several by commas), `*:first_id:last_id`, or `*` for anything."""
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
        if len(self._ranges) > _RANGES:
            # Faster than they can be read one by one: what is due soon is found by when it is due.
            self._ranges.clear()
            self._asked = True
        self.wake()

    def _look_now(self) -> None:
        self._asked = True
        self.wake()

    async def run_once(self) -> float | None:
        """What it was woken for; at the interval, or when nobody asked for anything, the regular look.

        While nobody tells of what is new, what comes between two regular looks is a look at the next seconds.
        """
        told = self._told()
        woken = bool(self._fresh or self._ranges or self._asked)
        regular = time.monotonic() >= self._next_look or (told and not woken)
        if self._fresh:
            await self._fill()
        while self._ranges:
            await self._load_range(*next(iter(self._ranges)))
        if self._asked or regular:
            await self._look()
        elif not told:
            await self._look(near=True)
        if regular:
            await self._pool.measure_clock()
            self._next_look = time.monotonic() + self.interval
        if self._fresh or self._ranges or self._asked:
            return 0.0
        if not self._told():
            return self._untold
        return None if regular else max(0.0, self._next_look - time.monotonic())

    async def _fill(self) -> None:
        """All of the horizon, for shards whose term began."""
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
        """The horizon moves on, and the nearest part of it is read again. `near`: only what is due within seconds."""
        asked, self._asked = self._asked or not near, False
        reach = timedelta(seconds=2 * self._untold) if near else self._reach
        upto = from_micros(self._future.horizon_end_us)
        now = from_micros(self._future.now_us)
        began = time.monotonic()
        whole = began >= self._whole_at or not self._oldest.keys() >= self._until.keys()
        slices = []
        for shard, until in sorted(self._until.items()):
            # Read further ahead than the horizon is now: this node's idea of the time was wrong, and was corrected.
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
                # Before the first job that was found, and before what may be committed late.
                first = oldest.get(part.shard, now) - timedelta(microseconds=1)
                self._oldest[part.shard] = min(now - _LATE_COMMIT, first)
        if whole:
            took = time.monotonic() - began
            slow = took > _SLOW_SECONDS + _SLOW_SECONDS_A_JOB * found
            self._whole_at = began + min(_LONGEST_WHOLE_PAUSE, 100 * took) if slow else 0.0
        if not near:
            self._has_read(shards, upto)

    def _has_read(self, shards: Iterable[int], upto: datetime) -> None:
        for shard in shards:
            # One that began anew meanwhile waits in `_fresh`, whatever an older term has read.
            if shard in self._shards and shard not in self._fresh:
                self._until[shard] = upto

    async def _read(self, slices: list[Slice]) -> tuple[dict[int, datetime], int]:
        """A page of every slice, then the next page of those that have more.

        Returns the first due time of each shard that has any, and how many jobs were read.
        """
        first_us: dict[int, int] = {}
        found = 0
        waiting = deque(slices)
        while waiting:
            slices = [waiting.popleft() for _ in range(min(TOGETHER, len(waiting)))]
            pages = await fires.load(self._pool, slices=slices, page=min(SHARD_PAGE, max(1, PAGE // len(slices))))
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
        for _ in range(_RANGE_PAGES):
            page = await fires.load_range(self._pool, after=after, upto=last, page=PAGE)
            by_shard: dict[int, list[tuple[UUID, int]]] = {}
            for job_id, shard, due in page:
                if due is not None and (due_us := to_micros(due)) <= horizon_us:
                    by_shard.setdefault(shard, []).append((job_id, due_us))
            for shard, entries in by_shard.items():
                ids = b"".join([job_id.bytes for job_id, _ in entries])
                self._future.load(shard, ids, array("q", [due_us for _, due_us in entries]))
            self._changed()
            if len(page) < PAGE:
                break
            after = page[-1][0]
        else:
            self._asked = True
        self._ranges.discard((first, last))
