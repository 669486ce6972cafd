"""Runs that no worker starts within their job's `start_within_seconds` end as missed; runs that have started do not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from duly import Snooze
from duly.config import Settings
from duly.errors import Unable
from duly.model import Expired, Policy, Requeued, Verdict
from duly.operations import Operations
from duly.states import RunFlag
from duly.store import runs
from duly.store.pool import Pool
from harness.store import count, take
from harness.worker import Workbench

WITHIN = 60
LATE = timedelta(seconds=WITHIN + 1)


class Bench(Workbench):
    def __init__(self, pool: Pool, settings: Settings, operations: Operations) -> None:
        super().__init__(pool, settings, operations)
        self.called: list[str] = []
        self.snoozes = 0

        @self.app.task()
        async def quick() -> None:
            self.called.append("quick")

        @self.app.task()
        def threaded() -> None:
            self.called.append("threaded")

        @self.app.task()
        async def sleepy() -> None:
            self.called.append("sleepy")
            if self.snoozes:
                self.snoozes -= 1
                raise Snooze(0)

        @self.app.task()
        async def unable() -> None:
            self.called.append("unable")
            if self.called.count("unable") == 1:
                raise Unable("the end of its transaction was not confirmed")

        @self.app.task()
        def unable_in_thread() -> None:
            self.called.append("unable_in_thread")
            if self.called.count("unable_in_thread") == 1:
                raise Unable("the end of its transaction was not confirmed")

        @self.app.task()
        async def failing() -> None:
            self.called.append("failing")
            raise ValueError("no luck")

    async def submit_within(self, task: str, **options: Any) -> str:
        return await self.submit(task, start_within_seconds=WITHIN, **options)

    async def pass_time(self, by: timedelta = LATE) -> None:
        """Lets time pass, by the database's clock and by this process's measure of it."""
        await self.pool.query("update duly.clock set shift = shift + $1", by)
        await self.pool.measure_clock()


@pytest.fixture
async def bench(pool: Pool, settings: Settings, operations: Operations) -> Bench:
    return Bench(pool, settings, operations)


@pytest.mark.parametrize("task", ["quick", "threaded", "of another app"])
async def test_a_run_that_nobody_started_in_time_is_missed_and_its_handler_not_called(bench: Bench, task: str) -> None:
    job_id = await bench.submit_within(task)
    await bench.pass_time()
    async with bench.working():
        run = await bench.end_of(job_id, "missed", "succeeded", "dead")
    assert (run.status, run.attempt, run.started_at) == ("missed", 0, None)
    assert run.note is not None
    assert (run.note["reason"], run.note["start_within_seconds"], run.note["count"]) == ("expired", WITHIN, 1)
    assert bench.called == []
    assert await count(bench.pool, "dead_letters") == await count(bench.pool, "attempts") == 0
    assert (await bench.operations.jobs.get(job_id)).status == "completed"
    told = await bench.operations.explain.occurrence(job_id)
    assert told.verdict is Verdict.MISSED
    assert "no worker started it within 60 s" in told.sentence


@pytest.mark.parametrize("task", ["quick", "threaded"])
async def test_a_run_within_its_time_starts_and_so_does_one_without_a_bound(bench: Bench, task: str) -> None:
    bounded = await bench.submit_within(task)
    await bench.pass_time(timedelta(seconds=WITHIN / 2))
    free = await bench.submit(task, timeout_seconds=20)
    await bench.pass_time(timedelta(seconds=WITHIN / 4))
    async with bench.working():
        for job_id in (bounded, free):
            assert (await bench.end_of(job_id)).status == "succeeded"
    assert bench.called == [task, task]


async def test_the_next_run_of_the_line_starts_when_the_one_before_it_has_expired(bench: Bench) -> None:
    job_id = await bench.submit("quick", start_within_seconds=WITHIN, overlap="queue", schedule="0 0 1 1 *")
    await bench.operations.jobs.trigger(job_id)
    await bench.pass_time()
    await bench.operations.jobs.trigger(job_id)  # it waits behind the first
    async with bench.working():
        last = await bench.end_of(job_id, "succeeded")
    expired = (await bench.operations.runs.page(job_id)).items[1]
    assert (last.status, expired.status, bench.called) == ("succeeded", "missed", ["quick"])


async def test_a_retry_a_snoozed_and_a_redriven_run_have_started_and_do_not_expire(bench: Bench) -> None:
    bench.snoozes = 1
    snoozed = await bench.submit_within("sleepy")
    (claim,) = (await take(bench.pool)).runs
    # The very outcome that a worker reports for a snooze.
    outcome = Requeued(claim, "queued", 0.0, None, None, refund=1, flags=int(RunFlag.BEGUN))
    assert await runs.requeue(bench.pool, [outcome]) == 1
    bench.snoozes = 0
    failed = await bench.submit_within("failing", max_retries=0)
    async with bench.working():
        assert (await bench.end_of(failed)).status == "dead"
    await bench.pass_time()
    await bench.operations.dead_letters.redrive((await bench.run_of(failed)).run_id)
    async with bench.working():
        assert (await bench.end_of(snoozed, "succeeded", "missed")).status == "succeeded"
        assert (await bench.end_of(failed, "dead", "missed")).status == "dead"
    assert bench.called.count("failing") == 2


async def test_a_worker_marks_a_snoozed_run_as_begun(bench: Bench) -> None:
    bench.snoozes = 1
    await bench.submit_within("sleepy")
    async with bench.working():
        async with asyncio.timeout(20):
            _, outcome = await bench.ended.get()
    assert isinstance(outcome, Requeued)
    assert outcome.flags == RunFlag.BEGUN


@pytest.mark.parametrize("task", ["unable", "unable_in_thread"])
async def test_a_run_that_comes_back_after_its_handler_was_called_does_not_expire(bench: Bench, task: str) -> None:
    """As when the end of its `ctx.transaction()` was not confirmed, and it had not been committed."""
    job_id = await bench.submit_within(task)
    async with bench.working():
        run = await bench.attempt_of(job_id)
        assert (run.status, run.attempt) == ("queued", 0)
        await bench.pass_time()
        run = await bench.end_of(job_id, "succeeded", "missed")
    assert (run.status, run.attempt) == ("succeeded", 1)
    assert bench.called == [task, task]


async def test_a_run_that_no_worker_could_start_expires(bench: Bench) -> None:
    job_id = await bench.command("true", start_within_seconds=WITHIN)
    async with bench.working():  # it may run no commands
        run = await bench.attempt_of(job_id)
        assert (run.status, run.attempt) == ("queued", 0)
        await bench.pass_time()
        run = await bench.end_of(job_id, "succeeded", "missed")
    assert (run.status, run.attempt) == ("missed", 0)


async def test_a_late_retry_is_not_expired(bench: Bench) -> None:
    job_id = await bench.submit_within("failing", max_retries=1, retry_delay_seconds=30)
    async with bench.working():
        await bench.attempt_of(job_id)
    await bench.pass_time()
    async with bench.working():
        run = await bench.end_of(job_id, "dead", "missed")
    assert (run.status, run.attempt) == ("dead", 2)


async def test_a_claim_that_was_taken_away_records_nothing(bench: Bench) -> None:
    await bench.submit_within("quick")
    (run,) = (await take(bench.pool)).runs
    assert await runs.expire(bench.pool, [Expired(run, 2, WITHIN)]) == 1
    assert await runs.expire(bench.pool, [Expired(run, 2, WITHIN)]) == 0  # its answer was lost
    assert {(run.job_id, run.scheduled_at)} == await runs.settled(bench.pool, [run])
    await bench.submit_within("quick")
    (run,) = (await take(bench.pool)).runs
    assert await runs.requeue(bench.pool, [Requeued(run, "queued", 0.0, None, None, refund=1)]) == 1
    assert await runs.expire(bench.pool, [Expired(run, 2, WITHIN)]) == 0  # it is no longer this claim's
    (run,) = (await take(bench.pool)).runs
    await bench.pool.query("delete from duly.claims")
    assert await runs.expire(bench.pool, [Expired(run, 2, WITHIN)]) == 0
    assert await count(bench.pool, "history") == 1


def test_no_bound_is_stored_by_default() -> None:
    assert Policy().start_within_seconds is None
    assert Policy(start_within_seconds=5).to_stored() == '{"start_within_seconds":5}'
