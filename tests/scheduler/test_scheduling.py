"""Loader, firer and coordinator, step by step through `run_once`: no loop runs, nothing waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.config import Settings
from duly.errors import DataRefused, StoreUnavailable
from duly.model import JobRequest, to_micros
from duly.node import SchedulerNode
from duly.operations import Operations
from duly.scheduler.planner import plan_batch
from duly.service import Service
from duly.store import fires
from duly.store.fires import DueJob
from duly.store.pool import Pool
from harness.scheduler import START, FrozenScheduler
from harness.store import count, due_job, put
from harness.waiting import eventually


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    return scheduler


async def test_nothing_fires_before_its_time_and_everything_at_it(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = due_job(pool, START + timedelta(seconds=30), policy='{"overlap": "parallel"}', start_at=START)
    await put(pool, job)
    await scheduler.take_over(job.shard)
    assert await scheduler.firer.run_once() == 1.0
    await scheduler.at(START + timedelta(seconds=29, microseconds=999_999))
    await scheduler.firer.run_once()
    assert await scheduler.runs() == []
    await scheduler.at(START + timedelta(seconds=30))
    await scheduler.firer.run_once()
    assert await scheduler.runs() == [START + timedelta(seconds=30)]


async def test_the_next_occurrence_is_known_without_reading_the_store_again(
    scheduler: FrozenScheduler, pool: Pool
) -> None:
    minute = timedelta(minutes=1)
    job = due_job(pool, START, schedule="every 1m", start_at=START, policy='{"overlap": "parallel"}')
    await put(pool, job)
    await scheduler.take_over(job.shard)
    for n in range(5):
        await scheduler.at(START + n * minute)
        await scheduler.firer.run_once()
    assert await scheduler.runs() == [START + n * minute for n in range(5)]


async def test_a_node_whose_clock_is_an_hour_ahead_fires_nothing_early(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = due_job(pool, START + timedelta(seconds=30), start_at=START)
    await put(pool, job)
    await scheduler.take_over(job.shard)
    scheduler.clock.moment = START + timedelta(hours=1)
    await scheduler.firer.run_once()
    assert await scheduler.runs() == []
    # The firer looks at the job again, and fires it when it is due by the database's clock.
    await scheduler.at(START + timedelta(seconds=30))
    await scheduler.firer.run_once()
    assert len(await scheduler.runs()) == 1


async def test_a_node_whose_clock_steps_back_repeats_nothing(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = due_job(pool, START + timedelta(seconds=30), schedule="every 30s", start_at=START)
    await put(pool, job)
    await scheduler.take_over(job.shard)
    await scheduler.at(START + timedelta(seconds=30))
    await scheduler.firer.run_once()
    scheduler.clock.moment = START - timedelta(minutes=2)
    await scheduler.loader.run_once()
    await scheduler.firer.run_once()
    assert await scheduler.runs() == [START + timedelta(seconds=30)]


async def test_a_job_announced_inside_the_loaded_window_fires_on_time(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = due_job(pool, START + timedelta(milliseconds=300), start_at=START)
    await scheduler.take_over(job.shard)
    await put(pool, job)
    due_us = to_micros(START + timedelta(milliseconds=300))
    scheduler.loader.heard(f"{job.shard}:{job.job_id}:{due_us}")
    scheduler.loader.heard(f"{job.shard}:{job.job_id}:{due_us}")
    await scheduler.at(START + timedelta(milliseconds=300))
    await scheduler.firer.run_once()
    assert await scheduler.runs() == [START + timedelta(milliseconds=300)]


async def test_a_job_whose_announcement_was_lost_is_found_by_the_next_re_read(
    scheduler: FrozenScheduler, pool: Pool
) -> None:
    job = due_job(pool, START + timedelta(seconds=30), start_at=START)
    await scheduler.take_over(job.shard)
    await put(pool, job)
    await scheduler.loader.run_once()
    await scheduler.at(START + timedelta(seconds=30))
    await scheduler.firer.run_once()
    assert len(await scheduler.runs()) == 1


async def test_a_job_due_in_ten_years_takes_no_memory(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = due_job(pool, START + timedelta(days=3650))
    await put(pool, job)
    await scheduler.take_over(job.shard)
    assert len(scheduler.future) == 0
    assert not scheduler.future.add(job.shard, job.job_id, to_micros(START + timedelta(days=3650)))


async def test_a_shard_that_is_no_longer_led_is_forgotten(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = due_job(pool, START + timedelta(seconds=30))
    await put(pool, job)
    await scheduler.take_over(job.shard)
    assert len(scheduler.future) == 1
    scheduler.loader.drop(job.shard)
    scheduler.firer.drop(job.shard)
    assert len(scheduler.future) == 0
    await scheduler.at(START + timedelta(seconds=30))
    await scheduler.firer.run_once()
    assert await scheduler.runs() == []


async def test_a_monthly_job_fires_although_its_nodes_are_restarted_every_hour(
    scheduler: FrozenScheduler, pool: Pool
) -> None:
    first = datetime(2030, 6, 1, 4, 30, tzinfo=UTC)
    job = due_job(pool, first, kind="cron", schedule="30 4 1 * *")
    await put(pool, job)
    moment = START
    while moment < first + timedelta(days=1):
        # A new node each time: it knows nothing from before its start.
        node = FrozenScheduler(pool)
        await node.at(moment)
        await node.take_over(job.shard)
        await node.firer.run_once()
        moment += timedelta(minutes=59)
        await node.at(moment)
        await node.firer.run_once()
    assert await scheduler.runs() == [first]
    assert await count(pool, "jobs", "next_run_at = $1", datetime(2030, 7, 1, 4, 30, tzinfo=UTC)) == 1


@pytest.mark.parametrize(
    ("policy", "fired", "missed"),
    [
        ('{"missed_window": "SKIP", "overlap": "parallel"}', [], 1560),
        ('{"missed_window": "RUN_ONCE", "overlap": "parallel"}', [0], 1559),
        ('{"missed_window": "RUN_ALL", "overlap": "parallel", "max_missed": 3}', [-2, -1, 0], 1557),
    ],
)
async def test_a_minutely_job_after_26_hours_without_a_scheduler(
    scheduler: FrozenScheduler, pool: Pool, policy: str, fired: list[int], missed: int
) -> None:
    minute = timedelta(minutes=1)
    job = due_job(pool, START + minute, schedule="* * * * *", kind="cron", policy=policy)
    await put(pool, job)
    end = START + timedelta(hours=26)
    await scheduler.at(end + timedelta(seconds=30))
    await scheduler.take_over(job.shard)
    await scheduler.firer.run_once()
    assert await scheduler.runs() == [end + n * minute for n in fired]
    rows = await pool.query("select sum((note ->> 'count')::int) as dropped from duly.history where status = 'missed'")
    assert rows[0]["dropped"] == missed
    assert await count(pool, "jobs", "next_run_at = $1", end + minute) == 1


async def test_a_store_that_is_away_for_a_moment_costs_no_occurrence(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = due_job(pool, START + timedelta(seconds=1), start_at=START)
    await put(pool, job)
    await scheduler.take_over(job.shard)
    await scheduler.at(START + timedelta(seconds=1))

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(fires, "fire", away)
        with pytest.raises(StoreUnavailable):
            await scheduler.firer.run_once()
    assert await scheduler.runs() == []
    await scheduler.firer.run_once()
    assert len(await scheduler.runs()) == 1


async def test_where_a_fire_whose_answer_was_lost_moved_a_job_to_is_looked_for(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = due_job(pool, START + timedelta(seconds=1), start_at=START)
    await put(pool, job)
    await scheduler.take_over(job.shard)
    await scheduler.at(START + timedelta(seconds=1))
    doubted: list[int] = []
    monkeypatch.setattr(scheduler.firer, "_doubted", doubted.append)
    real = fires.fire

    async def lost(*args: Any, **named: Any) -> None:
        await real(*args, **named)
        raise StoreUnavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(fires, "fire", lost)
        with pytest.raises(StoreUnavailable):
            await scheduler.firer.run_once()
    assert doubted == [job.shard]
    assert len(await scheduler.runs()) == 1


async def test_a_job_that_cannot_be_planned_is_parked_with_its_reason_and_the_shard_goes_on(
    scheduler: FrozenScheduler, pool: Pool
) -> None:
    due = START + timedelta(seconds=1)
    lost = due_job(pool, due, kind="cron", schedule="* * * * *", timezone="Mars/Olympus")
    fine = due_job(pool, due, kind="cron", schedule="* * * * *")
    fine = due_job(
        pool, due, kind="cron", schedule="* * * * *",
        job_id=UUID(int=(fine.job_id.int & ~0xFFFF) | (lost.job_id.int & 0xFFFF)), shard=lost.shard,
    )  # fmt: skip
    await put(pool, lost, fine)
    await scheduler.take_over(lost.shard)
    await scheduler.at(due)
    await scheduler.firer.run_once()
    rows = await pool.query("select status, status_reason from duly.jobs where job_id = $1", lost.job_id)
    assert rows[0]["status"] == "paused"
    assert "Mars/Olympus" in rows[0]["status_reason"]
    assert await count(pool, "runs", "job_id = $1", fine.job_id) == 1


async def test_a_job_that_the_database_chokes_on_is_parked_and_the_others_fire(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = START + timedelta(seconds=1)
    first = due_job(pool, due, kind="cron", schedule="* * * * *")
    jobs = [
        due_job(
            pool, due, kind="cron", schedule="* * * * *",
            job_id=UUID(int=(first.job_id.int & ~0xFFFF_0000) | (n << 16)), shard=first.shard,
        )
        for n in range(20)
    ]  # fmt: skip
    await put(pool, *jobs)
    await scheduler.take_over(first.shard)
    await scheduler.at(due)
    real = fires.fire

    async def choke(store: Pool, *, epochs: dict[int, int], batch: fires.Fires) -> fires.Fired:
        if jobs[7].job_id in batch.job_ids:
            raise DataRefused("cannot encode")
        return await real(store, epochs=epochs, batch=batch)

    monkeypatch.setattr(fires, "fire", choke)
    await scheduler.firer.run_once()
    assert await count(pool, "runs") == 19
    assert await count(pool, "jobs", "status = 'paused' and job_id = $1", jobs[7].job_id) == 1


async def test_a_job_whose_row_says_another_shard_holds_up_nobody(scheduler: FrozenScheduler, pool: Pool) -> None:
    due = START + timedelta(seconds=1)
    astray, other = due_job(pool, due), due_job(pool, due)
    await put(pool, astray, other)
    for shard in {astray.shard, other.shard}:
        await scheduler.take_over(shard)
    await scheduler.at(due)
    await pool.query("update duly.jobs set shard = (shard + 1) % 64 where job_id = $1", astray.job_id)
    await scheduler.firer.run_once()
    assert [row["job_id"] for row in await pool.query("select job_id from duly.runs")] == [other.job_id]


def test_half_a_million_jobs_of_one_schedule_are_planned_once() -> None:
    jobs = [
        DueJob(UUID(int=n), "cron", "0 12 * * *", "Europe/Berlin", None, None, None, START, START, None, 0, START)
        for n in range(2000)
    ]
    batch = plan_batch(jobs, now=START, misfire_grace=timedelta(seconds=10))
    assert len(batch.fires[0].job_ids) == 2000
    assert len(set(batch.fires[0].next_run_at)) == 1


async def test_a_whole_node_fires_a_job_on_time_and_leaves_nothing_behind(
    pool: Pool, settings: Settings, operations: Operations
) -> None:
    node = SchedulerNode(pool, settings)
    await node.start()
    try:
        due = operations.now() + timedelta(seconds=1.5)
        await operations.submit(JobRequest("noop", schedule=due), allow_unknown_handler=True)

        async def fired() -> bool:
            return await count(pool, "runs") > 0

        await eventually(fired)
        row = (await pool.query("select scheduled_at, fired_at, run_at from duly.runs"))[0]
        assert row["scheduled_at"] == due
        ahead = timedelta(seconds=settings.fire_ahead_seconds)
        assert -2 * ahead <= row["fired_at"] - due < timedelta(seconds=1)
        assert row["run_at"] == max(due, row["fired_at"])
    finally:
        await node.stop()
    assert await count(pool, "shards", "node_id is not null") == 0
    assert await count(pool, "nodes", "stopped_at is null") == 0


class TestService:
    class Counting(Service):
        interval = 3600.0

        def __init__(self) -> None:
            super().__init__()
            self.passes = 0
            self.fail = 0
            self.passed = asyncio.Event()

        async def run_once(self) -> float | None:
            self.passes += 1
            self.passed.set()
            if self.fail:
                self.fail -= 1
                raise RuntimeError("once more")
            return None

    async def test_waking_makes_the_next_pass_start_now(self) -> None:
        service = self.Counting()
        await service.start()
        for expected in range(1, 4):
            async with asyncio.timeout(5):
                await service.passed.wait()
            service.passed.clear()
            assert service.passes == expected
            service.wake()
        await service.stop()

    async def test_an_error_is_not_the_end(self, caplog: pytest.LogCaptureFixture) -> None:
        service = self.Counting()
        service.backoff = (0.001, 0.002)
        service.fail = 3
        await service.start()
        await eventually(lambda: service.passes >= 4, seconds=5)
        await service.stop()
        assert "counting failed" in caplog.text
