"""While a report keeps a snapshot, vacuum removes nothing. Looks at claims and due jobs stay short all the same.

DULY_TEST_DEAD_CLAIMS=300000 tests the whole promise: with so many dead claims, no look at due jobs, a line or expired
claims takes more than three times as long as with none.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly.maintenance.claim_floor import DEAD_ROWS, ClaimFloor
from duly.maintenance.rescuer import Rescuer
from duly.scheduler import loader
from duly.store import cluster, fires, maintenance, progress
from duly.store.maintenance import Look, Rescued
from duly.store.pool import InTransaction, Pool
from duly.store.statements import statement
from harness.scheduler import HOUR, MINUTE, START, FrozenScheduler, spread
from harness.store import count, due_job, lead, put, put_now, take

CLAIMS = int(os.environ.get("DULY_TEST_DEAD_CLAIMS", "20000"))
TIMES = 50 if "DULY_TEST_DEAD_CLAIMS" in os.environ else 3


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("select count(*) from duly.jobs")
            yield
    finally:
        await connection.close()


async def claims_come_and_go(pool: Pool, count: int) -> None:
    """Makes and deletes claims of two workers, as in a quarter of an hour. Claims that were there before stay."""
    kept = [row["claim_id"] for row in await pool.query("select claim_id from duly.claims")]
    for _ in range(0, count, 10_000):
        await pool.query(
            "insert into duly.claims (claim_id, worker_id, claimed_at, lease_until, job_ids, scheduled_ats, fired_ats, "
            "epochs, attempts, flags) select duly.new_claim_id(), case n % 2 when 0 then $1::uuid else $2 end, now(), "
            "now() + interval '60 s' - random() * interval '15 min', array[gen_random_uuid()], array[now()], "
            "array[now()], '{1}', '{1}', '{0}' from generate_series(1, 10000) n",
            ME,
            uuid4(),
        )
        await pool.query("delete from duly.claims where claim_id <> all ($1::uuid[])", kept)


ME = uuid4()


async def raise_floor(pool: Pool) -> ClaimFloor:
    floor = ClaimFloor(pool)
    await floor.work(DEAD_ROWS)
    return floor


async def floor_of(pool: Pool) -> UUID:
    (row,) = await pool.query("select floor from duly.claim_floor")
    found = row["floor"]
    assert isinstance(found, UUID)
    return found


async def seen(pool: Pool) -> set[UUID]:
    """The jobs in all claims. The function and the view that look at all claims must agree."""
    by_function = {row["id"] for row in await pool.query("select duly.claimed_jobs() as id")}
    by_view = {row["id"] for row in await pool.query("select unnest(job_ids) as id from duly.live_claims")}
    assert by_function == by_view
    return by_function


async def cost(pool: Pool, name: str, *args: Any, times: int) -> tuple[int, float]:
    """The pages that the largest part of a statement reads, and its median time in ms. Its changes are undone."""
    pages, took = 0, []
    connection = await asyncpg.connect(pool.url, server_settings={"enable_seqscan": "off", "search_path": "pg_catalog"})
    for _ in range(times):
        undone = connection.transaction()
        await undone.start()
        rows = await connection.fetch(f"explain (analyze, buffers, timing off) {statement(name)}", *args)
        await undone.rollback()
        lines = [row[0] for row in rows]
        # The planner's own reads do not count.
        buffers = [
            line.split()
            for line in itertools.takewhile(lambda line: "Planning" not in line, lines)
            if "Buffers:" in line
        ]
        pages = max(
            sum(int(word.split("=")[1]) for word in line if word.startswith(("hit=", "read="))) for line in buffers
        )
        took.append(float(next(line for line in lines if "Execution Time" in line).split()[2]))
    await connection.close()
    return pages, statistics.median(took)


async def test_dead_claims_do_not_make_looks_long(pool: Pool) -> None:
    # Autovacuum is off, because it might come meanwhile. After its ANALYZE the planner believes that the table has a
    # single row and no longer looks claims up by their ids: jobs/put_in_order, runs/requeue, maintenance/lock_expired
    # and maintenance/expire_claims then read the whole index (1,400 pages and 13 ms with 20,000 dead claims).
    await pool.query("alter table duly.claims set (autovacuum_enabled = off)")
    jobs = spread(pool, 200, pool.clock.now())
    await put(pool, *jobs)
    await pool.query("update duly.jobs set last_run_at = next_run_at")
    cancelled, *_ = await put_now(pool, 5)
    await pool.query("update duly.jobs set status = 'cancelled' where job_id = $1", cancelled.job_id)
    for node_id in (ME, uuid4()):
        await cluster.join(pool, node_id=node_id, kind="worker", name="w", version="0", lease_seconds=600, info={})
    await pool.query("update duly.nodes set lease_until = now() - interval '2 h' where node_id <> $1", ME)
    claim = await take(pool, worker_id=ME)
    run = claim.runs[-1]
    await progress.write(pool, [(run.claim_id, run.ordinal, 0.5, "half")])
    names = (claim.claim_id,), (1,), (1,)
    ids = [job.job_id for job in jobs]
    # A waiting run, for which upkeep checks whether the run before it is still held.
    await pool.query(
        "insert into duly.runs (job_id, scheduled_at, run_at, fired_at, shard, priority, state, queue) "
        "select job_id, last_run_at, 'infinity', now(), shard, priority, 'waiting', queue from duly.jobs "
        "where job_id = $1",
        ids[-1],
    )
    (seen_as,) = await fires.due(pool, job_ids=ids[:1])
    shard, due = jobs[0].shard, jobs[0].next_run_at
    epoch = await lead(pool, shard)
    assert due is not None
    looks: dict[str, tuple[Any, ...]] = {
        "fires/due": (ids,),
        "fires/fire": (
            *(shard, epoch, ids[:1], [due], [due + HOUR], ["skip"], [100], ids[:1], [due], [0], [1]),
            *([], [], [], [], [], [seen_as.version]),
        ),
        "jobs/put_in_order": (ids[:1], True),
        "runs/cancel": (run.job_id, run.scheduled_at),
        "runs/heartbeat": (ME, 60.0, [claim.claim_id]),
        "runs/complete": (*names, (1,), (2,), (None,), (0,), ()),
        "runs/requeue": (*names, ("queued",), (0.0,), (0,), (None,), (1,), (2,), (0,)),
        "runs/expire": (*names, (2,), (60,)),
        "runs/bury": (*names, ("{}",), (1,), (2,), ("dead",)),
        "jobs/trigger": (ids[0], 0, 100, None),
        "jobs/end_runs": (cancelled.job_id, cancelled.tenant, True),
        "dead_letters/let_go": ([run.job_id], [run.scheduled_at]),
        "progress/prune": (100,),
        "cluster/node_statuses": (),
        "cluster/forget_nodes": (1.0, 100, 100),
        "maintenance/free_waiting": (1000,),
        "maintenance/expired": (1000, None, True),
        "maintenance/lock_expired": ([claim.claim_id], 100),
        "maintenance/expire_claims": ([claim.claim_id], [pool.clock.now()]),
        "maintenance/unattended_claims": (0.0, 100),
    }

    async def costs(times: int = TIMES) -> dict[str, tuple[int, float]]:
        return {name: await cost(pool, name, *given, times=times) for name, given in looks.items()}

    before = await costs()
    async with snapshot(pool.url):
        await claims_come_and_go(pool, CLAIMS)
        slow = await costs(times=1)
        await raise_floor(pool)
        after = await costs()
        assert len(await seen(pool)) == 5
    for name in looks:
        print(f"{name}: (pages, ms) {before[name]}, with {CLAIMS} dead {slow[name]}, from the floor on {after[name]}")
    assert slow["jobs/put_in_order"][0] > 10 * before["jobs/put_in_order"][0]
    assert [name for name in looks if after[name][0] > 3 * before[name][0] + 10] == []
    if CLAIMS >= 100_000:
        assert [name for name in looks if after[name][1] > 3 * before[name][1]] == []


class TestTheFloor:
    async def test_what_is_held_below_it_is_still_seen(self, pool: Pool) -> None:
        jobs = await put_now(pool, 3)
        for _ in jobs:
            await take(pool, limit=1)
        await raise_floor(pool)
        floor = await floor_of(pool)
        assert all(row["claim_id"] < floor for row in await pool.query("select claim_id from duly.claims"))
        newer = await put_now(pool, 1)
        await take(pool)
        assert await seen(pool) == {job.job_id for job in (*jobs, *newer)}

    async def test_it_stays_below_what_are_too_many_to_name(self, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maintenance, "_MAX_OLDS", 2)
        jobs = await put_now(pool, 5)
        claims = [await take(pool, limit=1) for _ in jobs]
        await raise_floor(pool)
        assert await floor_of(pool) == sorted(claim.claim_id for claim in claims if claim.claim_id)[2]
        assert await seen(pool) == {job.job_id for job in jobs}

    async def test_it_waits_for_a_claim_that_is_not_committed(self, pool: Pool) -> None:
        jobs = await put_now(pool, 2)
        await take(pool, limit=1)
        late = await asyncpg.connect(pool.url)
        transaction = late.transaction()
        await transaction.start()
        claim = await take(InTransaction(late), limit=1)
        floor = await raise_floor(pool)
        assert claim.claim_id is not None
        for _ in range(3):
            await floor.work(0)
            assert await floor_of(pool) == UUID(int=0)
        # The floor does not wait for claims that begin meanwhile.
        other = await asyncpg.connect(pool.url)
        newer = await put_now(pool, 1)
        later = other.transaction()
        await later.start()
        await take(InTransaction(other))
        await transaction.commit()
        await floor.work(0)
        assert await floor_of(pool) > claim.claim_id
        assert await seen(pool) == {job.job_id for job in jobs}
        await later.commit()
        assert await seen(pool) == {job.job_id for job in (*jobs, *newer)}
        await late.close()
        await other.close()

    async def test_no_claim_gets_a_smaller_id_when_the_clock_goes_back(self, pool: Pool) -> None:
        # The bar is an hour in the future: the clock has gone back since it was set.
        await pool.query("update duly.claim_floor set bar = (extract(epoch from now()) * 1000)::bigint + 3600000")
        await raise_floor(pool)
        jobs = await put_now(pool, 3)
        claims = [await take(pool, limit=1) for _ in jobs]
        floor = await floor_of(pool)
        assert all(claim.claim_id is not None and claim.claim_id >= floor for claim in claims)
        assert len({claim.claim_id for claim in claims}) == 3
        assert await seen(pool) == {job.job_id for job in jobs}

    async def test_it_rises_when_many_have_died_and_not_before(self, pool: Pool) -> None:
        floor = ClaimFloor(pool)
        await floor.work(DEAD_ROWS - 1)
        assert await floor_of(pool) == UUID(int=0)
        await floor.work(DEAD_ROWS)
        first = await floor_of(pool)
        assert first > UUID(int=0)
        await floor.work(2 * DEAD_ROWS - 1)
        assert await floor_of(pool) == first
        await floor.work(10)  # vacuum came
        await floor.work(DEAD_ROWS + 10)
        assert await floor_of(pool) > first


@pytest.mark.parametrize("way", ["_leases_at", "_claims_at"])
async def test_a_lease_that_ended_before_the_last_look_is_found_by_a_look_at_all(pool: Pool, way: str) -> None:
    """The claim took longer to commit than its lease lasted."""
    service = Rescuer(pool)
    await put_now(pool, 1)
    await take(pool)
    await service.work()
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 hour'")
    service._leases_at = service._claims_at = math.inf
    await service.work()
    assert await count(pool, "claims") == 1
    setattr(service, way, 0.0)
    await service.work()
    assert await count(pool, "claims") == 0


async def test_the_rescuer_goes_the_way_in_which_no_dead_rows_lie(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    service, asked = Rescuer(pool), []
    answers = [(100_000, 0.3), (100_000, 0.001), (100_000, 0.001), (100_000, 0.2), (100_000, 0.001), (40_000, 0.001)]

    async def look(_: Pool, *, limit: int, since: datetime | None, read_claims: bool) -> Rescued:
        asked.append("claims" if read_claims else "leases" if since is None else "since")
        dead, took = answers[len(asked) - 1] if len(asked) <= len(answers) else (0, 0.0)
        return Rescued(look=Look(expired=False, now=START, dead=dead, took=took))

    monkeypatch.setattr(maintenance, "rescue", look)
    for _ in range(8):
        await service.work()
    assert asked == ["leases", "claims", "claims", "claims", "since", "since", "leases", "leases"]


async def test_due_jobs_are_read_from_the_oldest_on_while_that_is_slow(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = FrozenScheduler(pool)
    await scheduler.at(START)
    monkeypatch.setattr(loader, "_SLOW_SECONDS", -1.0)
    asked = []
    fetch = pool.fetch

    async def look(name: str, *args: Any) -> Any:
        if name == "fires/load":
            asked.append(min(args[1]))
        return await fetch(name, *args)

    monkeypatch.setattr(pool, "fetch", look)
    job = due_job(pool, START + MINUTE)
    await scheduler.put(job)
    await scheduler.lead(job)
    for minutes in (0, 1, 2):
        await scheduler.step(START + minutes * MINUTE)
    assert scheduler.loader._whole_at > 0
    scheduler.loader._whole_at = math.inf  # however slow this machine is
    await scheduler.step(START + 3 * MINUTE)
    assert asked[-1] == START + MINUTE
    assert await scheduler.runs() == [START + MINUTE]
    # The job is made an hour late, without a notification.
    await pool.query("update duly.jobs set next_run_at = $1", START - HOUR)
    await scheduler.step(START + 4 * MINUTE)
    assert len(await scheduler.runs()) == 1
    scheduler.loader._whole_at = 0.0
    await scheduler.step(START + 4 * MINUTE + timedelta(seconds=1))
    assert (await scheduler.job(job))["next_run_at"] > START
