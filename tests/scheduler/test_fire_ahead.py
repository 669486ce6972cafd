"""Occurrences fired ahead of their time start on time, and are taken back if their job changes before that."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from duly.maintenance.guardian import Guardian
from duly.model import Claim, JobRequest
from duly.operations import Operations
from duly.scheduler import backlog
from duly.store import fires, runs
from duly.store import jobs as jobs_store
from duly.store.jobs import NewJob
from duly.store.notifier import Notifier
from duly.store.pool import Pool
from harness.scheduler import HOUR, MINUTE, SECOND, START, FrozenScheduler, same_shard
from harness.store import count, due_job, succeeded, take

AHEAD = timedelta(seconds=0.5)
DUE = START + MINUTE
BEFORE = DUE - 0.8 * AHEAD
MOMENT = timedelta(microseconds=1)


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool, ahead=AHEAD)
    await scheduler.at(START)
    return scheduler


async def put(scheduler: FrozenScheduler, **changes: Any) -> NewJob:
    """Stores a job that is due at one minute past every hour, and leads its shard."""
    job = due_job(scheduler.pool, DUE, kind="cron", schedule="1 * * * *", **changes)
    await scheduler.put(job)
    await scheduler.lead(job)
    return job


async def run_all(pool: Pool) -> int:
    """Claims all runs that may start now and records them as succeeded. Returns their number."""
    claim = await take(pool, limit=100)
    return await end(pool, claim) if claim.runs else 0


async def end(pool: Pool, claim: Claim) -> int:
    assert claim.claim_id is not None
    return await runs.complete(pool, [succeeded(run) for run in claim.runs], close=[claim.claim_id])


async def test_it_is_in_the_queue_before_its_time_and_starts_at_it(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = await put(scheduler)
    await scheduler.step(DUE - AHEAD - MOMENT)
    assert await scheduler.runs() == []
    await scheduler.step(BEFORE)
    assert await scheduler.runs(job, "run_at = scheduled_at") == [DUE]
    assert (await scheduler.job(job))["next_run_at"] == DUE + HOUR
    await scheduler.at(DUE - MOMENT)
    claim = await take(pool)
    assert (claim.runs, claim.next_run_at) == ([], DUE)
    await scheduler.at(DUE)
    assert [run.scheduled_at for run in (await take(pool)).runs] == [DUE]


async def test_the_next_look_is_when_the_next_may_be_fired_ahead(scheduler: FrozenScheduler) -> None:
    await put(scheduler)
    await scheduler.step(DUE - AHEAD - 0.25 * SECOND)
    assert await scheduler.firer.run_once() == pytest.approx(0.25)


@pytest.mark.parametrize("ends", [True, False])
async def test_overlap_is_decided_at_its_time_not_before(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations, ends: bool
) -> None:
    job = await put(scheduler)
    await operations.jobs.trigger(str(job.job_id))
    claim = await take(pool)
    assert len(claim.runs) == 1
    await scheduler.step(BEFORE)
    assert await scheduler.runs(job) == []  # not fired ahead: the triggered run has not ended yet
    assert (await scheduler.job(job))["next_run_at"] == DUE
    await scheduler.at(DUE - MOMENT)
    if ends:
        await end(pool, claim)
    await scheduler.step(DUE - MOMENT)
    assert await count(pool, "history", "status = 'skipped'") == 0
    await scheduler.step(DUE)
    assert await scheduler.runs(job) == ([DUE] if ends else [])
    assert await count(pool, "history", "status = 'skipped' and scheduled_at = $1", DUE) == int(not ends)


@pytest.mark.timeout(20)
async def test_a_node_ahead_of_the_database_does_not_ask_without_pause_what_it_must_wait_for(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    job = await put(scheduler)
    await operations.jobs.trigger(str(job.job_id))
    assert len((await take(pool)).runs) == 1
    await scheduler.loader.run_once()
    await scheduler.at(BEFORE)
    scheduler.clock.moment = DUE + SECOND
    assert await scheduler.firer.run_once() == pytest.approx(0.002)
    assert await count(pool, "history", "status = 'skipped'") == 0


async def test_one_asked_for_by_hand_before_its_time_does_not_run_beside_it(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    await put(scheduler)
    await scheduler.step(BEFORE)
    (run_id,) = [
        (await operations.jobs.trigger(str(row["job_id"]))).run_id
        for row in await pool.query("select job_id from duly.jobs")
    ]
    await scheduler.at(DUE)
    first = await take(pool)
    assert [run.scheduled_at for run in first.runs] == [DUE]
    assert (await take(pool)).runs == []
    await end(pool, first)
    await scheduler.at(DUE + SECOND)
    assert await run_all(pool) == 1
    assert (await operations.runs.get(run_id)).status == "succeeded"


async def test_pausing_takes_it_back_and_resuming_runs_it_once(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    job = await put(scheduler)
    await scheduler.step(BEFORE)
    assert (await scheduler.job(job))["run_count"] == 1
    paused = await operations.jobs.pause(str(job.job_id))
    assert (paused.status, paused.next_run_at, paused.run_count, paused.last_run_at) == ("paused", None, 0, None)
    assert await scheduler.runs() == []
    resumed = await operations.jobs.resume(str(job.job_id))
    assert resumed.next_run_at == DUE
    await scheduler.step(BEFORE + 0.1 * AHEAD)
    await scheduler.step(DUE)
    assert await run_all(pool) == 1
    assert await scheduler.runs() == []
    assert (await scheduler.job(job))["last_run_at"] == DUE


async def test_what_ran_before_is_remembered_when_the_next_is_taken_back(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    job = await put(scheduler)
    for due in (DUE, DUE + HOUR):
        await scheduler.step(due - 0.5 * AHEAD)
        await scheduler.at(due)
        assert await run_all(pool) == 1
    await scheduler.step(DUE + 2 * HOUR - 0.5 * AHEAD)
    assert await scheduler.runs() == [DUE + 2 * HOUR]
    paused = await operations.jobs.pause(str(job.job_id))
    assert (paused.run_count, paused.last_run_at) == (2, DUE + HOUR)
    # The guardian does not mistake the withdrawn run for a lost one.
    await scheduler.at(DUE + 3 * HOUR)
    await Guardian(pool).run_once()
    assert await scheduler.runs() == []


async def test_one_that_was_parked_meanwhile_stays_parked(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = await put(scheduler)
    await scheduler.step(BEFORE)
    await pool.query("update duly.jobs set status = 'paused', next_run_at = null")
    async with pool.transaction() as within:
        await jobs_store.retract(within, job_id=job.job_id, tenant=job.tenant)
    assert await scheduler.runs() == []
    stored = await scheduler.job(job)
    assert (stored["status"], stored["next_run_at"], stored["run_count"]) == ("paused", None, 0)


async def test_cancelling_takes_it_back_and_it_leaves_no_outcome(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    job = await put(scheduler)
    await scheduler.step(BEFORE)
    assert (await operations.jobs.cancel(str(job.job_id))).status == "cancelled"
    await scheduler.step(DUE + SECOND)
    assert await run_all(pool) == 0
    assert await count(pool, "history") == 0


async def test_a_new_schedule_takes_it_back_and_other_changes_do_not(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    job = await put(scheduler)
    await scheduler.step(BEFORE)
    changed = await operations.jobs.change(str(job.job_id), {"payload": {"n": 2}, "priority": 9})
    assert changed.next_run_at == DUE + HOUR
    assert await scheduler.runs(job, "priority = 9") == [DUE]
    changed = await operations.jobs.change(str(job.job_id), {"schedule": "30 * * * *"})
    assert changed.next_run_at == START + 30 * MINUTE
    assert changed.run_count == 0
    await scheduler.step(DUE + SECOND)
    assert await scheduler.runs() == []
    await scheduler.step(START + 30 * MINUTE)
    assert await scheduler.runs() == [START + 30 * MINUTE]


async def test_its_leader_is_told_of_one_that_is_put_back(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations, database_url: str
) -> None:
    """The change took the fired run back and altered nothing else, so nothing else announces the job.

    The job must not wait for the next re-read.
    """
    job = await put(scheduler)
    heard: asyncio.Queue[str] = asyncio.Queue()
    notifier = Notifier(database_url)
    notifier.listen("duly_due", lambda said: heard.put_nowait(said or ""))
    await notifier.start()
    try:
        assert await heard.get() == ""  # the notifier listens now
        await scheduler.step(BEFORE)
        changed = await operations.jobs.change(str(job.job_id), {"schedule": "1 * * * *"})
        assert changed.next_run_at == DUE
        assert await scheduler.runs() == []
        async with asyncio.timeout(10):
            said = await heard.get()
    finally:
        await notifier.stop()
    assert said.split(":")[:2] == [str(job.shard), str(job.job_id)]
    scheduler.loader.heard(said)
    await scheduler.step(DUE, read=False)
    assert await scheduler.runs() == [DUE]


async def test_a_one_off_about_to_start_can_still_be_moved(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    submitted = await operations.submit(JobRequest("noop", schedule=DUE), allow_unknown_handler=True)
    job_id = str(submitted.job_id)
    stored = await pool.query("select shard from duly.jobs")
    await scheduler.lead(due_job(pool, DUE, shard=stored[0]["shard"]))
    await scheduler.step(BEFORE)
    assert await scheduler.runs() == [DUE]
    later = DUE + HOUR
    assert (await operations.jobs.change(job_id, {"schedule": later.isoformat()})).next_run_at == later
    assert await scheduler.runs() == []
    await scheduler.step(DUE)
    assert await scheduler.runs() == []
    await scheduler.step(later)
    assert await run_all(pool) == 1
    assert (await operations.jobs.get(job_id)).status == "completed"


async def test_an_app_that_declares_it_otherwise_takes_it_back(
    scheduler: FrozenScheduler, pool: Pool, operations: Operations
) -> None:
    def declared(schedule: str) -> JobRequest:
        return JobRequest("digest", schedule=schedule, dedupe_key="cron:digest")

    job_id = await operations.declare(declared("1 * * * *"))
    stored = await pool.query("select shard from duly.jobs")
    await scheduler.lead(due_job(pool, DUE, shard=stored[0]["shard"]))
    await scheduler.step(BEFORE)
    assert await scheduler.runs() == [DUE]
    assert await operations.declare(declared("30 * * * *")) == job_id
    assert await scheduler.runs() == []
    assert (await operations.jobs.get(str(job_id))).next_run_at == START + 30 * MINUTE


async def test_several_of_a_short_period_are_taken_back_together(pool: Pool, operations: Operations) -> None:
    scheduler = FrozenScheduler(pool, ahead=3 * SECOND)
    job = due_job(
        pool, DUE, kind="interval", schedule="every 1s", policy='{"overlap":"parallel"}', start_at=DUE - MINUTE
    )
    await scheduler.put(job)
    await scheduler.lead(job)
    await scheduler.step(DUE - SECOND)
    assert await scheduler.runs() == [DUE, DUE + SECOND, DUE + 2 * SECOND]
    await scheduler.at(DUE)
    assert (await operations.jobs.pause(str(job.job_id))).run_count == 1
    assert await scheduler.runs() == [DUE]  # this one is due, so a worker may have claimed it


async def test_a_peak_is_begun_early_enough_and_holds_up_nobody(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "FIRES_PER_SECOND", 100)
    monkeypatch.setattr(backlog, "MAX_BATCH_JOBS", 50)
    peak = same_shard(pool, 1000, DUE, kind="cron", schedule="1 * * * *")
    soon = due_job(pool, DUE - 9 * SECOND, kind="cron", schedule="51 0 * * * *", shard=peak[0].shard)
    soon = soon._replace(job_id=same_shard(pool, 1, DUE)[0].job_id, shard=peak[0].shard)
    await scheduler.put(*peak, soon)
    await scheduler.lead(*peak)
    await scheduler.step(DUE - 20 * SECOND)
    assert await scheduler.runs() == []
    order: list[datetime] = []
    real = fires.fire

    async def watched(*args: Any, batch: Any, **named: Any) -> Any:
        order.extend(batch.expected)
        return await real(*args, batch=batch, **named)

    monkeypatch.setattr(fires, "fire", watched)
    await scheduler.step(DUE - 9.4 * SECOND, read=False)
    assert len(await scheduler.runs(where="run_at = scheduled_at")) == 1001
    assert order.index(DUE - 9 * SECOND) < 200
    await scheduler.at(DUE - SECOND)
    assert await run_all(pool) == 1


async def test_a_steady_load_is_no_peak(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "FIRES_PER_SECOND", 100)
    jobs = [
        job._replace(next_run_at=START + 5 * SECOND + n * 0.02 * SECOND)
        for n, job in enumerate(same_shard(pool, 1000, DUE, kind="once", schedule="now"))
    ]
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    await scheduler.step(START)
    assert await scheduler.runs() == []
