"""A cancelled run does not run again, even if a retry, a rescue or a claim happens meanwhile, in any order."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from duly.config import Settings
from duly.model import DEFAULT_TENANT, Claim, ClaimedRun, JobRequest, Policy, Requeued, make_run_id
from duly.operations import Operations, StoreOperations
from duly.states import RunFlag
from duly.store import maintenance, runs
from duly.store.pool import InTransaction, Pool
from harness.held import HeldPool
from harness.store import count, take
from harness.waiting import drawn_seed, eventually
from harness.worker import Workbench

ERROR = '{"type": "Failed", "message": "", "traceback": null}'
STRESS_SECONDS = float(os.environ.get("DULY_TEST_CANCEL_SECONDS", "4"))


async def submit(operations: Operations, **policy: object) -> str:
    request = JobRequest("noop", policy=Policy(**policy))  # type: ignore[arg-type]
    return str((await operations.submit(request, allow_unknown_handler=True)).job_id)


async def retry(pool: Pool, *claimed: ClaimedRun) -> None:
    assert await runs.requeue(pool, [Requeued(run, "retrying", 0.0, 1, 2, ERROR) for run in claimed]) == len(claimed)


async def give_up(pool: Pool) -> None:
    """Lets all leases expire and rescues the runs, as if their workers were lost."""
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    await maintenance.rescue(pool)


async def somebody_waits(transaction: InTransaction) -> bool:
    return bool(await transaction.connection.fetch("select from pg_locks where not granted"))


async def outcomes(pool: Pool) -> list[str]:
    return [row["status"] for row in await pool.query("select status from duly.history order by scheduled_at")]


class TestBesideARetry:
    """The cancelling process is held at each of its statements in turn, and meanwhile the run comes back."""

    @pytest.fixture
    async def held(self, database_url: str) -> AsyncIterator[HeldPool]:
        pool = await HeldPool.connect(database_url, size=2)
        assert isinstance(pool, HeldPool)
        yield pool
        await pool.close()

    @pytest.mark.parametrize("running", [False, True])
    @pytest.mark.parametrize("how", ["retry", "rescue"])
    async def test_no_run_of_a_cancelled_job_waits_or_begins(
        self, held: HeldPool, settings: Settings, pool: Pool, operations: Operations, how: str, running: bool
    ) -> None:
        cancelling = (await StoreOperations.open(held, settings)).for_tenant(DEFAULT_TENANT)

        async def meanwhile() -> None:
            coming_back.append(asyncio.ensure_future(retry(pool, *claimed) if how == "retry" else give_up(pool)))
            # The retry or rescue waits if the cancellation has locked the claim's row.
            await asyncio.wait(coming_back, timeout=0.2)

        held.meanwhile = meanwhile
        for number in range(1, 30):
            job_id = await submit(operations)
            claimed = (await take(pool)).runs
            coming_back: list[asyncio.Future[None]] = []
            held.statements, held.hold_before = 0, number
            await cancelling.jobs.cancel(job_id, running=running)
            if not coming_back:
                break
            await coming_back[0]
            where = f"held before statement {number}"
            again = (await take(pool)).runs
            assert all(run.flags & RunFlag.CANCELLED for run in again), where
            assert await count(pool, "runs") == 0, where
            if not again:
                assert (await outcomes(pool))[-1] == "cancelled", where
            await pool.query("delete from duly.claims")
        assert number > 4

    async def test_a_claim_in_the_middle_of_it_is_told_to_stop(
        self, held: HeldPool, settings: Settings, pool: Pool, operations: Operations
    ) -> None:
        cancelling = (await StoreOperations.open(held, settings)).for_tenant(DEFAULT_TENANT)

        async def meanwhile() -> None:
            claims.append(await take(pool))

        held.meanwhile = meanwhile
        for number in range(1, 30):
            job_id = await submit(operations)
            claims: list[Claim] = []
            held.statements, held.hold_before = 0, number
            await cancelling.jobs.cancel(job_id, running=True)
            if not claims:
                break
            for run in claims[0].runs:
                told = await count(pool, "claims", "claim_id = $1 and $2 = any (cancelled)", run.claim_id, run.ordinal)
                assert run.flags & RunFlag.CANCELLED or told == 1, f"held before statement {number}"
            await pool.query("delete from duly.claims")
        assert number > 4

    async def test_a_claim_that_commits_in_the_middle_of_its_statement_is_told_as_well(
        self, pool: Pool, operations: Operations
    ) -> None:
        job_id = await submit(operations)
        async with pool.transaction() as transaction:
            (run,) = (await take(transaction)).runs
            cancelling = asyncio.ensure_future(operations.jobs.cancel(job_id, running=True))
            await eventually(lambda: somebody_waits(transaction))
        await cancelling
        assert await count(pool, "claims", "cancelled = array[$1::int]", run.ordinal) == 1

    async def test_who_asks_again_reaches_those_that_run(self, pool: Pool, operations: Operations) -> None:
        job_id = await submit(operations)
        (run,) = (await take(pool)).runs
        await operations.jobs.cancel(job_id)
        assert await count(pool, "claims", "cancelled = '{}'") == 1
        for _ in range(2):
            await operations.jobs.cancel(job_id, running=True)
            assert await count(pool, "claims", "cancelled = array[$1::int]", run.ordinal) == 1

    async def test_a_worker_ends_the_run_of_a_cancelled_job_unbegun(self, bench: Workbench, pool: Pool) -> None:
        called = []

        @bench.app.task()
        async def noop() -> None:
            called.append(1)

        job_id = await bench.submit("noop")
        other = await bench.submit("noop")
        await pool.query("update duly.jobs set status = 'cancelled' where job_id = $1", UUID(job_id))
        async with bench.working():
            await bench.end_of(other)
            run = await bench.end_of(job_id, "cancelled")
        assert len(called) == 1
        assert run.error is not None
        assert run.error.message == "the job was cancelled before this attempt began"
        assert await count(pool, "claims") == 0
        assert await count(pool, "dead_letters") == 0


class TestOneRun:
    async def asked_to_stop(self, pool: Pool, operations: Operations, **policy: object) -> ClaimedRun:
        job_id = await submit(operations, **policy)
        (run,) = (await take(pool)).runs
        asked = await operations.runs.cancel(make_run_id(UUID(job_id), run.scheduled_at))
        assert asked.status == "running"
        return run

    async def test_a_lost_worker_does_not_bring_it_back(self, pool: Pool, operations: Operations) -> None:
        await self.asked_to_stop(pool, operations)
        await give_up(pool)
        assert await outcomes(pool) == ["cancelled"]
        assert await count(pool, "runs") == 0
        assert await count(pool, "dead_letters") == 0

    @pytest.mark.parametrize("refund", [0, 1])
    async def test_neither_does_a_retry_a_snooze_or_a_return(
        self, pool: Pool, operations: Operations, refund: int
    ) -> None:
        run = await self.asked_to_stop(pool, operations)
        error = None if refund else ERROR
        back = Requeued(run, "queued" if refund else "retrying", 0.0, 1, 2, error, refund=refund)
        assert await runs.requeue(pool, [back]) == 1
        assert await outcomes(pool) == ["cancelled"]
        assert await count(pool, "runs") == 0
        # The same again, as after a lost answer, finds nothing.
        assert await runs.requeue(pool, [back]) == 0

    async def test_the_next_of_its_line_goes(self, pool: Pool, operations: Operations) -> None:
        run = await self.asked_to_stop(pool, operations, overlap="queue")
        await operations.jobs.trigger(str(run.job_id))
        assert await count(pool, "runs", "state = 'waiting'") == 1
        await retry(pool, run)
        assert await count(pool, "runs", "state = 'queued'") == 1

    async def test_one_that_goes_back_in_this_moment_is_found_in_the_queue(
        self, pool: Pool, operations: Operations
    ) -> None:
        job_id = await submit(operations)
        (run,) = (await take(pool)).runs
        async with pool.transaction() as transaction:
            await runs.requeue(transaction, [Requeued(run, "retrying", 60.0, 1, 2, ERROR)])
            cancelling = asyncio.ensure_future(operations.runs.cancel(make_run_id(UUID(job_id), run.scheduled_at)))
            await eventually(lambda: somebody_waits(transaction))
        assert (await cancelling).status == "cancelled"
        assert await count(pool, "runs") == 0

    @pytest.mark.parametrize("max_retries", [0, 3])
    async def test_a_handler_that_answers_with_an_error_of_its_own_ends_as_cancelled(
        self, bench: Workbench, pool: Pool, max_retries: int
    ) -> None:
        begun = asyncio.Event()

        @bench.app.task()
        async def stubborn() -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise RuntimeError("I was in the middle of something") from None

        job_id = await bench.submit("stubborn", max_retries=max_retries, retry_backoff="immediate")
        async with bench.working():
            await begun.wait()
            await bench.operations.runs.cancel((await bench.run_of(job_id)).run_id)
            run = await bench.end_of(job_id, "cancelled", "dead")
        assert (run.status, run.attempt) == ("cancelled", 1)
        assert run.error is not None
        assert run.error.message == "I was in the middle of something"
        assert await count(pool, "dead_letters") == 0


@pytest.mark.search
async def test_no_attempt_begins_after_the_answer(bench: Workbench, pool: Pool) -> None:
    """Jobs are cancelled at random moments while an attempt fails, so that the run is on its way back."""
    seed = drawn_seed()
    print(f"DULY_TEST_SEED={seed}")
    dice = random.Random(seed)
    begun: dict[str, list[float]] = {}
    answered: dict[str, float] = {}

    @bench.app.task()
    async def failing(number: str) -> None:
        begun.setdefault(number, []).append(time.monotonic())
        await asyncio.sleep(dice.uniform(0, 0.01))
        raise RuntimeError

    async def one(number: str) -> None:
        job_id = await bench.submit(
            "failing", {"number": number}, max_retries=100, retry_backoff="linear", retry_delay_seconds=0.3
        )
        await eventually(lambda: number in begun)
        await bench.operations.jobs.cancel(job_id, running=dice.random() < 0.5)
        answered[number] = time.monotonic()

    until = time.monotonic() + STRESS_SECONDS
    batch = 0
    async with bench.working():
        while time.monotonic() < until:
            batch += 1
            await asyncio.gather(*(one(f"{batch}.{n}") for n in range(20)))
        await asyncio.sleep(1)
    late = {number: max(begun[number]) - answered[number] for number in answered}
    # First attempts begin before the answer. An attempt more than 0.2 s after it had waited as a retry.
    assert [number for number, after in late.items() if after > 0.2] == []
    assert await count(pool, "runs") == 0
    assert await outcomes(pool) == ["cancelled"] * len(answered)
