"""Overlap holds whatever happens: random histories of fires, retries, rescues, cancels, triggers and redrives.

The store is real. Its clients act at random: first one action after the other, compared with a model, then all at once.
A failing seed is shown and can be run again: DULY_TEST_SEED=…
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly.errors import Conflict, NotFound
from duly.model import Buried, ClaimedRun, Overlap, Policy, Requeued, make_run_id
from duly.operations import Operations
from duly.store import fires, maintenance, runs
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from duly.store.statements import statement
from harness.store import count, due_job, fire_as_seen, fire_of, lead, put, succeeded, take
from harness.waiting import drawn_seed

START = datetime(2020, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ERROR = '{"type": "Boom", "message": "no", "traceback": null}'
HISTORIES = int(os.environ.get("DULY_TEST_HISTORIES", "20"))

# Unfinished runs. In any snapshot at most one run of a job does not wait, unless the job's runs may overlap.
UNFINISHED = """
select job_id, scheduled_at, where_it_is from (
    select job_id, scheduled_at, state as where_it_is from duly.runs
    union all
    select one.job_id, one.scheduled_at, 'running'
    from duly.claims c
    cross join unnest(c.job_ids, c.scheduled_ats) with ordinality as one (job_id, scheduled_at, ordinal)
    where not (one.ordinal = any (c.released)) and not exists (
        select from duly.history h where h.job_id = one.job_id and h.scheduled_at = one.scheduled_at)
) run
"""


def seeds() -> list[int]:
    if given := os.environ.get("DULY_TEST_SEED"):
        return [int(given)]
    first = drawn_seed()
    return [*range(first, first + HISTORIES)]


@pytest.fixture
async def connection(pool: Pool) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection with the settings of the pool's connections."""
    settings = {"enable_seqscan": "off", "search_path": "pg_catalog"}
    connection = await asyncpg.connect(pool.url, server_settings=settings)
    yield connection
    await connection.close()


class History:
    """One job, and everything that can happen to its runs, one thing after the other."""

    def __init__(self, pool: Pool, operations: Operations, overlap: Overlap, dice: random.Random) -> None:
        self.pool = pool
        self.operations = operations
        self.overlap = overlap
        self.dice = dice
        self.max_queued = dice.choice((2, 100))
        self.job: NewJob
        self.next = START
        self.held: list[ClaimedRun] = []
        self.stale: list[ClaimedRun] = []
        self.started: list[datetime] = []
        self.log: list[str] = []

    async def begin(self) -> None:
        policy = Policy(overlap=self.overlap, max_queued=self.max_queued, max_retries=2)
        self.job = due_job(self.pool, self.next, policy=policy.to_stored())
        await put(self.pool, self.job)
        # The job's last change lies before its first occurrence, as usual: once a run has started since the last
        # change, a fire checks less.
        await self.pool.query("update duly.jobs set updated_at = $1", START - SECOND)
        self.epoch = await lead(self.pool, self.job.shard)

    async def unfinished(self) -> dict[datetime, str]:
        rows = await self.pool.query(UNFINISHED + "where job_id = $1", self.job.job_id)
        found = {row["scheduled_at"]: row["where_it_is"] for row in rows}
        assert len(found) == len(rows), f"a run is in two places: {rows}"
        return found

    async def fire(self) -> None:
        before = await self.unfinished()
        due = self.next
        self.next += SECOND
        done = await fire_as_seen(
            self.pool,
            self.job,
            due,
            self.next,
            epoch=self.epoch,
            overlap=self.overlap,
            max_queued=self.max_queued,
        )
        assert done.moved == {self.job.job_id}
        after = await self.unfinished()
        self.log.append(f"fire {due:%S} → {after.get(due, 'skipped')}")
        waiting = sum(where == "waiting" for where in before.values())
        if self.overlap == "parallel" or not before:
            assert after.get(due) == "queued", "no earlier run was unfinished"
        elif self.overlap == "skip" or waiting >= self.max_queued:
            assert due not in after
        else:
            assert after[due] == "waiting"

    async def claim(self) -> None:
        claim = await take(self.pool, limit=self.dice.choice((1, 1, 5)))
        self.held += claim.runs
        self.started += [run.scheduled_at for run in claim.runs]
        self.log.append(f"claim {[run.scheduled_at.second for run in claim.runs]}")

    def _any_held(self) -> ClaimedRun | None:
        return self.held.pop(self.dice.randrange(len(self.held))) if self.held else None

    async def succeed(self) -> None:
        if (run := self._any_held()) is not None:
            assert await runs.complete(self.pool, [succeeded(run)]) == 1
            self.log.append(f"succeed {run.scheduled_at:%S}")

    async def retry(self) -> None:
        if (run := self._any_held()) is not None:
            state = self.dice.choice(("retrying", "queued"))
            end = Requeued(run, state, 0.0, 1, 2, ERROR if state == "retrying" else None)
            assert await runs.requeue(self.pool, [end]) == 1
            self.log.append(f"{state} {run.scheduled_at:%S}")

    async def bury(self) -> None:
        if (run := self._any_held()) is not None:
            assert await runs.bury(self.pool, [Buried(run, 1, 2, ERROR, self.dice.choice(("dead", "cancelled")))]) == 1
            self.log.append(f"bury {run.scheduled_at:%S}")

    async def lose_worker(self) -> None:
        if (run := self._any_held()) is None:
            return
        lost = [other for other in self.held if other.claim_id == run.claim_id]
        self.held = [other for other in self.held if other.claim_id != run.claim_id]
        self.stale += [run, *lost]
        await self.pool.query(
            "update duly.claims set lease_until = duly.now() - interval '1 second' where claim_id = $1", run.claim_id
        )
        await maintenance.rescue(self.pool)
        # Rescue spreads the runs over some seconds; this test does not wait for that.
        await self.pool.query("update duly.runs set run_at = least(run_at, duly.now()) where state = 'queued'")
        self.log.append(f"rescue {[one.scheduled_at.second for one in (run, *lost)]}")

    async def wake_zombie(self) -> None:
        if self.stale:
            run = self.dice.choice(self.stale)
            end = self.dice.randrange(3)
            accepted = (
                await runs.complete(self.pool, [succeeded(run)]) if end == 0
                else await runs.requeue(self.pool, [Requeued(run, "queued", 0.0, 1, 2)]) if end == 1
                else await runs.bury(self.pool, [Buried(run, 1, 2, ERROR)])
            )  # fmt: skip
            assert accepted == 0, "a worker that lost its lease changed something"
            self.log.append(f"zombie {run.scheduled_at:%S}")

    async def cancel_one(self) -> None:
        there = await self.unfinished()
        if not there:
            return
        moment = self.dice.choice(sorted(there))
        run = await self.operations.runs.cancel(make_run_id(self.job.job_id, moment))
        assert run.status == ("running" if there[moment] == "running" else "cancelled")
        self.log.append(f"cancel {moment:%S} ({there[moment]})")

    async def trigger(self) -> None:
        try:
            await self.operations.jobs.trigger(str(self.job.job_id))
            self.log.append("trigger")
        except Conflict:
            waiting = [where for where in (await self.unfinished()).values() if where == "waiting"]
            assert len(waiting) >= self.max_queued
            self.log.append("trigger refused")

    async def redrive(self) -> None:
        page = await self.operations.dead_letters.page(limit=1000)
        if page.items:
            letter = self.dice.choice(page.items)
            await self.operations.dead_letters.redrive(letter.run_id)
            self.log.append(f"redrive {letter.scheduled_at:%S}")

    async def upkeep(self) -> None:
        await maintenance.free_waiting(self.pool)

    async def check(self) -> None:
        there = await self.unfinished()
        active = sorted(moment for moment, where in there.items() if where != "waiting")
        if self.overlap != "parallel":
            assert len(active) <= 1, f"two active runs: {active}"
            assert active or not there, f"all runs wait and none is active: {there}"

    async def change_overlap(self, overlap: Overlap | None = None) -> None:
        drawn: Overlap = self.dice.choice(("skip", "queue", "parallel"))
        self.overlap = overlap or drawn
        await self.operations.jobs.change(str(self.job.job_id), {"overlap": self.overlap})
        await self.pool.query(
            "update duly.jobs set updated_at = greatest($1, last_run_at, extra_at)", self.next - SECOND
        )
        self.log.append(f"overlap {self.overlap}")

    async def catch_up(self) -> None:
        """Fires two late occurrences as RUN_ALL does: missed and serial, so only `parallel` lets them overlap."""
        seen = await fires.due(self.pool, job_ids=[self.job.job_id])
        moments = [self.next, self.next + SECOND]
        job = self.job._replace(next_run_at=self.next)
        self.next += 2 * SECOND
        batch = fire_of(job, next_run_at=self.next, scheduled=moments, overlap=self.overlap, max_queued=self.max_queued)
        batch.versions = [seen[0].version]
        batch.run_flags = [10, 10]
        done = await fires.fire(self.pool, epochs={self.job.shard: self.epoch}, batch=batch)
        assert done.moved == {self.job.job_id}
        self.log.append(f"catch up {[moment.second for moment in moments]}")

    async def redrive_all(self) -> None:
        async for _ in self.operations.dead_letters.redrive_all():
            pass
        self.log.append("redrive all")

    async def check_looks(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Checks that a short look at the line has the same result as a look at all of it."""
        whole, short = [await self._would_become(connection, whole=whole) for whole in (True, False)]
        assert whole == short

    async def _would_become(
        self, connection: asyncpg.Connection[asyncpg.Record], *, whole: bool
    ) -> tuple[list[tuple[object, ...]], object]:
        undone = connection.transaction()
        await undone.start()
        await connection.fetch(statement("jobs/put_in_order"), [self.job.job_id], whole)
        standing = await connection.fetch(
            "select scheduled_at, state from duly.runs where job_id = $1 order by 1", self.job.job_id
        )
        noted = await connection.fetchval("select extra_at from duly.jobs where job_id = $1", self.job.job_id)
        await undone.rollback()
        return [tuple(row) for row in standing], noted

    async def finish(self) -> None:
        """Completes all runs, and checks that every occurrence has one outcome."""
        for _ in range(1000):
            while self.held:
                await self.succeed()
            await self.claim()
            if not self.held:
                break
            await self.check()
        assert await self.unfinished() == {}
        recorded = await count(self.pool, "history", "job_id = $1 and flags & 16 = 0", self.job.job_id)
        assert recorded == (self.next - START) // SECOND


MOVES = ("fire",) * 6 + ("claim",) * 6 + ("succeed",) * 4 + ("retry",) * 3 + (
    "bury", "bury", "lose_worker", "lose_worker", "wake_zombie", "cancel_one", "cancel_one", "trigger", "redrive",
    "redrive", "upkeep",
)  # fmt: skip


@pytest.mark.parametrize("overlap", ["skip", "queue", "parallel"])
async def test_overlap_holds_over_random_histories(pool: Pool, operations: Operations, overlap: Overlap) -> None:
    moves: Counter[str] = Counter()
    for seed in seeds():
        await pool.query(
            "truncate duly.jobs, duly.runs, duly.claims, duly.history, duly.attempts, duly.dead_letters, duly.nodes"
        )
        history = History(pool, operations, overlap, random.Random(seed))
        await history.begin()
        try:
            for _ in range(60):
                move = history.dice.choice(MOVES)
                await getattr(history, move)()
                moves[move] += 1
                await history.check()
            await history.finish()
        except AssertionError as error:
            story = "\n".join(history.log)
            raise AssertionError(
                f"seed {seed}, overlap {overlap}, max_queued {history.max_queued}: {error}\n{story}"
            ) from None
    print(f"{overlap}: {moves.total()} moves, {dict(moves)}")


async def test_a_short_look_at_a_line_finds_what_a_whole_one_does(
    pool: Pool, operations: Operations, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """After any history, also one in which the job's policy changes to and fro."""
    moves = (*MOVES, "change_overlap", "change_overlap", "catch_up", "redrive_all")
    for seed in seeds()[: HISTORIES // 2]:
        await pool.query(
            "truncate duly.jobs, duly.runs, duly.claims, duly.history, duly.attempts, duly.dead_letters, duly.nodes"
        )
        dice = random.Random(seed)
        history = History(pool, operations, dice.choice(("skip", "queue", "parallel")), dice)
        await history.begin()
        try:
            for _ in range(40):
                await getattr(history, dice.choice(moves))()
                await history.check_looks(connection)
        except AssertionError as error:
            story = "\n".join(history.log)
            raise AssertionError(f"seed {seed}, max_queued {history.max_queued}: {error}\n{story}") from None


@pytest.mark.parametrize("overlap", ["skip", "queue"])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("clock", ["right", "gone back"])
async def test_runs_that_were_allowed_to_overlap_are_all_waited_for(
    pool: Pool, operations: Operations, overlap: Overlap, many: bool, clock: str
) -> None:
    """An older run may outlive the last run, although a fire looks at the last run first."""
    history = History(pool, operations, "parallel", random.Random(1))
    if clock == "gone back":
        history.next = datetime.now(UTC) + timedelta(hours=1)
    await history.begin()
    await history.fire()
    await history.fire()
    await pool.query("update duly.runs set run_at = duly.now()")
    older, last = (await take(pool, limit=5)).runs
    await operations.jobs.change(str(history.job.job_id), {"overlap": overlap})
    # In a fire of 100 jobs or more, only jobs in a claim are checked closely. This job is in one until both runs have
    # ended.
    others = [uuid4() for _ in range(100 if many else 0)]

    async def fire(due: datetime) -> str:
        (seen,) = await fires.due(pool, job_ids=[history.job.job_id, *others])
        assert seen.busy
        batch = fire_of(history.job._replace(next_run_at=due), next_run_at=due + SECOND, overlap=overlap)
        batch.job_ids += others
        batch.expected += [due for _ in others]
        batch.next_run_at += [due for _ in others]
        batch.overlap += [overlap for _ in others]
        batch.max_queued += [100 for _ in others]
        batch.versions = [seen.version for _ in batch.job_ids]
        await fires.fire(pool, epochs={history.job.shard: history.epoch}, batch=batch)
        return (await history.unfinished()).get(due, "skipped")

    assert await runs.complete(pool, [succeeded(last)]) == 1
    assert await fire(history.next) == ("skipped" if overlap == "skip" else "waiting")
    assert await runs.complete(pool, [succeeded(older)]) == 1
    await maintenance.free_waiting(pool)
    now = await fire(history.next + SECOND) if overlap == "skip" else (await history.unfinished())[history.next]
    assert now == "queued"


@pytest.mark.parametrize("how", ["redriven", "stands", "returned", "rescued"])
async def test_one_in_the_middle_of_a_line_is_not_overlooked(
    pool: Pool, operations: Operations, connection: asyncpg.Connection[asyncpg.Record], how: str
) -> None:
    history = History(pool, operations, "queue", random.Random(1))
    history.max_queued = 100
    await history.begin()
    await history.fire()
    await history.claim()
    (first,) = history.held
    await history.fire()
    if how == "redriven":
        # The first run is redriven while a newer run is queued, so it waits again.
        await runs.bury(pool, [Buried(first, 1, 2, ERROR)])
        await history.fire()
        await history.redrive()
    else:
        # While the second run waits for the first, a third run is let in beside them; then a fourth waits again.
        await history.change_overlap("parallel")
        await history.fire()
        if how != "stands":
            await history.claim()
            history.held.remove(first)
        await history.change_overlap("queue")
        await history.fire()
        if how == "returned":
            (third,) = history.held
            assert await runs.requeue(pool, [Requeued(third, "queued", 0.0, 1, 2)]) == 1
        elif how == "rescued":
            await history.lose_worker()
    await history.check_looks(connection)
    before = await history.unfinished()
    if how != "redriven":
        assert await runs.complete(pool, [succeeded(first)]) == 1
        del before[first.scheduled_at]
    assert await history.unfinished() == before, "a waiting run was released beside an active one"
    assert list(before.values()).count("waiting") == len(before) - 1


async def test_the_end_of_a_run_costs_no_more_in_a_long_line(
    pool: Pool, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """Draining a line of 100,000 would take hours if each end read all of it."""
    job = due_job(pool, START, policy=Policy(overlap="queue", max_queued=100_000).to_stored())
    await put(pool, job)

    async def pages() -> int:
        """The number of pages that the end of one run reads and changes in the line."""
        undone = connection.transaction()
        await undone.start()
        rows = await connection.fetch(
            f"explain (analyze, buffers, timing off) {statement('jobs/put_in_order')}", [job.job_id], False
        )
        await undone.rollback()
        buffers = next(row[0] for row in rows if "Buffers:" in row[0])
        return sum(int(word.split("=")[1]) for word in buffers.split() if word.startswith(("hit=", "read=")))

    async def wait_in_line(first: int, last: int) -> None:
        await pool.query(
            "insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, flags, state, queue) "
            "select $1, $2::timestamptz + n * interval '1 second', 'infinity', now(), $3, 0, 8, 'waiting', 'default'"
            " from generate_series($4::int, $5::int) as n",
            job.job_id, START, job.shard, first, last,
        )  # fmt: skip

    await wait_in_line(1, 100)
    short = await pages()
    await wait_in_line(101, 20_000)
    long = await pages()
    # The same must hold once PostgreSQL knows how long the line is.
    await connection.execute("analyze duly.runs")
    long = max(long, await pages())
    print(f"{short} pages with 100 waiting runs, {long} with 20,000")
    assert long <= 2 * short + 20


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_overlap_holds_while_many_act_at_once(pool: Pool, operations: Operations, overlap: Overlap) -> None:
    """Fires, workers, rescue, upkeep and people act on the same few jobs as fast as they can; snapshots are checked."""
    seconds = float(os.environ.get("DULY_TEST_OVERLAP_SECONDS", "4"))
    seed = seeds()[0]
    dice = random.Random(seed)
    policy = Policy(overlap=overlap, max_queued=5, max_retries=1)
    jobs = [due_job(pool, START, policy=policy.to_stored()) for _ in range(4)]
    await put(pool, *jobs)
    # Each shard is led once: leading it again would depose its leader.
    terms = {shard: await lead(pool, shard) for shard in {job.shard for job in jobs}}
    epochs = {job.job_id: terms[job.shard] for job in jobs}
    stop = asyncio.Event()
    done: Counter[str] = Counter()

    async def fire(job: NewJob) -> None:
        due = START
        while not stop.is_set():
            fired = await fire_as_seen(
                pool,
                job,
                due,
                due + SECOND,
                epoch=epochs[job.job_id],
                overlap=overlap,
                max_queued=policy.max_queued,
            )
            assert fired.led
            if fired.moved:
                due += SECOND
                done["fired" if fired.live else "skipped"] += 1
            else:
                done["looked again"] += 1
            await asyncio.sleep(dice.uniform(0, 0.01))
        fires_made[job.job_id] = (due - START) // SECOND

    async def work() -> None:
        while not stop.is_set():
            claim = await take(pool, limit=2, lease=60)
            for run in claim.runs:
                await asyncio.sleep(dice.uniform(0, 0.005))
                end = dice.choice(("succeed", "succeed", "retry", "bury", "die"))
                if end == "succeed":
                    accepted = await runs.complete(pool, [succeeded(run)])
                elif end == "retry":
                    accepted = await runs.requeue(pool, [Requeued(run, "retrying", 0.0, 1, 2, ERROR)])
                elif end == "bury":
                    accepted = await runs.bury(pool, [Buried(run, 1, 2, ERROR)])
                else:
                    await pool.query(
                        "update duly.claims set lease_until = duly.now() - interval '1 second' where claim_id = $1",
                        run.claim_id,
                    )
                    continue
                done[end] += accepted
            await asyncio.sleep(0.001)

    async def keep_up() -> None:
        while not stop.is_set():
            done["rescued"] += (await maintenance.rescue(pool)).requeued
            done["freed"] += await maintenance.free_waiting(pool)
            await asyncio.sleep(0.02)

    async def meddle() -> None:
        while not stop.is_set():
            job = dice.choice(jobs)
            try:
                match dice.randrange(3):
                    case 0:
                        await operations.jobs.trigger(str(job.job_id))
                        done["triggered"] += 1
                    case 1:
                        page = await operations.dead_letters.page(limit=5)
                        if page.items:
                            await operations.dead_letters.redrive(dice.choice(page.items).run_id)
                            done["redriven"] += 1
                    case 2:
                        rows = await pool.query("select scheduled_at from duly.runs where job_id = $1", job.job_id)
                        if rows:
                            run_id = make_run_id(job.job_id, dice.choice(rows)["scheduled_at"])
                            await operations.runs.cancel(run_id)
                            done["cancelled"] += 1
            except (Conflict, NotFound):
                done["refused"] += 1
            await asyncio.sleep(dice.uniform(0, 0.01))

    async def watch() -> None:
        while not stop.is_set():
            rows = await pool.query(
                f"select job_id, count(*) as active, array_agg(scheduled_at || ' ' || where_it_is) as which from "
                f"({UNFINISHED} where where_it_is <> 'waiting') active group by job_id having count(*) > 1"
            )
            assert not rows, f"seed {seed}: two active runs: {rows[0]['which']}"
            done["looks"] += 1
            await asyncio.sleep(0.003)

    fires_made: dict[UUID, int] = {}
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(fire(job))
        for task in (work(), work(), work(), keep_up(), meddle(), meddle(), watch()):
            group.create_task(task)
        await asyncio.sleep(seconds)
        stop.set()
    print(f"{overlap}, seed {seed}: {dict(done)}")
    assert min(done[what] for what in ("fired", "succeed", "retry", "bury", "rescued", "triggered", "redriven")) > 0
    # At the end the remaining runs are completed one after the other, and every occurrence has one outcome.
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    async with asyncio.timeout(30):
        while await pool.query(UNFINISHED):
            await maintenance.rescue(pool)
            await maintenance.free_waiting(pool)
            claim = await take(pool)
            await runs.complete(pool, [succeeded(run) for run in claim.runs])
    for job in jobs:
        recorded = await count(pool, "history", "job_id = $1 and flags & 16 = 0", job.job_id)
        assert recorded == fires_made[job.job_id]
