"""When and how often a job runs, on a virtual clock: one-offs, jitter, counted rules, and triggered runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from conftest import Server
from duly import InvalidInput
from duly.model import DEFAULT_TENANT, JobRequest, Policy
from duly.operations import Operations
from duly.operations.previewing import preview
from duly.testing import DulyTest, StoreServer, duly_test, running_server
from duly.timing import jitter_offset

__all__ = ["duly_test"]

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
NINE = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)


@pytest.fixture(scope="session")
def duly_test_server(server: Server) -> Iterator[StoreServer]:
    with running_server(server.url) as stores:
        yield stores


@pytest.fixture
async def virtual(duly_test: DulyTest) -> DulyTest:
    await duly_test.at(START)

    @duly_test.app.task()
    async def noop() -> None:
        pass

    return duly_test


@pytest.fixture
def calls(virtual: DulyTest) -> Operations:
    return virtual._operations.for_tenant(DEFAULT_TENANT)


async def submitted(virtual: DulyTest, calls: Operations, *, offset: timedelta, **fields: object) -> str:
    """Submits a job whose jitter, of up to ten minutes, is at least `offset` and less than a minute more."""
    while True:
        job_id = await virtual.submit("noop", **fields)
        job = await calls.jobs.get(job_id)
        if offset <= jitter_offset(job.job_id, 600) < offset + MINUTE:
            return job_id
        await calls.jobs.cancel(job_id)


class TestOneOffs:
    @pytest.mark.parametrize("schedule", [NINE, "2026-01-05T09:00:00Z", "2026-01-05T10:00"])
    @pytest.mark.parametrize("jitter", [0, 600])
    async def test_a_one_off_runs_once_after_its_own_jitter(
        self, virtual: DulyTest, calls: Operations, schedule: str | datetime, jitter: int
    ) -> None:
        ids = [
            await virtual.submit("noop", schedule=schedule, timezone="Europe/Berlin", jitter_seconds=jitter)
            for _ in range(5)
        ]
        planned = [(await calls.jobs.get(job_id)).next_run_at for job_id in ids]
        assert planned == [NINE + jitter_offset((await calls.jobs.get(job_id)).job_id, jitter) for job_id in ids]
        shown = [[one.scheduled_at for one in await calls.jobs.upcoming(job_id)] for job_id in ids]
        assert shown == [[moment] for moment in planned]
        runs = await virtual.advance(days=3)
        assert sorted(run.scheduled_at for run in runs) == sorted(moment for moment in planned if moment)
        assert [(await calls.explain.occurrence(job_id)).verdict for job_id in ids] == ["fired"] * 5

    async def test_jittered_one_offs_of_a_bulk_submit_run_once(self, virtual: DulyTest, calls: Operations) -> None:
        policy = Policy(jitter_seconds=600)
        requests = [JobRequest("noop", schedule=NINE + n * SECOND, policy=policy) for n in range(20)]
        done = await calls.submit_many(requests)
        runs = await virtual.advance(days=2)
        assert sorted(run.scheduled_at for run in runs) == sorted(
            NINE + n * SECOND + jitter_offset(one.job_id, 600) for n, one in enumerate(done)
        )

    async def test_a_stored_one_off_of_before_runs_once(self, virtual: DulyTest, calls: Operations) -> None:
        """A store may hold a one-off whose due time lacks its jitter, with bounds that are refused now."""
        job_id = await virtual.submit("noop", schedule=NINE, jitter_seconds=600)
        await virtual._pool.query(
            "update duly.jobs set next_run_at = $1, start_at = $2, end_at = $3, max_runs = 5",
            NINE,
            START,
            START + MINUTE,
        )
        runs = await virtual.advance(days=2)
        assert [run.scheduled_at for run in runs] == [NINE]
        assert (await calls.jobs.get(job_id)).status == "completed"

    async def test_a_paused_one_off_keeps_its_jittered_time(self, virtual: DulyTest, calls: Operations) -> None:
        job_id = await virtual.submit("noop", schedule=NINE, jitter_seconds=600)
        planned = (await calls.jobs.get(job_id)).next_run_at
        await calls.jobs.pause(job_id)
        assert (await calls.jobs.resume(job_id)).next_run_at == planned
        changed = await calls.jobs.change(job_id, {"jitter_seconds": 0})
        assert changed.next_run_at == NINE

    @pytest.mark.parametrize(("field", "value"), [("start_at", NINE), ("end_at", NINE), ("max_runs", 3)])
    async def test_bounds_are_refused_by_name(
        self, virtual: DulyTest, calls: Operations, field: str, value: object
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            await virtual.submit("noop", schedule=NINE, **{field: value})
        assert caught.value.field == field
        once = await virtual.submit("noop", schedule=NINE)
        with pytest.raises(InvalidInput) as caught:
            await calls.jobs.change(once, {field: value})
        assert caught.value.field == field
        bounded = await virtual.submit("noop", schedule="@hourly", **{field: NINE + DAY if field != "max_runs" else 3})
        with pytest.raises(InvalidInput) as caught:
            await calls.jobs.change(bounded, {"schedule": NINE + DAY})
        assert caught.value.field == field
        await calls.jobs.change(bounded, {"schedule": NINE + DAY, field: None})


class TestJitter:
    async def test_jitter_that_is_added_does_not_run_a_job_again(self, virtual: DulyTest, calls: Operations) -> None:
        job_id = await submitted(virtual, calls, schedule="0 9 * * *", offset=7 * MINUTE)
        own = jitter_offset((await calls.jobs.get(job_id)).job_id, 600)
        await virtual.advance(until=NINE + 5 * MINUTE)
        changed = await calls.jobs.change(job_id, {"jitter_seconds": 600})
        assert changed.next_run_at == NINE + DAY + own
        runs = await virtual.advance(days=2)
        assert [run.scheduled_at for run in runs] == [NINE + DAY + own, NINE + 2 * DAY + own][: len(runs)]

    @pytest.mark.parametrize("missed_window", ["SKIP", "RUN_ONCE"])
    async def test_jitter_that_goes_away_loses_nothing(
        self, virtual: DulyTest, calls: Operations, missed_window: str
    ) -> None:
        job_id = await submitted(
            virtual, calls, schedule="0 9 * * *", offset=7 * MINUTE, jitter_seconds=600, missed_window=missed_window
        )
        assert await virtual.advance(until=NINE + 5 * MINUTE) == []
        changed = await calls.jobs.change(job_id, {"jitter_seconds": 0})
        assert changed.next_run_at == NINE + 5 * MINUTE
        runs = await virtual.advance(until=NINE + DAY)
        assert [(run.scheduled_at, run.status, run.missed) for run in runs] == [
            (NINE + 5 * MINUTE, "succeeded", False),
            (NINE + DAY, "succeeded", False),
        ]

    async def test_jitter_changed_in_a_pause_does_not_run_a_job_again(
        self, virtual: DulyTest, calls: Operations
    ) -> None:
        job_id = await submitted(virtual, calls, schedule="0 9 * * *", offset=7 * MINUTE)
        await virtual.advance(until=NINE + MINUTE)
        await calls.jobs.pause(job_id)
        await calls.jobs.change(job_id, {"jitter_seconds": 600})
        resumed = await calls.jobs.resume(job_id)
        assert resumed.next_run_at == NINE + DAY + jitter_offset(resumed.job_id, 600)


class TestCounted:
    @pytest.mark.parametrize(("rule", "count"), [("FREQ=SECONDLY;INTERVAL=2;COUNT=3", 3), ("FREQ=DAILY;COUNT=1", 1)])
    @pytest.mark.parametrize("start_at", [None, NINE])
    @pytest.mark.parametrize("jitter", [0, 30])
    async def test_a_counted_rule_runs_so_often(
        self, virtual: DulyTest, calls: Operations, rule: str, count: int, start_at: datetime | None, jitter: int
    ) -> None:
        shown = [one.scheduled_at for one in preview(rule, after=START, start_at=start_at).occurrences]
        job_id = await virtual.submit("noop", schedule=rule, jitter_seconds=jitter, start_at=start_at)
        offset = jitter_offset((await calls.jobs.get(job_id)).job_id, jitter)
        assert [one.scheduled_at for one in await calls.jobs.upcoming(job_id)] == [one + offset for one in shown]
        runs = await virtual.advance(days=4)
        assert [run.scheduled_at for run in runs] == [one + offset for one in shown]
        assert len(runs) == count
        explained = await calls.explain.between(job_id, start=START - DAY, end=START + 4 * DAY)
        assert [one.verdict for one in explained] == ["fired"] * count


class TestByHand:
    @pytest.mark.parametrize("overlap", ["skip", "queue", "parallel"])
    async def test_a_trigger_in_the_very_microsecond_of_an_occurrence(
        self, virtual: DulyTest, calls: Operations, overlap: str
    ) -> None:
        """A trigger before the fire, between fire and claim, or after the run gives a run of its own."""
        job_id = await virtual.submit("noop", schedule="0 * * * *", overlap=overlap)
        await virtual.at(NINE)
        asked = {(await calls.jobs.trigger(job_id)).run_id, (await calls.jobs.trigger(job_id)).run_id}
        runs = await virtual.drain()
        asked |= {(await calls.jobs.trigger(job_id)).run_id}
        runs += await virtual.drain()
        assert len({run.run_id for run in runs}) == len(runs)
        assert len(asked) == 3
        ended = {run.run_id: run.status for run in runs}
        assert {ended[one] for one in asked} == {"succeeded"}
        (scheduled,) = (run for run in runs if run.scheduled_at == NINE)
        # The earlier of the two triggered runs is unfinished when the occurrence fires.
        assert scheduled.status == ("skipped" if overlap == "skip" else "succeeded")
        assert len(runs) == 4

    async def test_a_trigger_in_the_microsecond_of_one_of_several_overdue_occurrences(
        self, virtual: DulyTest, calls: Operations
    ) -> None:
        job_id = await virtual.submit("noop", schedule="*/20 * * * *", overlap="parallel", missed_window="RUN_ALL")
        await virtual.at(NINE)
        asked = (await calls.jobs.trigger(job_id)).run_id
        runs = await virtual.drain()
        assert sorted(run.status for run in runs) == ["succeeded"] * 4
        assert asked in {run.run_id for run in runs}
        assert {NINE - 40 * MINUTE, NINE - 20 * MINUTE, NINE} <= {run.scheduled_at for run in runs}

    async def test_a_trigger_while_a_run_of_this_very_microsecond_is_running(
        self, virtual: DulyTest, calls: Operations
    ) -> None:
        seen: list[str] = []

        @virtual.app.task(overlap="parallel")
        async def again() -> None:
            if len(seen) < 5:
                seen.append((await calls.jobs.trigger(job_id)).run_id)

        job_id = await virtual.submit(again, schedule="0 * * * *")
        await virtual.advance(until=NINE)
        assert len(set(seen)) == 5
        page = await calls.runs.page(job_id)
        assert sorted(run.status for run in page.items) == ["succeeded"] * 6
