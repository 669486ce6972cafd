"""A foreign transaction that keeps a job's row locked, for any length of time, holds up that job and no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly.maintenance.sql_submits import SqlSubmits
from duly.model import JobRequest
from duly.operations import Operations
from duly.scheduler.backlog import TOUCHED_PAUSE_US
from duly.store import jobs as jobs_store
from duly.store import maintenance, runs, sql_submits
from duly.store.jobs import NewJob
from duly.store.pool import InTransaction, Pool
from duly.store.sql_submits import PlannedSubmit
from harness.scheduler import HOUR, MINUTE, SECOND, START, FrozenScheduler, spread
from harness.store import count, due_job, put, succeeded, take
from harness.waiting import eventually

DUE = START + MINUTE
LOOK_AGAIN = timedelta(microseconds=TOUCHED_PAUSE_US)
PARALLEL = '{"overlap":"parallel"}'


@asynccontextmanager
async def locked(pool: Pool, *jobs: NewJob) -> AsyncIterator[None]:
    """Locks the jobs' rows in a foreign session, which no timeout of Duly's ends."""
    connection = await asyncpg.connect(pool.url)
    try:
        async with connection.transaction():
            await connection.execute(
                "select from duly.jobs where job_id = any ($1) for update", [job.job_id for job in jobs]
            )
            yield
    finally:
        await connection.close()


async def soon(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(5):
        return await work


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    return scheduler


def counted(scheduler: FrozenScheduler, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that tells how many jobs were looked at since this call."""
    looks = 0
    fetch = scheduler.pool.fetch

    async def look(name: str, *args: Any) -> Any:
        nonlocal looks
        looks += len(args[0]) if name == "fires/due" else 0
        return await fetch(name, *args)

    monkeypatch.setattr(scheduler.pool, "fetch", look)
    return lambda: looks


@pytest.mark.parametrize("late", [False, True], ids=["on time", "late"])
async def test_the_others_fire(scheduler: FrozenScheduler, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    jobs = spread(scheduler.pool, 40, DUE)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    at = DUE + 20 * SECOND if late else DUE
    looks = counted(scheduler, monkeypatch)
    async with locked(scheduler.pool, jobs[7], jobs[8]):
        await soon(scheduler.step(at))
        assert len(await scheduler.runs()) == 38
        assert not await scheduler.runs(jobs[7])
        # The firer looks at the two locked jobs again, after a pause.
        before = looks()
        await soon(scheduler.firer.run_once())
        assert looks() == before
        wait = await soon(scheduler.firer.run_once())
        assert wait == pytest.approx(LOOK_AGAIN.total_seconds())
        await soon(scheduler.step(at + LOOK_AGAIN, read=False))
        assert looks() == before + 2
        assert not await scheduler.runs(jobs[7])
    await scheduler.step(at + 2 * LOOK_AGAIN, read=False)
    for job in jobs:
        assert await scheduler.runs(job) == [DUE]
        assert (await scheduler.job(job))["next_run_at"] == START + HOUR


async def test_many_are_looked_at_less_often(scheduler: FrozenScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign statement writes all jobs and takes long. Looking at all of them all the time would cost too much."""
    jobs = spread(scheduler.pool, 1000, DUE)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    looks = counted(scheduler, monkeypatch)
    async with locked(scheduler.pool, *jobs):
        await soon(scheduler.step(DUE))
        before = looks()
        for n in range(1, 40):
            await soon(scheduler.step(DUE + n * LOOK_AGAIN, read=False))
        assert looks() - before < 20_000
    await scheduler.step(DUE + 40 * LOOK_AGAIN, read=False)
    await scheduler.step(DUE + 45 * LOOK_AGAIN, read=False)
    assert len(await scheduler.runs()) == 1000


async def test_what_they_decide_holds(scheduler: FrozenScheduler, operations: Operations) -> None:
    """A foreign transaction pauses the job, and commits after the job's occurrence is due."""
    jobs = spread(scheduler.pool, 2, DUE)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    connection = await asyncpg.connect(scheduler.pool.url)
    try:
        async with connection.transaction():
            await jobs_store.pause(
                InTransaction(connection), job_id=jobs[0].job_id, tenant="default", reason=None, note=None
            )
            await soon(scheduler.step(DUE))
        await scheduler.step(DUE + LOOK_AGAIN, read=False)
        assert await scheduler.runs() == [DUE]
        assert not await scheduler.runs(jobs[0])
        assert not scheduler.firer.backlog.waiting(jobs[0].shard)
    finally:
        await connection.close()


async def test_nobody_has_to_wait_to_take_its_shard_over(scheduler: FrozenScheduler, pool: Pool) -> None:
    jobs = spread(pool, 2, DUE)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    other = FrozenScheduler(pool)
    async with locked(pool, jobs[0]):
        await soon(scheduler.step(DUE))
        await soon(other.lead(jobs[0]))


async def test_the_late_runs_of_the_others_are_released(pool: Pool) -> None:
    scheduler = FrozenScheduler(pool, per_second=1)
    await scheduler.at(START)
    policy = '{"missed_window":"RUN_ALL","overlap":"parallel"}'
    jobs = spread(pool, 3, DUE, schedule="every 1m", policy=policy)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    await scheduler.step(DUE + HOUR)
    before = {job.job_id: len(await scheduler.runs(job)) for job in jobs}
    async with locked(pool, jobs[1]):
        for n in range(1, 40):
            await soon(scheduler.step(DUE + HOUR + n * SECOND, read=False))
            await soon(scheduler.catching_up.run_once())
        after = {job.job_id: len(await scheduler.runs(job)) for job in jobs}
    assert after[jobs[1].job_id] == before[jobs[1].job_id]
    assert after[jobs[0].job_id] > before[jobs[0].job_id]
    assert after[jobs[2].job_id] > before[jobs[2].job_id]


async def test_a_job_that_cannot_be_planned_is_parked_when_it_is_free(scheduler: FrozenScheduler) -> None:
    good = due_job(scheduler.pool, DUE)
    bad = due_job(scheduler.pool, DUE, kind="cron", schedule="1 * * * *", timezone="Mars/Olympus")
    await scheduler.put(good, bad)
    await scheduler.lead(good, bad)
    async with locked(scheduler.pool, bad):
        await soon(scheduler.step(DUE))
        assert await scheduler.runs() == [DUE]
        assert (await scheduler.job(bad))["status"] == "active"
    await scheduler.step(DUE + LOOK_AGAIN, read=False)
    assert (await scheduler.job(bad))["status"] == "paused"


async def test_parked_jobs_go_on_without_the_one_that_is_locked(scheduler: FrozenScheduler, pool: Pool) -> None:
    held, free = (due_job(pool, DUE, kind="cron", schedule="1 * * * *", timezone="Mars/Olympus") for _ in range(2))
    await scheduler.put(held, free)
    await scheduler.lead(held, free)
    await scheduler.step(DUE)
    parked = await maintenance.parked(pool, after=None, page=10)
    assert {job.job_id for job in parked} == {held.job_id, free.job_id}
    able = [(job, DUE + HOUR) for job in parked]
    async with locked(pool, held):
        assert await soon(maintenance.unpark(pool, able=able, touched=[])) == 1
        assert (await scheduler.job(free))["status"] == "active"
        # The locked job stays in the list of parked jobs.
        assert [job.job_id for job in await maintenance.parked(pool, after=None, page=10)] == [held.job_id]
    assert await maintenance.unpark(pool, able=able, touched=[]) == 1
    assert (await scheduler.job(held))["status"] == "active"


async def test_outcomes_are_recorded_and_the_line_goes_on_later(scheduler: FrozenScheduler, pool: Pool) -> None:
    serial = due_job(pool, DUE, schedule="every 1m", policy='{"overlap":"queue"}')
    other = due_job(pool, DUE)
    await scheduler.put(serial, other)
    await scheduler.lead(serial, other)
    await scheduler.step(DUE)
    claim = await take(pool)
    assert len(claim.runs) == 2
    await scheduler.step(DUE + MINUTE)
    assert await scheduler.runs(serial, "state = 'waiting'") == [DUE + MINUTE]
    async with locked(pool, serial):
        assert await soon(runs.complete(pool, [succeeded(run) for run in claim.runs])) == 2
        assert await soon(maintenance.free_waiting(pool)) == 0
        assert await scheduler.runs(serial, "state = 'waiting'") == [DUE + MINUTE]
    # Completion could not let the next run of the line start; upkeep does.
    assert await maintenance.free_waiting(pool) == 1
    assert await scheduler.runs(serial, "state = 'queued'") == [DUE + MINUTE]


async def test_a_line_goes_on_at_once_after_a_short_lock(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fire locks its job for a moment. The line must not wait for upkeep, which comes seconds later."""
    # On a busy machine this test may keep the lock longer than a fire does.
    monkeypatch.setattr(runs, "FREE_PAUSES", (*runs.FREE_PAUSES, 5.0))
    serial = due_job(pool, DUE, schedule="every 1m", policy='{"overlap":"queue"}')
    await scheduler.put(serial)
    await scheduler.lead(serial)
    await scheduler.step(DUE)
    claim = await take(pool)
    await scheduler.step(DUE + MINUTE)
    async with locked(pool, serial):
        ending = asyncio.create_task(runs.complete(pool, [succeeded(run) for run in claim.runs]))

        async def recorded() -> bool:
            return await count(pool, "history") == 1

        await eventually(recorded)
    assert await ending == 1
    assert await scheduler.runs(serial, "state = 'queued'") == [DUE + MINUTE]


async def test_upkeep_goes_on_with_the_others(pool: Pool) -> None:
    now = pool.clock.now()
    held, free = (due_job(pool, now + HOUR) for _ in range(2))
    await put(pool, held, free)
    await pool.query("update duly.jobs set next_run_at = null")
    found = await maintenance.stalled(pool, job_ids=[held.job_id, free.job_id])
    async with locked(pool, held):
        planned = [(job, now + HOUR, None) for job in found]
        assert await soon(maintenance.replan(pool, planned)) == [free.job_id]
    assert await maintenance.replan(pool, planned) == [held.job_id]


async def test_runs_that_were_lost_come_back_once_their_job_is_free(pool: Pool) -> None:
    now = pool.clock.now()
    held, free = (due_job(pool, now + HOUR, policy=PARALLEL) for _ in range(2))
    await put(pool, held, free)
    await pool.query("update duly.jobs set last_run_at = $1", now)
    lost = [(job.job_id, now) for job in (held, free)]
    async with locked(pool, held):
        assert await soon(maintenance.restore_runs(pool, lost)) == [(free.job_id, now)]
    assert await maintenance.restore_runs(pool, lost) == [(held.job_id, now)]


async def test_what_came_in_through_sql_is_planned_without_the_one_that_is_locked(
    pool: Pool, operations: Operations
) -> None:
    def plan(job: Any) -> PlannedSubmit:
        return PlannedSubmit(job.job_id, job.version, next_run_at=pool.clock.now() + HOUR)

    for name in ("held", "free"):
        await pool.query("select duly.submit(name => $1, handler => 'noop', schedule => '@hourly')", name)
    (jobs, _) = await sql_submits.read(pool, page=10)
    held = next(job for job in jobs if job.name == "held")
    service = SqlSubmits(pool, plan=plan, notified=True)
    async with locked(pool, due_job(pool, DUE, job_id=held.job_id)):
        wait = await soon(service.work())
        assert wait is not None
        assert wait > 0, "the service must pause before it tries again"
        assert [job.name for job in (await sql_submits.read(pool, page=10))[0]] == ["held"]
    assert await service.work() is None
    assert (await jobs_store.get(pool, job_id=held.job_id, tenant="default")) is not None


async def test_who_asks_for_a_change_waits_for_it(pool: Pool, operations: Operations) -> None:
    """An operation of a user waits for the lock, so that it can report the result."""
    job = await operations.submit(JobRequest("noop", schedule="@hourly"), allow_unknown_handler=True)
    async with locked(pool, due_job(pool, DUE, job_id=job.job_id)):
        asked = asyncio.create_task(operations.jobs.pause(str(job.job_id)))
        done, _ = await asyncio.wait([asked], timeout=0.2)
        assert not done
    assert (await asked).status == "paused"
