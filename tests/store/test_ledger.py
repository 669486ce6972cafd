"""The ledger of idempotency keys: a refused completion leaves no key behind."""

from __future__ import annotations

from duly.model import Claim, Succeeded
from duly.store import ledger, maintenance, runs
from duly.store.pool import Pool
from harness.store import count, put_now, take


async def _rescued(pool: Pool) -> Claim:
    """A claim of one run, after rescue has taken the run back."""
    await put_now(pool, 1)
    claim = await take(pool)
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    assert (await maintenance.rescue(pool)).requeued == 1
    return claim


def _ended(claim: Claim, key: str) -> Succeeded:
    return Succeeded(claim.runs[0], 1, 2, key=key)


async def test_a_worker_that_lost_its_run_does_not_end_it_for_the_next_one(pool: Pool) -> None:
    stale = await _rescued(pool)
    job_id = stale.runs[0].job_id
    assert await runs.complete(pool, [_ended(stale, "paid")]) == 0
    assert await count(pool, "ledger") == 0
    fresh = await take(pool)
    # The next worker looks for the key before it calls its handler.
    assert not await ledger.known(pool, [(job_id, "paid")], retention_seconds=60)
    assert await runs.complete(pool, [_ended(fresh, "paid")]) == 1
    assert await ledger.known(pool, [(job_id, "paid")], retention_seconds=60) == {(job_id, "paid")}


async def test_a_worker_whose_run_another_has_ended_leaves_no_key(pool: Pool) -> None:
    stale = await _rescued(pool)
    assert await runs.complete(pool, [_ended(await take(pool), "of the second")]) == 1
    assert await runs.complete(pool, [_ended(stale, "of the first")]) == 0
    assert await count(pool, "ledger", "key = 'of the second'") == await count(pool, "ledger") == 1
