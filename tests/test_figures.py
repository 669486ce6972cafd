"""The figures of a process: each moves by the event that it counts, and the lag is the one that history has."""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta
from pathlib import Path
from typing import cast

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import Duly, Permanent, RetryAfter
from duly.config import Settings
from duly.figures import DURATION_BUCKETS, FIGURES, LAG_BUCKETS, REQUEST, Figures, Histogram, Snapshot, added
from duly.maintenance.guardian import Guardian
from duly.maintenance.rescuer import Rescuer
from duly.model import ClaimedRun, Requeued, Succeeded, to_micros
from duly.node import running_scheduler, running_worker
from duly.operations import Operations
from duly.store import runs
from duly.store.pool import Pool
from duly.vitals import Vitals
from duly.worker.completer import Completer
from duly.worker.handler.task import Task
from harness.scheduler import HOUR, MINUTE, SECOND, START, FrozenScheduler
from harness.store import count, due_job, put, put_now, succeeded, take
from harness.waiting import eventually
from harness.worker import Workbench

LAG = "duly_schedule_lag_seconds"
PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def counts(figures: Figures, name: str) -> list[int]:
    return figures.snapshot().histograms[name][0]


class TestHistogram:
    @given(st.lists(st.lists(st.one_of(st.integers(-5, 4_000_000_000), st.sampled_from([10_000, 10_001, 9_999])))))
    def test_a_batch_is_counted_as_its_times_one_by_one(self, batches: list[list[float]]) -> None:
        histogram = Histogram(LAG_BUCKETS)
        expected = [0] * (len(LAG_BUCKETS) + 1)
        for batch in batches:
            for time_us in batch:
                expected[bisect_left(LAG_BUCKETS, time_us / 1e6)] += 1
            histogram.observe(list(batch))
        assert histogram.counts == expected
        assert histogram.sum_us == sum(max(0, time_us) for batch in batches for time_us in batch)

    def test_every_bound_of_the_slos_is_one_of_the_buckets(self) -> None:
        assert {0.01, 0.25, 1, 5, 30, 60} <= set(LAG_BUCKETS)
        for figure in FIGURES.values():
            assert list(figure.buckets) == sorted(figure.buckets)

    def test_the_page_names_every_figure_and_its_buckets(self) -> None:
        text = " ".join(PAGE.read_text().split())
        for figure in (*FIGURES.values(), REQUEST):
            assert f"`{figure.name}" in text
        for buckets in (LAG_BUCKETS, DURATION_BUCKETS):
            assert f"{', '.join(f'{bound:g}' for bound in buckets)} s" in text


class TestSnapshots:
    def test_counters_and_histograms_add_up_and_utilization_is_averaged(self) -> None:
        one, other = Figures("worker"), Figures("worker")
        one.retries, other.retries = 3, 4
        one.runs["dead"] = 2
        one.utilization, other.utilization = lambda: 1.0, lambda: 0.5
        one.schedule_lag.observe([5_000, 2_000_000])
        together = added([one.snapshot(), other.snapshot()])
        assert together.numbers["duly_retries_total"] == {"": 7}
        assert together.numbers["duly_runs_total"]["dead"] == 2
        assert together.numbers["duly_worker_utilization"] == {"": 0.75}
        assert together.histograms[LAG] == one.snapshot().histograms[LAG]
        assert "duly_worker_utilization" not in added([one.snapshot()], gauges=False).numbers

    def test_a_snapshot_goes_to_another_process_and_one_of_another_version_is_read_as_far_as_it_is_known(self) -> None:
        sent = Figures("worker").snapshot()
        assert Snapshot.read(sent.document()) == sent
        document = sent.document()
        document["numbers"]["duly_of_tomorrow_total"] = {"": 1}
        document["numbers"]["duly_runs_total"] = {"succeeded": 5, "of-tomorrow": 6}
        document["histograms"][LAG] = [1, 2, 3], 1.0
        read = Snapshot.read(document)
        assert read.numbers["duly_runs_total"] == dict.fromkeys(sent.numbers["duly_runs_total"], 0) | {"succeeded": 5}
        assert "duly_of_tomorrow_total" not in read.numbers
        assert LAG not in read.histograms


async def test_the_lag_that_metrics_report_is_the_one_that_history_has(pool: Pool, settings: Settings) -> None:
    """Of real runs, with lags from nothing to hours."""

    async def quick() -> None:
        pass

    await put_now(pool, 300)
    await pool.query("update duly.runs set scheduled_at = scheduled_at - make_interval(secs => exp(random() * 9) - 1)")
    vitals = Vitals("worker", hung_seconds=15)
    async with running_worker(pool, {"noop": Task("noop", quick)}, settings, vitals=vitals):
        await eventually(lambda: _is(pool, "history", 300))
    rows = await pool.query("select extract(epoch from started_at - scheduled_at)::float8 as lag from duly.history")
    expected = [0] * (len(LAG_BUCKETS) + 1)
    for row in rows:
        expected[bisect_left(LAG_BUCKETS, row["lag"])] += 1
    assert sum(1 for number in expected if number) > 4
    counted, seconds = vitals.figures.snapshot().histograms[LAG]
    assert counted == expected
    assert seconds == pytest.approx(sum(row["lag"] for row in rows), abs=0.01)


async def _is(pool: Pool, table: str, number: int) -> bool:
    return await count(pool, table) == number


@given(
    st.lists(
        st.tuples(st.integers(0, 3_000_000), st.integers(0, 3_000_000), st.integers(1, 2)), min_size=1, max_size=120
    ),
    st.integers(0, 5_000_000),
)
def test_lags_of_a_large_batch_are_counted_as_one_by_one(spans: list[tuple[int, int, int]], behind: int) -> None:
    """Each with when it was scheduled and when it started, both after a moment, and its attempt."""
    ends, expected = [], [0] * (len(LAG_BUCKETS) + 1)
    for scheduled_us, started_us, attempt in spans * 3:
        run = ClaimedRun()
        run.scheduled_at, run.attempt = START + timedelta(microseconds=scheduled_us), attempt
        ends.append(Succeeded(run, to_micros(START) + started_us + behind, to_micros(START) + started_us + behind + 7))
        if attempt == 1:
            expected[bisect_left(LAG_BUCKETS, (started_us + behind - scheduled_us) / 1e6)] += 1
    figures = Figures("worker")
    Completer(cast("Pool", None), lambda _: None, figures=figures)._note_recorded(ends)
    assert figures.schedule_lag.counts == expected
    assert figures.run_duration.counts[0] == len(ends)


class Bench(Workbench):
    def __init__(self, pool: Pool, settings: Settings, operations: Operations) -> None:
        super().__init__(pool, settings, operations, Duly(settings=settings))
        self.tries = 0

        @self.app.task()
        async def second_time() -> None:
            self.tries += 1
            if self.tries == 1:
                raise RetryAfter(0)

        @self.app.task()
        async def never() -> None:
            raise Permanent("no")

        @self.app.task()
        async def quick() -> None:
            pass


async def test_runs_retries_and_expiries_of_a_worker(pool: Pool, settings: Settings, operations: Operations) -> None:
    bench = Bench(pool, settings, operations)
    late = await bench.submit("quick", start_within_seconds=60)
    await pool.query("update duly.runs set scheduled_at = scheduled_at - interval '2 minutes'")
    cancelled = await bench.submit("quick")
    job_ids = [await bench.submit(name) for name in ("second_time", "never", "quick", "quick")]
    vitals = Vitals("worker", hung_seconds=15)
    await pool.query("update duly.jobs set status = 'cancelled' where job_id = $1", cancelled)
    async with bench.working(vitals=vitals):
        for job_id in job_ids:
            await bench.end_of(job_id)
        await bench.end_of(late, "missed")
        await bench.end_of(cancelled, "cancelled")
    numbers = vitals.figures.snapshot().numbers
    assert numbers["duly_runs_total"] == {"succeeded": 3, "dead": 1, "cancelled": 1, "missed": 1, "skipped": 0}
    assert (numbers["duly_retries_total"], numbers["duly_missed_total"]) == ({"": 1}, {"": 1})
    # The retry has a duration and no lag of its own; what never started has neither.
    assert sum(counts(vitals.figures, "duly_run_duration_seconds")) == 5
    assert sum(counts(vitals.figures, LAG)) == 4


async def test_what_is_no_longer_this_workers_is_lost_and_not_counted_as_recorded(pool: Pool) -> None:
    await put_now(pool, 3)
    claim = await take(pool, lease=-1)
    assert claim.claim_id is not None
    figures, rescues = Figures("worker"), Figures("scheduler")
    rescuer = Rescuer(pool, figures=rescues)
    rescuer.lead(True)
    await rescuer.run_once()
    assert rescues.rescued == 3
    completer = Completer(pool, lambda _: None, figures=figures)
    completer.hold(claim.claim_id, 3)
    completer.add(succeeded(claim.runs[0]))
    completer.add(Requeued(claim.runs[1], "retrying", 0.0, 1, 2, "{}"))
    completer.forget(claim.runs[2])
    await completer.run_once()
    assert (figures.lease_lost, figures.retries, sum(figures.runs.values())) == (3, 0, 0)


async def test_what_was_recorded_by_a_statement_whose_answer_was_lost_is_counted_once(pool: Pool) -> None:
    await put_now(pool, 2)
    claim = await take(pool)
    assert claim.claim_id is not None
    first, second = claim.runs
    await runs.complete(pool, [succeeded(first)])  # the answer is lost, so the outcome is sent again
    figures = Figures("worker")
    completer = Completer(pool, lambda _: None, figures=figures)
    completer.hold(claim.claim_id, 2)
    completer.add(succeeded(first))
    completer.add(succeeded(second))
    await completer.run_once()
    assert (figures.runs["succeeded"], figures.lease_lost) == (2, 0)


async def test_a_crash_on_the_last_attempt_is_rescued_and_dead(pool: Pool) -> None:
    await put_now(pool, 2, policy='{"max_retries":0}')
    await take(pool, lease=-1)
    figures = Figures("scheduler")
    rescuer = Rescuer(pool, figures=figures)
    rescuer.lead(True)
    await rescuer.run_once()
    assert (figures.rescued, figures.runs["dead"]) == (2, 2)
    assert await count(pool, "dead_letters") == 2


async def test_fires_skips_and_misses_of_a_scheduler(pool: Pool) -> None:
    scheduler = FrozenScheduler(pool)
    figures = scheduler.firer._figures
    await scheduler.at(START)
    busy = due_job(pool, START + MINUTE, schedule="every 1m", policy='{"overlap":"skip"}')
    await scheduler.put(busy)
    await scheduler.lead(busy)
    await scheduler.step(START + MINUTE)
    assert (sum(counts(figures, "duly_fire_lag_seconds")), figures.runs["skipped"]) == (1, 0)
    await scheduler.step(START + 2 * MINUTE)  # the run before has not ended
    assert figures.runs["skipped"] == 1
    assert figures.fire_lag.counts[0] == 2
    # As many occurrences are missed as history says: dropped by the policy, and given up while they waited.
    late = due_job(pool, START + HOUR, schedule="every 1m", policy='{"overlap":"parallel"}')
    await scheduler.put(late)
    await scheduler.lead(late)
    await scheduler.step(START + HOUR + 10 * MINUTE)
    missed = sum((await scheduler.missed(late)).values())
    assert missed > 5
    assert figures.missed == sum((await scheduler.missed()).values())
    assert figures.runs["missed"] == await count(pool, "history", "status = 'missed'")
    assert figures.runs["skipped"] == await count(pool, "history", "status = 'skipped'")


async def test_late_occurrences_that_are_released_and_those_that_are_given_up(pool: Pool) -> None:
    scheduler = FrozenScheduler(pool, per_second=4)
    fired, released = scheduler.firer._figures, scheduler.catching_up._figures
    job = due_job(pool, START, schedule="every 1m", policy='{"missed_window":"RUN_ALL","overlap":"parallel"}')
    await scheduler.put(job, created_at=START - HOUR)
    await scheduler.lead(job)
    await scheduler.step(START + HOUR)
    await scheduler.step(START + HOUR + SECOND)
    runs_made = len(await scheduler.runs(job))
    lags = sum(fired.fire_lag.counts) + sum(released.fire_lag.counts)
    assert (lags, released.missed) == (runs_made, 0)
    assert runs_made < 20
    await pool.query("update duly.jobs set status = 'paused' where job_id = $1", job.job_id)
    await scheduler.step(START + HOUR + 2 * SECOND)
    assert released.missed == sum((await scheduler.missed(job)).values()) > 40
    assert released.runs["missed"] == await count(pool, "history", "status = 'missed'")


async def test_a_job_that_is_held_while_it_is_fired_is_a_conflict(pool: Pool, database_url: str) -> None:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    job = due_job(pool, START + MINUTE, schedule="every 1m")
    await scheduler.put(job)
    await scheduler.lead(job)
    other = await asyncpg.connect(database_url)
    async with other.transaction():
        await other.execute("select from duly.jobs where job_id = $1 for update", job.job_id)
        await scheduler.step(START + MINUTE)
        assert scheduler.firer._figures.claim_conflicts >= 1
        assert sum(scheduler.firer._figures.fire_lag.counts) == 0
    await other.close()


async def test_the_guardians_repairs(pool: Pool) -> None:
    figures = Figures("scheduler")
    guardian = Guardian(pool, grace_seconds=0, figures=figures)
    guardian.lead(True)
    job = due_job(pool, pool.clock.now() + HOUR)
    await put(pool, job)
    await pool.query(
        "update duly.jobs set next_run_at = null, updated_at = updated_at - interval '1 hour' where job_id = $1",
        job.job_id,
    )
    await guardian.run_once()
    await guardian.run_once()
    assert figures.guardian_repairs == 1


async def test_a_node_and_its_services_count_into_one_place(pool: Pool, settings: Settings) -> None:
    vitals = Vitals("scheduler", hung_seconds=15)
    await put(pool, due_job(pool, pool.clock.now() + SECOND))
    async with running_scheduler(pool, settings, vitals=vitals) as node:
        await eventually(lambda: vitals.figures.snapshot().numbers["duly_shards_owned"] == {"": 64})
        await eventually(lambda: sum(counts(vitals.figures, "duly_fire_lag_seconds")) == 1)
        assert node.firer.fired == 1
        await eventually(lambda: vitals.wrong() == {"alive": None, "ready": None, "started": None})
    assert vitals.wrong()["ready"] == "the scheduler is stopping"
