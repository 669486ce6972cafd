"""A write that was worked out from an older version of the job's row is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from duly.operations.revising import revise
from duly.store import fires, jobs, maintenance, sql_submits
from duly.store.jobs import ChangedJob
from duly.store.pool import Pool
from duly.store.sql_submits import PlannedSubmit
from harness.store import count, due_job, fire_now, fire_of, hours_ago, lead, put


async def touch(pool: Pool) -> None:
    await pool.query("update duly.jobs set version = version + 1, schedule = 'every 2h'")


async def test_a_resume(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    paused = await jobs.pause(pool, job_id=job.job_id, tenant="default", reason=None, note=None)
    assert paused is not None
    await touch(pool)

    async def resume(version: int) -> object:
        return await jobs.resume(pool, job_id=job.job_id, tenant="default", next_run_at=due, version=version, note=None)

    assert await resume(paused.version) is None
    assert await count(pool, "jobs", "status = 'paused' and next_run_at is null") == 1
    assert await resume(paused.version + 1) is not None


async def test_a_parked_job_that_goes_on(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    reason = "cannot be planned: no such zone"
    assert await fires.park(pool, shard=job.shard, epoch=epoch, jobs=[(job.job_id, due, reason)]) == [job.job_id]
    (parked,) = await maintenance.parked(pool, after=None, page=10)
    await touch(pool)
    assert await maintenance.unpark(pool, able=[(parked, due)], touched=[]) == 0
    assert await count(pool, "jobs", "status = 'paused' and next_run_at is null") == 1


async def test_an_sql_submit_that_was_planned(pool: Pool) -> None:
    rows = await pool.query("select duly.submit('noop', schedule => 'every 1h') as job_id")
    job_id: UUID = rows[0]["job_id"]
    ((job,), _) = await sql_submits.read(pool, page=10)
    await touch(pool)

    def planned(version: int) -> PlannedSubmit:
        return PlannedSubmit(job_id, version, "interval", "every 1h", None, hours_ago(-1))

    assert await sql_submits.write_plans(pool, [planned(job.version)], gone=[]) == {}
    assert await count(pool, "sql_submits") == 1, "it is read and planned again"
    assert await sql_submits.write_plans(pool, [planned(job.version + 1)], gone=[]) == {job_id: None}


async def test_a_change_of_the_timing_while_the_job_fires(pool: Pool) -> None:
    """A fire does not raise the version, so the change names the occurrence that it was planned from."""
    due = hours_ago(0)
    await put(pool, due_job(pool, due))
    changed = await revised(pool, {"schedule": "every 2h"})
    assert changed.planned_anew
    await pool.query("update duly.jobs set next_run_at = next_run_at + interval '1 hour'")
    assert await jobs.change(pool, changed) is None
    assert await count(pool, "jobs", "schedule = 'every 1h'") == 1
    assert await jobs.change(pool, await revised(pool, {"schedule": "every 2h"})) is not None


async def test_runs_follow_their_job_to_another_queue_in_the_same_commit(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=hours_ago(-1)))
    assert await jobs.change(pool, await revised(pool, {"queue": "mail", "priority": 9})) is not None
    assert await count(pool, "runs", "queue = 'mail' and priority = 9") == 1


async def revised(pool: Pool, changes: dict[str, Any]) -> ChangedJob:
    """The only job with these changes, worked out from its current row."""
    rows = await pool.query("select job_id from duly.jobs")
    job = await jobs.get(pool, job_id=rows[0]["job_id"], tenant="default")
    assert job is not None
    changed = revise(job, changes, now=pool.clock.now(), payload_max_bytes=1000)
    assert changed is not None
    return changed
