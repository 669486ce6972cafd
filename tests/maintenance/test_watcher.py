"""The watcher: each kind of incident is opened once and closed once, also by a leader that remembers nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from duly import Duly
from duly.config import Settings
from duly.maintenance.alarms import deadline
from duly.maintenance.watcher import Watcher
from duly.model import DEFAULT_POLICY, Alerts, JobRequest, Policy
from duly.model.incident import Incident
from duly.operations import Operations
from duly.operations.preparing import problems_of
from duly.store import incidents, runs
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from harness.store import due_job, put, succeeded, take

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def stored(**alerts: Any) -> str:
    return json.dumps({"alerts": alerts})


def watching(pool: Pool) -> Watcher:
    watcher = Watcher(pool)
    watcher.lead(True)
    return watcher


async def look(pool: Pool) -> list[Incident]:
    """The open incidents after a look by a new leader."""
    await watching(pool).run_once()
    return await incidents.open_of_jobs(pool, None, limit=100)


async def closed(pool: Pool) -> list[tuple[str, str]]:
    rows = await pool.query(
        "select kind, closed_why from duly.incidents where closed_at is not null order by opened_at"
    )
    return [tuple(row) for row in rows]


async def make(pool: Pool, due: datetime, **alerts: Any) -> NewJob:
    job = due_job(pool, due, policy=stored(**alerts))
    await put(pool, job)
    await pool.query("update duly.jobs set updated_at = updated_at - interval '5 days' where job_id = $1", job.job_id)
    return job


async def queue(pool: Pool, job: NewJob, at: datetime, *, attempt: int = 0) -> None:
    await pool.query(
        "insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, state, queue, attempt) "
        "values ($1, $2, $2, $2, $3, 5, 'queued', 'default', $4)",
        job.job_id, at, job.shard, attempt,
    )  # fmt: skip


async def fire(pool: Pool, job: NewJob, at: datetime) -> None:
    """The occurrence `at` becomes a run, and the next one is in an hour."""
    await queue(pool, job, at)
    await pool.query(
        "update duly.jobs set next_run_at = duly.now() + interval '1 hour', last_run_at = $2 where job_id = $1",
        job.job_id,
        at,
    )


async def fail(pool: Pool, job: NewJob, at: datetime, *, ago: timedelta) -> None:
    await pool.query(
        "insert into duly.attempts (job_id, scheduled_at, attempt, claim_id, worker_id, finished_at, error) "
        "values ($1, $2, 1, gen_random_uuid(), gen_random_uuid(), duly.now() - $3::interval, $4)",
        job.job_id, at, ago, json.dumps({"type": "ValueError", "message": "no"}),
    )  # fmt: skip


async def succeed(pool: Pool, job_id: UUID, at: datetime) -> None:
    await pool.query(
        "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status) "
        "values ($1, $2, duly.now(), 1, 'succeeded')", job_id, at,
    )  # fmt: skip


async def test_an_occurrence_that_does_not_start_in_time(pool: Pool) -> None:
    now = pool.clock.now()
    due = now - MINUTE
    job = await make(pool, due, late_seconds=30)
    await make(pool, due, late_seconds=90)
    [late] = await look(pool)
    assert (late.job_id, late.kind, late.scheduled_at, late.cause) == (job.job_id, "late", due, "late: not fired")
    await fire(pool, job, due)
    # It is in the queue now, and has not started either: it stays the same incident.
    assert await look(pool) == [late]
    claim = await take(pool)
    assert await look(pool) == []
    assert await closed(pool) == [("late", "nothing of it is late any more")]
    await runs.complete(pool, [succeeded(run) for run in claim.runs])
    assert await look(pool) == []
    assert len(await closed(pool)) == 1


async def test_a_missed_occurrence_is_late_until_another_one_starts(pool: Pool) -> None:
    now = pool.clock.now()
    job = await make(pool, now + HOUR, late_seconds=30)
    await pool.query(
        "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status, note) "
        "values ($1, $2, duly.now(), 0, 'missed', '{\"reason\": \"SKIP\"}')", job.job_id, now - HOUR,
    )  # fmt: skip
    [late] = await look(pool)
    assert late.message.endswith("was missed: it never started")
    await fire(pool, job, now)
    await take(pool)
    assert await look(pool) == []


async def test_an_attempt_that_runs_for_too_long(pool: Pool) -> None:
    now = pool.clock.now()
    job = await make(pool, now + HOUR, overrun_seconds=60)
    await fire(pool, job, now)
    claim = await take(pool)
    assert await look(pool) == []
    await pool.query("update duly.claims set claimed_at = claimed_at - interval '2 minutes'")
    [overrun] = await look(pool)
    assert (overrun.kind, overrun.scheduled_at) == ("overrun", now)
    await runs.complete(pool, [succeeded(run) for run in claim.runs])
    assert await look(pool) == []
    assert await closed(pool) == [("overrun", "the attempt has ended")]


async def test_an_occurrence_that_is_not_over_at_its_time_of_day(pool: Pool) -> None:
    now = pool.clock.now().replace(second=0, microsecond=0)
    job = await make(pool, now + DAY, not_finished_by=f"{now - MINUTE:%H:%M}")
    await fire(pool, job, now)  # its deadline is tomorrow
    assert await look(pool) == []
    await queue(pool, job, now - HOUR, attempt=2)
    [late] = await look(pool)
    assert (late.kind, late.scheduled_at) == ("not_finished_by", now - HOUR)
    claim = await take(pool)
    assert await look(pool) == [late]
    await runs.complete(pool, [succeeded(run) for run in claim.runs])
    assert await look(pool) == []


@pytest.mark.parametrize(
    ("scheduled_at", "by", "expected"),
    [
        ("2030-01-10T22:00:00Z", "06:00", "2030-01-11T05:00:00Z"),
        ("2030-01-10T04:59:00Z", "06:00", "2030-01-10T05:00:00Z"),
        ("2030-01-10T05:00:00Z", "06:00", "2030-01-11T05:00:00Z"),
        ("2030-03-31T00:00:00Z", "02:30", "2030-03-31T01:30:00Z"),  # a time that DST skips
        ("2030-10-26T22:30:00Z", "02:30", "2030-10-27T00:30:00Z"),  # one that it repeats
    ],
)
def test_the_deadline_is_the_next_such_time_in_the_jobs_zone(scheduled_at: str, by: str, expected: str) -> None:
    found = deadline(datetime.fromisoformat(scheduled_at), by, "Europe/Berlin")
    assert found == datetime.fromisoformat(expected)
    assert found.tzinfo is UTC


async def test_failures_in_a_row_until_a_success(pool: Pool) -> None:
    now = pool.clock.now()
    job = await make(pool, now + HOUR, failures_in_row=3)
    await succeed(pool, job.job_id, now - 5 * HOUR)
    await pool.query("update duly.history set finished_at = duly.now() - interval '5 hours'")
    await fail(pool, job, now - 6 * HOUR, ago=6 * HOUR)
    await fail(pool, job, now - 4 * HOUR, ago=4 * HOUR)
    await fail(pool, job, now - 3 * HOUR, ago=3 * HOUR)
    assert await look(pool) == []
    await fail(pool, job, now - 2 * HOUR, ago=2 * HOUR)
    [incident] = await look(pool)
    assert incident.message == "3 attempts have failed in a row, the last with ValueError"
    assert incident.cause == "failures_in_row: noop: ValueError"
    await fail(pool, job, now - HOUR, ago=HOUR)
    assert await look(pool) == [incident]
    await succeed(pool, job.job_id, now)
    assert await look(pool) == []
    assert await closed(pool) == [("failures_in_row", "an attempt has succeeded")]


async def test_a_time_without_success(pool: Pool) -> None:
    now = pool.clock.now()
    job = await make(pool, now + HOUR, no_success_for=2 * 86400)
    [incident] = await look(pool)
    assert (incident.kind, incident.message) == ("no_success_for", "the job has never succeeded")
    await succeed(pool, job.job_id, now - HOUR)
    assert await look(pool) == []
    assert await closed(pool) == [("no_success_for", "a run has succeeded")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("update duly.jobs set status = 'paused', next_run_at = null", "the job is paused"),
        ("update duly.jobs set status = 'cancelled', next_run_at = null", "the job is cancelled"),
        ("update duly.jobs set policy = null", "it has no alerts any more"),
        (
            """update duly.jobs set policy = '{"alerts": {"overrun_seconds": 5}}'""",
            "the job has no such alert any more",
        ),
        ("delete from duly.jobs", "the job is gone"),
    ],
)
async def test_a_job_that_is_not_watched_any_more_closes_its_incidents(pool: Pool, change: str, why: str) -> None:
    await make(pool, pool.clock.now() - MINUTE, late_seconds=30)
    watcher = watching(pool)
    await watcher.run_once()
    assert len(await incidents.open_of_jobs(pool, None, limit=10)) == 1
    await pool.query(change)
    assert await look(pool) == []
    assert await closed(pool) == [("late", why)]
    # The leader before, which knows the job as it was, wakes up: it opens and closes nothing.
    await watcher.run_once()
    assert len(await pool.query("select from duly.incidents")) == 1


async def test_who_has_no_alerts_is_not_watched(pool: Pool) -> None:
    await put(pool, *(due_job(pool, pool.clock.now() - MINUTE) for _ in range(3)))
    assert await pool.query("select from duly.alerting") == []
    assert await look(pool) == []


async def test_jobs_come_under_watch_by_each_door_and_by_a_change(
    pool: Pool, operations: Operations, settings: Settings
) -> None:
    app = Duly(settings=settings)
    app.task(name="noop")(lambda: None)
    made = [
        UUID(await app.submit("noop", schedule="every 1h", alerts={"late_seconds": 60}, allow_unknown_handler=True))
    ]
    many = [{"handler": "noop", "schedule": "every 1h", "alerts": {"late_seconds": 60}} for _ in range(150)]
    made += [UUID(job_id) for job_id in await app.submit_many(many)]
    by_sql = await pool.query(
        """select duly.submit('c', '{}', 'every 1h', policy => '{"alerts": {"late_seconds": 60}}',
            allow_unknown_handler => true) as job_id"""
    )
    made.append(by_sql[0]["job_id"])
    changed = await app.submit("noop", schedule="every 1h")
    await operations.jobs.change(changed, {"alerts": {"late_seconds": 60}})
    noted = {row["job_id"] for row in await pool.query("select job_id from duly.alerting")}
    assert noted == {*made, UUID(changed)}
    policies = {row["policy"] for row in await pool.query("select policy from duly.jobs")}
    assert policies == {'{"alerts": {"late_seconds": 60}}'}
    await operations.jobs.change(changed, {"alerts": None})
    assert (await operations.jobs.get(changed)).policy == DEFAULT_POLICY
    await app.close()


async def test_wrong_alerts_are_refused_each_by_its_name(operations: Operations) -> None:
    wrong = Policy(
        alerts=Alerts(late_seconds=0, failures_in_row="3", not_finished_by="6:00", soon=1, overrun_seconds=5)
    )
    request = JobRequest("noop", policy=wrong)
    named = {one.field for one in problems_of(request, now=datetime.now(UTC))}
    assert named == {"alerts.late_seconds", "alerts.failures_in_row", "alerts.not_finished_by", "alerts.soon"}
