"""The guardian: each state that should never occur is made by hand and repaired once; a healthy store is left alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from duly.config import Settings
from duly.errors import Conflict, NotFound
from duly.maintenance import guardian as guardian_module
from duly.maintenance.guardian import Guardian
from duly.maintenance.rescuer import Rescuer
from duly.model import JobRequest, Policy
from duly.node import running_scheduler, running_worker
from duly.operations import Operations
from duly.store import cluster, maintenance, runs
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from duly.worker.handler.task import Task
from harness.store import count, due_job, new_job, put, put_now, succeeded, take
from harness.waiting import eventually


@pytest.fixture
def guardian(pool: Pool) -> Guardian:
    """A guardian without a grace: the second look may come at once."""
    guardian = Guardian(pool, grace_seconds=0)
    guardian.lead(True)
    return guardian


async def look_twice(guardian: Guardian) -> None:
    await guardian.run_once()
    await guardian.run_once()


async def status_of(pool: Pool, job: NewJob) -> Any:
    return (await pool.query("select * from duly.jobs where job_id = $1", job.job_id))[0]


async def notes(pool: Pool, job: NewJob) -> list[str]:
    rows = await pool.query("select what from duly.job_changes where job_id = $1 order by change_id", job.job_id)
    return [row["what"] for row in rows]


async def unplan(pool: Pool, *jobs: NewJob) -> None:
    await pool.query(
        "update duly.jobs set next_run_at = null, updated_at = updated_at - interval '1 hour' "
        "where job_id = any ($1::uuid[])",
        [job.job_id for job in jobs],
    )


class TestGrace:
    """Nothing is repaired at the first or the second look, but only after the grace, and only if it is still wrong."""

    @pytest.fixture
    def patient(self, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Guardian, list[float]]]:
        guardian, now = Guardian(pool, grace_seconds=30), [1000.0]
        guardian.lead(True)
        with monkeypatch.context() as patched:
            patched.setattr("duly.maintenance.guardian.time", SimpleNamespace(monotonic=lambda: now[0]))
            yield guardian, now

    async def test_of_jobs(self, pool: Pool, patient: tuple[Guardian, list[float]]) -> None:
        guardian, now = patient
        jobs = [due_job(pool, pool.clock.now() + timedelta(hours=1)) for _ in range(2)]
        await put(pool, *jobs)
        await unplan(pool, *jobs)
        for passed in (0.0, 0.0, 29.0):
            now[0] += passed
            await guardian.run_once()
            assert not guardian.repaired
        await pool.query("update duly.jobs set next_run_at = duly.now() where job_id = $1", jobs[0].job_id)
        now[0] += 2
        await guardian.run_once()
        assert guardian.repaired == {"stalled": 1}
        assert await notes(pool, jobs[0]) == []
        assert await notes(pool, jobs[1]) == ["repaired"]

    async def test_of_claims(self, pool: Pool, patient: tuple[Guardian, list[float]]) -> None:
        guardian, now = patient
        await put_now(pool, 1)
        await take(pool, lease=3600)
        for passed in (0.0, 0.0, 29.0):
            now[0] += passed
            await guardian.run_once()
            assert not guardian.repaired
        now[0] += 2
        await guardian.run_once()
        assert guardian.repaired == {"claim": 1}


class TestStalled:
    async def test_an_active_job_with_nothing_planned_goes_on_from_its_next_occurrence(
        self, pool: Pool, guardian: Guardian, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = pool.clock.now()
        job = due_job(pool, now + timedelta(hours=1), start_at=now - timedelta(minutes=30))
        await put(pool, job)
        await unplan(pool, job)
        await guardian.run_once()
        assert (await status_of(pool, job))["next_run_at"] is None, "not at first sight"
        with caplog.at_level(logging.WARNING, "duly.maintenance"):
            await guardian.run_once()
        found = await status_of(pool, job)
        assert (found["status"], found["next_run_at"]) == ("active", now + timedelta(minutes=30))
        assert str(job.job_id) in caplog.text
        assert await notes(pool, job) == ["repaired"]
        assert guardian.repaired == {"stalled": 1}
        await look_twice(guardian)
        assert guardian.repaired == {"stalled": 1}

    async def test_leaders_hear_of_it(self, pool: Pool, guardian: Guardian, settings: Settings) -> None:
        job = due_job(pool, pool.clock.now(), schedule="every 1s", policy='{"overlap":"parallel"}')
        await put(pool, job)
        await unplan(pool, job)
        async with running_scheduler(pool, settings):
            await look_twice(guardian)

            async def fired() -> bool:
                return await count(pool, "runs") > 0

            await eventually(fired)

    async def test_a_one_off_that_never_fired_fires_and_one_that_has_is_over(
        self, pool: Pool, guardian: Guardian
    ) -> None:
        due = pool.clock.now() + timedelta(hours=1)
        never, fired = (due_job(pool, due, kind="once", schedule=due.isoformat()) for _ in range(2))
        await put(pool, never, fired)
        await pool.query(
            "update duly.jobs set last_run_at = now() - interval '40 days' where job_id = $1", fired.job_id
        )
        await unplan(pool, never, fired)
        await look_twice(guardian)
        assert (await status_of(pool, never))["next_run_at"] == due
        found = await status_of(pool, fired)
        assert (found["status"], found["next_run_at"]) == ("ended", None)

    async def test_a_job_with_no_occurrence_left_has_ended(self, pool: Pool, guardian: Guardian) -> None:
        now = pool.clock.now()
        job = due_job(pool, now + timedelta(hours=1), end_at=now - timedelta(minutes=1))
        await put(pool, job)
        await unplan(pool, job)
        await look_twice(guardian)
        assert (await status_of(pool, job))["status"] == "ended"

    async def test_a_job_that_cannot_be_planned_is_parked_and_the_others_go_on(
        self, pool: Pool, guardian: Guardian
    ) -> None:
        bad = due_job(pool, pool.clock.now(), kind="cron", schedule="0 9 * * *", timezone="Mars/Olympus")
        good = due_job(pool, pool.clock.now())
        await put(pool, bad, good)
        await unplan(pool, bad, good)
        await look_twice(guardian)
        found = await status_of(pool, bad)
        assert found["status"] == "paused"
        assert "Mars/Olympus" in found["status_reason"]
        assert await notes(pool, bad) == ["parked"]
        assert [job.ours for job in await maintenance.parked(pool, after=None, page=10)] == [True]
        assert (await status_of(pool, good))["next_run_at"] is not None

    async def test_what_somebody_put_right_meanwhile_is_left_alone(self, pool: Pool, guardian: Guardian) -> None:
        job = due_job(pool, pool.clock.now() + timedelta(hours=1))
        await put(pool, job)
        await unplan(pool, job)
        await guardian.run_once()
        await pool.query("update duly.jobs set status = 'paused', version = version + 1")
        await guardian.run_once()
        assert (await status_of(pool, job))["status"] == "paused"
        assert not guardian.repaired


class TestLost:
    async def lose(self, pool: Pool, **changes: Any) -> NewJob:
        job = new_job(pool, **changes)
        await put(pool, job)
        await pool.query("delete from duly.runs where job_id = $1", job.job_id)
        return job

    async def test_a_run_in_no_place_is_queued_again_and_runs_once(self, pool: Pool, guardian: Guardian) -> None:
        job = await self.lose(pool)
        await guardian.run_once()
        assert await count(pool, "runs") == 0, "not at first sight"
        await guardian.run_once()
        claim = await take(pool)
        assert [(run.job_id, run.attempt) for run in claim.runs] == [(job.job_id, 1)]
        await look_twice(guardian)
        assert await count(pool, "runs") == 0, "it is under a lease"
        await runs.complete(pool, [succeeded(run) for run in claim.runs], close=[claim.runs[0].claim_id])
        await look_twice(guardian)
        assert await count(pool, "runs") == 0, "it has ended"
        assert guardian.repaired["lost"] == 1
        assert await notes(pool, job) == ["repaired"]

    async def test_one_that_ended_or_came_back_between_the_two_looks_is_left_alone(
        self, pool: Pool, guardian: Guardian
    ) -> None:
        ended, back = await self.lose(pool), await self.lose(pool)
        await guardian.run_once()
        await pool.query(
            "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status) "
            "select job_id, last_run_at, now(), 1, 'succeeded' from duly.jobs where job_id = $1",
            ended.job_id,
        )
        await pool.query(
            "insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, state, queue) "
            "select job_id, last_run_at, now(), now(), shard, priority, 'queued', queue from duly.jobs "
            "where job_id = $1",
            back.job_id,
        )
        await take(pool)
        await guardian.run_once()
        assert await count(pool, "runs") == 0
        assert not guardian.repaired

    async def test_its_attempts_are_kept(self, pool: Pool, guardian: Guardian) -> None:
        await self.lose(pool)
        await pool.query(
            "insert into duly.attempts (job_id, scheduled_at, attempt, claim_id, worker_id, finished_at, error) "
            "select job_id, last_run_at, n, gen_random_uuid(), gen_random_uuid(), now(), '{}' "
            "from duly.jobs cross join generate_series(1, 2) n"
        )
        await look_twice(guardian)
        assert [run.attempt for run in (await take(pool)).runs] == [3]

    async def test_it_waits_its_turn_behind_a_run_that_is_under_way(self, pool: Pool, guardian: Guardian) -> None:
        await self.lose(pool)
        await pool.query(
            "insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, state, queue) "
            "select job_id, last_run_at - interval '1 minute', now(), now(), shard, priority, 'queued', queue "
            "from duly.jobs"
        )
        await look_twice(guardian)
        claim = await take(pool)
        assert len(claim.runs) == 1
        assert await count(pool, "runs", "state = 'waiting'") == 1
        await runs.complete(pool, [succeeded(run) for run in claim.runs], close=[claim.runs[0].claim_id])
        assert len((await take(pool)).runs) == 1

    async def test_runs_that_may_overlap_do_not_wait(self, pool: Pool, guardian: Guardian) -> None:
        await self.lose(pool, policy='{"overlap":"parallel"}')
        await look_twice(guardian)
        assert await count(pool, "runs", "state = 'queued'") == 1

    async def test_an_extra_run_is_looked_after_as_well(self, pool: Pool, guardian: Guardian) -> None:
        job = due_job(pool, pool.clock.now() + timedelta(hours=1))
        await put(pool, job)
        await pool.query("update duly.jobs set extra_at = now() - interval '1 minute'")
        await look_twice(guardian)
        assert await count(pool, "runs", "state = 'queued'") == 1

    async def test_a_cancelled_jobs_run_stays_gone(self, pool: Pool, guardian: Guardian) -> None:
        await self.lose(pool)
        await pool.query("update duly.jobs set status = 'cancelled'")
        await look_twice(guardian)
        assert await count(pool, "runs") == 0

    async def test_a_run_whose_day_was_pruned_is_not_lost(self, pool: Pool, guardian: Guardian) -> None:
        """The last run of a monthly job: its outcome is not recorded any more, and it must not run again."""
        job = due_job(pool, pool.clock.now() + timedelta(hours=1))
        await put(pool, job)
        await pool.query("update duly.jobs set last_run_at = now() - interval '31 days'")
        await look_twice(guardian)
        assert await count(pool, "runs") == 0

    async def test_all_jobs_are_walked_over_in_pages(
        self, pool: Pool, guardian: Guardian, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(guardian_module, "PAGE", (10, 10))
        await put_now(pool, 45)
        await pool.query("delete from duly.runs")
        for _ in range(6):
            await guardian.run_once()
        assert await count(pool, "runs") == 45
        for _ in range(6):
            await guardian.run_once()
        assert guardian.repaired == {"lost": 45}


class TestClaims:
    async def far_lease(self, pool: Pool, worker_id: UUID) -> None:
        await put_now(pool, 3)
        await take(pool, worker_id=worker_id, lease=3600)

    async def test_a_lease_far_ahead_whose_worker_is_gone_is_ended(self, pool: Pool, guardian: Guardian) -> None:
        await self.far_lease(pool, uuid4())
        await guardian.run_once()
        assert await count(pool, "claims", "lease_until < duly.now()") == 0
        await guardian.run_once()
        assert await count(pool, "claims", "lease_until < duly.now()") == 1
        rescuer = Rescuer(pool)
        await rescuer.work()
        assert await count(pool, "runs") == 3
        assert guardian.repaired == {"claim": 1}

    async def test_a_worker_that_beats_keeps_its_lease_although_its_row_is_gone(
        self, pool: Pool, guardian: Guardian
    ) -> None:
        worker = uuid4()
        await self.far_lease(pool, worker)
        for _ in range(3):
            await guardian.run_once()
            claims = [row["claim_id"] for row in await pool.query("select claim_id from duly.claims")]
            assert (await runs.heartbeat(pool, worker_id=worker, lease_seconds=3600, claims=claims)).held
        assert not guardian.repaired

    async def test_a_lease_that_was_extended_since_it_was_seen_is_not_ended(self, pool: Pool) -> None:
        await put_now(pool, 1)
        claim = await take(pool, lease=3600)
        assert claim.claim_id is not None
        (seen,) = await pool.query("select lease_until from duly.claims")
        await pool.query("update duly.claims set lease_until = lease_until + interval '1 second'")
        assert await maintenance.expire_claims(pool, {claim.claim_id: seen["lease_until"]}) == []
        (now,) = await pool.query("select lease_until from duly.claims")
        assert await maintenance.expire_claims(pool, {claim.claim_id: now["lease_until"]}) == [claim.claim_id]

    async def test_a_live_workers_long_lease_is_left_alone(self, pool: Pool, guardian: Guardian) -> None:
        worker = uuid4()
        await cluster.join(pool, node_id=worker, kind="worker", name="w", version="0", lease_seconds=60, info={})
        await self.far_lease(pool, worker)
        await look_twice(guardian)
        assert not guardian.repaired


class TestShards:
    async def test_a_shard_without_a_row_gets_one_with_an_epoch_that_was_never_used(
        self, pool: Pool, settings: Settings
    ) -> None:
        await pool.query("insert into duly.terms (shard, epoch, node_id, started_at) select 0, 41, $1, now()", uuid4())
        await pool.query("delete from duly.shards where shard in (0, 7)")
        # No node leads shard 0, so none leads the upkeep: any node makes this repair.
        guardian = Guardian(pool)
        await guardian.run_once()
        rows = await pool.query("select shard, epoch from duly.shards where shard in (0, 7) order by shard")
        assert [tuple(row) for row in rows] == [(0, 41), (7, 0)]
        assert guardian.repaired == {"shard": 2}
        await guardian.run_once()
        assert guardian.repaired == {"shard": 2}


async def test_a_healthy_busy_cluster_sees_no_repairs(
    pool: Pool, settings: Settings, operations: Operations, guardian: Guardian
) -> None:
    """Every kind of move at once: fires, retries, lines, triggers, cancels, dead letters and redrives."""
    tried: dict[str, int] = {}

    async def flaky(ctx: Any) -> None:
        tried[ctx.run_id] = tried.get(ctx.run_id, 0) + 1
        if tried[ctx.run_id] % 3 == 1:
            raise RuntimeError("the first time")

    base = Policy(max_retries=1, retry_backoff="immediate")
    requests = [
        JobRequest(name=f"{overlap} {n}", handler="flaky", schedule="every 1s", policy=replace(base, overlap=overlap))
        for overlap in ("skip", "queue", "parallel")
        for n in range(20)
    ]
    repeats = 0
    async with (
        running_scheduler(pool, settings),
        running_worker(pool, {"flaky": Task("flaky", flaky)}, settings, concurrency=10),
    ):
        jobs = await operations.submit_many(requests, allow_unknown_handler=True)
        while await count(pool, "history", "status = 'succeeded'") < 400:
            await guardian.run_once()
            job = str(jobs[repeats % len(jobs)].job_id)
            with suppress(Conflict, NotFound):
                await operations.jobs.trigger(job)
            if repeats % 10 == 9:
                await operations.jobs.cancel(job)
            if repeats % 5 == 0:
                for letter in (await operations.dead_letters.page(limit=5)).items:
                    with suppress(Conflict, NotFound):
                        await operations.dead_letters.redrive(letter.run_id)
            repeats += 1
            await asyncio.sleep(0.01)
    await look_twice(guardian)
    assert repeats > 5
    assert not guardian.repaired
