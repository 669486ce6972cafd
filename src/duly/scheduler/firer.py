"""Takes what the near future says is due, plans it, and fires it: one transaction a batch, of as many shards as fit in.

An occurrence is fired a little ahead of its time, as a run that may not start before it: so the store's latency is not
on the way to its start. When more is due at once than can be fired in time, half a million jobs at midnight, that is
begun early enough. It need not be looked at all the time, either: what falls due steadily is fired by the quarter of a
second. Pausing, changing or cancelling a job takes back what was fired ahead (store/sql/jobs/retract.sql).
What cannot be decided yet, because an earlier run is unfinished, is held until its very time.

What is due stands in one of three lines. What is on time is fired first; behind a wall of late ones (the end of an
outage, half a million jobs of it) it would be late as well. The other lines go on beside it, a batch at a time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import itemgetter
from uuid import UUID

from duly.clock import Clock
from duly.cluster.coordinator import Term
from duly.errors import DataRefused, DulyError
from duly.model import from_micros, to_micros
from duly.scheduler.governor import Governor
from duly.scheduler.near_future import NearFuture
from duly.scheduler.planner import DEFERRED, plan_batch
from duly.service import Service
from duly.states import RunFlag
from duly.store import fires, zones
from duly.store.fires import DueJob, Fire, Fired, OnTime
from duly.store.pool import Pool, may_be_one_rows
from duly.store.sifting import Apart, Sifting
from duly.store.zones import Move

log = logging.getLogger("duly.scheduler")

# Larger batches gain little (78,000 jobs/s at 5,000) and hold the shard's row longer.
BATCH = 2_000
# Two connections keep the database busy while Python plans; more only wait for its cores.
AT_ONCE = 2
# A node that was early looks again after this long: well below what anyone notices, well above a busy loop.
_EARLY_PAUSE = 0.002
# One that was touched by somebody in the very moment of its fire is looked at again after this long, on and on while it
# is kept locked. The more there are the longer: a look costs 20 µs a job, and those that nobody holds are to be fired.
TOUCHED_PAUSE_US = 50_000
_TOUCHED_PAUSE_EACH_US = 200
_LONGEST_TOUCHED_PAUSE_US = 5_000_000
# How many jobs are fired in a second, with room for whatever else goes on; and the furthest that a wall is begun ahead.
PER_SECOND = 25_000
WALL_SECONDS = 30
# To look for one means to count all that is near.
_LOOK_US = 500_000
# From this many late occurrences on, somebody should know.
_LARGE = 100

Line = dict[int, deque[tuple[bytes, int]]]
_due = itemgetter(1)


@dataclass(slots=True)
class CaughtUp:
    """What was found late and is recorded so: of a plan that the fence refused nothing is."""

    late: int = 0
    deferred: int = 0
    dropped: int = 0

    def add(self, asked: Fire, done: Fired) -> None:
        for job_id, flags in zip(asked.run_job_ids, asked.run_flags, strict=True):
            self.late += job_id in done.moved and bool(flags & RunFlag.MISSED)
        for job_id, count, reason in zip(asked.drop_job_ids, asked.drop_count, asked.drop_reason, strict=True):
            if job_id not in done.moved:
                continue
            if reason == DEFERRED:
                self.late += count
                self.deferred += count
            else:
                self.dropped += count


@dataclass(slots=True)
class Turn:
    """A batch that was taken from a line: the jobs' due times and shards, and the terms under which it was taken."""

    line: Line
    terms: dict[int, Term] = field(default_factory=dict)
    dues: dict[bytes, int] = field(default_factory=dict)
    shards: dict[bytes, int] = field(default_factory=dict)
    fruitful: bool = False
    """Whether a part of it came through."""


class Firer(Service):
    """Cost follows what is due: an idle pass looks at the wheel and sleeps until its next entry."""

    interval = 1.0
    jitter = 0.0

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        future: NearFuture,
        *,
        misfire_grace: timedelta,
        ahead: timedelta = timedelta(0),
        catch_up_window_seconds: int | None = None,
        governor: Governor | None = None,
        deferred: Callable[[], None] = lambda: None,
        doubted: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`doubted` is told a shard of which a fire's answer was lost: it may have moved jobs, who knows where to."""
        super().__init__()
        self._pool = pool
        self._clock = clock
        self._future = future
        self._misfire_grace = misfire_grace
        self._ahead = ahead
        self._ahead_us = round(ahead.total_seconds() * 1e6)
        # When the first is that near, those that come soon after it are taken as well: the more, the less each costs.
        self._together_us = self._ahead_us * 3 // 2
        self._catch_up_window_seconds = catch_up_window_seconds
        self._governor = governor
        self._deferred = deferred
        self._doubted = doubted
        self._terms: dict[int, Term] = {}
        self._on_time: Line = {}
        self._wall: Line = {}
        self._late: Line = {}
        self._unsorted: Line = {}
        self._walls_turn = False
        self._looked_us = 0
        self._held: list[tuple[int, int, bytes]] = []
        """Due time, shard and job: not before that time."""
        self._touched: dict[bytes, tuple[int, int, int]] = {}
        """Job: when to look again, shard and due time; in the order of the first."""
        self._apart: Apart[bytes, tuple[int, int]] = Apart()
        """Job: shard and due time, of those that nobody can fire now and that would keep others from it."""
        self._early: list[tuple[int, UUID, int]] = []
        self._caught_up = CaughtUp()
        self.fired = 0

    def lead(self, term: Term) -> None:
        self._terms[term.shard] = term

    def drop(self, shard: int) -> None:
        self._terms.pop(shard, None)
        for line in self._lines:
            line.pop(shard, None)
        self._held = [one for one in self._held if one[1] != shard]
        heapq.heapify(self._held)
        self._touched = {raw: one for raw, one in self._touched.items() if one[1] != shard}
        self._apart.keep(lambda one: one[0] != shard)

    def standing(self, shard: int) -> int:
        """How many of a shard's jobs stand in line."""
        touched = sum(one[1] == shard for one in self._touched.values())
        touched += sum(one[0] == shard for one in self._apart.waiting)
        return touched + sum(len(line.get(shard, ())) for line in self._lines)

    @property
    def taken(self) -> int:
        """How many were taken from the near future: fired, or in line."""
        in_line = sum(len(waiting) for line in self._lines for waiting in line.values())
        in_line += sum(1 for _ in self._apart.waiting)
        return self.fired + len(self._held) + len(self._touched) + in_line

    @property
    def _lines(self) -> tuple[Line, ...]:
        return self._on_time, self._wall, self._late, self._unsorted

    async def run_once(self) -> float | None:
        try:
            await self._fire_all()
        except DulyError:
            # Nobody knows for how long the store will be away: who is on time is asked again when it is back.
            for line in (self._on_time, self._wall):
                for shard, waiting in line.items():
                    self._unsorted.setdefault(shard, deque()).extend(waiting)
                line.clear()
            raise
        finally:
            self._report()
        if self._early:
            await self._wait_for_the_database()
            return _EARLY_PAUSE
        return self._seconds_to_next()

    def _seconds_to_next(self) -> float:
        waits = [self.interval]
        if (wait := self._future.seconds_to_next()) is not None:
            waits.append(wait - self._ahead.total_seconds())
        if self._held:
            waits.append((self._held[0][0] - self._future.now_us) / 1e6)
        if self._touched:
            waits.append((next(iter(self._touched.values()))[0] - self._future.now_us) / 1e6)
        if (wait := self._apart.seconds_to_next(self._future.now_us / 1e6)) is not None:
            waits.append(wait)
        return max(0.0, min(waits))

    async def _fire_all(self) -> None:
        while True:
            self._collect()
            turns = self._next_turns()
            if not turns:
                self._apart.passed()
                return
            results = await asyncio.gather(*map(self._fire_turn, turns), return_exceptions=True)
            errors = [result for result in results if isinstance(result, BaseException)]
            if errors:
                told = next((one for one in errors if isinstance(one, DulyError) and may_be_one_rows(one)), errors[0])
                self._apart.failed(told, fruitful=any(turn.fruitful for turn in turns))
                raise errors[0]

    def _next_turns(self) -> list[Turn]:
        """What to fire side by side now. While several lines stand, each has its part of the turns."""
        standing = [line for line in (self._on_time, self._wall, self._late) if line]
        if len(standing) == 1:
            return [turn for _ in range(AT_ONCE) if (turn := self._next_turn(standing[0])).dues]
        if len(standing) > AT_ONCE:
            self._walls_turn = not self._walls_turn
            standing.pop(2 if self._walls_turn else 1)
        return [turn for line in standing if (turn := self._next_turn(line)).dues]

    def _next_turn(self, line: Line) -> Turn:
        """A batch off the head of a line: of as many shards as it takes to fill it."""
        turn, left = Turn(line), BATCH
        for shard in list(line):
            waiting, term = line.pop(shard), self._terms.get(shard)
            if term is None:
                continue
            size = min(left, len(waiting))
            if line is self._late and size < len(waiting):
                # From both ends: the newest must not wait until the oldest are done.
                taken = [waiting.popleft() for _ in range(size // 2)] + [waiting.pop() for _ in range(size - size // 2)]
            else:
                taken = [waiting.popleft() for _ in range(size)]
            turn.terms[shard] = term
            turn.dues.update(taken)
            turn.shards.update((raw, shard) for raw, _ in taken)
            # To the end of the line, so that a shard with a wall of work does not hold up the others.
            if waiting:
                line[shard] = waiting
            left -= size
            if not left:
                break
        return turn

    async def _wait_for_the_database(self) -> None:
        """This node's idea of the time is ahead of the database's: correct it, and look at those jobs again."""
        early, self._early = self._early, []
        for shard, job_id, due_us in early:
            self._future.add(shard, job_id, due_us)
        await self._pool.measure_clock()

    def _collect(self) -> None:
        for shard, waiting in self._unsorted.items():
            self._stand_in_line(shard, sorted(waiting, key=_due))
        self._unsorted = {}
        now_us = self._future.now_us
        while self._held and self._held[0][0] <= now_us:
            due_us, shard, raw = heapq.heappop(self._held)
            self._stand_in_line(shard, [(raw, due_us)])
        for raw, (look_us, shard, due_us) in list(self._touched.items()):
            if now_us < look_us <= now_us + _LONGEST_TOUCHED_PAUSE_US:  # or else the clock was set back
                break
            del self._touched[raw]
            self._stand_in_line(shard, [(raw, due_us)])
        for raw, (shard, due_us) in self._apart.take(now_us / 1e6):
            self._stand_in_line(shard, [(raw, due_us)])
        wait = self._future.seconds_to_next()
        if wait is not None and wait * 1e6 <= self._ahead_us:
            for shard, entries in self._future.take_due(self._together_us):
                self._stand_in_line(shard, entries)
        if self._ahead_us:
            self._look_for_a_wall()

    def _look_for_a_wall(self) -> None:
        now_us = self._future.now_us
        if abs(now_us - self._looked_us) < _LOOK_US:
            return
        self._looked_us = now_us
        lead_us = self._future.lead_us(per_second=PER_SECOND, within_us=WALL_SECONDS * 1_000_000)
        if lead_us <= self._ahead_us:
            return
        for shard, entries in self._future.take_due(lead_us):
            if shard in self._terms:
                self._wall.setdefault(shard, deque()).extend(entries)

    def _stand_in_line(self, shard: int, entries: Sequence[tuple[bytes, int]]) -> None:
        """What is found within the grace is on time and stays so, however long the line; `entries` by due time."""
        if shard not in self._terms:
            return
        on_time_from = to_micros(self._clock.now() - self._misfire_grace)
        if standing := self._on_time.get(shard):
            # A re-read brings those again that still stand in a long line: they are not late by that.
            on_time_from = min(on_time_from, standing[0][1])
        late = bisect_left(entries, on_time_from, key=_due)
        if late:
            self._late.setdefault(shard, deque()).extend(entries[:late])
        if late < len(entries):
            self._on_time.setdefault(shard, deque()).extend(entries[late:])

    async def _fire_turn(self, turn: Turn) -> None:
        """What it does not come to goes back to the line. A job that keeps others from being fired is set apart."""
        known = [raw for raw in turn.dues if raw in self._apart] if self._apart else []
        others = [raw for raw in turn.dues if raw not in self._apart] if known else list(turn.dues)
        sifting = Sifting(others, known=known, split=self._apart.splitting)
        try:
            await sifting.through(lambda raws: self._fire_part(turn, raws))
        finally:
            turn.fruitful = sifting.fruitful
            self._stand_again(turn, sifting.left)
            for raw, error in sifting.alone:
                self._set_apart(turn, raw, error)

    async def _fire_part(self, turn: Turn, raws: Sequence[bytes]) -> None:
        if len(raws) < len(turn.dues):
            turn = replace(turn, dues={raw: turn.dues[raw] for raw in raws})
        found = from_micros(min(turn.dues.values())) if turn.line is not self._late else None
        # By the database's clock. A little more than this node's own, which is never quite the same.
        ahead = timedelta(seconds=WALL_SECONDS + 1) if turn.line is self._wall else 2 * self._ahead
        left = await self._fire(turn, found, ahead)
        self._stand_again(turn, left)
        if self._apart:
            for raw in turn.dues.keys() - set(left):
                self._apart.forget(raw)

    def _stand_again(self, turn: Turn, raws: Sequence[bytes]) -> None:
        for raw in raws:
            shard = turn.shards[raw]
            if self._terms.get(shard) is turn.terms[shard]:
                turn.line.setdefault(shard, deque()).append((raw, turn.dues[raw]))

    def _set_apart(self, turn: Turn, raw: bytes, error: DulyError) -> None:
        shard = turn.shards[raw]
        if self._terms.get(shard) is not turn.terms[shard]:
            return
        if self._apart.put(raw, (shard, turn.dues[raw]), self._future.now_us / 1e6):
            log.error("job %s cannot be fired now; it is tried again by itself: %s", UUID(bytes=raw), error)

    async def _fire(self, turn: Turn, found: datetime | None, ahead: timedelta) -> list[bytes]:
        """What is due at `found` or later was found in time. Returns those that it did not come to."""
        jobs = await fires.due(self._pool, job_ids=[UUID(bytes=raw) for raw in turn.dues])
        ready = []
        for job in jobs:
            if job.shard != turn.shards[job.job_id.bytes]:
                continue  # its row says another shard than when it was read: whoever leads that one reads it there
            if job.due_within(ahead):
                ready.append(job)
            elif to_micros(job.next_run_at) == turn.dues[job.job_id.bytes]:
                self._early.append((job.shard, job.job_id, to_micros(job.next_run_at)))
            # Else somebody moved it, and whoever did has announced it.
        return await self._fire_jobs(turn.terms, ready, found) if ready else []

    async def _fire_jobs(
        self, terms: Mapping[int, Term], jobs: Sequence[DueJob], found: datetime | None
    ) -> list[bytes]:
        """Plan and fire. A job that cannot be planned or whose data are refused is parked: it never sinks its shard.

        Whatever else the database answers is not held against them, and they are fired when it can.
        """
        # The database's time, not this node's idea of it: it also decides which later occurrences are due by now.
        now = max(job.now for job in jobs)
        batch = plan_batch(
            jobs,
            now=now,
            misfire_grace=self._misfire_grace if found is None else max(self._misfire_grace, now - found),
            catch_up_window_seconds=self._catch_up_window_seconds,
            governor=self._governor,
        )
        if batch.costly:
            # Before anything else, and whether or not this node still leads: nobody is to plan them again.
            await self._park_costly(batch.costly)
        if batch.parked:
            await self._park(terms, batch.parked)
        if batch.rezoned:
            await self._move(batch.rezoned)
        for job in batch.held:
            due_us = to_micros(job.next_run_at)
            if due_us > self._future.now_us:
                heapq.heappush(self._held, (due_us, job.shard, job.job_id.bytes))
            else:
                # By this node's clock it is due, by the database's it is not: to hold it would be to ask without pause.
                self._early.append((job.shard, job.job_id, due_us))
        left = [job.job_id.bytes for job in jobs[batch.planned :]]
        epochs = {shard: terms[shard].epoch for shard in set(batch.on_time.shards)}
        parts: list[tuple[dict[int, int], Fire | OnTime]] = [(epochs, batch.on_time)] if epochs else []
        parts += [({shard: terms[shard].epoch}, part) for shard, part in batch.fires.items()]
        try:
            for asked, part in parts:
                self._done(asked, part, await fires.fire(self._pool, epochs=asked, batch=part))
        except DataRefused as error:
            # Nothing of that part was done, and one of its jobs is at fault: whichever it is, the others must fire.
            if batch.planned == 1:
                await self._park(terms, [(jobs[0], f"cannot be fired: {error}"[:500])])
                return left
            half = batch.planned // 2
            left += await self._fire_jobs(terms, jobs[:half], found)
            left += await self._fire_jobs(terms, jobs[half : batch.planned], found)
            return left
        except DulyError as error:
            if may_be_one_rows(error):
                raise  # an answer: nothing of that part was done
            for shard in {job.shard for job in jobs[: batch.planned]}:
                self._doubted(shard)
            raise
        if batch.deferred:
            self._deferred()
        return left

    def _done(self, epochs: Mapping[int, int], asked: Fire | OnTime, done: Fired) -> None:
        """Note where the jobs went."""
        self.fired += done.live
        if isinstance(asked, Fire):
            self._caught_up.add(asked, done)
        shards = asked.shards if isinstance(asked, OnTime) else list(epochs) * len(asked.job_ids)
        columns = zip(asked.job_ids, asked.expected, asked.next_run_at, shards, strict=True)
        for job_id, expected, next_run_at, shard in columns:
            if job_id in done.moved:
                if next_run_at is not None:
                    self._future.add(shard, job_id, to_micros(next_run_at))
            elif shard in done.led:
                self._look_again(shard, job_id, expected)

    def _look_again(self, shard: int, job_id: UUID, due: datetime) -> None:
        """Somebody touched the job at this very moment. If it is still due, the next look finds it so; else not."""
        if shard in self._terms:
            self._touched.pop(job_id.bytes, None)
            pause_us = max(TOUCHED_PAUSE_US, _TOUCHED_PAUSE_EACH_US * len(self._touched))
            look_us = self._future.now_us + min(pause_us, _LONGEST_TOUCHED_PAUSE_US)
            last_us = next(reversed(self._touched.values()), (look_us,))[0]
            self._touched[job_id.bytes] = (max(look_us, last_us), shard, to_micros(due))

    async def _park(self, terms: Mapping[int, Term], jobs: Sequence[tuple[DueJob, str]]) -> None:
        for shard in {job.shard for job, _ in jobs}:
            asked = [(job.job_id, job.next_run_at, reason) for job, reason in jobs if job.shard == shard]
            parked = await fires.park(self._pool, shard=shard, epoch=terms[shard].epoch, jobs=asked)
            for job_id, due, reason in asked:
                if job_id in parked:
                    log.error("job %s is paused: %s", job_id, reason)
                else:
                    self._look_again(shard, job_id, due)

    async def _park_costly(self, jobs: Sequence[tuple[DueJob, str]]) -> None:
        parked = set(await fires.park_costly(self._pool, jobs=jobs))
        for job, reason in jobs:
            if job.job_id in parked:
                log.error("job %s is paused: %s", job.job_id, reason)
            else:
                self._look_again(job.shard, job.job_id, job.next_run_at)

    async def _move(self, jobs: Sequence[tuple[DueJob, datetime]]) -> None:
        """The rules of their zones have changed since they were planned: nothing fires, and they are looked at anew."""
        moves = [Move(job.job_id, job.version, job.next_run_at, moment) for job, moment in jobs]
        moved = await zones.move(self._pool, moves)
        for job, moment in jobs:
            if job.job_id in moved:
                self._future.add(job.shard, job.job_id, to_micros(moment))
            else:
                self._look_again(job.shard, job.job_id, job.next_run_at)

    def _report(self) -> None:
        """What this pass found late, in one line however many jobs it was."""
        found = self._caught_up
        if found.late or found.dropped:
            self._caught_up = CaughtUp()
            log.log(
                logging.WARNING if found.late + found.dropped >= _LARGE else logging.INFO,
                "catching up: %d late occurrences run (%d of them wait for their turn), %d are dropped as missed",
                found.late, found.deferred, found.dropped,
            )  # fmt: skip
