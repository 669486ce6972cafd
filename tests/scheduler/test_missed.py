"""Occurrences that a scheduler finds after their time run late, are dropped or are deferred: end to end."""

from __future__ import annotations

import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.config import Settings
from duly.errors import StoreUnavailable
from duly.node import SchedulerNode
from duly.scheduler import backlog
from duly.scheduler.governor import Governor
from duly.store import fires, runs
from duly.store.jobs import submit
from duly.store.pool import Pool
from duly.timing import jitter_offset
from duly.timing import missed as missed_module
from harness.scheduler import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START,
    FrozenClock,
    FrozenScheduler,
    moments,
    same_shard,
    spread,
)
from harness.store import count, due_job, succeeded, take
from harness.waiting import eventually

PARALLEL = '{"overlap":"parallel"}'
ALL = '{"missed_window":"RUN_ALL","overlap":"parallel"}'


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    return scheduler


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class TestDst:
    async def test_a_time_that_the_clocks_skip_is_recorded_as_missed_once(self, pool: Pool) -> None:
        scheduler = FrozenScheduler(pool, utc("2026-03-06 12:00"))
        job = due_job(
            pool, utc("2026-03-07 07:30"), kind="cron", schedule="30 2 * * *", timezone="America/New_York",
            policy='{"overlap":"parallel","dst_gap":"skip"}',
        )  # fmt: skip
        await scheduler.at(utc("2026-03-06 12:00"))
        await scheduler.put(job)
        await scheduler.lead(job)
        await scheduler.step(utc("2026-03-07 07:30"))
        assert await scheduler.missed() == {}
        assert (await scheduler.job(job))["next_run_at"] == utc("2026-03-09 06:30")
        await scheduler.step(utc("2026-03-09 06:30"))
        await scheduler.step(utc("2026-03-10 06:30"))
        assert await scheduler.missed(job) == {"dst_gap": 1}
        rows = await pool.query("select scheduled_at from duly.history where status = 'missed'")
        assert [row["scheduled_at"] for row in rows] == [utc("2026-03-08 07:00")]
        assert await scheduler.runs(job) == [
            utc("2026-03-07 07:30"), utc("2026-03-09 06:30"), utc("2026-03-10 06:30"),
        ]  # fmt: skip

    async def test_what_was_skipped_before_the_job_was_there_is_not_its_own(self, pool: Pool) -> None:
        scheduler = FrozenScheduler(pool, utc("2026-03-08 08:00"))
        job = due_job(
            pool, utc("2026-03-09 06:30"), kind="cron", schedule="30 2 * * *", timezone="America/New_York",
            policy='{"dst_gap":"skip"}',
        )  # fmt: skip
        await scheduler.at(utc("2026-03-08 08:00"))
        await scheduler.put(job)
        await scheduler.lead(job)
        await scheduler.step(utc("2026-03-09 06:30"))
        assert await scheduler.missed(job) == {}


class TestWindow:
    async def test_the_servers_window_holds_for_recurring_jobs_that_say_nothing(self, pool: Pool) -> None:
        scheduler = FrozenScheduler(pool, window_seconds=600)
        await scheduler.at(START)
        silent = due_job(pool, START + MINUTE, kind="cron", schedule="* * * * *", policy=ALL)
        own = due_job(
            pool, START + MINUTE, kind="cron", schedule="* * * * *",
            policy='{"missed_window":"RUN_ALL","overlap":"parallel","catch_up_window_seconds":1800}',
        )  # fmt: skip
        one_off = due_job(pool, START + MINUTE, kind="once", schedule="2030-05-05T12:01:00Z")
        await scheduler.put(silent, own, one_off)
        await scheduler.lead(silent, own, one_off)
        await scheduler.step(START + HOUR)
        # The last occurrence is due at this very moment; the occurrence at the window's edge is still inside.
        assert await scheduler.late(silent) == moments(START + 50 * MINUTE, MINUTE, 10)
        assert await scheduler.missed(silent) == {"catch_up_window": 49}
        assert await scheduler.late(own) == moments(START + 30 * MINUTE, MINUTE, 30)
        assert await scheduler.late(one_off) == [START + MINUTE]

    async def test_a_one_off_found_three_days_late_runs_unless_its_own_window_says_otherwise(
        self, scheduler: FrozenScheduler, pool: Pool
    ) -> None:
        kept = due_job(pool, START + MINUTE, kind="once", schedule="2030-05-05T12:01:00Z", policy='{"max_missed":0}')
        skip = due_job(
            pool, START + MINUTE, kind="once", schedule="2030-05-05T12:01:00Z", policy='{"missed_window":"SKIP"}'
        )
        own = due_job(
            pool, START + MINUTE, kind="once", schedule="2030-05-05T12:01:00Z",
            policy='{"catch_up_window_seconds":86400}',
        )  # fmt: skip
        await scheduler.put(kept, skip, own)
        await scheduler.lead(kept, skip, own)
        await scheduler.step(START + 3 * DAY)
        for job in (kept, skip):
            assert await scheduler.late(job) == [START + MINUTE]
        assert await scheduler.runs(own) == []
        assert await scheduler.missed() == {"catch_up_window": 1}
        assert (await scheduler.job(own))["shown_status"] == "completed"


class TestGovernor:
    def test_it_holds_one_seconds_worth(self) -> None:
        clock = FrozenClock(START)
        governor = Governor(clock, 10)
        assert [governor.take(4), governor.take(4), governor.take(4)] == [4, 4, 2]
        clock.moment += timedelta(seconds=0.35)
        assert governor.take(100) == 3
        clock.moment += HOUR
        assert governor.take(100) == 10
        governor.give_back(7)
        assert governor.take(100) == 7
        clock.moment -= HOUR
        assert governor.take(1) == 0
        clock.moment += SECOND
        assert governor.take(100) == 10

    def test_less_than_one_a_second_and_no_limit(self) -> None:
        clock = FrozenClock(START)
        slow, free = Governor(clock, 0.5), Governor(clock, 0)
        assert slow.take(5) == 1
        clock.moment += SECOND
        assert slow.take(5) == 0
        clock.moment += SECOND
        assert slow.take(5) == 1
        assert free.take(10**9) == 10**9


async def governed(pool: Pool, per_second: float) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool, per_second=per_second)
    await scheduler.at(START)
    return scheduler


class TestGovernedCatchUp:
    async def test_late_runs_come_at_the_rate_and_each_comes_once(self, pool: Pool) -> None:
        scheduler = await governed(pool, 100)
        jobs = spread(pool, 30, START + HOUR, start_at=START, policy=ALL)
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        now = START + 10 * HOUR + 30 * MINUTE
        await scheduler.step(now)
        assert len(await scheduler.late()) == 100
        assert await count(pool, "jobs", "next_run_at = $1", START + 11 * HOUR) == 30
        for second in range(1, 3):
            before = set(await scheduler.late())
            await scheduler.step(now + second * SECOND)
            late = await scheduler.late()
            assert len(late) == 100 * (second + 1)
            assert before <= set(late)
        for job in jobs:
            late = await scheduler.late(job)
            assert late == moments(START + HOUR, HOUR, 10)
        assert await count(pool, "catch_ups") == 0
        assert await scheduler.missed() == {}
        assert await count(pool, "jobs", "run_count = 10") == 30

    async def test_nobody_waits_until_another_is_done(self, pool: Pool) -> None:
        scheduler = await governed(pool, 20)
        jobs = spread(pool, 10, START + MINUTE, kind="cron", schedule="* * * * *", policy=ALL)
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        now = START + 2 * HOUR + 30 * SECOND
        for second in range(5):
            await scheduler.step(now + second * SECOND)
        assert len(await scheduler.late()) == 100
        shares = sorted([len(await scheduler.late(job)) for job in jobs])
        assert shares[0] >= 4

    async def test_a_job_with_two_outages_behind_it_goes_through_them_oldest_first(self, pool: Pool) -> None:
        scheduler = await governed(pool, 5)
        job = due_job(pool, START + MINUTE, kind="cron", schedule="* * * * *", policy=ALL)
        await scheduler.put(job)
        await scheduler.lead(job)
        await scheduler.step(START + 20 * MINUTE + 30 * SECOND)
        await scheduler.step(START + 40 * MINUTE + 30 * SECOND)  # a second outage in between
        assert await count(pool, "catch_ups") == 2
        # The runs released at once, when each outage was found, do not count for the order.
        begun = set(await scheduler.late(job))
        order: list[datetime] = []
        for second in range(1, 12):
            await scheduler.step(START + 40 * MINUTE + 30 * SECOND + second * SECOND)
            order += sorted(set(await scheduler.late(job)) - begun - set(order))
        assert order == sorted(order)
        assert len(order) + len(begun) == 40

    async def test_on_time_occurrences_keep_their_place(self, pool: Pool) -> None:
        scheduler = await governed(pool, 5)
        behind = due_job(pool, START + MINUTE, kind="cron", schedule="* * * * *", policy=ALL)
        fine = due_job(pool, START + 2 * HOUR + MINUTE, kind="cron", schedule="* * * * *", policy=PARALLEL)
        await scheduler.put(behind, fine)
        await scheduler.lead(behind, fine)
        await scheduler.step(START + 2 * HOUR + 30 * SECOND)
        assert len(await scheduler.late(behind)) == 5
        on_time = START + 2 * HOUR + MINUTE
        await scheduler.step(on_time)
        assert await scheduler.runs(behind, "flags & 2 = 0") == [on_time]
        assert await scheduler.runs(fine) == [on_time]
        for second in range(1, 20):
            await scheduler.step(on_time + second * SECOND)
        assert await scheduler.late(behind) == moments(START + 21 * MINUTE, MINUTE, 100)
        assert await scheduler.missed(behind) == {"max_missed": 20}

    async def test_late_one_offs_are_governed_too_and_stay_active_until_they_ran(self, pool: Pool) -> None:
        scheduler = await governed(pool, 10)
        jobs = spread(pool, 25, START + MINUTE, kind="once", schedule="2030-05-05T12:01:00Z")
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        for second, total in enumerate((10, 20, 25, 25)):
            await scheduler.step(START + DAY + second * SECOND)
            assert len(await scheduler.late()) == total
            shown = {(await scheduler.job(job))["shown_status"] for job in jobs}
            assert shown == {"active"}
        for run in (await take(pool)).runs:
            await runs.complete(pool, [succeeded(run)])
        assert {(await scheduler.job(job))["shown_status"] for job in jobs} == {"completed"}

    async def test_another_leader_goes_on_with_it(self, pool: Pool) -> None:
        first = await governed(pool, 5)
        job = due_job(pool, START + HOUR, start_at=START, policy=ALL)
        await first.put(job)
        await first.lead(job)
        await first.step(START + 20 * HOUR + MINUTE)
        second = FrozenScheduler(pool, START + 20 * HOUR + MINUTE, per_second=5)
        await second.lead(job)
        # The former leader changes nothing any more.
        await first.step(START + 20 * HOUR + MINUTE + SECOND)
        assert len(await second.late()) == 5
        for n in range(1, 4):
            await second.step(START + 20 * HOUR + MINUTE + n * SECOND)
        assert await second.late(job) == moments(START + HOUR, HOUR, 20)

    @pytest.mark.parametrize("verb", ["paused", "cancelled"])
    async def test_what_waits_when_its_job_is_stopped_is_recorded_as_missed(self, pool: Pool, verb: str) -> None:
        scheduler = await governed(pool, 5)
        job = due_job(pool, START + HOUR, start_at=START, policy=ALL)
        await scheduler.put(job)
        await scheduler.lead(job)
        await scheduler.step(START + 20 * HOUR + MINUTE)
        await pool.query("update duly.jobs set status = $1, next_run_at = null", verb)
        await scheduler.step(START + 20 * HOUR + MINUTE + SECOND)
        assert len(await scheduler.late()) == 5
        assert await scheduler.missed(job) == {verb: 15}
        assert await count(pool, "catch_ups") == 0


class TestRunAllOneAfterTheOther:
    @pytest.mark.parametrize("per_second", [0, 7])
    @pytest.mark.parametrize("overlap", ["skip", "queue"])
    async def test_all_of_them_run_oldest_first_and_never_two_at_once(
        self, pool: Pool, monkeypatch: pytest.MonkeyPatch, overlap: str, per_second: float
    ) -> None:
        # The missed occurrences are handled in several portions.
        monkeypatch.setattr(missed_module, "MAX_RUNS", 10)
        scheduler = await governed(pool, per_second)
        policy = f'{{"missed_window":"RUN_ALL","overlap":"{overlap}"}}'
        job = due_job(pool, START + HOUR, start_at=START, policy=policy)
        await scheduler.put(job)
        await scheduler.lead(job)
        now = START + 30 * HOUR + MINUTE
        ran: list[datetime] = []
        for second in range(35):
            await scheduler.step(now + second * SECOND)
            claim = await take(pool)
            assert len(claim.runs) <= 1
            for run in claim.runs:
                ran.append(run.scheduled_at)
                await runs.complete(pool, [succeeded(run)])
        assert ran == moments(START + HOUR, HOUR, 30)
        assert await count(pool, "history", "status <> 'succeeded'") == 0

    async def test_an_on_time_one_is_skipped_while_the_catch_up_runs(self, pool: Pool) -> None:
        scheduler = await governed(pool, 2)
        job = due_job(pool, START + HOUR, start_at=START, policy='{"missed_window":"RUN_ALL"}')
        await scheduler.put(job)
        await scheduler.lead(job)
        now = START + 6 * HOUR - 20 * SECOND
        await scheduler.step(now)
        await scheduler.step(now + SECOND)
        (first,) = (await take(pool)).runs
        await scheduler.step(START + 6 * HOUR)
        assert await count(pool, "history", "status = 'skipped' and scheduled_at = $1", START + 6 * HOUR) == 1
        await runs.complete(pool, [succeeded(first)])
        ran = [first.scheduled_at]
        for second in range(1, 8):
            await scheduler.step(START + 6 * HOUR + second * SECOND)
            for run in (await take(pool)).runs:
                ran.append(run.scheduled_at)
                await runs.complete(pool, [succeeded(run)])
        assert ran == moments(START + HOUR, HOUR, 5)


class TestFairness:
    async def test_a_wall_of_late_jobs_does_not_hold_up_those_on_time(
        self, scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backlog, "MAX_BATCH_JOBS", 50)
        now = START + 2 * HOUR
        wall = same_shard(pool, 500, START + HOUR, start_at=START)
        (own,) = same_shard(pool, 1, now, start_at=START)
        own = own._replace(shard=wall[0].shard)
        other = spread(pool, 1, now, start_at=START)[0]
        await scheduler.put(*wall, own, other)
        await scheduler.lead(*wall, other)
        batches: list[set[Any]] = []
        real = fires.fire

        async def watched(store: Pool, *, epochs: dict[int, int], batch: fires.Fires) -> fires.Fired:
            batches.append(set(batch.job_ids))
            return await real(store, epochs=epochs, batch=batch)

        monkeypatch.setattr(fires, "fire", watched)
        await scheduler.step(now)
        place = {job.job_id: n for n, batch in enumerate(batches) for job in (own, other) if job.job_id in batch}
        assert max(place.values()) <= 4
        assert len(batches) >= 11
        assert len(await scheduler.late()) == 500

    async def test_the_newest_late_ones_do_not_wait_for_the_oldest(
        self, scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backlog, "MAX_BATCH_JOBS", 20)
        jobs = same_shard(pool, 200, START, kind="once", schedule="now")
        jobs = [job._replace(next_run_at=START + n * MINUTE) for n, job in enumerate(jobs)]
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        first: list[datetime] = []
        real = fires.fire

        async def watched(store: Pool, *, epochs: dict[int, int], batch: fires.Fires) -> fires.Fired:
            first.extend([] if first else batch.expected)
            return await real(store, epochs=epochs, batch=batch)

        monkeypatch.setattr(fires, "fire", watched)
        await scheduler.step(START + DAY)
        assert {START, START + 199 * MINUTE} <= set(first)
        assert len(await scheduler.late()) == 200

    async def test_a_long_line_makes_nobody_in_it_miss(
        self, scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Firing half a million jobs of one second takes longer than the grace, but they were found in time."""
        monkeypatch.setattr(backlog, "MAX_BATCH_JOBS", 10)
        jobs = same_shard(pool, 40, START + HOUR, start_at=START, policy='{"missed_window":"SKIP"}')
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        real = fires.due

        async def slow(store: Pool, **asked: Any) -> list[fires.DueJob]:
            await scheduler.at(scheduler.clock.moment + 6 * SECOND)
            # The minute's re-read happens meanwhile, too, and reads the rest of the backlog once more.
            await scheduler.loader.run_once()
            return await real(store, **asked)

        monkeypatch.setattr(fires, "due", slow)
        await scheduler.step(START + HOUR)
        assert len(await scheduler.runs(where="flags & 2 = 0")) == 40
        assert await scheduler.missed() == {}

    async def test_what_stood_in_line_when_the_store_went_away_is_judged_when_it_is_back(
        self, scheduler: FrozenScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = same_shard(pool, 3, START + HOUR, start_at=START, policy='{"missed_window":"SKIP"}')
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)

        async def away(*_: object, **__: object) -> None:
            raise StoreUnavailable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(fires, "fire", away)
            with pytest.raises(StoreUnavailable):
                await scheduler.step(START + HOUR)
        await scheduler.step(START + HOUR + MINUTE, read=False)
        assert await scheduler.runs() == []
        assert await scheduler.missed() == {"SKIP": 3}


class TestLongOutages:
    """After an outage of any length many jobs at once take seconds, and memory does not grow with the outage."""

    @pytest.mark.parametrize(
        ("policy", "kept"),
        [
            ('{"missed_window":"SKIP","overlap":"parallel"}', 0),
            ('{"missed_window":"RUN_ONCE","overlap":"parallel"}', 1),
            ('{"missed_window":"RUN_ALL","overlap":"parallel","max_missed":20}', 20),
        ],
    )
    async def test_two_thousand_minutely_jobs_down_for_26_hours(self, pool: Pool, policy: str, kept: int) -> None:
        scheduler = await governed(pool, 0)
        jobs = spread(pool, 2000, START + MINUTE, kind="cron", schedule="* * * * *", policy=policy)
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        await scheduler.at(START + 26 * HOUR + 30 * SECOND)
        await scheduler.loader.run_once()
        tracemalloc.start()
        started = time.monotonic()
        try:
            await scheduler.firer.run_once()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert time.monotonic() - started < 20
        assert peak < 8_000_000
        assert await count(pool, "runs") == 2000 * kept
        assert (await scheduler.missed()).total() == 2000 * (1560 - kept)
        assert await count(pool, "history") == 2000
        assert await count(pool, "jobs", "next_run_at = $1", START + 26 * HOUR + MINUTE) == 2000

    async def test_a_shard_whose_jobs_all_have_much_to_make_up_for_fires_in_portions(self, pool: Pool) -> None:
        scheduler = await governed(pool, 0)
        policy = '{"missed_window":"RUN_ALL","overlap":"parallel"}'
        jobs = same_shard(pool, 400, START + MINUTE, schedule="every 1m", start_at=START, policy=policy)
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        await scheduler.at(START + 26 * HOUR + 30 * SECOND)
        await scheduler.loader.run_once()
        tracemalloc.start()
        try:
            await scheduler.firer.run_once()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8_000_000
        assert await count(pool, "runs", "flags & 2 = 2") == 40_000

    @pytest.mark.parametrize(("schedule", "kind"), [("every 1s", "interval"), ("* * * * * *", "cron")])
    async def test_a_thousand_jobs_each_second_down_for_a_day(self, pool: Pool, schedule: str, kind: str) -> None:
        scheduler = await governed(pool, 1000)
        policy = '{"missed_window":"RUN_ALL","overlap":"parallel","max_missed":10}'
        jobs = spread(pool, 1000, START + SECOND, kind=kind, schedule=schedule, start_at=START, policy=policy)
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        now = START + DAY + timedelta(seconds=0.5)
        await scheduler.at(now)
        await scheduler.loader.run_once()
        tracemalloc.start()
        try:
            await scheduler.firer.run_once()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8_000_000
        # Each job's last ten occurrences are within the grace, so on time; late runs come at a thousand a second.
        assert len(await scheduler.runs(where="flags & 2 = 0")) == 10_000
        assert len(await scheduler.late()) == 1000
        assert (await scheduler.missed()) == {"max_missed": 1000 * (86_400 - 20)}
        for second in range(1, 10):
            await scheduler.at(now + second * SECOND)
            while await scheduler.catching_up.run_once() is not None and scheduler.governor.available(1):
                pass
            assert len(await scheduler.late()) == 1000 * (second + 1)
        assert await count(pool, "catch_ups") == 0


class TestBounds:
    async def test_three_runs_and_then_it_is_completed(self, scheduler: FrozenScheduler, pool: Pool) -> None:
        job = due_job(pool, START + MINUTE, schedule="every 1m", max_runs=3, policy=PARALLEL)
        await scheduler.put(job)
        await scheduler.lead(job)
        for n in range(1, 6):
            await scheduler.step(START + n * MINUTE)
            for run in (await take(pool)).runs:
                await runs.complete(pool, [succeeded(run)])
        rows = await pool.query("select scheduled_at from duly.history order by 1")
        assert [row["scheduled_at"] for row in rows] == moments(START + MINUTE, MINUTE, 3)
        row = await scheduler.job(job)
        assert (row["shown_status"], row["run_count"], row["next_run_at"]) == ("completed", 3, None)

    async def test_max_runs_counts_what_is_made_up_for_and_not_what_is_dropped(self, pool: Pool) -> None:
        scheduler = await governed(pool, 2)
        policy = '{"missed_window":"RUN_ALL","overlap":"parallel","max_missed":5}'
        job = due_job(pool, START + HOUR, start_at=START, max_runs=7, policy=policy)
        await scheduler.put(job)
        await scheduler.lead(job)
        for second in range(4):
            await scheduler.step(START + 20 * HOUR + MINUTE + second * SECOND)
        assert await scheduler.late(job) == moments(START + 16 * HOUR, HOUR, 5)
        for n in range(21, 26):
            await scheduler.step(START + n * HOUR)
        assert await scheduler.runs(job) == moments(START + 16 * HOUR, HOUR, 7)

    async def test_the_end_is_the_end(self, scheduler: FrozenScheduler, pool: Pool) -> None:
        job = due_job(
            pool, START + MINUTE, kind="cron", schedule="* * * * *", end_at=START + 3 * MINUTE, policy=PARALLEL
        )
        await scheduler.put(job)
        await scheduler.lead(job)
        for n in range(1, 6):
            await scheduler.step(START + n * MINUTE)
        assert await scheduler.runs(job) == moments(START + MINUTE, MINUTE, 3)
        assert (await scheduler.job(job))["status"] == "ended"

    async def test_it_begins_when_it_is_to_begin(self, scheduler: FrozenScheduler, pool: Pool) -> None:
        begin = START + 90 * SECOND
        job = due_job(pool, begin, schedule="every 1m", start_at=begin, policy=PARALLEL)
        await scheduler.put(job)
        await scheduler.lead(job)
        for n in range(8):
            await scheduler.step(START + n * 30 * SECOND)
        assert await scheduler.runs(job) == moments(begin, MINUTE, 3)

    async def test_jitter_moves_a_job_by_the_same_step_every_time(self, scheduler: FrozenScheduler, pool: Pool) -> None:
        jobs = spread(
            pool, 20, START, kind="cron", schedule="0 * * * *", policy='{"overlap":"parallel","jitter_seconds":600}'
        )
        jobs = [job._replace(next_run_at=START + HOUR + jitter_offset(job.job_id, 600)) for job in jobs]
        await scheduler.put(*jobs)
        await scheduler.lead(*jobs)
        for n in range(1, 4):
            for seconds in range(0, 601, 8):
                await scheduler.step(START + n * HOUR + seconds * SECOND, read=seconds == 0)
        offsets = set()
        for job in jobs:
            assert job.next_run_at is not None
            assert await scheduler.runs(job) == moments(job.next_run_at, HOUR, 3)
            offsets.add(job.next_run_at - START - HOUR)
        assert len(offsets) == 20
        assert await scheduler.missed() == {}

    async def test_the_count_of_a_rule_is_kept(self, scheduler: FrozenScheduler, pool: Pool) -> None:
        job = due_job(
            pool, START + MINUTE, kind="rrule",
            schedule="DTSTART:20300505T120100Z\nRRULE:FREQ=MINUTELY;COUNT=4", policy=PARALLEL,
        )  # fmt: skip
        await scheduler.put(job)
        await scheduler.lead(job)
        for n in range(1, 8):
            await scheduler.step(START + n * MINUTE)
        assert await scheduler.runs(job) == moments(START + MINUTE, MINUTE, 4)
        assert (await scheduler.job(job))["status"] == "ended"


async def test_a_whole_node_releases_what_is_late_at_its_rate(pool: Pool, settings: Settings) -> None:
    """Tests the services' loops and what wakes them: no step is called by hand."""
    past = pool.clock.now() - DAY
    jobs = spread(pool, 300, past, kind="once", schedule=past.isoformat(), policy=PARALLEL)
    assert len(await submit(pool, jobs, created_at=past)) == 300
    node = SchedulerNode(pool, settings.model_copy(update={"catch_up_per_second": 200}))
    started = time.monotonic()
    await node.start()
    try:

        async def released() -> bool:
            return await count(pool, "runs", "flags & 2 = 2") == 300

        await eventually(released)
    finally:
        await node.stop()
    # One second's worth (200) is released at once, the other hundred takes half a second.
    assert time.monotonic() - started >= 0.45
    assert await count(pool, "catch_ups") == 0
