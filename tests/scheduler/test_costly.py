"""A job that is too costly to plan is paused once, with the reason, and delays no other job on any node."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from datetime import timedelta
from uuid import UUID

import pytest

from duly.config import Settings
from duly.errors import Conflict, InvalidInput, TooCostly
from duly.maintenance.unparker import Unparker
from duly.model import JobRequest, Policy, Verdict
from duly.node import running_scheduler
from duly.operations import Operations, StoreOperations
from duly.store import fires
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from duly.timing import Definition, Timetable, fuel
from harness.nasty import GAPS, WEEKDAYS
from harness.scheduler import SECOND, START, FrozenScheduler, spread
from harness.store import count, due_job, lead, put
from harness.waiting import eventually

SKIP = Policy(dst_gap="skip").to_stored()


def costly(pool: Pool, number: int = 0, **changes: object) -> NewJob:
    """A job too costly to plan, as stored by an older Duly that planned no further than the rule's RDATE."""
    due = START + SECOND
    rule = GAPS.replace("BYMONTH=3", f"BYMONTH=3;WKST={WEEKDAYS[number]}") + "\nRDATE:20300505T080001"
    fields = {"kind": "rrule", "schedule": rule, "timezone": "America/New_York", "policy": SKIP, "tenant": "a"}
    return due_job(pool, due, **(fields | changes))


async def reasons(pool: Pool, job: NewJob) -> list[str]:
    rows = await pool.query(
        "select detail ->> 'reason' as reason from duly.job_changes where job_id = $1 and what = 'parked'", job.job_id
    )
    return [row["reason"] for row in rows]


async def test_it_is_paused_and_the_others_of_its_batch_fire_on_time(pool: Pool) -> None:
    scheduler = FrozenScheduler(pool)
    others, bad = spread(pool, 100, START + SECOND), [costly(pool, number) for number in range(5)]
    await scheduler.put(*others, *bad)
    await scheduler.lead(*others, *bad)
    began = time.process_time()
    await scheduler.step(START + SECOND)
    assert time.process_time() - began < 5, "without the limit each bad job takes 20 s"
    assert len(await scheduler.runs()) == len(others)
    assert await scheduler.late() == []
    for job in bad:
        (reason,) = await reasons(pool, job)
        assert "too costly to plan: schedule: takes too long to work out" in reason
    assert await count(pool, "jobs", "status = 'paused' and status_reason like 'too costly%'") == len(bad)


async def test_it_is_paused_by_a_node_that_has_lost_its_lead_and_no_second_one_plans_it(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = FrozenScheduler(pool), FrozenScheduler(pool)
    job = costly(pool)
    await first.put(job)
    await first.lead(job)
    await first.loader.run_once()
    await second.lead(job)
    await second.loader.run_once()
    await first.at(START + SECOND)
    await second.at(START + SECOND)
    await first.firer.run_once()
    assert len(await reasons(pool, job)) == 1
    await second.firer.run_once()
    assert len(await reasons(pool, job)) == 1
    assert caplog.text.count("is paused: too costly") == 1


async def test_two_leaders_that_meet_it_at_once_pause_it_once(pool: Pool) -> None:
    first, second = FrozenScheduler(pool), FrozenScheduler(pool)
    job = costly(pool)
    await first.put(job)
    for one in (first, second):
        await one.lead(job)
        await one.loader.run_once()
    for one in (first, second):
        await one.at(START + SECOND)
    await asyncio.gather(first.firer.run_once(), second.firer.run_once())
    assert len(await reasons(pool, job)) == 1
    assert await count(pool, "jobs", "version = 2 and status = 'paused'") == 1


async def test_one_that_was_changed_meanwhile_is_not_paused(pool: Pool) -> None:
    job = costly(pool)
    await put(pool, job)
    (seen,) = await fires.due(pool, job_ids=[job.job_id])
    await pool.query("update duly.jobs set priority = 7 where job_id = $1", job.job_id)
    assert await fires.park_costly(pool, jobs=[(seen, "too costly")]) == []
    assert await count(pool, "jobs", "status = 'active'") == 1


async def test_nothing_tries_it_again_until_it_is_changed(pool: Pool, operations: Operations) -> None:
    scheduler = FrozenScheduler(pool)
    job = costly(pool, tenant="default")
    await scheduler.put(job)
    await scheduler.lead(job)
    await scheduler.step(START + SECOND)
    assert await count(pool, "parked") == 0
    unparker = Unparker(pool)
    unparker.lead(True)
    await unparker.run_once()
    shown = await operations.jobs.get(str(job.job_id))
    assert shown.status == "paused"
    with pytest.raises(Conflict, match="takes too long to work out"):
        await operations.jobs.resume(str(job.job_id))
    explained = await operations.explain.occurrence(str(job.job_id), at=START + SECOND)
    assert explained.verdict is Verdict.PARKED
    assert "too costly to plan" in explained.sentence
    assert (await operations.explain.occurrence(str(job.job_id))).verdict in (Verdict.PARKED, Verdict.UNRECORDED)
    changed = await operations.jobs.change(str(job.job_id), {"schedule": "every 1h"})
    assert changed.status == "paused"
    assert (await operations.jobs.resume(str(job.job_id))).next_run_at is not None


async def test_planning_that_burns_time_and_no_fuel_is_stopped_by_the_clock(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Almost endless fuel stands for a step of planning that burns none."""
    monkeypatch.setattr(fuel, "MAX_FUEL", 4_000_000)
    scheduler = FrozenScheduler(pool)
    # A rule that no other test plans, because its cost is remembered.
    job, other = costly(pool, 6), due_job(pool, START + SECOND)
    await scheduler.put(job, other)
    await scheduler.lead(job, other)
    await scheduler.step(START + SECOND)
    (reason,) = await reasons(pool, job)
    assert re.search(r"too costly to plan: schedule: it took \d+ ms to work out", reason)
    assert await scheduler.runs(other) == [START + SECOND]


async def test_a_slow_plan_is_told_from_a_slow_machine(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Definition.timetable

    def asleep(definition: Definition, job_id: UUID) -> Timetable:
        time.sleep(0.06)  # takes no processor time
        return made(definition, job_id)

    monkeypatch.setattr(Definition, "timetable", asleep)
    scheduler = FrozenScheduler(pool)
    job = due_job(pool, START + SECOND)
    await scheduler.put(job)
    await scheduler.lead(job)
    await scheduler.step(START + SECOND)
    assert await scheduler.runs(job) == [START + SECOND]


async def test_other_tenants_are_not_silent_beside_five_of_them_and_two_schedulers(
    pool: Pool, settings: Settings, operations: Operations, store_operations: StoreOperations
) -> None:
    now = operations.now()
    due = (now + timedelta(seconds=3)).replace(microsecond=0)
    await store_operations.for_tenant("b").submit_many(
        [JobRequest("noop", schedule="every 1s", policy=Policy(overlap="parallel")) for _ in range(20)],
        allow_unknown_handler=True,
    )
    bad = [costly(pool, number, next_run_at=due) for number in range(5)]
    bad = [job._replace(schedule=job.schedule.replace("20300505T080001", f"{due:%Y%m%dT%H%M%S}Z")) for job in bad]
    await put(pool, *bad)
    async with running_scheduler(pool, settings), running_scheduler(pool, settings):

        async def paused() -> bool:
            return await count(pool, "jobs", "status = 'paused' and tenant = 'a'") == len(bad)

        await eventually(paused, seconds=60)

        async def went_on() -> bool:
            return await count(pool, "runs", "scheduled_at > $1", due + timedelta(seconds=2)) >= 20

        await eventually(went_on, seconds=60)
    for job in bad:
        assert len(await reasons(pool, job)) == 1
    assert await count(pool, "history", "status = 'missed'") == 0


async def test_what_is_submitted_changed_or_declared_is_refused_by_name(pool: Pool, operations: Operations) -> None:
    request = JobRequest("noop", schedule=GAPS, timezone="America/New_York", policy=Policy(dst_gap="skip"), max_runs=0)
    with pytest.raises(InvalidInput, match="takes too long to work out") as caught:
        await operations.submit(request, allow_unknown_handler=True)
    assert {one.field for one in (caught.value, *caught.value.others)} == {"schedule", "max_runs"}
    job = (await operations.submit(JobRequest("noop", schedule="every 1h"), allow_unknown_handler=True)).job_id
    with pytest.raises(TooCostly):
        await operations.jobs.change(str(job), {"schedule": GAPS, "timezone": "America/New_York", "dst_gap": "skip"})


async def test_a_batch_of_costly_rules_gives_others_their_turn(
    operations: Operations, store_operations: StoreOperations
) -> None:
    """The batch yields by time, not by count."""
    texts = [f"FREQ=MONTHLY;BYDAY=SU;BYHOUR={n % 24};BYMINUTE={n // 24};BYSETPOS=1;COUNT=1000000" for n in range(120)]
    turns = 0
    done = asyncio.Event()

    async def beside() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(beside())
    answers = await store_operations.for_tenant("default").submit_each(
        [JobRequest("noop", schedule=text) for text in texts], allow_unknown_handler=True
    )
    done.set()
    await other
    assert all(isinstance(answer, InvalidInput) for answer in answers)
    assert turns >= len(texts) // 10


async def test_a_forecast_passes_over_what_costs_too_much(pool: Pool, operations: Operations) -> None:
    now = operations.now()
    plain = due_job(pool, now + timedelta(minutes=1), schedule="every 1m")
    due = now + timedelta(seconds=30)
    await put(pool, plain, costly(pool, tenant="default", next_run_at=due))
    found = await operations.forecast(minutes=30)
    assert 29 <= found.total <= 32


async def test_what_the_fence_refused_is_not_told_as_dropped(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "duly.scheduler")
    scheduler = FrozenScheduler(pool)
    job = due_job(pool, START + SECOND, schedule="every 1s")
    await scheduler.put(job)
    await scheduler.lead(job)
    await scheduler.loader.run_once()
    await lead(pool, job.shard)  # another node leads the shard now, and this node does not know yet
    await scheduler.at(START + 300 * SECOND)
    await scheduler.firer.run_once()
    assert "dropped as missed" not in caplog.text
    again = FrozenScheduler(pool, START + 300 * SECOND)
    await again.lead(job)
    await again.step(START + 300 * SECOND)
    (dropped,) = re.findall(r"(\d+) are dropped as missed", caplog.text)
    assert int(dropped) == (await again.missed(job)).total()


async def test_a_job_that_became_too_costly_does_not_catch_up_for_ever(pool: Pool) -> None:
    scheduler = FrozenScheduler(pool)
    job = costly(pool)
    await scheduler.put(job)
    await scheduler.lead(job)
    await pool.query(
        "insert into duly.catch_ups (job_id, shard, first_at, last_at, count, epoch, served_at) "
        "values ($1, $2, $3, $4, 7, 1, $3)", job.job_id, job.shard, START + SECOND, START + timedelta(days=4000)
    )  # fmt: skip
    await scheduler.catching_up.run_once()
    assert await count(pool, "catch_ups") == 0
    assert await scheduler.missed(job) == {"too_costly": 7}
