"""The loader reads again what it must, and no more than that. No loop runs, unless a test says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from duly.config import Settings
from duly.errors import StoreUnavailable
from duly.model import JobRequest, to_micros
from duly.node import running_scheduler
from duly.operations import Operations
from duly.scheduler import loader as loader_module
from duly.store import fires
from duly.store.fires import LONG_AGO, Slice, SlicePage
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from harness.scheduler import MINUTE, SECOND, START, FrozenScheduler, everything_read, same_shard, spread
from harness.store import count, due_job, put
from harness.waiting import eventually


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    return scheduler


class Reads:
    """Counts the entries that were read from the store, and keeps the slices that were asked for."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self.entries = 0
        self.slices: list[Slice] = []

    async def __call__(self, store: Pool, *, slices: list[Slice], page: int) -> list[SlicePage]:
        pages: list[SlicePage] = await self._real(store, slices=slices, page=page)
        self.slices += slices
        self.entries += sum(len(page.dues_us) for page in pages)
        return pages


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads = Reads(fires.load)
    monkeypatch.setattr(fires, "load", reads)
    return reads


def each_second(pool: Pool, count: int) -> list[NewJob]:
    """Jobs of one shard, one due in every second after START."""
    jobs = same_shard(pool, count, START, start_at=START)
    return [job._replace(next_run_at=START + (n + 1) * SECOND) for n, job in enumerate(jobs)]


async def test_who_is_told_to_look_looks_at_once(scheduler: FrozenScheduler, pool: Pool) -> None:
    """The loop runs in this test, and its next regular look is a minute away."""
    jobs = same_shard(pool, 2, START + 10 * SECOND)
    await scheduler.put(jobs[0])
    await scheduler.lead(jobs[0])
    await scheduler.loader.start()
    try:
        await eventually(lambda: len(scheduler.future) == 1)
        await scheduler.put(jobs[1])
        scheduler.loader.heard(None)
        await eventually(lambda: len(scheduler.future) == 2)
    finally:
        await scheduler.loader.stop()


async def test_a_re_read_costs_what_falls_due_soon_and_not_what_is_held(
    scheduler: FrozenScheduler, pool: Pool, reads: Reads
) -> None:
    jobs = each_second(pool, 1200)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    assert (reads.entries, len(scheduler.future)) == (600, 600)
    reads.entries = 0
    await scheduler.at(START + MINUTE)
    await scheduler.loader.run_once()
    # The minute that came into the horizon; and again the overdue minute (nothing fires here) and the next two.
    assert reads.entries == 60 + 180
    assert len(scheduler.future) == 660
    reads.entries = 0
    await scheduler.loader.run_once()
    assert (reads.entries, len(scheduler.future)) == (180, 660)


async def test_an_announcement_lost_long_before_the_time_does_not_make_the_job_late(
    scheduler: FrozenScheduler, pool: Pool
) -> None:
    job = due_job(pool, START + 8 * MINUTE, start_at=START)
    await scheduler.lead(job)
    await scheduler.loader.run_once()
    await put(pool, job)
    for minute in range(1, 8):
        await scheduler.at(START + minute * MINUTE)
        await scheduler.loader.run_once()
    await scheduler.step(START + 8 * MINUTE, read=False)
    assert await scheduler.runs() == [START + 8 * MINUTE]


async def test_one_failed_re_read_makes_nothing_late(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = due_job(pool, START + 119 * SECOND, start_at=START)
    await scheduler.lead(job)
    await scheduler.loader.run_once()
    await put(pool, job)
    await scheduler.loader.run_once()

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(fires, "load", away)
        await scheduler.at(START + MINUTE)
        with pytest.raises(StoreUnavailable):
            await scheduler.loader.run_once()
    await scheduler.step(START + 119 * SECOND, read=False)
    assert len(await scheduler.runs()) == 1


async def test_a_bulk_submit_is_read_by_its_range_of_ids_alone(
    scheduler: FrozenScheduler, pool: Pool, reads: Reads
) -> None:
    held = each_second(pool, 600)
    await scheduler.put(*held)
    await scheduler.lead(*held)
    await scheduler.loader.run_once()
    reads.entries = 0
    new = same_shard(pool, 60, START + 300 * SECOND, start_at=START)
    new = [job._replace(shard=held[0].shard) for job in new]
    await put(pool, *new)
    ids = sorted(job.job_id for job in new)
    for _ in range(2):  # jobs that are announced twice are held once
        scheduler.loader.heard(f"*:{ids[0]}:{ids[-1]}")
        await scheduler.loader.run_once()
        assert (reads.entries, len(scheduler.future)) == (0, 660)


async def test_a_range_that_is_no_bulk_submit_is_not_read_to_its_end(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "MAX_PAGE", 10)
    monkeypatch.setattr(loader_module, "_MAX_RANGE_PAGES", 2)
    jobs = same_shard(pool, 100, START + 30 * SECOND, start_at=START)
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    await put(pool, *jobs)
    ids = sorted(job.job_id for job in jobs)
    scheduler.loader.heard(f"*:{ids[0]}:{ids[-1]}")
    await scheduler.loader.run_once()
    # The other jobs are found by their due time.
    assert len(scheduler.future) == 100


async def test_more_bulk_submits_than_can_be_read_are_found_by_when_they_are_due(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = same_shard(pool, 60, START + 30 * SECOND, start_at=START)
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    await put(pool, *jobs)
    monkeypatch.setattr(fires, "load_range", None)
    for job in jobs:
        scheduler.loader.heard(f"*:{job.job_id}:{job.job_id}")
    scheduler.loader._ranges.clear()  # the ranges heard after the loader gave up reading ranges
    await scheduler.loader.run_once()
    assert len(scheduler.future) == 60


async def test_more_shards_than_fit_one_statement_are_all_read(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "MAX_SLICES", 5)
    jobs = spread(pool, 300, START + MINUTE, start_at=START)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    assert len(scheduler.future) == 300


async def test_firing_begins_with_the_first_page_of_every_shard(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "MAX_PAGE", 1280)
    far = spread(pool, 6400, START, start_at=START)
    far = [job._replace(next_run_at=START + MINUTE + n * timedelta(milliseconds=50)) for n, job in enumerate(far)]
    soon = [due_job(pool, START + (n + 1) * SECOND, start_at=START) for n in range(20)]
    await scheduler.put(*far, *soon)
    await scheduler.lead(*far, *soon)
    told: list[int] = []

    def changed() -> None:
        if not told:
            due = scheduler.future._wheel.advance(to_micros(START + MINUTE) - 1)
            assert sum(len(entries) for _, entries in due) == len(soon)
        told.append(len(scheduler.future))

    monkeypatch.setattr(scheduler.loader, "_changed", changed)
    await scheduler.loader.run_once()
    assert told[0] < 1500
    assert told[-1] == len(scheduler.future) == 6400


async def test_after_an_outage_what_is_coming_is_not_read_after_all_that_is_overdue(
    scheduler: FrozenScheduler, pool: Pool, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "MAX_PAGE", 20)
    jobs = [job._replace(next_run_at=START - 60 * MINUTE + n * SECOND) for n, job in enumerate(each_second(pool, 500))]
    coming = due_job(pool, START + 5 * SECOND, start_at=START, shard=jobs[0].shard)
    await scheduler.put(*jobs, coming)
    await scheduler.lead(*jobs)
    seen = []
    monkeypatch.setattr(scheduler.loader, "_changed", lambda: seen.append(len(scheduler.future)))
    await scheduler.loader.run_once()
    assert len(scheduler.future) == 501
    # The coming job was in the first answer, beside the first ten overdue jobs.
    assert seen[0] == 11


async def test_jobs_of_one_and_the_same_moment_are_all_read(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "MAX_PAGE", 10)
    jobs = same_shard(pool, 95, START + MINUTE, start_at=START)
    later = same_shard(pool, 5, START + 2 * MINUTE, start_at=START)
    await scheduler.put(*jobs, *[job._replace(shard=jobs[0].shard) for job in later])
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    assert len(scheduler.future) == 100


async def test_a_new_term_is_rebuilt_and_not_merged(scheduler: FrozenScheduler, pool: Pool) -> None:
    job = due_job(pool, START + MINUTE, start_at=START)
    await put(pool, job)
    await scheduler.lead(job)
    await scheduler.loader.run_once()
    stale = due_job(pool, START, shard=job.shard)
    scheduler.future.add(job.shard, stale.job_id, to_micros(START + 2 * MINUTE))
    assert len(scheduler.future) == 2
    scheduler.loader.lead(job.shard)
    assert len(scheduler.future) == 0
    await scheduler.loader.run_once()
    assert len(scheduler.future) == 1


async def test_a_term_that_begins_while_the_last_one_is_still_read_is_read_from_its_start(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "MAX_PAGE", 100)
    jobs = each_second(pool, 500)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    real, calls = fires.load, 0

    async def interrupted(store: Pool, **asked: Any) -> list[SlicePage]:
        nonlocal calls
        calls += 1
        if calls == 3:
            scheduler.loader.drop(jobs[0].shard)
            scheduler.loader.lead(jobs[0].shard)
        return await real(store, **asked)

    monkeypatch.setattr(fires, "load", interrupted)
    assert await scheduler.loader.run_once() == 0.0
    await scheduler.loader.run_once()
    assert len(scheduler.future) == 500


async def test_what_our_own_fire_moved_is_found_when_its_answer_was_lost(
    scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moved job is not announced, and its next occurrence is due before the next re-read."""
    scheduler.firer._doubted = scheduler.loader.doubt
    job = due_job(pool, START + SECOND, schedule="every 2s", start_at=START + SECOND, policy='{"overlap":"parallel"}')
    await put(pool, job)
    await scheduler.lead(job)
    await scheduler.loader.run_once()
    scheduler.loader._wake.clear()
    real = fires.fire

    async def lost(store: Pool, **asked: Any) -> None:
        await real(store, **asked)
        raise StoreUnavailable("the answer never came")

    with monkeypatch.context() as patch:
        patch.setattr(fires, "fire", lost)
        with pytest.raises(StoreUnavailable):
            await scheduler.step(START + SECOND, read=False)
    assert scheduler.loader._wake.is_set(), "the loader must read at once, not at the next re-read"
    await scheduler.loader.run_once()
    await scheduler.step(START + 3 * SECOND, read=False)
    assert await scheduler.runs() == [START + SECOND, START + 3 * SECOND]


async def test_a_long_backlog_is_not_read_again(
    scheduler: FrozenScheduler, pool: Pool, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = each_second(pool, 30)
    await scheduler.put(*jobs)
    await scheduler.lead(*jobs)
    await scheduler.loader.run_once()
    await scheduler.at(START + MINUTE)
    monkeypatch.setattr(scheduler.loader, "_waiting", lambda _: 5000)
    reads.slices.clear()
    await scheduler.loader.run_once()
    assert all(one.after > LONG_AGO for one in reads.slices)
    monkeypatch.setattr(scheduler.loader, "_waiting", lambda _: 5)
    await scheduler.loader.run_once()
    assert any(one.after == LONG_AGO for one in reads.slices)


async def test_with_notifications_off_everything_fires_within_the_re_read_interval(
    settings: Settings, operations: Operations, pool: Pool
) -> None:
    quiet = settings.model_copy(update={"notifications": False, "reread_seconds": 1.0})
    async with running_scheduler(pool, quiet) as node:
        await everything_read(node)
        due = pool.clock.now() + timedelta(milliseconds=300)
        requests = [JobRequest(name=f"n{n}", handler="noop", schedule=due.isoformat()) for n in range(100)]
        await operations.submit_many(requests, allow_unknown_handler=True)

        async def fired() -> bool:
            return await count(pool, "runs") == 100

        await eventually(fired)
        rows = await pool.query("select max(fired_at - scheduled_at) as late from duly.runs")
        # The re-read interval (1 s), and the delays of a busy machine.
        assert rows[0]["late"] < timedelta(seconds=4)


async def test_a_bulk_submit_inside_the_horizon_fires_on_time(
    settings: Settings, operations: Operations, pool: Pool
) -> None:
    async with running_scheduler(pool, settings) as node:
        await everything_read(node)
        await eventually(lambda: node.notifier is not None and node.notifier.hearing)
        due = pool.clock.now() + timedelta(seconds=1)
        requests = [JobRequest(name=f"n{n}", handler="noop", schedule=due.isoformat()) for n in range(500)]
        await operations.submit_many(requests, allow_unknown_handler=True)

        async def fired() -> bool:
            return await count(pool, "runs") == 500

        # The next re-read is most of a minute away.
        await eventually(fired)
