"""Pauses that end by themselves: once, at their time, whatever dies in between and whoever looks twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.errors import InvalidInput
from duly.maintenance.pauses import Pauses
from duly.maintenance.unparker import Unparker
from duly.model import Actor, AuditFilter, Job, JobRequest
from duly.operations import Operations, StoreOperations
from duly.store import pauses
from duly.store.jobs import PAUSES_STEP
from duly.store.pauses import PlannedEnd
from duly.store.pool import Pool
from harness.processes import Spawn
from harness.scheduler import FrozenClock
from harness.store import count
from harness.waiting import eventually

NOW = datetime(2030, 5, 5, 0, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNTIL = NOW + 2 * HOUR


class Stage:
    """One job, due every hour at its full minute, a clock that the test moves, and the leader's service."""

    def __init__(self, pool: Pool, store: StoreOperations) -> None:
        self.pool = pool
        self.operations: Operations = store.for_tenant("default", Actor("cli", "ada@desk"))
        self.service = Pauses(pool)
        self.clock = FrozenClock(NOW)
        pool.clock = self.clock

    async def at(self, moment: datetime) -> None:
        await self.pool.query("update duly.clock set frozen_at = $1", moment)
        self.clock.moment = moment

    async def submit(self, schedule: Any = "0 * * * *", **fields: Any) -> Job:
        request = JobRequest("noop", name="job", schedule=schedule, **fields)
        return (await self.operations.submit(request, allow_unknown_handler=True)).job

    async def job(self, job: Job) -> Job:
        return await self.operations.jobs.get(str(job.job_id))

    async def pause(self, job: Job, until: datetime | None = UNTIL, reason: str | None = None) -> Job:
        return await self.operations.jobs.pause(str(job.job_id), until=until, reason=reason)

    async def changes(self, job: Job) -> list[tuple[str, str | None]]:
        rows = await self.pool.query(
            "select what, detail ->> 'reason' as reason from duly.job_changes where job_id = $1 order by change_id",
            job.job_id,
        )
        return [(row["what"], row["reason"]) for row in rows]

    async def noted(self, job: Job) -> list[tuple[str, str, str | None]]:
        page = await self.operations.audit.page(AuditFilter(job_id=str(job.job_id)))
        return [(one.action, one.actor, one.reason) for one in page.items[::-1]]


@pytest.fixture
async def stage(pool: Pool, store_operations: StoreOperations) -> Stage:
    stage = Stage(pool, store_operations)
    await stage.at(NOW)
    return stage


async def test_a_pause_ends_at_its_time_and_not_before(stage: Stage) -> None:
    job = await stage.submit()
    paused = await stage.pause(job, reason="holidays")
    assert (paused.status, paused.paused_until, paused.next_run_at) == ("paused", UNTIL, None)
    assert (await stage.job(job)).paused_until == UNTIL
    assert [one.paused_until for one in (await stage.operations.jobs.page()).items] == [UNTIL]
    assert 0 < (await stage.service.work() or 0) <= 5
    await stage.at(UNTIL - timedelta(seconds=2))
    assert await stage.service.work() == pytest.approx(2, abs=0.01)
    assert (await stage.job(job)).status == "paused"
    await stage.at(UNTIL + timedelta(seconds=1))
    for _ in range(3):
        await stage.service.work()
    resumed = await stage.job(job)
    # The occurrence at 01:00 and 02:00 passed during the pause; as after a resume by hand, they are not run.
    assert (resumed.status, resumed.status_reason, resumed.paused_until) == ("active", None, None)
    assert resumed.next_run_at == NOW + 2.5 * HOUR
    assert await stage.changes(job) == [("paused", "holidays"), ("resumed", "its pause ended")]
    assert await stage.noted(job) == [
        ("submit", "ada@desk", None), ("pause", "ada@desk", "holidays"), ("resume", "duly", "its pause ended"),
    ]  # fmt: skip
    assert await count(stage.pool, "pauses") == 0


async def test_explain_says_until_when(stage: Stage) -> None:
    job = await stage.submit()
    await stage.pause(job, reason="holidays")
    said = await stage.operations.explain.occurrence(str(job.job_id), at=NOW + HOUR / 2)
    assert "(holidays), until 2030-05-05 02:30" in said.sentence
    await stage.at(UNTIL)
    await stage.service.work()
    said = await stage.operations.explain.occurrence(str(job.job_id), at=NOW + HOUR / 2)
    assert said.verdict == "paused"
    assert "until 2030-05-05 02:30" in said.sentence


@pytest.mark.parametrize("how", ["resumed", "resumed and paused", "paused without an end", "cancelled", "as by 0.1.0"])
async def test_what_a_person_does_before_counts(stage: Stage, how: str) -> None:
    job = await stage.submit()
    job_id = str(job.job_id)
    await stage.pause(job)
    if how in ("resumed", "resumed and paused"):
        await stage.operations.jobs.resume(job_id)
    if how == "resumed and paused":
        await stage.pause(job, None)
    elif how == "paused without an end":
        assert (await stage.pause(job, None)).paused_until is None
    elif how == "cancelled":
        await stage.operations.jobs.cancel(job_id)
    elif how == "as by 0.1.0":
        # A node that knows no ends of pauses: it resumes the job, and pauses it.
        has_step = stage.pool.has_step
        stage.pool.has_step = lambda number: number < PAUSES_STEP and has_step(number)  # type: ignore[method-assign]
        await stage.operations.jobs.resume(job_id)
        await stage.pause(job, None)
        stage.pool.has_step = has_step  # type: ignore[method-assign]
    before = await stage.job(job)
    assert before.paused_until is None
    changes = await stage.changes(job)
    await stage.at(UNTIL)
    await stage.service.work()
    assert await stage.job(job) == before
    assert await stage.changes(job) == changes
    assert await count(stage.pool, "pauses") == 0


async def test_an_edit_while_paused_keeps_the_end_and_is_planned_by(stage: Stage) -> None:
    job = await stage.submit()
    await stage.pause(job)
    edited = await stage.operations.jobs.change(str(job.job_id), {"schedule": "45 * * * *"})
    assert edited.status == "paused"
    assert (await stage.job(job)).paused_until == UNTIL
    await stage.at(UNTIL)
    await stage.service.work()
    assert (await stage.job(job)).next_run_at == UNTIL + HOUR / 4


async def test_another_end_replaces_the_first(stage: Stage) -> None:
    job = await stage.submit()
    await stage.pause(job, reason="holidays")
    later = UNTIL + HOUR
    for _ in range(2):  # the second changes nothing
        again = await stage.pause(job, later)
        assert (again.paused_until, again.status_reason) == (later, "holidays")
    await stage.at(UNTIL)
    await stage.service.work()
    assert (await stage.job(job)).status == "paused"
    await stage.at(later)
    await stage.service.work()
    assert (await stage.job(job)).status == "active"
    assert [what for what, _, _ in await stage.noted(job)] == ["submit", "pause", "pause", "resume"]


@pytest.mark.parametrize("later", [UNTIL + 5 * HOUR, None])
async def test_an_older_self_that_wakes_up_ends_no_later_pause(stage: Stage, later: datetime | None) -> None:
    job = await stage.submit()
    await stage.pause(job)
    await stage.at(UNTIL)
    seen = await pauses.due(stage.pool, page=10)
    stale = [PlannedEnd(one, UNTIL + HOUR) for one in seen]
    assert [one.ours for one in seen] == [True]
    await stage.operations.jobs.resume(str(job.job_id))
    await stage.pause(job, later)
    assert await pauses.finish(stage.pool, stale, void=seen) == []
    paused = await stage.job(job)
    assert (paused.status, paused.paused_until) == ("paused", later)


async def test_two_leaders_and_a_lost_answer_end_it_once(stage: Stage) -> None:
    jobs = [await stage.submit() for _ in range(20)]
    for job in jobs:
        await stage.pause(job)
    await stage.at(UNTIL)
    ends = [PlannedEnd(one, UNTIL + HOUR) for one in await pauses.due(stage.pool, page=100)]
    ended = await asyncio.gather(*(pauses.finish(stage.pool, ends) for _ in range(4)))
    assert sorted(job_id for one in ended for job_id in one) == sorted(job.job_id for job in jobs)
    assert await pauses.finish(stage.pool, ends) == []  # sent again, because its answer was lost
    for job in jobs:
        assert [what for what, _ in await stage.changes(job)] == ["paused", "resumed"]


async def test_a_locked_job_is_left_for_the_next_look(stage: Stage) -> None:
    job, other = await stage.submit(), await stage.submit()
    for one in (job, other):
        await stage.pause(one)
    await stage.at(UNTIL)
    async with stage.pool.transaction() as stranger:
        await stranger.connection.execute("select from duly.jobs where job_id = $1 for update", job.job_id)
        await asyncio.wait_for(stage.service.work(), 10)
        assert (await stage.job(other)).status == "active"
        assert (await stage.job(job)).status == "paused"
    await stage.service.work()
    assert (await stage.job(job)).status == "active"


async def test_a_one_off_runs_then_and_a_job_without_an_occurrence_has_ended(stage: Stage) -> None:
    once = await stage.submit(NOW + HOUR)
    over = await stage.submit(end_at=NOW + HOUR)
    for job in (once, over):
        await stage.pause(job)
    await stage.at(UNTIL)
    await stage.service.work()
    assert (await stage.job(once)).next_run_at == UNTIL
    assert (await stage.job(over)).status == "completed"


async def test_a_job_that_cannot_be_planned_is_parked_until_it_can(stage: Stage) -> None:
    job = await stage.submit()
    await stage.pause(job)
    await stage.pool.query("update duly.jobs set timezone = 'Atlantis/Capital'")
    await stage.at(UNTIL)
    await stage.service.work()
    parked = await stage.job(job)
    assert (parked.status, parked.paused_until) == ("paused", None)
    assert parked.status_reason is not None
    assert "Atlantis" in parked.status_reason
    assert (await stage.noted(job))[-1][:2] == ("park", "duly")
    await stage.pool.query("update duly.jobs set timezone = 'UTC'")
    await Unparker(stage.pool).work()
    assert (await stage.job(job)).status == "active"


async def test_a_parked_job_that_a_person_pauses_ends_when_they_said(stage: Stage) -> None:
    job = await stage.submit()
    await stage.pause(job)
    await stage.pool.query("update duly.jobs set timezone = 'Atlantis/Capital'")
    await stage.at(UNTIL)
    await stage.service.work()
    await stage.pool.query("update duly.jobs set timezone = 'UTC'")
    assert (await stage.pause(job, UNTIL + HOUR)).paused_until == UNTIL + HOUR
    await Unparker(stage.pool).work()
    assert (await stage.job(job)).status == "paused"
    await stage.at(UNTIL + HOUR)
    await stage.service.work()
    assert (await stage.job(job)).status == "active"


async def test_the_end_must_be_a_time_to_come(stage: Stage) -> None:
    job = await stage.submit()
    for wrong in (NOW, NOW - HOUR, UNTIL.replace(tzinfo=None), datetime.max.replace(tzinfo=UTC)):
        with pytest.raises(InvalidInput) as refused:
            await stage.pause(job, wrong)
        assert refused.value.field == "until"
    has_step = stage.pool.has_step
    stage.pool.has_step = lambda number: number < PAUSES_STEP and has_step(number)  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="duly migrate"):
        await stage.pause(job)
    assert await stage.service.work() is None
    assert (await stage.job(job)).status == "active"


async def test_a_scheduler_that_is_killed_before_leaves_it_to_another(
    pool: Pool, operations: Operations, spawn: Spawn
) -> None:
    submitted = await operations.submit(JobRequest("noop", schedule="every 1h"), allow_unknown_handler=True)
    first = spawn("scheduler")
    await eventually(lambda: led(pool))
    paused = await operations.jobs.pause(str(submitted.job_id), until=pool.clock.now() + timedelta(seconds=1))
    first.kill()
    spawn("scheduler")
    spawn("scheduler")

    async def goes_on() -> bool:
        return (await operations.jobs.get(str(submitted.job_id))).status == "active"

    await eventually(goes_on)
    rows = await pool.query("select what, at from duly.job_changes order by change_id")
    assert [row["what"] for row in rows] == ["paused", "resumed"]
    assert paused.paused_until is not None
    assert rows[1]["at"] >= paused.paused_until


async def led(pool: Pool) -> bool:
    return len(await pool.query("select from duly.shards where shard = 0 and node_id is not null")) == 1
