"""Each statement that makes work for a worker or a leader announces it at its commit: no node waits for a poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from duly.model import JobRequest, Requeued
from duly.operations import Operations
from duly.store import fires, maintenance, runs
from duly.store.notifier import Notifier
from duly.store.pool import Pool
from harness.store import (
    due_job,
    fire_as_seen,
    fire_now,
    fire_of,
    hours_ago,
    lead,
    new_job,
    put,
    put_now,
    succeeded,
    take,
)

HOUR = timedelta(hours=1)
ERROR = '{"type":"ValueError","message":"no","traceback":null}'


class Ears:
    """Collects announcements. PostgreSQL delivers in the order of commits, so a mark comes after all earlier ones."""

    def __init__(self, pool: Pool, url: str) -> None:
        self._pool = pool
        self._heard: list[tuple[str, str]] = []
        self._marked = asyncio.Event()
        self._notifier = Notifier(url)
        for channel in ("duly_work", "duly_due", "mark"):
            self._notifier.listen(channel, partial(self._hear, channel))

    def _hear(self, channel: str, said: str | None) -> None:
        if channel == "mark":
            self._marked.set()
        elif said is not None:
            self._heard.append((channel, said))

    async def open(self) -> None:
        await self._notifier.start()
        await self._marked.wait()
        await self._all()

    async def close(self) -> None:
        await self._notifier.stop()

    async def _all(self) -> list[tuple[str, str]]:
        self._marked.clear()
        await self._pool.query("select pg_notify('mark', '')")
        await self._marked.wait()
        heard, self._heard = self._heard, []
        return heard

    async def during(self, act: Awaitable[Any]) -> list[tuple[str, str]]:
        await self._all()
        await act
        return await self._all()


@pytest.fixture
async def ears(pool: Pool, database_url: str) -> AsyncIterator[Ears]:
    ears = Ears(pool, database_url)
    async with asyncio.timeout(20):
        await ears.open()
    yield ears
    await ears.close()


def work(queue: str = "default") -> list[tuple[str, str]]:
    return [("duly_work", queue)]


async def test_a_submit(ears: Ears, pool: Pool) -> None:
    assert await ears.during(put(pool, new_job(pool, queue="mail"))) == work("mail")
    soon = due_job(pool, pool.clock.now() + timedelta(minutes=5))
    ((channel, said),) = await ears.during(put(pool, soon))
    assert channel == "duly_due"
    assert said.startswith(f"{soon.shard}:{soon.job_id}:")
    assert await ears.during(put(pool, due_job(pool, pool.clock.now() + HOUR))) == []


async def test_a_submit_by_sql(ears: Ears, pool: Pool) -> None:
    assert await ears.during(pool.query("select duly.submit('noop', queue => 'mail')")) == work("mail")
    said = await ears.during(pool.query("select duly.submit('noop', run_at => duly.now() + interval '5 minutes')"))
    assert [channel for channel, _ in said] == ["duly_due"]
    assert await ears.during(pool.query("select duly.submit('noop', run_at => duly.now() + interval '1 hour')")) == []


@pytest.mark.parametrize("simple", [True, False])
async def test_a_fire(ears: Ears, pool: Pool, simple: bool) -> None:
    due = hours_ago(0)
    job = due_job(pool, due, queue="mail")
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    if simple:
        act = fire_as_seen(pool, job, due, due + HOUR, epoch=epoch, overlap="skip", max_queued=100)
    else:
        act = fire_now(pool, shard=job.shard, epoch=epoch, batch=fire_of(job, next_run_at=due + HOUR))
    assert await ears.during(act) == work("mail")


async def test_the_end_of_a_run_that_another_waits_for(ears: Ears, pool: Pool) -> None:
    due = hours_ago(2)
    job = due_job(pool, due)
    await put(pool, job)
    epoch = await lead(pool, job.shard)
    batch = fire_of(job, next_run_at=due + 3 * HOUR, scheduled=[due, due + HOUR], overlap="queue")
    fired: fires.Fired = await fire_now(pool, shard=job.shard, epoch=epoch, batch=batch)
    assert fired.live == 2
    claim = await take(pool)
    assert len(claim.runs) == 1
    assert await ears.during(runs.complete(pool, [succeeded(claim.runs[0])])) == work()


async def test_a_retry(ears: Ears, pool: Pool) -> None:
    """A retry that is due soon is announced: a worker may sleep until a later run. A poll finds a distant retry."""
    await put_now(pool, 2)
    soon, far = (await take(pool)).runs
    assert await ears.during(runs.requeue(pool, [Requeued(soon, "retrying", 5, 1, 2, ERROR)])) == work()
    assert await ears.during(runs.requeue(pool, [Requeued(far, "retrying", 500, 1, 2, ERROR)])) == []


async def test_a_rescue(ears: Ears, pool: Pool) -> None:
    await put_now(pool, 1)
    await take(pool)
    await pool.query("update duly.claims set lease_until = duly.now() - interval '1 second'")
    assert await ears.during(maintenance.rescue(pool)) == work()


async def test_a_resume(ears: Ears, pool: Pool, operations: Operations) -> None:
    request = JobRequest("noop", schedule="every 5m")
    job_id = str((await operations.submit(request, allow_unknown_handler=True)).job_id)
    assert await ears.during(operations.jobs.pause(job_id)) == []
    ((channel, said),) = await ears.during(operations.jobs.resume(job_id))
    assert channel == "duly_due"
    assert job_id in said


async def test_a_run_by_hand(ears: Ears, pool: Pool, operations: Operations) -> None:
    for overlap in ("skip", "parallel"):
        job = due_job(pool, pool.clock.now() + HOUR, policy=f'{{"overlap":"{overlap}"}}')
        await put(pool, job)
        assert await ears.during(operations.jobs.trigger(str(job.job_id))) == work()
