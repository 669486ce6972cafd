"""`ctx.transaction()`: the writes of a handler and the success of its run are one commit."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from duly import Context
from duly.errors import LeaseLost
from harness.store import count, rescue_from_the_living
from harness.worker import Workbench, wait_idle


@pytest.fixture
async def bench(bench: Workbench) -> Workbench:
    await bench.pool.query("create table public.effects (run_id text not null)")
    return bench


async def effects(bench: Workbench) -> int:
    return int((await bench.pool.query("select count(*) as count from public.effects"))[0]["count"])


async def test_the_write_and_the_success_are_one_commit(bench: Workbench) -> None:
    inside = asyncio.Event()
    go_on = asyncio.Event()

    @bench.app.task()
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("insert into effects values ($1)", ctx.run_id)
            inside.set()
            await go_on.wait()

    job_id = await bench.submit(write)
    async with bench.working():
        await inside.wait()
        assert await effects(bench) == 0
        assert (await bench.run_of(job_id)).status == "running"
        go_on.set()
        run = await bench.succeeded(job_id)
    assert run.attempt == 1
    assert run.started_at is not None
    assert await effects(bench) == 1
    assert await count(bench.pool, "claims") == 0


async def test_an_error_inside_rolls_both_back_and_the_run_is_retried(bench: Workbench) -> None:
    @bench.app.task(retry_backoff="immediate")
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("insert into effects values ($1)", ctx.run_id)
            if ctx.attempt == 1:
                raise ValueError("not yet")

    job_id = await bench.submit(write)
    async with bench.working():
        run = await bench.succeeded(job_id)
    assert run.attempt == 2
    assert await effects(bench) == 1


async def test_what_follows_the_commit_changes_nothing(bench: Workbench) -> None:
    @bench.app.task()
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("insert into effects values ($1)", ctx.run_id)
        raise ValueError("too late")

    job_id = await bench.submit(write)
    async with bench.working() as worker:
        run = await bench.succeeded(job_id)
        await wait_idle(worker)
    assert (run.status, [attempt.error for attempt in run.attempts]) == ("succeeded", [None])
    assert await count(bench.pool, "runs") == await count(bench.pool, "dead_letters") == 0


async def test_a_lost_lease_rolls_both_back(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not know yet that its lease is lost: the commit itself is fenced."""
    told: list[BaseException] = []
    bench.settings = bench.settings.model_copy(update={"worker_lease_seconds": 60})

    async def no_beat(_: object) -> None:
        """A heartbeat between the rescue and the commit would tell the worker. One comes whenever LISTEN is back."""

    @bench.app.task()
    async def write(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        try:
            async with ctx.transaction() as connection:
                await connection.execute("insert into effects values ($1)", ctx.run_id)
                await rescue_from_the_living(bench.pool)
        except LeaseLost as error:
            told.append(error)
            raise

    async with bench.working() as worker:
        monkeypatch.setattr(worker.leases, "_beat", no_beat)
        run = await bench.succeeded(await bench.submit(write))
    assert run.attempt == 2
    assert [type(error) for error in told] == [LeaseLost]
    assert await effects(bench) == 0


async def test_users_errors_are_their_own_and_their_session_state_does_not_leak(bench: Workbench) -> None:
    seen: list[str] = []

    @bench.app.task(max_retries=0)
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            seen.append(await connection.fetchval("show enable_seqscan"))
            seen.append(await connection.fetchval("show work_mem"))
            await connection.execute("set work_mem = '77MB'")
            await connection.execute("select * from no_such_table")

    first, second = await bench.submit(write), await bench.submit(write)
    async with bench.working(concurrency=1):
        for job_id in (first, second):
            run = await bench.end_of(job_id, "dead")
            assert run.error is not None
            assert "UndefinedTableError" in run.error.type
    assert seen[0] == "on"
    assert seen[1] == seen[3] != "77MB"


async def test_it_completes_a_run_once(bench: Workbench) -> None:
    @bench.app.task(max_retries=0)
    async def twice(ctx: Context) -> None:
        async with ctx.transaction():
            pass
        async with ctx.transaction():
            pass

    job_id = await bench.submit(twice)
    async with bench.working():
        await bench.succeeded(job_id)


async def test_handlers_that_hold_transactions_do_not_hold_up_the_worker(bench: Workbench) -> None:
    release = asyncio.Event()
    holding = asyncio.Event()

    @bench.app.task()
    async def hold(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("select 1")
            holding.set()
            await release.wait()

    @bench.app.task()
    async def quick() -> None:
        pass

    # More handlers than there are connections of any kind.
    held = [await bench.submit(hold) for _ in range(30)]
    async with bench.working():
        await holding.wait()
        await bench.succeeded(await bench.submit(quick))
        release.set()
        for job_id in held:
            await bench.succeeded(job_id)


async def test_an_own_connection_is_an_asyncpg_one(bench: Workbench) -> None:
    seen: list[bool] = []

    @bench.app.task()
    async def look(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            seen.append(isinstance(await connection.fetchrow("select 1 as one"), asyncpg.Record))

    async with bench.working():
        await bench.succeeded(await bench.submit(look))
    assert seen == [True]
    assert bench.settings.ledger_retention_seconds == timedelta(days=7).total_seconds()
