"""Compares the table of legal moves (`duly.states`) with the torture's own table, and with the moves of real rows.

Every statement that writes runs, claims or history is executed here under the torture's audit triggers. The checker
replays the audit and must find exactly the moves of the table.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import duly.store
from duly.config import Settings
from duly.model import DEFAULT_TENANT, DULY, Buried, Claim, ClaimedRun, DeadLetterFilter, Expired, Requeued
from duly.operations import Operations, StoreOperations
from duly.states import BORN, LEGAL_MOVES, RunFlag
from duly.store import dead_letters, maintenance, runs
from duly.store import jobs as jobs_store
from duly.store.dead_letters import Batch
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from duly.store.runs import Served
from harness.injecting import Injector, injected
from harness.scheduler import HOUR, MINUTE, SECOND, START, FrozenScheduler
from harness.store import due_job, new_job, put_now, succeeded, take
from torture import audit
from torture.checker import records
from torture.checker.facts import Facts
from torture.checker.invariants import moves as torture_moves

SQL = Path(duly.store.__file__).parent / "sql"
WRITES = re.compile(r"\b(insert into|update|delete from) duly\.(runs|claims|history)\b")
WRITERS = {
    f"{file.parent.name}/{file.stem}" for file in SQL.glob("*/*.sql") if WRITES.search(file.read_text(encoding="utf-8"))
}
ERROR = '{"type": "E", "message": "m", "traceback": null}'
QUEUE = '{"overlap": "queue"}'
AHEAD = timedelta(seconds=0.5)
MINUTELY = {"kind": "cron", "schedule": "* * * * *"}


def test_the_torture_has_the_same_table() -> None:
    """The two tables were written independently: the checker shares no code with the product."""
    ours: dict[str | None, frozenset[str]] = {state.value: frozenset(after) for state, after in LEGAL_MOVES.items()}
    assert ours | {None: frozenset(BORN)} == torture_moves.LEGAL


@pytest.fixture
async def injector(database_url: str) -> AsyncIterator[Injector]:
    await audit.install(database_url)
    with injected(Injector(random.Random(0))) as injector:
        yield injector


@pytest.fixture
async def pool(injector: Injector, database_url: str) -> AsyncIterator[Pool]:
    pool = await Pool.connect(database_url)
    yield pool
    await pool.close()


class Life:
    """Takes runs through every turn that the life of a run can take."""

    def __init__(self, pool: Pool, operations: Operations, injector: Injector) -> None:
        self.pool = pool
        self.operations = operations
        self.injector = injector
        self.scheduler = FrozenScheduler(pool, ahead=AHEAD, per_second=1)
        self.now = START
        # Transactions in which the test itself breaks something that the product has to repair.
        self.breakages: set[int] = set()

    async def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        await self.scheduler.at(self.now)

    async def recurring(self, **changes: object) -> NewJob:
        job = due_job(self.pool, self.now + MINUTE, **(MINUTELY | changes))
        await self.scheduler.put(job)
        await self.scheduler.lead(job)
        return job

    async def fire(self, after: timedelta = MINUTE) -> None:
        self.now += after
        await self.scheduler.step(self.now)

    async def take(self, job: NewJob, **options: float) -> ClaimedRun:
        claim = await self.claim([job.queue], **options)
        assert len(claim.runs) == 1
        return claim.runs[0]

    async def claim(self, queues: Sequence[str], **options: float) -> Claim:
        return await take(self.pool, queues=queues, lease=options.get("lease", 60))

    async def trigger(self, job: NewJob) -> None:
        assert await jobs_store.trigger(
            self.pool, job_id=job.job_id, tenant="default", flags=int(RunFlag.TRIGGERED), occurrence=None, note=None
        )

    async def redrive(self, job: NewJob) -> None:
        wanted, batch = DeadLetterFilter(str(job.job_id)), Batch(self.now + HOUR, limit=10)
        worked = await dead_letters.redrive(self.pool, wanted, batch, tenant="default", actor=DULY)
        assert worked.done == 1

    async def end(self, run: ClaimedRun) -> None:
        assert await runs.complete(self.pool, [succeeded(run)], close=[run.claim_id]) == 1

    async def bury(self, run: ClaimedRun, status: str = "dead") -> None:
        assert await runs.bury(self.pool, [Buried(run, 1, 2, ERROR, status=status)]) == 1

    async def requeue(self, run: ClaimedRun, state: str = "queued") -> None:
        error = ERROR if state == "retrying" else None
        assert await runs.requeue(self.pool, [Requeued(run, state, 0.0, 1, 2, error)]) == 1

    # The turns

    async def attempts(self) -> None:
        """A run is claimed, retried, snoozed, buried, redriven and completed."""
        job = (await put_now(self.pool, 1, queue="attempts"))[0]
        await self.requeue(await self.take(job), "retrying")
        await self.requeue(await self.take(job), "queued")
        await self.bury(await self.take(job))
        await self.redrive(job)
        await self.end(await self.take(job))

    async def expired(self) -> None:
        """A run is claimed too late to be started."""
        job = (await put_now(self.pool, 1, queue="expired"))[0]
        assert await runs.expire(self.pool, [Expired(await self.take(job), 2, 60)]) == 1

    async def claims_of_every_kind(self) -> None:
        await put_now(self.pool, 3, queue="kinds")
        lanes = (["kinds"], [5])
        worker_id = uuid4()
        for kind in ({}, {"without": ["another"], "served": Served(None, 100)}, {"served": Served(["default"], 100)}):
            claim = await runs.claim(self.pool, worker_id=worker_id, lease_seconds=60, limit=1, lanes=lanes, **kind)
            assert claim.claim_id is not None
            await runs.heartbeat(self.pool, worker_id=worker_id, lease_seconds=60, claims=[claim.claim_id])
            await self.end(claim.runs[0])

    async def cancelled(self) -> None:
        """A run is cancelled while it waits for a worker or a retry, and while it runs (with its job, or by itself)."""
        for state in ("queued", "retrying", "running", "asked"):
            job = (await put_now(self.pool, 1, queue=state))[0]
            if state == "retrying":
                await self.requeue(await self.take(job), "retrying")
            run = await self.take(job) if state in ("running", "asked") else None
            if state == "asked":
                assert run is not None
                became = await runs.cancel(
                    self.pool, job_id=job.job_id, scheduled_at=run.scheduled_at, tenant="default", note=None
                )
                assert became == "running"
                await self.requeue(run)
                continue
            assert await jobs_store.cancel(self.pool, job_id=job.job_id, tenant="default", running=True, note=None)
            if run is not None:
                await self.bury(run, "cancelled")

    async def lines(self) -> None:
        """Scheduled, triggered and redriven runs wait in a line; a job whose runs may not wait skips one."""
        job = await self.recurring(queue="line", policy=QUEUE)
        await self.fire()
        first = await self.take(job)
        await self.fire()
        await self.trigger(job)
        await self.bury(first)
        second = await self.take(job)
        await self.redrive(job)  # behind the second, which runs
        await runs.cancel(self.pool, job_id=job.job_id, scheduled_at=first.scheduled_at, tenant="default", note=None)
        await self.end(second)
        await self.end(await self.take(job))
        await jobs_store.cancel(self.pool, job_id=job.job_id, tenant="default", running=False, note=None)
        skipping = await self.recurring(queue="skip")
        await self.fire()
        run = await self.take(skipping)
        await self.fire()
        await self.end(run)
        await jobs_store.cancel(self.pool, job_id=skipping.job_id, tenant="default", running=False, note=None)

    async def late(self) -> None:
        """Late occurrences are missed, deferred, released in turn, and given up with their job."""
        skip = await self.recurring(queue="late", policy='{"missed_window": "SKIP"}')
        await self.fire(3 * MINUTE)
        await jobs_store.cancel(self.pool, job_id=skip.job_id, tenant="default", running=False, note=None)
        every = await self.recurring(queue="late", policy='{"missed_window": "RUN_ALL"}')
        await self.fire(5 * MINUTE)
        await self.fire(2 * SECOND)
        await self.end(await self.take(every))
        await self.fire(2 * SECOND)
        await jobs_store.pause(self.pool, job_id=every.job_id, tenant="default", reason=None, note=None)
        await self.fire(2 * SECOND)
        await jobs_store.cancel(self.pool, job_id=every.job_id, tenant="default", running=False, note=None)

    async def changed(self) -> None:
        """A run is withdrawn before its time, and a run is moved to another queue."""
        job = await self.recurring(queue="ahead")
        self.now += MINUTE - AHEAD / 2
        await self.scheduler.step(self.now)
        assert len(await self.scheduler.runs(job)) == 1
        await jobs_store.pause(self.pool, job_id=job.job_id, tenant="default", reason=None, note=None)
        assert await self.scheduler.runs(job) == []
        other = await self.recurring(queue="before")
        await self.fire()
        await self.operations.jobs.change(str(other.job_id), {"queue": "after"})
        for one in (job, other):
            await jobs_store.cancel(self.pool, job_id=one.job_id, tenant="default", running=False, note=None)

    async def rescued(self) -> None:
        """Runs of lost workers are rescued: together, one by one, or given up."""
        await put_now(self.pool, 2, queue="lost", policy='{"max_retries": 0}')
        await put_now(self.pool, 1, queue="lost")
        await self.claim(["lost"], lease=1)
        await self.later(2)
        await maintenance.rescue(self.pool)
        await put_now(self.pool, 2, queue="refused")
        await self.claim(["refused"], lease=1)
        await self.later(2)
        # Rescue is refused four times: for all claims together, for the claim by itself, and for each of its two runs.
        self.injector.strike("maintenance/rescue", "22023", times=4)
        self.injector.strike("maintenance/give_up", "22023")
        assert len((await maintenance.rescue(self.pool)).given_up) == 2
        seen = await maintenance.unattended_claims(self.pool, ahead_seconds=-1, limit=10)
        await maintenance.expire_claims(self.pool, seen)
        await self.later(1)
        await maintenance.rescue(self.pool)
        # A supervisor gives back the runs of a worker that it saw die.
        await put_now(self.pool, 1, queue="killed")
        claim = await self.claim(["killed"], lease=600)
        rows = await self.pool.query("select worker_id from duly.claims where claim_id = $1", claim.claim_id)
        assert await maintenance.end_claims(self.pool, worker_id=rows[0]["worker_id"]) == 1
        await maintenance.rescue(self.pool)

    async def repaired(self) -> None:
        """A run is restored that no table holds, because somebody deleted its claim."""
        for policy in (None, '{"overlap": "parallel"}'):
            job = await self.recurring(queue="nowhere", policy=policy)
            await self.fire()
            run = await self.take(job)
            if policy is None:
                await self.trigger(job)
            rows = await self.pool.query(
                "with gone as (delete from duly.claims where claim_id = $1) select pg_current_xact_id()::text as txid",
                run.claim_id,
            )
            self.breakages.add(int(rows[0]["txid"]))
            assert await maintenance.restore_runs(self.pool, [(job.job_id, run.scheduled_at)])
            await jobs_store.cancel(self.pool, job_id=job.job_id, tenant="default", running=False, note=None)


async def test_statements_make_the_legal_moves_and_no_others(
    pool: Pool, settings: Settings, database_url: str, injector: Injector, tmp_path: Path
) -> None:
    store_operations = await StoreOperations.open(pool, settings)
    life = Life(pool, store_operations.for_tenant(DEFAULT_TENANT), injector)
    await life.scheduler.at(START)
    for turn in (
        life.attempts, life.expired, life.claims_of_every_kind, life.cancelled, life.lines, life.late, life.changed,
        life.rescued, life.repaired,
    ):  # fmt: skip
        await turn()
        await life.later(60)
    await put_now(pool, 100, queue="copied")
    await jobs_store.submit(
        pool, [new_job(pool, queue="traced")], created_at=pool.clock.now(), trace=f"00-{'1' * 32}-{'2' * 16}-01"
    )
    await pool.query("select duly.submit('noop', queue => 'by SQL')")

    unused = WRITERS - set(injector.seen)
    assert not unused, f"statements that move runs and that this test does not execute: {sorted(unused)}"

    await audit.export(database_url, tmp_path)
    (tmp_path / "run.json").write_text("{}")
    facts = Facts(records.read(tmp_path))
    found = [
        move for moves in facts.moves.values() for move in moves if move.transaction.rows[0].txid not in life.breakages
    ]
    observed = {(move.before, move.after) for move in found if not move.retracted}
    legal = {(before, after) for before, ends in torture_moves.LEGAL.items() for after in ends}
    assert observed - legal == set(), "moves that duly.states does not know"
    assert legal - observed == set(), "moves that no statement makes"
    assert any(move.retracted for move in found)


async def test_sql_and_python_name_the_same_bits(pool: Pool) -> None:
    (row,) = await pool.query(
        "select array_agg(flags) filter (where duly.is_missed(flags)) as missed,"
        " array_agg(flags) filter (where duly.is_serial(flags)) as serial,"
        " array_agg(flags) filter (where duly.is_triggered(flags)) as triggered,"
        " duly.as_serial(0::smallint) as as_serial, duly.as_cancelled(0::smallint) as as_cancelled"
        " from (select (1 << n)::smallint as flags from generate_series(0, 14) n) bits"
    )
    named = (RunFlag.MISSED, RunFlag.SERIAL, RunFlag.TRIGGERED)
    assert [row["missed"], row["serial"], row["triggered"]] == [[int(flag)] for flag in named]
    assert (row["as_serial"], row["as_cancelled"]) == (RunFlag.SERIAL, RunFlag.CANCELLED)
