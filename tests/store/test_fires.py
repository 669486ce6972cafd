"""The fire transaction: an occurrence fires once, whoever tries, and its job moves on in the same commit."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta

import pytest

from duly.model import Requeued
from duly.store import fires, runs
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from harness.store import count, due_job, fire_now, fire_of, hours_ago, lead, put, succeeded, take

HOUR = timedelta(hours=1)


async def test_a_fire_makes_the_run_and_moves_the_job_in_one_step(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    fired = await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
    assert fired.moved == {job.job_id}
    row = (await pool.query("select next_run_at, last_run_at, run_count, status from duly.jobs"))[0]
    assert (row["next_run_at"], row["last_run_at"], row["run_count"], row["status"]) == (due + HOUR, due, 1, "active")
    run = (await pool.query("select scheduled_at, epoch, state from duly.runs"))[0]
    assert (run["scheduled_at"], run["epoch"], run["state"]) == (due, epoch, "queued")


async def test_the_same_fire_sent_twice_fires_once(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    fire = fire_of(job, next_run_at=due + HOUR)
    assert (await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)).moved
    assert not (await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)).moved
    assert await count(pool, "runs") == 1


async def test_an_old_epoch_fires_nothing(pool: Pool) -> None:
    """A leader that was paused wakes up after another took over, and tries to fire what it had planned."""
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    old = await lead(pool, job.shard)
    new = await lead(pool, job.shard)
    assert new > old
    fired = await fire_now(pool, shard=job.shard, epoch=old, batch=fire_of(job, next_run_at=due + HOUR))
    assert (fired.moved, fired.live) == (frozenset(), 0)
    assert await count(pool, "runs") == 0
    assert await count(pool, "jobs", "next_run_at = $1", due) == 1


async def test_a_takeover_waits_for_the_fire_that_is_under_way_and_the_next_one_is_refused(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    old = await lead(pool, job.shard)
    async with pool.transaction() as transaction:
        await fire_now(transaction, shard=job.shard, epoch=old, batch=fire_of(job, next_run_at=due + HOUR))
        takeover = asyncio.create_task(lead(pool, job.shard))
        done, _ = await asyncio.wait([takeover], timeout=0.3)
        assert not done, "the epoch was raised under a fire that had already checked it"
    assert await takeover == old + 1
    assert await count(pool, "runs") == 1


async def test_two_leaders_at_once_fire_each_occurrence_once(pool: Pool) -> None:
    """This holds even if both believe in the same epoch."""
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    fire = fire_of(job, next_run_at=due + HOUR)
    results = await asyncio.gather(*(fire_now(pool, shard=job.shard, epoch=epoch, batch=fire) for _ in range(8)))
    assert sum(len(result.moved) for result in results) == 1
    assert await count(pool, "runs") == 1


async def test_a_simple_fire_moves_the_very_row_that_was_seen_not_its_successor_in_the_same_place(pool: Pool) -> None:
    """The job is changed twice between look and fire, so that its row is in its old place again."""
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    (seen,) = await fires.due(pool, job_ids=[job.job_id])
    for next_run_at in (due + HOUR, due):
        # An index has this column, so the old row is not part of a HOT chain, and vacuum frees its place.
        await pool.query("update duly.jobs set next_run_at = $1, schedule = 'every 2h'", next_run_at)
        await pool.query("vacuum (index_cleanup on) duly.jobs")
    (now,) = await fires.due(pool, job_ids=[job.job_id])
    assert (now.ctid, now.next_run_at) == (seen.ctid, seen.next_run_at)
    assert now.version != seen.version

    def batch(look: fires.DueJob) -> fires.SimpleFires:
        assert look.ctid is not None
        return fires.SimpleFires([look.ctid], [look.version], [job.job_id], [due], [due + HOUR], [0], [job.shard])

    assert not (await fires.fire(pool, epochs={job.shard: epoch}, batch=batch(seen))).moved
    assert await count(pool, "runs") == 0
    assert (await fires.fire(pool, epochs={job.shard: epoch}, batch=batch(now))).moved == {job.job_id}


async def test_a_job_that_was_paused_meanwhile_does_not_fire(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    await pool.query("update duly.jobs set status = 'paused', next_run_at = null")
    fired = await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
    assert not fired.moved
    assert await count(pool, "runs") == 0


async def test_a_job_of_another_shard_does_not_fire(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    other = (job.shard + 1) % 64
    epoch = await lead(pool, other)
    fired = await fire_now(pool, shard=other, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
    assert not fired.moved


async def test_the_last_occurrence_ends_the_job_and_it_is_completed_when_its_run_is(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=None))
    assert await count(pool, "job_status", "shown_status = 'active'") == 1
    claim = await take(pool)
    assert await count(pool, "job_status", "shown_status = 'active'") == 1
    await runs.complete(pool, [succeeded(claim.runs[0])])
    assert await count(pool, "job_status", "shown_status = 'completed'") == 1


async def test_dropped_occurrences_are_one_row_with_their_count_and_reason(pool: Pool) -> None:
    due = hours_ago(26)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    fire = fire_of(job, next_run_at=due + 30 * HOUR, scheduled=[due + 26 * HOUR])
    fire.drop_job_ids, fire.drop_first, fire.drop_last = [job.job_id], [due], [due + 25 * HOUR]
    fire.drop_count, fire.drop_reason = [26], ["RUN_ONCE"]
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)
    row = (await pool.query("select scheduled_at, status, note from duly.history"))[0]
    assert (row["scheduled_at"], row["status"]) == (due, "missed")
    assert json.loads(row["note"])["count"] == 26
    assert json.loads(row["note"])["reason"] == "RUN_ONCE"
    assert await count(pool, "runs") == 1


class TestOverlap:
    """A fire while an earlier run of the job is unfinished."""

    @pytest.fixture(params=["queued", "running", "retrying"])
    def stage(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    async def _unfinished(self, pool: Pool, stage: str) -> tuple[fires.Fires, int, int]:
        """The second fire of a job whose first run is unfinished in the given way, and the job's shard and epoch."""
        due = hours_ago(3)
        job = due_job(pool, due)
        await put(pool, job)
        epoch = await lead(pool, job.shard)
        await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
        if stage != "queued":
            claim = await take(pool)
            if stage == "retrying":
                error = json.dumps({"type": "E", "message": "m", "traceback": None})
                await runs.requeue(pool, [Requeued(claim.runs[0], "retrying", 600, 1, 2, error)])
        second = due_job(pool, due + HOUR, job_id=job.job_id, shard=job.shard)
        return fire_of(second, next_run_at=due + 2 * HOUR), job.shard, epoch

    async def test_skip_records_the_new_one_as_skipped(self, pool: Pool, stage: str) -> None:
        fire, shard, epoch = await self._unfinished(pool, stage)
        assert (await fire_now(pool, shard=shard, epoch=epoch, batch=fire)).live == 0
        row = (await pool.query("select status, note from duly.history"))[0]
        assert row["status"] == "skipped"
        assert json.loads(row["note"])["reason"] == "overlap"
        # The first run is still the run to wait for.
        assert await count(pool, "jobs", "last_run_at = $1", fire.expected[0] - HOUR) == 1

    async def test_queue_lets_the_new_one_wait(self, pool: Pool, stage: str) -> None:
        fire, shard, epoch = await self._unfinished(pool, stage)
        fire.overlap, fire.run_flags = ["queue"], [8]
        await fire_now(pool, shard=shard, epoch=epoch, batch=fire)
        assert await count(pool, "runs", "state = 'waiting' and run_at = 'infinity'") == 1

    async def test_queue_is_bounded(self, pool: Pool, stage: str) -> None:
        fire, shard, epoch = await self._unfinished(pool, stage)
        fire.overlap, fire.run_flags, fire.max_queued = ["queue"], [8], [0]
        assert (await fire_now(pool, shard=shard, epoch=epoch, batch=fire)).live == 0
        assert await count(pool, "history", "status = 'skipped'") == 1

    async def test_parallel_starts_it(self, pool: Pool, stage: str) -> None:
        fire, shard, epoch = await self._unfinished(pool, stage)
        fire.overlap = ["parallel"]
        await fire_now(pool, shard=shard, epoch=epoch, batch=fire)
        assert await count(pool, "runs", "state = 'queued' and scheduled_at = $1", fire.expected[0]) == 1


async def test_a_finished_run_does_not_hold_up_the_next(pool: Pool) -> None:
    due = hours_ago(2)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
    claim = await take(pool)
    await runs.complete(pool, [succeeded(claim.runs[0])])
    second = due_job(pool, due + HOUR, job_id=job.job_id, shard=job.shard)
    fired = await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(second, next_run_at=due + 2 * HOUR))
    assert fired.live == 1


async def test_a_run_whose_history_was_dropped_by_retention_does_not_hold_up_its_job_for_ever(pool: Pool) -> None:
    due = hours_ago(2)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    await pool.query("update duly.jobs set last_run_at = $1", due - 24 * 400 * HOUR)
    fired = await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
    assert fired.live == 1


async def test_parking_is_fenced_like_a_fire(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    old = await lead(pool, job.shard)
    new = await lead(pool, job.shard)
    parked = [(job.job_id, due, "its zone is gone")]
    assert await fires.park(pool, shard=job.shard, epoch=old, jobs=parked) == []
    assert await fires.park(pool, shard=job.shard, epoch=new, jobs=parked) == [job.job_id]
    assert await count(pool, "jobs", "status = 'paused' and status_reason = 'its zone is gone'") == 1


async def seen_on_time(pool: Pool, job: NewJob, next_run_at: datetime) -> fires.SimpleFires:
    (seen,) = await fires.due(pool, job_ids=[job.job_id])
    assert not seen.busy
    assert seen.ctid is not None
    return fires.SimpleFires(
        ctids=[seen.ctid],
        versions=[seen.version],
        job_ids=[job.job_id],
        expected=[seen.next_run_at],
        next_run_at=[next_run_at],
        run_flags=[0],
        shards=[job.shard],
    )


async def test_a_simple_fire_moves_the_row_that_was_seen_once(pool: Pool) -> None:
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    batch = await seen_on_time(pool, job, due + HOUR)
    first, second = [await fires.fire(pool, epochs={job.shard: epoch}, batch=batch) for _ in range(2)]
    assert (first.moved, second.moved) == (frozenset({job.job_id}), frozenset())
    assert second.led
    assert await count(pool, "runs") == 1
    assert await count(pool, "jobs", "next_run_at = $1 and last_run_at = $2 and run_count = 1", due + HOUR, due) == 1


async def test_a_simple_fire_of_a_deposed_leader_moves_nothing(pool: Pool) -> None:
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    old = await lead(pool, job.shard)
    batch = await seen_on_time(pool, job, due + HOUR)
    await lead(pool, job.shard)
    fired = await fires.fire(pool, epochs={job.shard: old}, batch=batch)
    assert (fired.moved, fired.led) == (frozenset(), frozenset())
    assert await count(pool, "runs") == 0


async def test_a_simple_fire_of_several_shards_passes_over_those_that_were_lost(pool: Pool) -> None:
    due = hours_ago(1)
    jobs = [due_job(pool, due) for _ in range(40)]
    shards = {job.shard for job in jobs}
    await put(pool, *jobs)
    epochs = {shard: await lead(pool, shard) for shard in shards}
    lost = jobs[0].shard
    batch = fires.SimpleFires()
    for seen in await fires.due(pool, job_ids=[job.job_id for job in jobs]):
        assert seen.ctid is not None
        batch.ctids.append(seen.ctid)
        batch.versions.append(seen.version)
        batch.job_ids.append(seen.job_id)
        batch.expected.append(due)
        batch.next_run_at.append(due + HOUR)
        batch.run_flags.append(0)
        batch.shards.append(seen.shard)
    await lead(pool, lost)
    fired = await fires.fire(pool, epochs=epochs, batch=batch)
    kept = {job.job_id: job.shard for job in jobs if job.shard != lost}
    assert len(kept) < len(jobs)
    assert (fired.moved, fired.led) == (frozenset(kept), frozenset(shards - {lost}))
    rows = await pool.query("select job_id, shard, epoch from duly.runs")
    assert {row["job_id"]: (row["shard"], row["epoch"]) for row in rows} == {
        job_id: (shard, epochs[shard]) for job_id, shard in kept.items()
    }


@pytest.mark.parametrize("committed", [True, False])
async def test_a_simple_fire_leaves_a_row_that_was_written_since_it_was_seen(pool: Pool, committed: bool) -> None:
    """This holds also while that write is not committed; the fire does not wait for it."""
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    batch = await seen_on_time(pool, job, due + HOUR)
    async with pool.transaction() as other:
        await other.connection.execute("update duly.jobs set extra_at = duly.now() where job_id = $1", job.job_id)
        if not committed:
            fired = await fires.fire(pool, epochs={job.shard: epoch}, batch=batch)
    if committed:
        fired = await fires.fire(pool, epochs={job.shard: epoch}, batch=batch)
    assert (fired.moved, fired.led) == (frozenset(), frozenset({job.shard}))
    assert await count(pool, "runs") == 0
    assert await count(pool, "jobs", "next_run_at = $1", due) == 1


async def test_a_fire_leaves_a_job_that_was_changed_since_it_was_planned(pool: Pool) -> None:
    """This holds also if next_run_at is the same: the next occurrence was planned by the old schedule."""
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    batch = fire_of(job, next_run_at=due + HOUR)
    (seen,) = await fires.due(pool, job_ids=[job.job_id])
    batch.versions = [seen.version]
    await pool.query("update duly.jobs set schedule = 'every 2h'")
    fired = await fires.fire(pool, epochs={job.shard: epoch}, batch=batch)
    assert (fired.moved, fired.led) == (frozenset(), frozenset({job.shard}))
    assert await count(pool, "runs") == 0
    assert await count(pool, "jobs", "next_run_at = $1", due) == 1


async def test_a_job_that_was_changed_since_it_was_looked_at_is_left_for_the_next_look(pool: Pool) -> None:
    """Its next_run_at is the same, but its schedule has changed."""
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    batch = fire_of(job, next_run_at=due + HOUR)
    batch.versions = [seen.version for seen in await fires.due(pool, job_ids=[job.job_id])]
    await pool.query("update duly.jobs set schedule = 'every 2h'")
    assert not (await fires.fire(pool, epochs={job.shard: epoch}, batch=batch)).moved
    assert await count(pool, "runs") == 0


async def test_a_simple_fire_under_an_old_epoch_moves_nothing_and_the_other_shards_go_on(pool: Pool) -> None:
    due = hours_ago(0)
    old, other = due_job(pool, due, shard=3), due_job(pool, due, shard=4)
    await put(pool, old, other)
    epochs = {job.shard: await lead(pool, job.shard) for job in (old, other)}
    await lead(pool, old.shard)
    seen = await fires.due(pool, job_ids=[old.job_id, other.job_id])
    batch = fires.SimpleFires(
        [job.ctid for job in seen if job.ctid], [job.version for job in seen], [job.job_id for job in seen],
        [due] * 2, [due + HOUR] * 2, [0] * 2, [job.shard for job in seen],
    )  # fmt: skip
    fired = await fires.fire(pool, epochs=epochs, batch=batch)
    assert fired.moved == {other.job_id}
    assert fired.led == {other.shard}
    row = (await pool.query("select run_count, last_run_at from duly.jobs where job_id = $1", other.job_id))[0]
    assert (row["run_count"], row["last_run_at"]) == (1, due)


@pytest.mark.parametrize("many", [3, 120])
async def test_a_look_sees_which_jobs_are_running(pool: Pool, many: int) -> None:
    """For few jobs history is asked one by one, for many jobs all claims are read: the answer is the same."""
    due = hours_ago(1)
    jobs = [due_job(pool, due, shard=7) for _ in range(many)]
    await put(pool, *jobs)
    epoch = await lead(pool, 7)
    for job in jobs:
        await fire_now(pool, shard=7, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
    ids = [job.job_id for job in jobs]
    assert all(seen.busy for seen in await fires.due(pool, job_ids=ids)), "in the queue"
    claim = await take(pool)
    assert all(seen.busy for seen in await fires.due(pool, job_ids=ids)), "running"
    last, *others = claim.runs
    await runs.complete(pool, [succeeded(run) for run in others])
    # With many jobs, a job whose claim still holds another run counts as busy too: a fire looks closely at it.
    still = {seen.job_id for seen in await fires.due(pool, job_ids=ids) if seen.busy}
    assert last.job_id in still
    await runs.complete(pool, [succeeded(last)], [last.claim_id])
    assert not any(seen.busy for seen in await fires.due(pool, job_ids=ids))


async def test_only_the_leader_parks_and_only_what_stands_where_it_saw_it(pool: Pool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due)
    await put(pool, job)
    old = await lead(pool, job.shard)
    epoch = await lead(pool, job.shard)
    assert await fires.park(pool, shard=job.shard, epoch=old, jobs=[(job.job_id, due, "cannot be planned")]) == []
    assert await fires.park(pool, shard=job.shard, epoch=epoch, jobs=[(job.job_id, due - HOUR, "no")]) == []
    assert await count(pool, "jobs", "status = 'active'") == 1
    assert await fires.park(pool, shard=job.shard, epoch=epoch, jobs=[(job.job_id, due, "no")]) == [job.job_id]


class TestRelease:
    """Releasing late occurrences that waited for their turn."""

    async def waiting(self, pool: Pool) -> tuple[NewJob, int, fires.Release]:
        due = hours_ago(3)
        job = due_job(pool, due)
        await put(pool, job)
        epoch = await lead(pool, job.shard)
        await pool.query(
            "insert into duly.catch_ups (job_id, first_at, last_at, count, served_at, shard, epoch) "
            "values ($1, $2, $3, 2, duly.now(), $4, $5)",
            job.job_id, due, due + HOUR, job.shard, epoch,
        )  # fmt: skip
        release = fires.Release(
            job_ids=[job.job_id], last_at=[due + HOUR], expected=[due], first_at=[due + HOUR], overlap=["parallel"],
            max_queued=[100], run_job_ids=[job.job_id], run_scheduled_at=[due], run_flags=[2], run_number=[1],
        )  # fmt: skip
        return job, epoch, release

    async def test_sent_twice_it_lets_them_go_once(self, pool: Pool) -> None:
        job, epoch, release = await self.waiting(pool)
        assert await fires.release(pool, shard=job.shard, epoch=epoch, batch=release) == (1, {job.job_id})
        claim = await take(pool)
        await runs.complete(pool, [succeeded(claim.runs[0])])
        assert await fires.release(pool, shard=job.shard, epoch=epoch, batch=release) == (0, set())
        assert await count(pool, "catch_ups", "count = 1") == 1

    async def test_an_old_epoch_lets_nothing_go(self, pool: Pool) -> None:
        job, epoch, release = await self.waiting(pool)
        await lead(pool, job.shard)
        assert await fires.release(pool, shard=job.shard, epoch=epoch, batch=release) == (0, set())
        assert await count(pool, "runs") == 0
