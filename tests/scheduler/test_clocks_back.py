"""The database's clock goes back, as after a promotion, in the middle of any operation on a job."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.errors import Conflict, InvalidInput
from duly.maintenance.guardian import Guardian
from duly.maintenance.unparker import Unparker
from duly.model import Buried, ClaimedRun, JobRequest, Policy, Requeued, make_run_id
from duly.operations import Operations
from duly.store import maintenance, runs
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from harness.scheduler import MINUTE, SECOND, START, FrozenScheduler
from harness.store import count, due_job, succeeded, take
from harness.waiting import drawn_seed

ERROR = '{"type": "Failed", "message": "", "traceback": null}'
SECONDS_BACK = 3
HISTORIES = int(os.environ.get("DULY_TEST_CLOCK_HISTORIES", "6"))


@pytest.fixture
async def scheduler(pool: Pool) -> FrozenScheduler:
    scheduler = FrozenScheduler(pool, ahead=timedelta(seconds=0.5))
    await scheduler.at(START)
    return scheduler


async def finish(pool: Pool) -> list[datetime]:
    """Claims all runs that may start and records them as succeeded. Returns their scheduled times."""
    claim = await take(pool)
    if claim.runs:
        assert await runs.complete(pool, [succeeded(run) for run in claim.runs], [claim.runs[0].claim_id])
    return [run.scheduled_at for run in claim.runs]


class TestGoingOn:
    """However a job is planned anew, it goes on after its last occurrence, although the clock is 3 s before that."""

    @pytest.fixture
    async def job(self, scheduler: FrozenScheduler, pool: Pool) -> NewJob:
        job = due_job(pool, START + MINUTE, kind="cron", schedule="* * * * *")
        await scheduler.put(job)
        await scheduler.lead(job)
        return job

    @pytest.mark.parametrize("how", ["resume", "change", "unpark", "replan"])
    @pytest.mark.parametrize("what", ["ran", "skipped", "missed"])
    async def test_it_goes_on_after_what_was_dealt_with(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, job: NewJob, how: str, what: str
    ) -> None:
        job_id = str(job.job_id)
        last = START + 2 * MINUTE
        await scheduler.step(START + MINUTE)
        if what == "skipped":
            assert len((await take(pool)).runs) == 1  # this run stays unfinished
        else:
            await finish(pool)
        if what == "missed":
            await operations.jobs.change(job_id, {"missed_window": "SKIP"})
        await scheduler.step(last + (11 * SECOND if what == "missed" else 0 * SECOND))
        if what == "ran":
            assert await finish(pool) == [last]
        assert (await operations.jobs.get(job_id)).next_run_at == last + MINUTE
        await scheduler.at(last - SECONDS_BACK * SECOND)
        match how:
            case "resume":
                await operations.jobs.pause(job_id)
                await operations.jobs.resume(job_id)
            case "change":
                await operations.jobs.change(job_id, {"schedule": "0 * * * * *"})
            case "unpark":
                await pool.query("update duly.jobs set status = 'paused', next_run_at = null")
                await pool.query("insert into duly.parked (job_id, version, parked_at) "
                                 "select job_id, version, updated_at from duly.jobs")  # fmt: skip
                unparker = Unparker(pool)
                unparker.lead(True)
                await unparker.run_once()
            case "replan":
                await pool.query("update duly.jobs set next_run_at = null, updated_at = $1", START)
                guardian = Guardian(pool, grace_seconds=0)
                guardian.lead(True)
                await guardian.run_once()
                await guardian.run_once()
        planned = await operations.jobs.get(job_id)
        assert (planned.status, planned.next_run_at) == ("active", last + MINUTE)

    @pytest.mark.parametrize("where", ["running", "retrying", "ended"])
    async def test_what_is_left_when_one_fired_ahead_is_taken_back_is_not_planned_again(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, job: NewJob, where: str
    ) -> None:
        job_id = str(job.job_id)
        await operations.jobs.change(job_id, {"overlap": "parallel"})
        await scheduler.step(START + MINUTE)
        (run,) = (await take(pool)).runs
        if where == "retrying":
            assert await runs.requeue(pool, [Requeued(run, "retrying", 100.0, 1, 2, ERROR)]) == 1
        elif where == "ended":
            assert await runs.complete(pool, [succeeded(run)]) == 1
        await scheduler.step(START + 2 * MINUTE - timedelta(seconds=0.4))
        ahead = await count(pool, "runs", "scheduled_at = $1 and state = 'queued'", START + 2 * MINUTE)
        assert ahead == 1
        await scheduler.at(START + MINUTE - SECONDS_BACK * SECOND)
        changed = await operations.jobs.change(job_id, {"schedule": "0 * * * * *"})
        assert await count(pool, "runs", "state = 'queued'") == 0
        assert (changed.last_run_at, changed.next_run_at) == (START + MINUTE, START + 2 * MINUTE)

    async def test_what_was_asked_for_by_hand_or_has_begun_is_not_taken_back(
        self, scheduler: FrozenScheduler, operations: Operations, pool: Pool, job: NewJob
    ) -> None:
        await scheduler.step(START + MINUTE)
        (run,) = (await take(pool)).runs
        await operations.jobs.change(str(job.job_id), {"overlap": "parallel"})
        await scheduler.at(START + MINUTE + SECOND)
        await operations.jobs.trigger(str(job.job_id))
        assert await runs.requeue(pool, [Requeued(run, "queued", 0.0, None, None, refund=1)]) == 1
        await scheduler.at(START + MINUTE - SECONDS_BACK * SECOND)
        await operations.jobs.pause(str(job.job_id))
        assert await count(pool, "runs") == 2
        assert (await operations.jobs.get(str(job.job_id))).run_count == 1


class TestTokens:
    """A downstream system refuses the smaller token, so a later claim of a run has the greater one."""

    @pytest.mark.parametrize("seconds", [3, 12 * 86_400])
    @pytest.mark.parametrize("how", ["retry", "snooze", "rescue", "redrive"])
    async def test_a_later_claim_has_the_greater_token_although_the_clock_went_back(
        self, pool: Pool, operations: Operations, how: str, seconds: int
    ) -> None:
        await pool.query("update duly.clock set shift = make_interval(secs => $1)", float(seconds))
        request = JobRequest("noop", policy=Policy(max_retries=5))
        await operations.submit(request, allow_unknown_handler=True)
        (run,) = (await take(pool)).runs
        await pool.query("update duly.clock set shift = interval '0'")
        await pool.query("update duly.runs set run_at = duly.now()")
        tokens = [run.claim_id]
        for _ in range(3):
            await self._come_back(pool, operations, how, run)
            (run,) = (await take(pool)).runs
            tokens.append(run.claim_id)
        assert tokens == sorted(tokens)
        assert len(set(tokens)) == 4

    async def _come_back(self, pool: Pool, operations: Operations, how: str, run: ClaimedRun) -> None:
        match how:
            case "retry":
                assert await runs.requeue(pool, [Requeued(run, "retrying", 0.0, 1, 2, ERROR)]) == 1
            case "snooze":
                assert await runs.requeue(pool, [Requeued(run, "queued", 0.0, None, None, refund=1)]) == 1
            case "rescue":
                await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
                assert (await maintenance.rescue(pool)).requeued == 1
            case "redrive":
                assert await runs.bury(pool, [Buried(run, 1, 2, ERROR)]) == 1
                await operations.dead_letters.redrive(make_run_id(run.job_id, run.scheduled_at))

    async def test_tokens_of_one_moment_ascend(self, pool: Pool) -> None:
        tokens = [(await pool.query("select duly.new_claim_id() as token"))[0]["token"] for _ in range(200)]
        assert tokens == sorted(tokens)
        assert all(token.version == 7 for token in tokens)
        assert len(set(tokens)) == 200


class History:
    """One job and random operations on it, at random times."""

    def __init__(self, dice: random.Random, scheduler: FrozenScheduler, operations: Operations) -> None:
        self.dice = dice
        self.scheduler = scheduler
        self.operations = operations
        self.pool = scheduler.pool
        self.policy = Policy(
            overlap=dice.choice(["skip", "queue", "parallel"]),
            missed_window=dice.choice(["SKIP", "RUN_ONCE", "RUN_ALL"]),
            max_retries=2,
        )
        self.job_id = UUID(int=0)
        self.begun: Counter[datetime] = Counter()
        self.allowed: Counter[datetime] = Counter()
        self.held: list[ClaimedRun] = []
        self.log: list[str] = []

    async def begin(self) -> None:
        self.job_id = await self.operations.declare(self._request("*/10 * * * * *"))
        shards = await self.pool.query("select shard from duly.jobs")
        await self.scheduler.lead(due_job(self.pool, START, shard=shards[0]["shard"]))

    def _request(self, schedule: str) -> JobRequest:
        payload = {"version": self.dice.randrange(1000)}
        return JobRequest("noop", schedule=schedule, payload=payload, dedupe_key="declared", policy=self.policy)

    async def step(self) -> None:
        clock = self.scheduler.clock
        planners = [self._resume, self._change, self._declare, self._unpark, self._replan]
        if self.dice.random() < 0.3:
            # All due occurrences are fired and perhaps started; then the clock goes back and the job is planned anew.
            acts = [self._fire, *self.dice.choice([[], [self._work]]), *self.dice.choice([[], [self._pause]])]
            for act in acts:
                await self._do(act)
            await self.scheduler.at(clock.moment - self.dice.choice([1, 3, 11, 25]) * SECOND)
            await self._do(self.dice.choice(planners))
        else:
            await self.scheduler.at(clock.moment + self.dice.choice([0, 0.1, 1, 5, 9.6, 10, 31]) * SECOND)
            others = [self._pause, self._trigger, self._redrive, self._rescue]
            await self._do(self.dice.choice([self._fire, self._work, *planners, *others]))

    async def _do(self, act: Callable[[], Awaitable[None]]) -> None:
        name = getattr(act, "__name__", "?").strip("_")
        self.log.append(f"{self.scheduler.clock.moment:%H:%M:%S.%f} {name}")
        await act()
        await self.check()

    async def _fire(self) -> None:
        await self.scheduler.step(self.scheduler.clock.moment)

    async def _work(self) -> None:
        claim = await take(self.pool, limit=self.dice.choice([1, 10]))
        for run in claim.runs:
            self.log.append(f"    begins {run.scheduled_at:%H:%M:%S.%f} attempt {run.attempt}")
            if run.attempt == 1:
                self.begun[run.scheduled_at] += 1
        self.held += claim.runs
        for run in self.dice.sample(self.held, k=self.dice.randrange(len(self.held) + 1)):
            self.held.remove(run)
            match self.dice.choice(["ends", "ends", "fails", "snoozes", "dies"]):
                case "ends":
                    accepted = await runs.complete(self.pool, [succeeded(run)])
                case "fails":
                    accepted = await runs.requeue(self.pool, [Requeued(run, "retrying", 1.0, 1, 2, ERROR)])
                case "snoozes":
                    if run.attempt == 1:
                        self.allowed[run.scheduled_at] += 1
                    accepted = await runs.requeue(self.pool, [Requeued(run, "queued", 2.0, None, None, refund=1)])
                case _:
                    accepted = await runs.bury(self.pool, [Buried(run, 1, 2, ERROR)])
            assert accepted == 1, f"the outcome of {run.scheduled_at} was refused"

    async def _try(self, doing: Any) -> None:
        try:
            await doing
        except (Conflict, InvalidInput) as error:
            self.log.append(f"    {error}")

    async def _pause(self) -> None:
        await self._try(self.operations.jobs.pause(str(self.job_id)))

    async def _resume(self) -> None:
        await self._try(self.operations.jobs.resume(str(self.job_id)))

    async def _change(self) -> None:
        change: dict[str, Any] = self.dice.choice(
            [{"schedule": "*/10 * * * * *"}, {"schedule": "*/5 * * * * *"}, {"schedule": "every 7s"}, {"priority": 6}]
        )
        await self._try(self.operations.jobs.change(str(self.job_id), change))

    async def _declare(self) -> None:
        schedule = self.dice.choice(["*/10 * * * * *", "*/4 * * * * *", "every 7s"])
        await self._try(self.operations.declare(self._request(schedule)))

    async def _unpark(self) -> None:
        await self.pool.query(
            "with parked as (update duly.jobs set status = 'paused', next_run_at = null, version = version + 1 "
            "where status = 'active' returning job_id, version, updated_at) "
            "insert into duly.parked (job_id, version, parked_at) select * from parked "
            "on conflict (job_id) do update set version = excluded.version"
        )
        unparker = Unparker(self.pool)
        unparker.lead(True)
        await unparker.run_once()

    async def _replan(self) -> None:
        await self.pool.query("update duly.jobs set next_run_at = null where status = 'active'")
        guardian = Guardian(self.pool, grace_seconds=0)
        guardian.lead(True)
        for _ in range(2):
            await guardian.run_once()

    async def _trigger(self) -> None:
        await self.scheduler.at(self.scheduler.clock.moment + timedelta(microseconds=self.dice.randrange(1, 1000)))
        await self._try(self.operations.jobs.trigger(str(self.job_id)))

    async def _redrive(self) -> None:
        dead = await self.pool.query("select scheduled_at from duly.dead_letters")
        for row in dead:
            self.allowed[row["scheduled_at"]] += 1
            await self.operations.dead_letters.redrive(make_run_id(self.job_id, row["scheduled_at"]))

    async def _rescue(self) -> None:
        await self.pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
        self.held.clear()
        await maintenance.rescue(self.pool)

    async def check(self) -> None:
        twice = {at: n for at, n in self.begun.items() if n > 1 + self.allowed[at]}
        assert not twice, f"began twice: {twice}"
        job = await self.operations.jobs.get(str(self.job_id))
        if job.next_run_at is None:
            return
        self.log.append(f"    next {job.next_run_at:%H:%M:%S.%f}")
        assert job.next_run_at not in self.begun, f"planned again: {job.next_run_at}"
        rows = await self.pool.query(
            "select scheduled_at, status from duly.history "
            "where greatest(scheduled_at, (note ->> 'last')::timestamptz) >= $1 and scheduled_at <= $1 "
            "union all select scheduled_at, state from duly.runs where scheduled_at = $1",
            job.next_run_at,
        )
        assert not rows, f"planned again: {rows}"


@pytest.mark.search
@pytest.mark.parametrize("number", range(HISTORIES))
async def test_no_occurrence_runs_twice_however_the_clock_goes(
    scheduler: FrozenScheduler, operations: Operations, number: int
) -> None:
    seed = drawn_seed() + number
    print(f"DULY_TEST_SEED={seed}")
    history = History(random.Random(seed), scheduler, operations)
    await history.begin()
    try:
        for _ in range(50):
            await history.step()
    except AssertionError:
        print("\n".join(history.log))
        raise
