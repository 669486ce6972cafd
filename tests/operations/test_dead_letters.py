"""Dead letters are kept whole, listed, redriven and purged, each tenant's apart from the others'."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from duly.errors import Conflict, InvalidInput, NotFound
from duly.model import Buried, ClaimedRun, DeadLetter, DeadLetterFilter, JobRequest, Policy, Requeued, Succeeded
from duly.operations import Operations, StoreOperations
from duly.store import maintenance, runs
from duly.store.pool import Pool
from harness.store import count, take

ERROR = '{"type": "Boom", "message": "it broke", "traceback": "line 1"}'


async def bury(pool: Pool, claimed: list[ClaimedRun], *, error: str = ERROR) -> None:
    assert await runs.bury(pool, [Buried(run, 1, 2, error) for run in claimed]) == len(claimed)


async def dead(
    pool: Pool,
    operations: Operations,
    total: int = 1,
    *,
    error: str = ERROR,
    **fields: object,
) -> list[DeadLetter]:
    """The dead letters of `total` new jobs with one run each, oldest first."""
    request = JobRequest("report", **{"payload": {"n": 7}, **fields})  # type: ignore[arg-type]
    for _ in range(total):
        await operations.submit(request, allow_unknown_handler=True)
        await bury(pool, (await take(pool, queues=[request.queue or "default"])).runs, error=error)
    page = await operations.dead_letters.page(limit=total)
    return page.items[::-1]


async def test_a_dead_letter_is_kept_whole(pool: Pool, operations: Operations) -> None:
    await operations.submit(
        JobRequest("report", name="weekly", payload={"n": 7}, payload_ref="s3://b/k", queue="q"),
        allow_unknown_handler=True,
    )
    for _ in range(2):
        claim = await take(pool, queues=["q"])
        await runs.requeue(pool, [Requeued(run, "retrying", 0.0, 1, 2, ERROR) for run in claim.runs])
    claim = await take(pool, queues=["q"])
    await bury(pool, claim.runs)
    letter = (await operations.dead_letters.page()).items[0]
    assert (letter.name, letter.queue, letter.handler, letter.payload) == ("weekly", "q", "report", {"n": 7})
    assert letter.payload_ref == "s3://b/k"
    assert (letter.error.type, letter.error.message, letter.error.traceback) == ("Boom", "it broke", "line 1")
    assert [attempt.attempt for attempt in letter.attempts] == [1, 2, 3]
    assert all(attempt.error == letter.error and attempt.finished_at for attempt in letter.attempts)
    assert await operations.dead_letters.get(letter.run_id) == letter


async def test_a_redriven_run_starts_anew_with_the_same_key(pool: Pool, operations: Operations) -> None:
    letter = (await dead(pool, operations))[0]
    before = await operations.runs.get(letter.run_id)
    await operations.dead_letters.redrive(letter.run_id)
    run = await operations.runs.get(letter.run_id)
    assert (run.status, run.attempt, run.idempotency_key) == ("queued", 0, before.idempotency_key)
    assert (await operations.dead_letters.page()).items == []
    claim = await take(pool)
    assert [(one.attempt, one.scheduled_at) for one in claim.runs] == [(1, letter.scheduled_at)]
    await runs.complete(pool, [Succeeded(one, 1, 2) for one in claim.runs])
    run = await operations.runs.get(letter.run_id)
    assert (run.status, run.attempt) == ("succeeded", 1)
    # The earlier attempts are still shown.
    assert [attempt.error.type for attempt in run.attempts if attempt.error] == ["Boom"]
    assert await count(pool, "job_changes", "what = 'redriven'") == 1


async def test_one_that_dies_again_is_a_dead_letter_again_with_all_its_attempts(
    pool: Pool, operations: Operations
) -> None:
    letter = (await dead(pool, operations))[0]
    await operations.dead_letters.redrive(letter.run_id)
    await bury(pool, (await take(pool)).runs)
    again = await operations.dead_letters.get(letter.run_id)
    assert [attempt.attempt for attempt in again.attempts] == [1, 1]
    assert again.buried_at > letter.buried_at


async def test_the_worker_that_buried_it_cannot_speak_of_it_any_more(pool: Pool, operations: Operations) -> None:
    """The worker's claim still holds another run when the buried run is redriven."""
    for _ in range(2):
        await operations.submit(JobRequest("report"), allow_unknown_handler=True)
    claim = await take(pool)
    assert len(claim.runs) == 2
    await bury(pool, claim.runs[:1])
    letter = (await operations.dead_letters.page()).items[0]
    await operations.dead_letters.redrive(letter.run_id)
    assert await runs.complete(pool, [Succeeded(claim.runs[0], 1, 2)]) == 0
    assert await runs.bury(pool, [Buried(claim.runs[0], 1, 2, ERROR)]) == 0
    assert await runs.requeue(pool, [Requeued(claim.runs[0], "queued", 0.0, None, None)]) == 0
    # The rescue of the claim does not bring the redriven run a second time.
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    assert (await maintenance.rescue(pool)).requeued == 1
    assert await count(pool, "runs") == 2


async def test_redrive_by_filter_sends_what_matches_oldest_first(pool: Pool, operations: Operations) -> None:
    await dead(pool, operations, 3, name="a")
    await dead(pool, operations, 2, name="b", queue="other", error=ERROR.replace("Boom", "Bang"))
    assert [
        s.done async for s in operations.dead_letters.redrive_all(DeadLetterFilter(name="b", error_type="Boom"))
    ] == [0]
    assert [s.done async for s in operations.dead_letters.redrive_all(DeadLetterFilter(queue="other"))] == [2]
    assert await operations.dead_letters.count() == 3
    assert [s.done async for s in operations.dead_letters.redrive_all(DeadLetterFilter(handler="report"))] == [3]
    assert await count(pool, "runs") == 5


@pytest.mark.parametrize("cut", ["since", "until"])
async def test_filters_by_time(pool: Pool, operations: Operations, cut: str) -> None:
    first, second = await dead(pool, operations, 2)
    assert first.buried_at < second.buried_at
    moment = second.buried_at
    wanted = DeadLetterFilter(since=moment) if cut == "since" else DeadLetterFilter(until=moment)
    found = (await operations.dead_letters.page(wanted)).items
    assert [letter.run_id for letter in found] == [(second if cut == "since" else first).run_id]


async def test_many_are_redriven_in_batches_and_none_twice(
    pool: Pool, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.operations.dead_letters.MAX_BATCH", 10)
    for _ in range(35):
        await operations.submit(JobRequest("report"), allow_unknown_handler=True)
    await bury(pool, (await take(pool)).runs)
    seen = []
    async for swept in operations.dead_letters.redrive_all():
        seen.append(swept.done)
        # Each run dies again at once: the same sweep must not redrive it again.
        await bury(pool, (await take(pool)).runs)
    assert seen[-1] == 35
    assert len(seen) >= 4
    assert await operations.dead_letters.count() == 35


async def test_purged_ones_are_gone_and_the_history_stays(pool: Pool, operations: Operations) -> None:
    letters = await dead(pool, operations, 3)
    await operations.dead_letters.purge(letters[0].run_id)
    with pytest.raises(NotFound, match="no dead letter"):
        await operations.dead_letters.get(letters[0].run_id)
    assert [s.done async for s in operations.dead_letters.purge_all()][-1] == 2
    assert await count(pool, "dead_letters") == 0
    assert await count(pool, "history", "status = 'dead'") == 3
    with pytest.raises(NotFound):
        await operations.dead_letters.redrive(letters[1].run_id)


async def test_letters_of_a_cancelled_job_stay_where_they_are(pool: Pool, operations: Operations) -> None:
    job = await operations.submit(JobRequest("report", schedule="every 1h"), allow_unknown_handler=True)
    await operations.jobs.trigger(str(job.job_id))
    await bury(pool, (await take(pool)).runs)
    await operations.jobs.cancel(str(job.job_id))
    letter = (await operations.dead_letters.page()).items[0]
    with pytest.raises(Conflict, match="cancelled"):
        await operations.dead_letters.redrive(letter.run_id)
    swept = [one async for one in operations.dead_letters.redrive_all()][-1]
    assert (swept.done, swept.refused) == (0, 1)
    assert await count(pool, "runs") == 0
    assert await operations.dead_letters.get(letter.run_id) == letter


async def test_runs_of_one_job_that_do_not_overlap_come_back_one_after_the_other(
    pool: Pool, operations: Operations
) -> None:
    job = await operations.submit(
        JobRequest("report", schedule="every 1h", policy=Policy(overlap="skip")), allow_unknown_handler=True
    )
    for _ in range(3):
        await operations.jobs.trigger(str(job.job_id))
        await bury(pool, (await take(pool)).runs)
    assert [swept.done async for swept in operations.dead_letters.redrive_all()][-1] == 3
    order = []
    for _ in range(3):
        claim = await take(pool)
        assert len(claim.runs) == 1
        order.append(claim.runs[0].scheduled_at)
        assert (await take(pool)).runs == []
        await runs.complete(pool, [Succeeded(claim.runs[0], 1, 2)])
    assert order == sorted(order)


async def test_pages_follow_each_other_while_letters_come_and_go(pool: Pool, operations: Operations) -> None:
    letters = (await dead(pool, operations, 7))[::-1]
    page = await operations.dead_letters.page(limit=3)
    assert [one.run_id for one in page.items] == [one.run_id for one in letters[:3]]
    await operations.dead_letters.purge(letters[2].run_id)
    await dead(pool, operations, 2)
    rest = await operations.dead_letters.page(cursor=page.next_cursor, limit=100)
    assert [one.run_id for one in rest.items] == [one.run_id for one in letters[3:]]
    assert rest.next_cursor is None
    for wrong in ("", "x", "zz.yy", "9" * 40 + "." + letters[0].run_id):
        with pytest.raises(InvalidInput, match="cursor"):
            await operations.dead_letters.page(cursor=wrong)


async def test_another_tenants_letters_are_not_there(
    pool: Pool, operations: Operations, store_operations: StoreOperations
) -> None:
    other = store_operations.for_tenant("other")
    letter = (await dead(pool, other))[0]
    assert (await operations.dead_letters.page()).items == []
    for call in (
        operations.dead_letters.get,
        operations.dead_letters.redrive,
        operations.dead_letters.purge,
        operations.runs.get,
        operations.runs.cancel,
    ):
        with pytest.raises(NotFound):
            await call(letter.run_id)
    assert [swept.done async for swept in operations.dead_letters.redrive_all()] == [0]
    assert [swept.done async for swept in operations.dead_letters.purge_all()] == [0]
    await other.dead_letters.redrive(letter.run_id)


@pytest.mark.parametrize("run_id", ["", "x", "0" * 36, "0197c1f2-0000-7000-8000-000000000000-zzzzzzzzzzzzzzzz"])
async def test_what_is_no_run_id_is_not_found(operations: Operations, run_id: str) -> None:
    for call in (
        operations.dead_letters.get,
        operations.dead_letters.redrive,
        operations.dead_letters.purge,
        operations.runs.get,
        operations.runs.cancel,
    ):
        with pytest.raises(NotFound):
            await call(run_id)


async def test_two_people_redriving_at_once_send_it_once(pool: Pool, operations: Operations) -> None:
    letters = await dead(pool, operations, 20)
    results = await asyncio.gather(
        *(operations.dead_letters.redrive(letter.run_id) for letter in letters for _ in range(2)),
        return_exceptions=True,
    )
    assert sum(result is None for result in results) == 20
    assert sum(isinstance(result, NotFound) for result in results) == 20
    assert await count(pool, "runs") == 20


async def test_a_run_that_kills_its_workers_ends_among_them(pool: Pool, operations: Operations) -> None:
    await operations.submit(JobRequest("report", policy=Policy(max_retries=2)), allow_unknown_handler=True)
    for _ in range(3):
        assert len((await take(pool, lease=60)).runs) == 1
        await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
        await maintenance.rescue(pool)
    letter = (await operations.dead_letters.page()).items[0]
    assert letter.error.type == "LeaseLost"
    assert [attempt.attempt for attempt in letter.attempts] == [1, 2, 3]
    assert letter.buried_at - letter.scheduled_at < timedelta(minutes=5)
