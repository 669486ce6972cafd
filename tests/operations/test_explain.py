"""The verdict on every kind of occurrence, on a real store whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from duly.api.documents import explanation_document
from duly.errors import InvalidInput, NotFound
from duly.model import (
    DEFAULT_POLICY,
    Buried,
    Explanation,
    Job,
    JobRequest,
    Policy,
    Requeued,
    Succeeded,
    Verdict,
    to_micros,
)
from duly.operations import Operations, StoreOperations
from duly.scheduler.planner import plan_batch
from duly.store import cluster, fires, runs
from duly.store.pool import InTransaction, Pool
from duly.timing import forget_zones
from harness.store import take
from harness.waiting import eventually

START = datetime(2030, 5, 5, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
GRACE = timedelta(seconds=10)
ERROR = '{"type": "ValueError", "message": "no\\nluck", "traceback": null}'


class World:
    """A store on a clock that stands still, and a scheduler `alpha` that fires when the test calls `fire`."""

    def __init__(self, pool: Pool, operations: Operations) -> None:
        self.pool = pool
        self.operations = operations
        self.now = START

    async def at(self, moment: datetime) -> None:
        await self.pool.query("update duly.clock set frozen_at = $1", moment)
        await self.pool.measure_clock()
        self.now = moment

    async def submit(self, schedule: str | None, *, policy: Policy = DEFAULT_POLICY, **fields: Any) -> Job:
        request = JobRequest("noop", name="job", schedule=schedule, policy=policy, **fields)
        submitted = await self.operations.submit(request, allow_unknown_handler=True)
        return await self.job(submitted.job_id)

    async def job(self, job_id: UUID | str) -> Job:
        return await self.operations.jobs.get(str(job_id))

    async def lead(self, shard: int) -> int:
        node_id = uuid4()
        lease = 10 * 365 * 86400.0
        await cluster.join(
            self.pool, node_id=node_id, kind="scheduler", name="alpha", version="0", lease_seconds=lease, info={}
        )
        epoch = (await self.pool.query("select epoch from duly.shards where shard = $1", shard))[0]["epoch"]
        return (await cluster.acquire(self.pool, node_id=node_id, shards=[shard], epochs=[epoch]))[shard]

    async def fire(self, job: Job) -> None:
        """Fires the job as its leader does, until no occurrence of it is due."""
        assert job.shard is not None
        shard = (await self.pool.query("select epoch, node_id from duly.shards where shard = $1", job.shard))[0]
        epoch = shard["epoch"] if shard["node_id"] is not None else await self.lead(job.shard)
        while due := [one for one in await fires.due(self.pool, job_ids=[job.job_id]) if one.due]:
            batch = plan_batch(due, now=self.now, misfire_grace=GRACE)
            if batch.parked:
                parked = [(one.job_id, one.next_run_at, reason) for one, reason in batch.parked]
                await fires.park(self.pool, shard=job.shard, epoch=epoch, jobs=parked)
            else:
                parts: list[fires.Fires | fires.SimpleFires] = [batch.simple, *batch.fires.values()]
                for part in parts:
                    await fires.fire(self.pool, epochs={job.shard: epoch}, batch=part)

    async def succeed(self) -> None:
        """Claims all queued runs and completes them."""
        claim = await take(self.pool)
        started = to_micros(self.now)
        await runs.complete(
            self.pool,
            [Succeeded(run, started, started + 250_000) for run in claim.runs],
            [claim.claim_id] if claim.claim_id else [],
        )

    async def explain(self, job: Job, at: datetime | None = None) -> Explanation:
        explanation = await self.operations.explain.occurrence(str(job.job_id), at=at)
        # Every explanation has a sentence and a document.
        assert explanation.sentence.endswith("."), explanation.sentence
        assert explanation_document(explanation)["verdict"] == explanation.verdict
        return explanation

    async def explain_range(self, job: Job, start: datetime, end: datetime, limit: int = 2000) -> list[Explanation]:
        return await self.operations.explain.between(str(job.job_id), start=start, end=end, limit=limit)


@pytest.fixture
async def world(pool: Pool, operations: Operations) -> World:
    world = World(pool, operations)
    await world.at(START)
    return world


def verdicts(explanations: Sequence[Explanation]) -> list[str]:
    return [str(one.verdict) for one in explanations]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(missed_window="SKIP"), {"missed": 1560}),
        (Policy(missed_window="RUN_ONCE"), {"missed": 1559, "fired_late": 1}),
        (Policy(missed_window="RUN_ALL", overlap="parallel"), {"missed": 1460, "fired_late": 100}),
        (Policy(missed_window="RUN_ALL", max_missed=2000, overlap="parallel"), {"fired_late": 1560}),
        (
            Policy(missed_window="RUN_ALL", max_missed=7, catch_up_window_seconds=3600, overlap="parallel"),
            {"missed": 1553, "fired_late": 7},
        ),
    ],
)
async def test_after_26_hours_without_a_scheduler_every_occurrence_has_one_verdict(
    world: World, policy: Policy, expected: dict[str, int]
) -> None:
    job = await world.submit("* * * * *", policy=policy)
    end = START + 26 * HOUR
    await world.at(end + timedelta(seconds=30))
    before = await world.explain_range(job, START, end)
    assert Counter(verdicts(before)) == {"overdue": 1560}
    await world.fire(job)
    await world.succeed()
    found = await world.explain_range(job, START, end)
    assert [one.scheduled_at for one in found] == [START + n * MINUTE for n in range(1, 1561)]
    assert Counter(verdicts(found)) == expected
    # Each missed occurrence names a rule and the number of occurrences that it applies to; these numbers add up.
    counts: dict[tuple[Any, Any], int] = {}
    for one in found:
        if one.verdict is Verdict.MISSED:
            counts[one.facts["first"], one.facts["rule"]] = one.facts["count"]
            assert one.facts["first"] <= one.scheduled_at <= one.facts["last"]
    assert sum(counts.values()) == expected.get("missed", 0)
    # One by one, the occurrences get the same explanations.
    for one in (found[0], found[777], found[-1]):
        alone = await world.explain(job, one.scheduled_at)
        assert (alone.verdict, alone.sentence) == (one.verdict, one.sentence)


async def test_fired_on_time_names_the_node_the_epoch_and_what_became_of_the_run(world: World) -> None:
    job = await world.submit("0 13 * * *")
    due = START + HOUR
    await world.at(due + timedelta(milliseconds=40))
    await world.fire(job)
    told = await world.explain(job, due)
    assert told.verdict is Verdict.FIRED
    assert told.sentence == "Fired on time (40 ms after it was due) by alpha, epoch 1; it waits for a worker."
    assert told.facts["fired_by"] == "alpha"
    assert told.facts["epoch"] == 1
    await world.succeed()
    told = await world.explain(job, due)
    assert "it succeeded in attempt 1 after 250 ms" in told.sentence
    assert told.run is not None
    assert told.run.status == "succeeded"
    assert told.run.idempotency_key == f"{job.job_id}:{int(due.timestamp())}"


async def test_fired_late_says_by_how_much(world: World) -> None:
    job = await world.submit("0 13 * * *")
    await world.at(START + HOUR + timedelta(seconds=7, milliseconds=500))
    await world.fire(job)
    told = await world.explain(job, START + HOUR)
    assert told.verdict is Verdict.FIRED_LATE
    assert told.sentence.startswith("Fired 7.5 s late by alpha, epoch 1")
    assert told.facts["lag_seconds"] == 7.5


async def test_a_missed_one_that_runs_says_which_rule_let_it(world: World) -> None:
    job = await world.submit("0 13 * * *")
    await world.at(START + 3 * HOUR)
    await world.fire(job)
    told = await world.explain(job, START + HOUR)
    assert told.verdict is Verdict.FIRED_LATE
    assert told.sentence.startswith("Missed, then fired 2 h late as missed_window=RUN_ONCE says, by alpha")


async def test_what_becomes_of_the_run_is_told_in_every_state(world: World, pool: Pool) -> None:
    job = await world.submit("0 13 * * *")
    due = START + HOUR
    await world.at(due)
    await world.fire(job)
    worker_id = uuid4()
    await cluster.join(pool, node_id=worker_id, kind="worker", name="w-1", version="0", lease_seconds=60, info={})
    claim = await take(pool, worker_id=worker_id)
    assert "it is running on w-1 since 2030-05-05 13:00:00Z, attempt 1" in (await world.explain(job, due)).sentence
    await runs.requeue(pool, [Requeued(claim.runs[0], "retrying", 30, 1, 2, ERROR)])
    told = await world.explain(job, due)
    assert "attempt 1 failed: ValueError: no luck; it is tried again at 2030-05-05 13:00:30Z" in told.sentence
    await world.at(due + MINUTE)
    claim = await take(pool, worker_id=worker_id)
    await runs.bury(pool, [Buried(claim.runs[0], 1, 2, ERROR)])
    told = await world.explain(job, due)
    assert "it is dead since attempt 2 on w-1: ValueError: no luck" in told.sentence
    assert told.facts["run_status"] == "dead"


async def test_a_cancelled_run_of_a_fired_occurrence(world: World) -> None:
    job = await world.submit("0 * * * *")
    await world.at(START + HOUR)
    await world.fire(job)
    await world.at(START + HOUR + MINUTE)
    await world.operations.jobs.cancel(str(job.job_id))
    told = await world.explain(job, START + HOUR)
    assert told.verdict is Verdict.FIRED
    assert "its run was cancelled: the job was cancelled" in told.sentence
    told = await world.explain(job, START + 2 * HOUR)
    assert told.verdict is Verdict.CANCELLED
    assert told.sentence == "The job was cancelled at 2030-05-05 13:01:00Z."


async def test_a_one_off_for_now_was_fired_by_its_submitter(world: World) -> None:
    job = await world.submit(None)
    told = await world.explain(job)
    assert told.verdict is Verdict.FIRED
    assert "by the submitter" in told.sentence
    assert told.related is None


async def test_jitter_does_not_give_a_one_off_for_now_a_time_long_ago(world: World) -> None:
    job = await world.submit("now", policy=Policy(jitter_seconds=86_400))
    for moment in (START - HOUR, START + HOUR):
        told = await world.explain(job, moment)
        assert told.facts["previous"] in (None, START), told


async def test_a_one_off_of_the_past_was_there_when_it_was_due(world: World) -> None:
    job = await world.submit("2030-05-05T11:00:00Z")
    await world.fire(job)
    assert (await world.explain(job, START - HOUR)).verdict is Verdict.FIRED_LATE


async def test_a_one_off_in_the_years_to_come(world: World) -> None:
    job = await world.submit("2035-01-01T09:00", timezone="America/New_York")
    told = await world.explain(job)
    assert told.verdict is Verdict.NOT_DUE
    assert told.scheduled_at == datetime(2035, 1, 1, 14, tzinfo=UTC)
    assert (await world.explain(job, START + MINUTE)).verdict is Verdict.NOT_AN_OCCURRENCE


async def test_a_run_by_hand(world: World) -> None:
    job = await world.submit("0 * * * *")
    await world.at(START + 5 * MINUTE)
    await world.operations.jobs.trigger(str(job.job_id))
    told = await world.explain(job, START + 5 * MINUTE)
    assert told.verdict is Verdict.TRIGGERED
    assert told.sentence.startswith("Triggered by hand; it waits for a worker")
    await world.at(START + HOUR)
    await world.fire(job)
    # The run by hand is unfinished, and this job's runs do not overlap.
    assert verdicts(await world.explain_range(job, START, START + HOUR)) == ["triggered", "skipped"]


async def test_skipped_for_overlap_names_the_unfinished_run(world: World) -> None:
    job = await world.submit("0 * * * *")
    for hours in (1, 2):
        await world.at(START + hours * HOUR)
        await world.fire(job)
    told = await world.explain(job, START + 2 * HOUR)
    assert told.verdict is Verdict.SKIPPED
    assert told.sentence == "Skipped: overlap is skip, and the run of 2030-05-05 13:00:00Z was unfinished."
    page = await world.operations.runs.page(str(job.job_id))
    assert told.facts["unfinished_run_id"] == page.items[1].run_id


async def test_missed_inside_a_stretch_is_found_past_runs_by_hand(world: World) -> None:
    job = await world.submit("* * * * *", policy=Policy(missed_window="SKIP"))
    await world.at(START + 30 * MINUTE + timedelta(seconds=20))
    await world.operations.jobs.trigger(str(job.job_id))
    await world.at(START + HOUR + timedelta(seconds=30))
    await world.fire(job)
    told = await world.explain(job, START + 45 * MINUTE)
    assert told.verdict is Verdict.MISSED
    assert told.facts["rule"] == "SKIP"
    assert told.facts["count"] == 60
    assert "one of 60 from 2030-05-05 12:01:00Z to 2030-05-05 13:00:00Z" in told.sentence
    # Only a part of the stretch is asked for.
    part = await world.explain_range(job, START + 40 * MINUTE, START + 50 * MINUTE)
    assert verdicts(part) == ["missed"] * 11


async def test_late_ones_that_wait_for_their_turn(world: World, pool: Pool) -> None:
    job = await world.submit("* * * * *", policy=Policy(missed_window="RUN_ALL"))
    await pool.query(
        "insert into duly.catch_ups (job_id, first_at, last_at, served_at, count, shard, epoch) "
        "values ($1, $2, $3, $3, 5, $4, 1)",
        job.job_id, START + MINUTE, START + 5 * MINUTE, job.shard,
    )  # fmt: skip
    await world.at(START + 6 * MINUTE)
    await pool.query("update duly.jobs set next_run_at = $1", START + 6 * MINUTE)
    told = await world.explain(job, START + 3 * MINUTE)
    assert told.verdict is Verdict.CATCHING_UP
    assert "with 4 others" in told.sentence


async def test_paused_then_resumed(world: World) -> None:
    job = await world.submit("*/10 * * * *")
    await world.at(START + 15 * MINUTE)
    await world.fire(job)
    await world.operations.jobs.pause(str(job.job_id), reason="stocktaking")
    await world.at(START + 25 * MINUTE)
    told = await world.explain(job)
    assert told.verdict is Verdict.PAUSED
    assert told.sentence == "The job is paused since 2030-05-05 12:15:00Z (stocktaking)."
    assert told.related is not None
    assert told.related.verdict is Verdict.PAUSED
    assert told.related.sentence.endswith("; it fires only if it is resumed before.")
    await world.at(START + 35 * MINUTE)
    await world.operations.jobs.resume(str(job.job_id))
    await world.at(START + 40 * MINUTE)
    await world.fire(job)
    found = await world.explain_range(job, START, START + 50 * MINUTE)
    assert verdicts(found) == ["fired_late", "paused", "paused", "skipped", "not_due"]
    assert found[1].sentence == (
        "The job was paused then (stocktaking): from 2030-05-05 12:15:00Z until 2030-05-05 12:35:00Z."
    )


async def test_overdue_when_it_was_paused(world: World) -> None:
    job = await world.submit("*/10 * * * *")
    await world.at(START + 11 * MINUTE)
    await world.operations.jobs.pause(str(job.job_id))
    told = await world.explain(job, START + 10 * MINUTE)
    assert told.verdict is Verdict.PAUSED
    assert told.sentence == "Due, but not fired before the job was paused at 2030-05-05 12:11:00Z."


async def test_overdue_when_it_was_cancelled(world: World) -> None:
    job = await world.submit("*/10 * * * *")
    await world.at(START + 11 * MINUTE)
    await world.operations.jobs.cancel(str(job.job_id))
    assert (await world.explain(job, START + 10 * MINUTE)).verdict is Verdict.CANCELLED


async def test_a_pause_from_before_there_was_a_log_is_known_by_the_job_itself(world: World, pool: Pool) -> None:
    job = await world.submit("*/10 * * * *")
    await world.operations.jobs.pause(str(job.job_id), reason="old")
    await pool.query("delete from duly.job_changes")
    told = await world.explain(job, START + 10 * MINUTE)
    assert told.verdict is Verdict.PAUSED
    assert "old" in told.sentence


async def test_parked_with_its_reason(world: World, pool: Pool) -> None:
    job = await world.submit("*/10 * * * *", timezone="Europe/Berlin")
    await pool.query("update duly.jobs set timezone = 'Mars/Olympus' where job_id = $1", job.job_id)
    await world.at(START + 10 * MINUTE)
    await world.fire(job)
    # Its zone is missing, so its occurrences cannot be listed; but a given time can still be explained.
    told = await world.explain(job, START + 20 * MINUTE)
    assert told.verdict is Verdict.PARKED
    assert "Mars/Olympus" in told.sentence
    assert (await world.explain(job, START + 5 * MINUTE)).verdict is Verdict.UNRECORDED
    await world.at(START + 11 * MINUTE)
    assert (await world.explain(job)).verdict is Verdict.PARKED
    # When the zone is back, the overdue occurrence and those after it are explained.
    await pool.query("update duly.jobs set timezone = 'Europe/Berlin' where job_id = $1", job.job_id)
    forget_zones()
    await world.at(START + 25 * MINUTE)
    found = await world.explain_range(job, START, START + 20 * MINUTE)
    assert verdicts(found) == ["parked", "parked"]
    assert found[0].sentence.startswith("Due, but not fired before the job was parked at")


async def test_a_redefined_schedule_leaves_the_past_to_the_old_one(world: World, pool: Pool) -> None:
    def request(schedule: str) -> JobRequest:
        return JobRequest("noop", schedule=schedule, dedupe_key="declared", timezone="Europe/Berlin")

    job = await world.job(await world.operations.declare(request("15 * * * *")))
    await world.at(START + 15 * MINUTE)
    await world.fire(job)
    await world.succeed()
    await world.at(START + HOUR + 20 * MINUTE)
    await world.operations.declare(request("*/30 * * * *"))
    await world.at(START + HOUR + 30 * MINUTE)
    await world.fire(await world.job(job.job_id))
    found = await world.explain_range(job, START, START + 2 * HOUR)
    assert [one.scheduled_at - START for one in found] == [n * MINUTE for n in (15, 75, 90, 120)]
    assert verdicts(found) == ["fired", "changed", "fired", "not_due"]
    assert found[0].facts["schedule_then"] == "15 * * * * Europe/Berlin"
    assert found[1].sentence == (
        "Missed and not run: given up at 2030-05-05 13:20:00Z (the only one); the schedule was changed before it ran, "
        "and planned anew from then on."
    )
    assert "schedule_then" not in found[2].facts
    # A time that is an occurrence of the new schedule, but was none of the old one.
    told = await world.explain(job, START + HOUR)
    assert told.verdict is Verdict.CHANGED
    assert "the schedule in force was 15 * * * * Europe/Berlin" in told.sentence
    assert told.related is not None
    assert told.related.scheduled_at == START + 15 * MINUTE
    # A redefinition that leaves the schedule alone keeps no copy of it.
    await world.operations.declare(JobRequest("noop", schedule="*/30 * * * *", dedupe_key="declared",
                                              timezone="Europe/Berlin", priority=7))  # fmt: skip
    rows = await pool.query("select detail ? 'before' as kept from duly.job_changes order by change_id")
    assert [row["kept"] for row in rows] == [True, False]


async def test_a_changed_schedule_gives_up_what_was_overdue(world: World) -> None:
    job = await world.submit("*/10 * * * *", policy=Policy(overlap="parallel"))
    await world.at(START + 10 * MINUTE)
    await world.fire(job)
    await world.at(START + 35 * MINUTE)
    await world.operations.jobs.change(str(job.job_id), {"priority": 7})
    assert (await world.explain(job, START + 20 * MINUTE)).verdict is Verdict.OVERDUE
    await world.operations.jobs.change(str(job.job_id), {"schedule": "45 * * * *"})
    found = await world.explain_range(job, START, START + HOUR)
    assert [one.scheduled_at - START for one in found] == [n * MINUTE for n in (10, 20, 30, 45)]
    assert verdicts(found) == ["fired", "changed", "changed", "not_due"]
    assert found[1].facts["schedule_then"] == "*/10 * * * * UTC"


async def test_late_ones_given_up_for_a_pause(world: World, pool: Pool) -> None:
    job = await world.submit("* * * * *")
    await pool.query(
        "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status, note) values ($1, $2, $3, 0, "
        "'missed', jsonb_build_object('reason', 'paused', 'count', 5, 'first', $2::timestamptz, "
        "'last', $3::timestamptz))",
        job.job_id, START + MINUTE, START + 5 * MINUTE,
    )  # fmt: skip
    told = await world.explain(job, START + 2 * MINUTE)
    assert told.verdict is Verdict.PAUSED
    assert told.sentence.endswith("the job was paused before it ran.")


async def test_before_the_job_was_there(world: World) -> None:
    job = await world.submit("0 * * * *")
    told = await world.explain(job, START - HOUR)
    assert told.verdict is Verdict.NOT_CREATED
    assert told.facts["next"] == START + HOUR
    assert "its first occurrence is 2030-05-05 13:00:00Z" in told.sentence
    assert [one.scheduled_at for one in await world.explain_range(job, START - 9 * HOUR, START + HOUR)] == [
        START + HOUR
    ]


async def test_not_yet_due(world: World) -> None:
    job = await world.submit("0 * * * *")
    told = await world.explain(job, START + 26 * HOUR)
    assert told.verdict is Verdict.NOT_DUE
    assert told.sentence == "Not yet due: in 1 d 2 h."


async def test_overdue_says_who_should_have_fired_it(world: World, pool: Pool) -> None:
    job = await world.submit("0 * * * *")
    await world.at(START + HOUR + timedelta(seconds=5))
    told = await world.explain(job, START + HOUR)
    assert told.verdict is Verdict.OVERDUE
    assert told.sentence == (
        f"Overdue by 5 s: no scheduler leads its shard {job.shard} (start one with: duly scheduler)."
    )
    assert job.shard is not None
    await world.lead(job.shard)
    told = await world.explain(job, START + HOUR)
    assert f"alpha leads its shard {job.shard} and has not fired it yet" in told.sentence
    await pool.query("update duly.nodes set lease_until = $1", START)
    await world.at(START + HOUR + MINUTE)
    told = await world.explain(job, START + HOUR)
    assert f"alpha, which led its shard {job.shard}, has not been heard of" in told.sentence
    assert told.sentence.endswith("once it is found, missed_window=RUN_ONCE decides.")


async def test_not_an_occurrence_names_its_neighbours_and_explains_the_one_before(world: World) -> None:
    job = await world.submit("0 * * * *")
    await world.at(START + HOUR)
    await world.fire(job)
    told = await world.explain(job, START + HOUR + 7 * MINUTE)
    assert told.verdict is Verdict.NOT_AN_OCCURRENCE
    assert told.sentence == (
        "Not an occurrence of 0 * * * * UTC; the nearest are 2030-05-05 13:00:00Z and 2030-05-05 14:00:00Z."
    )
    assert told.related is not None
    assert (told.related.scheduled_at, told.related.verdict) == (START + HOUR, Verdict.FIRED)


async def test_the_schedules_own_time_finds_the_jittered_occurrence(world: World) -> None:
    job = await world.submit("0 * * * *", policy=Policy(jitter_seconds=300))
    assert job.next_run_at is not None
    assert job.next_run_at != START + HOUR
    assert (await world.explain(job, START + HOUR)).scheduled_at == job.next_run_at


async def test_a_job_that_has_had_all_its_runs(world: World) -> None:
    job = await world.submit("0 * * * *", max_runs=2, policy=Policy(overlap="parallel"))
    assert verdicts(await world.explain_range(job, START, START + 3 * HOUR)) == ["not_due", "not_due", "ended"]
    for hours in (1, 2):
        await world.at(START + hours * HOUR)
        await world.fire(job)
    await world.at(START + 4 * HOUR)
    told = await world.explain(job, START + 3 * HOUR)
    assert told.verdict is Verdict.ENDED
    assert told.sentence == "The job has had all of its 2 runs by then (max_runs)."
    told = await world.explain(job)
    assert (told.scheduled_at, told.verdict) == (START + 2 * HOUR, Verdict.FIRED)
    assert told.related is None


async def test_pruned_history_is_told_from_lost_history(world: World, pool: Pool) -> None:
    await pool.query("select duly.make_partition('history', '2030-05-05', 0)")
    job = await world.submit("0 * * * *", policy=Policy(overlap="parallel"))
    await world.at(START + HOUR)
    await world.fire(job)
    await world.succeed()
    await pool.query("delete from duly.history")
    assert (await world.explain(job, START + HOUR)).verdict is Verdict.UNRECORDED
    await pool.query("drop table duly.history_20300505")
    told = await world.explain(job, START + HOUR)
    assert told.verdict is Verdict.PRUNED
    assert "2030-05-05" in told.sentence
    # No other occurrence counts as pruned: the next one is not due yet.
    assert verdicts(await world.explain_range(job, START, START + 2 * HOUR)) == ["pruned", "not_due"]


async def test_without_a_time_the_last_and_the_next(world: World) -> None:
    job = await world.submit("0 * * * *")
    told = await world.explain(job)
    assert (told.verdict, told.scheduled_at, told.related) == (Verdict.NOT_DUE, START + HOUR, None)
    await world.at(START + 90 * MINUTE)
    await world.fire(job)
    told = await world.explain(job)
    assert (told.verdict, told.scheduled_at) == (Verdict.FIRED_LATE, START + HOUR)
    assert told.related is not None
    assert (told.related.verdict, told.related.scheduled_at) == (Verdict.NOT_DUE, START + 2 * HOUR)


class TestDaylightSaving:
    ZONE = "America/New_York"

    async def fire_days(self, world: World, first: datetime, days: int, **policy: Any) -> Job:
        await world.at(first)
        job = await world.submit("30 2 * * *", timezone=self.ZONE, policy=Policy(overlap="parallel", **policy))
        for _ in range(days):
            planned = (await world.job(job.job_id)).next_run_at
            assert planned is not None
            await world.at(planned)
            await world.fire(job)
        return await world.job(job.job_id)

    async def test_moved_over_the_gap(self, world: World) -> None:
        first = datetime(2026, 3, 7, 0, tzinfo=UTC)
        job = await self.fire_days(world, first, 3)
        found = await world.explain_range(job, first, datetime(2026, 3, 9, 23, tzinfo=UTC))
        assert [(one.scheduled_at.isoformat()[5:16], one.verdict) for one in found] == [
            ("03-07T07:30", "fired"), ("03-08T07:00", "fired"), ("03-09T06:30", "fired"),
        ]  # fmt: skip
        assert [one.note is not None for one in found] == [False, True, False]
        assert found[1].sentence.endswith(
            "DST: local 2026-03-08 02:30 does not exist in America/New_York: moved to 2026-03-08 03:00."
        )

    async def test_dropped_in_the_gap(self, world: World) -> None:
        first = datetime(2026, 3, 7, 0, tzinfo=UTC)
        gap = datetime(2026, 3, 8, 7, tzinfo=UTC)
        job = await self.fire_days(world, first, 1, dst_gap="skip")
        told = await world.explain(job, gap)
        assert told.verdict is Verdict.DST_DROPPED
        assert told.sentence.startswith("Will be dropped because dst_gap is skip: local 2026-03-08 02:30 does not")
        await world.at(datetime(2026, 3, 9, 6, 30, tzinfo=UTC))
        await world.fire(job)
        found = await world.explain_range(job, first, world.now)
        assert verdicts(found) == ["fired", "dst_dropped", "fired"]
        assert found[1].sentence.startswith("Dropped because dst_gap is skip")
        # Without a record, the schedule itself still explains it.
        await world.pool.query("delete from duly.history")
        assert (await world.explain(job, gap)).verdict is Verdict.DST_DROPPED

    async def test_a_drop_inside_a_stretch_of_missed_ones_is_not_one_of_them(self, world: World) -> None:
        first = datetime(2026, 3, 1, 0, tzinfo=UTC)
        job = await self.fire_days(world, first, 0, dst_gap="skip", missed_window="SKIP")
        await world.at(datetime(2026, 3, 20, 0, tzinfo=UTC))
        await world.fire(job)
        found = await world.explain_range(job, first, world.now)
        assert Counter(verdicts(found)) == {"missed": 18, "dst_dropped": 1}
        assert found[0].facts["count"] == 18

    async def test_the_hour_that_comes_twice(self, world: World) -> None:
        first = datetime(2026, 11, 1, 0, tzinfo=UTC)
        await world.at(first)
        job = await world.submit("30 1 * * *", timezone=self.ZONE, policy=Policy(dst_fold="both", overlap="parallel"))
        found = await world.explain_range(job, first, first + 12 * HOUR)
        assert [one.scheduled_at.hour for one in found] == [5, 6]
        assert [(one.note or "").rpartition(": ")[2] for one in found] == [
            "this is the first time",
            "this is the second time",
        ]


async def test_a_range_is_bounded_and_its_answer_is_the_oldest(world: World) -> None:
    job = await world.submit("* * * * *")
    found = await world.explain_range(job, START, START + 10 * HOUR, limit=3)
    assert [one.scheduled_at for one in found] == [START + n * MINUTE for n in (1, 2, 3)]
    with pytest.raises(InvalidInput, match="end"):
        await world.explain_range(job, START, START - HOUR)
    with pytest.raises(InvalidInput, match="limit"):
        await world.explain_range(job, START, START, limit=10_001)


async def test_another_tenants_job_is_not_explained(world: World, store_operations: StoreOperations) -> None:
    job = await world.submit("* * * * *")
    with pytest.raises(NotFound):
        await store_operations.for_tenant("other").explain.occurrence(str(job.job_id))
    with pytest.raises(NotFound):
        await store_operations.for_tenant("other").explain.between(str(job.job_id), start=START, end=START, limit=1)


@pytest.mark.parametrize("what", ["paused", "cancelled", "redefined"])
async def test_a_change_that_waits_for_a_fire_notes_where_the_fire_left_the_job(
    world: World, pool: Pool, what: str
) -> None:
    def request(schedule: str) -> JobRequest:
        return JobRequest("noop", schedule=schedule, dedupe_key="declared")

    job_id = str(await world.operations.declare(request("0 * * * *")))
    async with pool.transaction() as transaction:
        await transaction.connection.execute("update duly.jobs set next_run_at = $1", START + 2 * HOUR)
        if what == "redefined":
            change: asyncio.Future[Any] = asyncio.ensure_future(world.operations.declare(request("30 * * * *")))
        else:
            done = world.operations.jobs.pause(job_id) if what == "paused" else world.operations.jobs.cancel(job_id)
            change = asyncio.ensure_future(done)
        await eventually(lambda: _somebody_waits(transaction))
    await change
    rows = await pool.query("select what, (detail ->> 'next_run_at')::timestamptz as stood from duly.job_changes")
    assert [tuple(row) for row in rows] == [(what, START + 2 * HOUR)]
    job = await world.job(job_id)
    assert job.next_run_at == (START + timedelta(minutes=30) if what == "redefined" else None)


async def _somebody_waits(transaction: InTransaction) -> bool:
    rows = await transaction.connection.fetch("select from pg_locks where not granted")
    return len(rows) > 0


@pytest.mark.parametrize("schedule", [None, "0 * * * *"])
async def test_a_cancelled_job_is_told_to_be_so_whatever_became_of_its_last_run(
    world: World, schedule: str | None
) -> None:
    job = await world.submit(schedule)
    if schedule is None:
        run = (await take(world.pool)).runs[0]
    else:
        await world.at(START + HOUR)
        await world.fire(job)
        await world.succeed()
        await world.at(START + HOUR + MINUTE)
    await world.operations.jobs.cancel(str(job.job_id))
    told = await world.operations.explain.occurrence(str(job.job_id))
    assert "The job was cancelled at" in told.sentence
    assert "nothing more of it runs" in told.sentence
    assert "cancelled_at" in told.facts
    if schedule is None:
        assert told.run is not None
        assert (told.run.status, told.scheduled_at) == ("running", run.scheduled_at)


async def test_submitting_costs_no_change_log(world: World, pool: Pool) -> None:
    await world.submit(None)
    await world.submit("* * * * *")
    assert await pool.query("select * from duly.job_changes") == []
