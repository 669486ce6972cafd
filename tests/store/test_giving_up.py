"""Statements that their caller has given up do not stay on the server, and dead connections are not used again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from duly.errors import StoreUnavailable
from duly.store import jobs as jobs_store
from duly.store import pool as pool_module
from duly.store import runs
from duly.store.pool import Pool, Querier
from harness.proxy import Proxy
from harness.store import due_job, put, put_now, take
from harness.waiting import eventually

WAITING = """
select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
"""


@pytest.mark.parametrize("how", ["statement", "together", "cancelled", "closed"])
async def test_whatever_was_given_up_does_not_stay_in_the_queue_of_a_lock(
    how: str, pool: Pool, database_url: str
) -> None:
    """Eight calls on a job that somebody keeps locked: none of them is left waiting on the server."""
    job = due_job(pool, pool.clock.now() + timedelta(hours=1))
    await put(pool, job)
    impatient = await Pool.connect(database_url, size=8, command_timeout=60 if how in ("cancelled", "closed") else 3)
    stranger, watching = await asyncpg.connect(database_url), await asyncpg.connect(database_url)

    async def pause() -> None:
        async def work(within: Querier) -> None:
            await jobs_store.pause(within, job_id=job.job_id, tenant="default", reason=None, note=None)

        if how == "statement":
            await impatient.query("select from duly.jobs for update")
        else:
            await impatient.together(work)

    async def waiting(calls: int) -> bool:
        return int(await watching.fetchval(WAITING)) == calls

    try:
        async with stranger.transaction():
            await stranger.execute("select from duly.jobs for update")
            calls = [asyncio.create_task(pause()) for _ in range(8)]
            await eventually(lambda: waiting(8))
            if how == "cancelled":
                for call in calls:
                    call.cancel()
            if how == "closed":
                await impatient.close()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            expected = asyncio.CancelledError if how == "cancelled" else StoreUnavailable
            assert [type(error) for error in ended] == [expected] * 8
            if how != "closed":
                await impatient.close()
            await eventually(lambda: waiting(0), seconds=3)
    finally:
        await watching.close()
        await stranger.close()
        await impatient.close()


async def test_a_link_that_fell_silent_costs_a_prompt_statement_seconds_and_the_others_nothing(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the case behind a balancer that has silently forgotten all idle connections."""
    monkeypatch.setattr(pool_module, "PROMPT_SECONDS", 1.5)
    monkeypatch.setattr(pool_module, "_CANCEL_SECONDS", 0.5)
    await put_now(pool, 1)
    with Proxy(database_url) as proxy:
        through = await Pool.connect(proxy.url, size=4)
        try:
            await asyncio.gather(*(through.query("select pg_sleep(0.2)") for _ in range(4)))
            assert proxy.forget() == 4
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(StoreUnavailable):
                await take(through)
            # The other three connections were dead too, and none of them is tried.
            assert len((await take(through)).runs) == 1
            assert loop.time() - began < 2 * 1.5 + 0.5
        finally:
            await through.close()


async def test_a_server_that_is_merely_slow_is_not_cut_off(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary statement has a minute. A prompt one is cancelled, and takes effect once when it is sent again."""
    monkeypatch.setattr(pool_module, "PROMPT_SECONDS", 0.5)
    await put_now(pool, 3)
    other = await Pool.connect(database_url, size=2)
    try:
        await other.query("select pg_sleep(1)")
        async with pool.transaction() as within:
            await within.connection.execute("lock table duly.runs in access exclusive mode")
            with pytest.raises(StoreUnavailable):
                await take(other)
        claim = await take(other)
        assert len(claim.runs) == 3
        assert (await runs.claim(
            other, worker_id=claim.runs[0].job_id, lease_seconds=5, limit=5, lanes=(["default"], [5])
        )).runs == []  # fmt: skip
        rows = await other.query("select count(*) as n from duly.claims")
        assert rows[0]["n"] == 1
    finally:
        await other.close()
