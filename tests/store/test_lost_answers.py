"""A network that fails in the middle: statements that arrive in part, answers that never come, links that hang."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from duly.model import JobRequest, Policy
from duly.operations import Operations
from duly.store.pool import Pool
from duly.store.statements import statement
from harness.processes import Spawn, executions, lines
from harness.proxy import Proxy
from harness.store import count
from harness.waiting import drawn_seed, eventually

LEASE = 2.0


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


def through(proxy: Proxy) -> dict[str, str]:
    """Settings of a worker that reaches its database only by way of the proxy."""
    return {"DULY_DATABASE_URL": proxy.url, "DULY_WORKER_LEASE_SECONDS": str(LEASE), "DULY_POLL_SECONDS": "0.2"}


async def submit(operations: Operations, *requests: JobRequest) -> list[UUID]:
    submitted = await operations.submit_many(list(requests), allow_unknown_handler=True)
    return [UUID(str(job.job_id)) for job in submitted]


async def ended(pool: Pool, runs: int, *, seconds: float = 40) -> None:
    async def all_ended() -> bool:
        return await count(pool, "history") == runs

    await eventually(all_ended, seconds=seconds)
    assert await count(pool, "runs") == 0


async def emptied(pool: Pool, *, seconds: float = 20) -> None:
    """Waits until no claim is left: also a claim that is closed late is closed."""

    async def no_claims() -> bool:
        return await count(pool, "claims") == 0

    await eventually(no_claims, seconds=seconds)


@pytest.mark.parametrize("after", [0, 1, 900, 20_000])
async def test_a_connection_cut_in_the_middle_of_a_batch_of_outcomes_writes_all_of_them_once(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy, after: int
) -> None:
    total = 1000
    await submit(operations, *(JobRequest("record", payload={"seconds": 0.3}) for _ in range(total)))
    fault = proxy.cut_within(statement("runs/complete"), after=after, times=3)
    spawn("worker", "--concurrency", "1000", settings=through(proxy))
    await asyncio.to_thread(fault.wait, 3)
    await ended(pool, total)
    assert await count(pool, "history", "status = 'succeeded' and attempt = 1") == total
    ran = executions(sink)
    assert len(ran) == sum(ran.values()) == total
    await emptied(pool)


@pytest.mark.parametrize(
    ("handler", "name", "policy", "status", "attempts"),
    [
        ("record", "runs/complete", Policy(), "succeeded", 1),
        ("fail", "runs/requeue", Policy(max_retries=1, retry_backoff="immediate"), "dead", 2),
        ("fail", "runs/bury", Policy(max_retries=0), "dead", 1),
    ],
    ids=["complete", "requeue", "bury"],
)
async def test_an_outcome_whose_answer_is_lost_again_and_again_has_one_effect(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy,
    handler: str, name: str, policy: Policy, status: str, attempts: int,
) -> None:  # fmt: skip
    total = 50
    await submit(operations, *(JobRequest(handler, policy=policy) for _ in range(total)))
    fault = proxy.swallow(statement(name), times=3)
    spawn("scheduler")
    worker = spawn("worker", settings=through(proxy))
    await asyncio.to_thread(fault.wait, 3)
    await ended(pool, total)
    assert await count(pool, "history", "status = $1 and attempt = $2", status, attempts) == total
    assert set(executions(sink).values()) == {attempts}
    assert len(executions(sink)) == total
    failed = attempts if status == "dead" else 0
    assert await count(pool, "attempts") == failed * total
    assert await count(pool, "attempts", "error ->> 'type' <> 'ValueError'") == 0
    assert await count(pool, "dead_letters") == (total if status == "dead" else 0)
    await emptied(pool)
    assert worker.poll() is None


async def test_a_commit_whose_answer_is_lost_leaves_one_outcome_and_one_key_in_the_ledger(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy
) -> None:
    total = 50
    policy = Policy(idempotency_key_template="own:{{job_id}}")
    await submit(operations, *(JobRequest("record", policy=policy) for _ in range(total)))
    # Outcomes with a key of their own are written in a transaction of two statements.
    fault = proxy.swallow("COMMIT", times=3)
    spawn("scheduler")
    spawn("worker", settings=through(proxy))
    await asyncio.to_thread(fault.wait, 3)
    await ended(pool, total)
    # No run is marked as deduplicated: that would be a second sending, taken for a second run.
    assert await count(pool, "history", "status = 'succeeded' and attempt = 1 and flags = 0") == total
    assert await count(pool, "ledger") == total
    assert set(executions(sink).values()) == {1}
    await emptied(pool)


async def test_a_rescue_that_is_cut_off_in_the_middle_has_no_effect_and_is_done_again(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy
) -> None:
    total = 50
    policy = Policy(max_retries=1)
    await submit(
        operations, *(JobRequest("hold", payload={"seconds": 60, "again": 0}, policy=policy) for _ in range(total))
    )
    victim = spawn("worker", settings={"DULY_WORKER_LEASE_SECONDS": "1"})
    await eventually(lambda: len(executions(sink)) == total)
    victim.kill()
    fault = proxy.swallow(statement("maintenance/rescue"), times=2)
    spawn("scheduler", settings={"DULY_DATABASE_URL": proxy.url})
    spawn("worker")
    await asyncio.to_thread(fault.wait, 2)
    await ended(pool, total)
    # One crash is one attempt: if a rescue whose answer was lost counted too, max_retries would be used up.
    assert await count(pool, "history", "status = 'succeeded' and attempt = 2") == total
    assert await count(pool, "attempts", "attempt = 1 and error ->> 'type' = 'LeaseLost'") == total
    assert await count(pool, "attempts") == total
    assert set(executions(sink).values()) == {2}


async def test_runs_of_a_claim_whose_answer_is_lost_are_rescued_although_their_worker_lives(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy
) -> None:
    total = 20
    fault = proxy.swallow(statement("runs/claim"))
    spawn("scheduler")
    await submit(operations, *(JobRequest("record") for _ in range(total)))
    worker = spawn("worker", settings=through(proxy))
    await asyncio.to_thread(fault.wait)
    lost = time.monotonic()
    assert await count(pool, "claims", "cardinality(job_ids) = $1", total) == 1
    assert executions(sink) == {}

    await ended(pool, total, seconds=30)
    # The lease, a pass of the rescuer, and a claim; more only on a busy machine.
    assert time.monotonic() - lost < 3 * LEASE + 5
    assert worker.poll() is None
    # The loss cannot be told from a crash, so an attempt is counted and recorded.
    assert await count(pool, "history", "status = 'succeeded' and attempt = 2") == total
    assert await count(pool, "attempts", "attempt = 1 and error ->> 'type' = 'LeaseLost'") == total
    assert set(executions(sink).values()) == {1}
    await emptied(pool)


@pytest.mark.parametrize("handler", ["hold", "hold_thread"])
async def test_handlers_of_a_worker_cut_off_by_a_link_that_hangs_are_told_before_the_lease_ends(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy, handler: str
) -> None:
    total = 5
    await submit(operations, *(JobRequest(handler, payload={"seconds": 120, "again": 0.1}) for _ in range(total)))
    worker = spawn("worker", settings=through(proxy))
    await eventually(lambda: len(executions(sink)) == total)
    proxy.black_hole()

    async def leases_end() -> float:
        rows = await pool.query("select extract(epoch from max(lease_until))::float8 as until from duly.claims")
        return float(rows[0]["until"])

    until = await leases_end()
    await eventually(lambda: len(lines(sink, "told")) == total)
    assert await leases_end() == until
    # All handlers were told before the lease ended in the database.
    assert max(line.at for line in lines(sink, "told")) < until

    spawn("scheduler")
    spawn("worker", settings={"DULY_WORKER_LEASE_SECONDS": str(LEASE)})
    await ended(pool, total)
    rows = await pool.query("select * from duly.history order by job_id")
    assert {row["attempt"] for row in rows} == {2}

    # When the link is back, the worker claims again and does not change the outcomes that it missed.
    proxy.passing()
    await submit(operations, *(JobRequest("record", payload={"seconds": 0.5}) for _ in range(300)))
    await eventually(lambda: worker.pid in {line.pid for line in lines(sink, "started") if line.attempt == 1})
    await ended(pool, total + 300)
    known = [row["job_id"] for row in rows]
    assert await pool.query("select * from duly.history where job_id = any ($1) order by job_id", known) == rows
    assert worker.poll() is None


async def test_runs_that_were_given_up_in_an_outage_are_not_lost_when_it_ends_before_the_lease(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy
) -> None:
    given_up = 5
    jobs = await submit(
        operations, *(JobRequest("hold", payload={"seconds": 120, "again": 0.1}) for _ in range(given_up))
    )
    worker = spawn("worker", settings=through(proxy))
    await eventually(lambda: len(executions(sink)) == given_up)
    proxy.refuse()
    await eventually(lambda: len(lines(sink, "told")) == given_up)
    # No scheduler rescues yet, so the claim is still there when the worker comes back and has other things to write.
    proxy.passing()
    await submit(operations, *(JobRequest("record", payload={"seconds": n * 0.1}) for n in range(20)))
    await ended(pool, 20)
    held = await pool.query("select count(*) from duly.claims where job_ids && $1", jobs)
    assert held[0]["count"] == 1, "the claim of the runs that were given up is gone, and the runs with it"

    spawn("scheduler")
    await ended(pool, 20 + given_up)
    assert await count(pool, "history", "status = 'succeeded'") == 20 + given_up
    assert worker.poll() is None
    await emptied(pool)


@pytest.mark.search
async def test_connections_cut_all_the_time_lose_nothing_and_record_nothing_twice(
    pool: Pool, operations: Operations, spawn: Spawn, sink: Path, proxy: Proxy
) -> None:
    seed = drawn_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    total, failing = 2000, 100
    spawn("scheduler")
    workers = [spawn("worker", "--concurrency", "50", settings=through(proxy)) for _ in range(2)]

    async def all_there() -> bool:
        return await count(pool, "nodes", "kind = 'worker'") == 2

    await eventually(all_there)
    policy = Policy(max_retries=20, retry_backoff="immediate")
    await submit(
        operations,
        *(JobRequest("record", payload={"seconds": 0.05}, policy=policy) for _ in range(total)),
        *(JobRequest("fail", policy=Policy(max_retries=0)) for _ in range(failing)),
    )

    async def all_ended() -> bool:
        return await count(pool, "history") == total + failing

    cuts = 0
    until = time.monotonic() + 6
    while time.monotonic() < until and not await all_ended():
        await asyncio.sleep(dice.uniform(0.02, 0.25))
        cuts += proxy.cut(reset=dice.random() < 0.5)
    proxy.passing()
    await eventually(all_ended, seconds=60)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        assert await asyncio.to_thread(worker.wait, 30) == 0
    print(f"{cuts} connections were cut")
    assert cuts > 20
    assert await count(pool, "history", "status = 'succeeded'") == total
    # A run whose claim was lost with max_retries 0 may have died of that; it has its one outcome all the same.
    assert await count(pool, "history", "status = 'dead'") == failing == await count(pool, "dead_letters")
    assert await count(pool, "runs") == 0
    await emptied(pool)
