"""Claims: one lease for a batch, and a token that every later write has to show."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from duly.model import Buried, Claim, Requeued, Succeeded, from_micros
from duly.store import jobs, maintenance, runs
from duly.store.pool import Pool
from harness.store import count, due_job, fire_now, fire_of, hours_ago, lead, new_job, put, put_now, succeeded, take

ERROR = json.dumps({"type": "ValueError", "message": "no", "traceback": None})


async def expire(pool: Pool, claim: Claim) -> None:
    """Lets a lease run out without waiting for it."""
    await pool.query(
        "update duly.claims set lease_until = duly.now() - interval '1 second' where claim_id = $1", claim.claim_id
    )


async def test_a_claim_takes_the_runs_out_of_the_queue_under_one_lease_row(pool: Pool) -> None:
    await put_now(pool, 10)
    claim = await take(pool, limit=7)
    assert len(claim.runs) == 7
    assert await count(pool, "runs") == 3
    assert await count(pool, "claims", "cardinality(job_ids) = 7") == 1
    assert {run.attempt for run in claim.runs} == {1}


async def test_an_empty_queue_leaves_no_lease_behind(pool: Pool) -> None:
    claim = await take(pool)
    assert claim.runs == []
    assert claim.next_run_at is None
    assert await count(pool, "claims") == 0


async def test_two_claims_at_once_never_share_a_run(pool: Pool) -> None:
    await put_now(pool, 2000)
    claims = await asyncio.gather(*(take(pool, limit=300) for _ in range(8)))
    taken = [run.job_id for claim in claims for run in claim.runs]
    assert len(taken) == len(set(taken)) == 2000


async def test_a_run_that_somebody_keeps_locked_holds_up_no_other(pool: Pool) -> None:
    locked, *others = await put_now(pool, 3)
    async with pool.transaction() as transaction:
        await transaction.connection.execute("select from duly.runs where job_id = $1 for update", locked.job_id)
        async with asyncio.timeout(10):
            claim = await take(pool)
        assert {run.job_id for run in claim.runs} == {job.job_id for job in others}
    assert [run.job_id for run in (await take(pool)).runs] == [locked.job_id]


async def test_higher_priorities_go_first_then_earlier_due_times(pool: Pool) -> None:
    for priority in (2, 9, 0, 5):
        await put(pool, new_job(pool, priority=priority, name=f"p{priority}"))
    await put(pool, new_job(pool, priority=5, name="p5 later"))
    names = [(await take(pool, limit=1)).runs[0].name for _ in range(5)]
    assert names == ["p9", "p5", "p5 later", "p2", "p0"]


async def test_only_the_queues_asked_for_are_served(pool: Pool) -> None:
    await put(pool, new_job(pool, queue="mail"), new_job(pool, queue="reports"))
    claim = await take(pool, queues=["reports"])
    assert len(claim.runs) == 1
    assert await count(pool, "runs", "queue = 'mail'") == 1


async def test_a_run_that_may_not_start_yet_is_left_and_its_time_is_told(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    run = claim.runs[0]
    assert await runs.requeue(pool, [Requeued(run, "retrying", 3600, 1, 2, ERROR)]) == 1
    again = await take(pool)
    assert again.runs == []
    assert again.next_run_at is not None
    assert timedelta(minutes=59) < again.next_run_at - pool.clock.now() < timedelta(minutes=61)


async def test_completion_moves_the_run_to_history_and_closes_the_claim(pool: Pool) -> None:
    await put_now(pool, 3)
    claim = await take(pool)
    assert claim.claim_id is not None
    ended = [succeeded(run, result='{"n": 1}') for run in claim.runs]
    assert await runs.complete(pool, ended, [claim.claim_id]) == 3
    assert await count(pool, "history", "status = 'succeeded' and result = '{\"n\": 1}' and claim_id = $1",
                       claim.claim_id) == 3  # fmt: skip
    assert await count(pool, "claims") == 0


async def test_a_part_of_a_claim_can_be_completed_while_the_rest_runs_on(pool: Pool) -> None:
    await put_now(pool, 3)
    claim = await take(pool)
    assert await runs.complete(pool, [succeeded(claim.runs[1])]) == 1
    assert await count(pool, "claims") == 1
    held = (await pool.query("select job_id from duly.history"))[0]["job_id"]
    assert held == claim.runs[1].job_id


async def test_times_are_recorded_to_the_microsecond(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    started, finished = 1_763_199_999_123_457, 1_763_200_000_987_653
    await runs.complete(pool, [Succeeded(claim.runs[0], started, finished)])
    row = (await pool.query("select started_at, finished_at from duly.history"))[0]
    assert (row["started_at"], row["finished_at"]) == (from_micros(started), from_micros(finished))


async def test_completing_twice_records_once(pool: Pool) -> None:
    """The answer of a completion was lost and the worker sends it again."""
    await put_now(pool, 5)
    claim = await take(pool)
    ended = [succeeded(run) for run in claim.runs]
    assert await runs.complete(pool, ended) == 5
    assert await runs.complete(pool, ended) == 0
    assert await count(pool, "history") == 5
    assert len(await runs.settled(pool, claim.runs)) == 5


async def test_a_stale_token_writes_nothing(pool: Pool) -> None:
    """A worker was stopped for longer than its lease, its runs went to another, and now it wakes up."""
    await put_now(pool, 20)
    stale = await take(pool)
    await expire(pool, stale)
    rescued = await maintenance.rescue(pool)
    assert (rescued.claims, rescued.requeued) == (1, 20)
    # The runs come back at different moments: one of them may have taken the worker down.
    rows = await pool.query("select min(run_at) as first, max(run_at) as last, duly.now() as now from duly.runs")
    assert rows[0]["first"] < rows[0]["last"] <= rows[0]["now"] + timedelta(seconds=2)
    await pool.query("update duly.runs set run_at = duly.now()")
    fresh = await take(pool)
    assert len(fresh.runs) == 20
    assert {run.attempt for run in fresh.runs} == {2}

    assert await runs.complete(pool, [succeeded(run) for run in stale.runs], [stale.claim_id or uuid4()]) == 0
    assert await runs.requeue(pool, [Requeued(run, "retrying", 0, 1, 2, ERROR) for run in stale.runs]) == 0
    assert await runs.bury(pool, [Buried(run, 1, 2, ERROR) for run in stale.runs]) == 0
    assert await runs.settled(pool, stale.runs) == set()
    assert await count(pool, "history") == await count(pool, "dead_letters") == await count(pool, "runs") == 0

    assert await runs.complete(pool, [succeeded(run) for run in fresh.runs]) == 20
    assert await count(pool, "history", "claim_id = $1", fresh.claim_id) == 20
    assert await runs.complete(pool, [succeeded(run) for run in stale.runs]) == 0
    assert await runs.settled(pool, stale.runs) == set(), "a run that another claim has ended is not settled"


async def test_a_later_claim_of_a_run_has_a_greater_token(pool: Pool) -> None:
    await put_now(pool, 1)
    tokens = []
    for _ in range(3):
        claim = await take(pool)
        tokens.append(str(claim.claim_id))
        await expire(pool, claim)
        await maintenance.rescue(pool)
        await pool.query("select pg_sleep(0.002)")
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 3


async def test_rescue_puts_back_only_what_is_unfinished(pool: Pool) -> None:
    """Of one claim: one run is done, one buried, one retrying, one retrying and taken by another worker, one lost."""
    await put_now(pool, 5)
    claim = await take(pool)
    done, buried, retrying, taken, lost = claim.runs
    await runs.complete(pool, [succeeded(done)])
    await runs.bury(pool, [Buried(buried, 1, 2, ERROR)])
    await runs.requeue(
        pool, [Requeued(retrying, "retrying", 600, 1, 2, ERROR), Requeued(taken, "retrying", 0, 1, 2, ERROR)]
    )
    other = await take(pool)
    assert [run.job_id for run in other.runs] == [taken.job_id]
    await expire(pool, claim)
    rescued = await maintenance.rescue(pool)
    assert (rescued.requeued, rescued.buried) == (1, 0)
    rows = await pool.query("select job_id, state, attempt from duly.runs order by state")
    assert [(row["job_id"], row["state"], row["attempt"]) for row in rows] == [
        (lost.job_id, "queued", 1),
        (retrying.job_id, "retrying", 1),
    ]
    assert await count(pool, "claims") == 1


async def test_a_heartbeat_keeps_a_lease_from_rescue(pool: Pool) -> None:
    await put_now(pool, 2)
    worker_id = uuid4()
    claim = await take(pool, worker_id=worker_id)
    await expire(pool, claim)
    assert claim.claim_id is not None
    held, _ = await runs.heartbeat(pool, worker_id=worker_id, lease_seconds=60, claims=[claim.claim_id])
    assert set(held) == {claim.claim_id}
    assert (await maintenance.rescue(pool)).claims == 0


async def test_a_heartbeat_leaves_claims_alone_that_it_does_not_name(pool: Pool) -> None:
    # No worker executes the runs of a claim whose answer was lost.
    await put_now(pool, 2)
    worker_id = uuid4()
    unknown = await take(pool, worker_id=worker_id, limit=1)
    known = await take(pool, worker_id=worker_id, limit=1)
    for claim in (unknown, known):
        await expire(pool, claim)
    assert known.claim_id is not None
    held, _ = await runs.heartbeat(pool, worker_id=worker_id, lease_seconds=60, claims=[known.claim_id])
    assert set(held) == {known.claim_id}
    assert (await maintenance.rescue(pool)).requeued == 1


async def test_a_heartbeat_does_not_extend_the_claim_of_another_worker(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    assert claim.claim_id is not None
    await expire(pool, claim)
    assert await runs.heartbeat(pool, worker_id=uuid4(), lease_seconds=60, claims=[claim.claim_id]) == ({}, False)
    assert (await maintenance.rescue(pool)).claims == 1


async def test_a_heartbeat_does_not_find_a_claim_that_was_rescued(pool: Pool) -> None:
    await put_now(pool, 2)
    worker_id = uuid4()
    claim = await take(pool, worker_id=worker_id)
    assert claim.claim_id is not None
    await expire(pool, claim)
    await maintenance.rescue(pool)
    assert await runs.heartbeat(pool, worker_id=worker_id, lease_seconds=60, claims=[claim.claim_id]) == ({}, False)


async def test_a_run_that_kills_its_workers_ends_in_the_dead_letters(pool: Pool) -> None:
    await put(pool, new_job(pool, policy='{"max_retries": 2}', payload='{"n": 7}'))
    for _ in range(3):
        claim = await take(pool)
        assert len(claim.runs) == 1
        await expire(pool, claim)
        await maintenance.rescue(pool)
    assert (await take(pool)).runs == []
    letter = (await pool.query("select payload, attempt, attempts, error from duly.dead_letters"))[0]
    assert json.loads(letter["payload"]) == {"n": 7}
    assert letter["attempt"] == 3
    assert [attempt["attempt"] for attempt in json.loads(letter["attempts"])] == [1, 2, 3]
    assert json.loads(letter["error"])["type"] == "LeaseLost"
    assert await count(pool, "history", "status = 'dead'") == 1


async def test_the_claims_of_a_dead_worker_end_and_no_others(pool: Pool) -> None:
    await put_now(pool, 4)
    dead, alive = uuid4(), uuid4()
    lost, kept = await take(pool, worker_id=dead, limit=2), await take(pool, worker_id=alive, limit=2)
    assert await maintenance.end_claims(pool, worker_id=dead) == 1
    rescued = await maintenance.rescue(pool)
    assert (rescued.claims, rescued.requeued) == (1, 2)
    # Its last words come too late.
    assert await runs.complete(pool, [succeeded(run) for run in lost.runs]) != len(lost.runs)
    assert await count(pool, "history") == 0
    await runs.complete(pool, [succeeded(run) for run in kept.runs])
    assert await count(pool, "history") == 2
    assert await maintenance.end_claims(pool, worker_id=dead) == 0


async def test_rescue_does_not_put_back_a_run_whose_completion_commits_meanwhile(pool: Pool) -> None:
    """The completion keeps its claim locked; rescue must skip that claim, and see the history row afterwards."""
    await put_now(pool, 1)
    claim = await take(pool)
    await expire(pool, claim)
    async with pool.transaction() as transaction:
        assert await runs.complete(transaction, [succeeded(claim.runs[0])]) == 1
        assert (await maintenance.rescue(pool)).claims == 0
    rescued = await maintenance.rescue(pool)
    assert (rescued.claims, rescued.requeued) == (1, 0)
    assert await count(pool, "runs") == 0
    assert await count(pool, "history") == 1


async def test_requeue_sent_twice_puts_back_once(pool: Pool) -> None:
    await put_now(pool, 2)
    claim = await take(pool)
    back = [Requeued(run, "retrying", 0, 1, 2, ERROR) for run in claim.runs]
    assert await runs.requeue(pool, back) == 2
    again = await take(pool)
    assert await runs.requeue(pool, back) == 0
    assert len(again.runs) == 2
    assert await count(pool, "runs") == 0
    assert await count(pool, "attempts") == 2


async def test_giving_a_run_back_does_not_count_as_an_attempt(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    await runs.requeue(pool, [Requeued(claim.runs[0], "queued", 0, None, None, refund=1)])
    assert (await take(pool)).runs[0].attempt == 1
    assert await count(pool, "attempts") == 0


async def test_a_completed_run_cannot_be_requeued_by_the_same_claim(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    await runs.complete(pool, [succeeded(claim.runs[0])])
    assert await runs.requeue(pool, [Requeued(claim.runs[0], "retrying", 0, 1, 2, ERROR)]) == 0
    assert await count(pool, "runs") == 0


async def test_a_requeued_run_cannot_be_completed_by_the_claim_that_let_it_go(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    await runs.requeue(pool, [Requeued(claim.runs[0], "retrying", 0, 1, 2, ERROR)])
    assert await runs.complete(pool, [succeeded(claim.runs[0])]) == 0
    assert await count(pool, "history") == 0


async def test_claim_heartbeat_complete_and_rescue_in_each_others_way_lose_nothing(pool: Pool) -> None:
    total = 1500
    await put_now(pool, total)
    done = 0

    async def work() -> None:
        nonlocal done
        worker_id = uuid4()
        while done < total:
            claim = await take(pool, worker_id=worker_id, limit=40, lease=0.03)
            if claim.claim_id is not None:
                await runs.heartbeat(pool, worker_id=worker_id, lease_seconds=0.02, claims=[claim.claim_id])
                accepted = await runs.complete(pool, [succeeded(run) for run in claim.runs], [claim.claim_id])
                done += accepted

    async def rescue() -> None:
        while done < total:
            await maintenance.rescue(pool)

    # A run may be rescued again and again here: attempts must not run out.
    await pool.query("update duly.jobs set policy = '{\"max_retries\": 10000}'")
    async with asyncio.timeout(60):
        await asyncio.gather(work(), work(), work(), rescue(), rescue())
    assert done == total
    assert await count(pool, "history") == total
    assert await count(pool, "runs") == 0


@pytest.mark.parametrize("status", ["dead", "cancelled"])
async def test_burying_keeps_payload_and_every_attempt_of_a_dead_run(pool: Pool, status: str) -> None:
    await put(pool, new_job(pool, payload='{"a": [1, 2]}'))
    first = await take(pool)
    await runs.requeue(pool, [Requeued(first.runs[0], "retrying", 0, 5, 6, ERROR)])
    second = await take(pool)
    assert await runs.bury(pool, [Buried(second.runs[0], 7, 8, ERROR, status)]) == 1
    assert await count(pool, "history", "status = $1 and attempt = 2", status) == 1
    letters = await pool.query("select attempts, payload from duly.dead_letters")
    if status == "cancelled":
        assert letters == []
    else:
        assert [attempt["attempt"] for attempt in json.loads(letters[0]["attempts"])] == [1, 2]
        assert json.loads(letters[0]["payload"]) == {"a": [1, 2]}


async def test_the_next_waiting_run_starts_when_the_one_before_it_ends(pool: Pool) -> None:
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    moments = [due, due + timedelta(minutes=1), due + timedelta(minutes=2)]
    fire = fire_of(job, next_run_at=due + timedelta(hours=9), scheduled=moments, overlap="queue")
    assert (await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)).live == 3
    for moment in moments:
        claim = await take(pool)
        assert [run.scheduled_at for run in claim.runs] == [moment]
        await runs.complete(pool, [succeeded(claim.runs[0])])
    assert (await take(pool)).runs == []


async def test_a_run_that_began_to_wait_as_its_predecessor_ended_is_freed_by_the_sweep(pool: Pool) -> None:
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    fire = fire_of(
        job, next_run_at=due + timedelta(hours=9), scheduled=[due, due + timedelta(minutes=1)], overlap="queue"
    )
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)
    claim = await take(pool)
    # The first run ends without releasing the next, as if its completion had not seen it.
    await pool.query("update duly.claims set flags = '{0}'")
    await runs.complete(pool, [succeeded(claim.runs[0])], [claim.claim_id or uuid4()])
    assert (await take(pool)).runs == []
    assert await maintenance.free_waiting(pool) == 1
    assert len((await take(pool)).runs) == 1


async def test_the_sweep_leaves_a_run_whose_predecessor_still_runs(pool: Pool) -> None:
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    fire = fire_of(
        job, next_run_at=due + timedelta(hours=9), scheduled=[due, due + timedelta(minutes=1)], overlap="queue"
    )
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)
    await take(pool)
    assert await maintenance.free_waiting(pool) == 0


async def test_a_claim_says_up_to_where_it_has_found_the_lanes_empty(pool: Pool) -> None:
    lanes = (["default", "default", "other"], [9, 5, 5])
    await put_now(pool, 3, priority=9)
    urgent = (await pool.query("select max(run_at) as last from duly.runs"))[0]["last"]
    await put_now(pool, 4, priority=5)

    async def claim(limit: int, floors: list[datetime | None] | None = None) -> Claim:
        return await runs.claim(pool, worker_id=uuid4(), lease_seconds=60, limit=limit, lanes=lanes, floors=floors)

    full = await claim(3)
    assert (len(full.runs), full.emptied_lanes, full.emptied_to) == (3, 1, urgent)
    second = await claim(3)
    assert (len(second.runs), second.emptied_lanes) == (3, 2)
    before = pool.clock.now()
    rest = await claim(3)
    assert (len(rest.runs), rest.emptied_lanes) == (1, 3)
    assert rest.emptied_to > second.emptied_to
    assert abs(rest.emptied_to - before) < timedelta(seconds=5)


async def test_a_claim_begins_in_each_lane_at_its_floor(pool: Pool) -> None:
    await put_now(pool, 2, priority=5)
    await put_now(pool, 2, priority=9)
    floor = pool.clock.now() + timedelta(seconds=1)
    lanes = (["default", "default"], [9, 5])
    claim = await runs.claim(
        pool, worker_id=uuid4(), lease_seconds=60, limit=10, lanes=lanes, floors=[floor, None]
    )  # fmt: skip
    assert len(claim.runs) == 2
    assert await count(pool, "runs", "priority = 9") == 2


async def test_a_claim_is_not_closed_over_an_outcome_that_the_database_has_forgotten(pool: Pool) -> None:
    """A promoted standby may lack outcomes that were confirmed to the worker: those runs must come back."""
    await put_now(pool, 3)
    # The claim is older than this server's start, as a replicated claim is older than the promotion.
    await pool.query("update duly.clock set frozen_at = '2020-01-01'")
    await pool.query("update duly.runs set run_at = '2019-12-31'")
    claim = await take(pool, limit=3, lease=30)
    first, second, third = claim.runs
    assert claim.claim_id is not None
    assert await runs.complete(pool, [succeeded(first)]) == 1
    await pool.query("delete from duly.history where job_id = $1", first.job_id)
    assert await runs.complete(pool, [succeeded(second), succeeded(third)], close=[claim.claim_id]) == 2
    assert await count(pool, "claims") == 1
    await pool.query("update duly.clock set frozen_at = '2020-01-02'")
    assert (await maintenance.rescue(pool)).requeued == 1
    assert await count(pool, "runs", "job_id = $1 and attempt = 1", first.job_id) == 1
    assert await count(pool, "claims") == 0


async def test_a_claim_from_before_the_servers_start_is_closed_when_all_of_it_is_accounted_for(pool: Pool) -> None:
    await put_now(pool, 3)
    await pool.query("update duly.clock set frozen_at = '2020-01-01'")
    await pool.query("update duly.runs set run_at = '2019-12-31'")
    claim = await take(pool, limit=3, lease=30)
    first, second, third = claim.runs
    assert claim.claim_id is not None
    assert await runs.complete(pool, [succeeded(first)]) == 1
    assert await runs.requeue(pool, [Requeued(second, "retrying", 5.0, 1, 2, "{}")]) == 1
    assert await runs.complete(pool, [succeeded(third)], close=[claim.claim_id]) == 1
    assert await count(pool, "claims") == 0


async def test_a_lease_is_as_long_as_was_asked_for(pool: Pool) -> None:
    await put_now(pool, 1)
    await take(pool, lease=60)
    (row,) = await pool.query(
        "select lease_until - claimed_at as lease, lease_until - duly.now() as left from duly.claims"
    )
    assert row["lease"] == timedelta(seconds=60)
    assert timedelta(seconds=30) < row["left"] <= timedelta(seconds=60)


async def test_a_run_that_was_put_back_cannot_be_buried_by_the_claim_that_let_it_go(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    assert await runs.requeue(pool, [Requeued(claim.runs[0], "retrying", 0, 1, 2, ERROR)]) == 1
    assert await runs.bury(pool, [Buried(claim.runs[0], 1, 2, ERROR)]) == 0
    assert await count(pool, "runs") == 1
    assert await count(pool, "history") == await count(pool, "dead_letters") == 0


async def test_a_run_that_was_put_back_is_cancelled_where_it_is_and_nobody_is_told(pool: Pool) -> None:
    await put_now(pool, 1)
    claim = await take(pool)
    (run,) = claim.runs
    assert await runs.requeue(pool, [Requeued(run, "retrying", 0, 1, 2, ERROR)]) == 1
    became = await runs.cancel(pool, job_id=run.job_id, scheduled_at=run.scheduled_at, tenant="default", note=None)
    assert became == "cancelled"
    assert await count(pool, "claims", "cardinality(cancelled) > 0") == 0


class TestCancelledJobs:
    """A job is cancelled while one of its runs is under way: that run may end, and is not retried."""

    async def running(self, pool: Pool) -> Claim:
        (job,) = await put_now(pool, 1)
        claim = await take(pool)
        assert await jobs.cancel(pool, job_id=job.job_id, tenant="default", running=False, note=None)
        assert await count(pool, "claims", "cardinality(cancelled) > 0") == 0, "running runs were to go on"
        return claim

    async def test_its_run_may_end(self, pool: Pool) -> None:
        claim = await self.running(pool)
        assert await runs.complete(pool, [succeeded(claim.runs[0])]) == 1
        assert await count(pool, "history", "status = 'succeeded'") == 1

    async def test_what_stands_in_line_ends(self, pool: Pool) -> None:
        due = hours_ago(1)
        job = due_job(pool, due)
        await put(pool, job)
        epoch = await lead(pool, job.shard)
        moments = [due, due + timedelta(minutes=1), due + timedelta(minutes=2)]
        fire = fire_of(job, next_run_at=due + timedelta(hours=9), scheduled=moments, overlap="queue")
        assert (await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)).live == 3
        assert await jobs.cancel(pool, job_id=job.job_id, tenant="default", running=False, note=None)
        assert await count(pool, "runs") == 0
        assert await count(pool, "history", "status = 'cancelled'") == 3

    async def test_one_that_is_over_is_not_cancelled(self, pool: Pool) -> None:
        (job,) = await put_now(pool, 1)
        claim = await take(pool)
        assert await runs.complete(pool, [succeeded(claim.runs[0])]) == 1
        assert not await jobs.cancel(pool, job_id=job.job_id, tenant="default", running=True, note=None)
        assert await count(pool, "job_status", "shown_status = 'completed'") == 1

    async def test_it_is_not_tried_again(self, pool: Pool) -> None:
        claim = await self.running(pool)
        assert await runs.requeue(pool, [Requeued(claim.runs[0], "retrying", 0, 1, 2, ERROR)]) == 1
        assert await count(pool, "runs") == 0
        assert await count(pool, "history", "status = 'cancelled'") == 1

    async def test_it_is_not_rescued(self, pool: Pool) -> None:
        await expire(pool, await self.running(pool))
        await maintenance.rescue(pool)
        assert await count(pool, "runs") == await count(pool, "dead_letters") == 0
        assert await count(pool, "history", "status = 'cancelled'") == 1


async def test_a_claim_that_somebody_keeps_locked_does_not_hold_up_the_rescue_of_others(pool: Pool) -> None:
    await put_now(pool, 2)
    locked, other = await take(pool, limit=1), await take(pool, limit=1)
    for claim in (locked, other):
        await expire(pool, claim)
    async with pool.transaction() as transaction:
        await transaction.connection.execute("select from duly.claims where claim_id = $1 for update", locked.claim_id)
        async with asyncio.timeout(10):
            assert (await maintenance.rescue(pool)).claims == 1
    assert (await maintenance.rescue(pool)).claims == 1
    assert await count(pool, "runs") == 2


async def test_a_run_that_ends_by_rescue_lets_the_next_one_go(pool: Pool) -> None:
    due = hours_ago(1)
    job = due_job(pool, due, policy='{"overlap":"queue","max_retries":0}')
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    moments = [due, due + timedelta(minutes=1)]
    fire = fire_of(job, next_run_at=due + timedelta(hours=9), scheduled=moments, overlap="queue")
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)
    await expire(pool, await take(pool))
    assert (await maintenance.rescue(pool)).buried == 1
    assert [run.scheduled_at for run in (await take(pool)).runs] == moments[1:]


async def test_the_sweep_leaves_a_run_whose_predecessor_stands_in_the_queue(pool: Pool) -> None:
    due = hours_ago(1)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    moments = [due, due + timedelta(minutes=1)]
    fire = fire_of(job, next_run_at=due + timedelta(hours=9), scheduled=moments, overlap="queue")
    await fire_now(pool, shard=job.shard, epoch=epoch, batch=fire)
    assert await maintenance.free_waiting(pool) == 0


async def test_tasks_that_are_left_to_other_workers_are_not_taken(pool: Pool) -> None:
    await put_now(pool, 2, handler="theirs")
    await put_now(pool, 1, handler="theirs", target='{"type":"http"}')
    await put_now(pool, 1, handler="mine")

    async def claim(*without: str) -> list[str]:
        taken = await runs.claim(
            pool,
            worker_id=uuid4(),
            lease_seconds=60,
            limit=10,
            lanes=(["default"], [5]),
            without=without,
            served=runs.Served(None, 100) if without else None,
        )
        return [run.handler for run in taken.runs]

    # A run with a target is not a worker's task, whatever its handler's name.
    assert sorted(await claim("theirs", "others")) == ["mine", "theirs"]
    assert await count(pool, "runs") == 2
    assert await claim() == ["theirs", "theirs"]


async def test_by_hand_no_more_wait_than_may(pool: Pool) -> None:
    job = due_job(pool, hours_ago(-1), policy='{"max_queued":2}')
    await put(pool, job)

    async def trigger() -> bool:
        fired = await jobs.trigger(pool, job_id=job.job_id, tenant="default", flags=1, occurrence=None, note=None)
        assert fired is not None
        return fired.full

    assert [await trigger() for _ in range(4)] == [False, False, False, True]
    assert await count(pool, "runs", "state = 'waiting'") == 2
