"""What happens once: transactions of the handler's own, the ledger of idempotency keys, and what is said meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly import Context, Duly
from duly.config import Settings
from duly.errors import LeaseLost
from duly.maintenance.tidier import Tidier
from duly.model import Run
from duly.node import running_worker
from duly.operations import Operations
from duly.store.pool import Pool
from duly.worker.worker import Worker
from harness.store import count, eventually, rescue_from_the_living


class Desk:
    def __init__(self, pool: Pool, settings: Settings, operations: Operations) -> None:
        self.pool = pool
        self.settings = settings
        self.operations = operations
        self.app = Duly(settings=settings)

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        async with running_worker(self.pool, self.app.tasks, self.settings, **options) as worker:
            yield worker

    async def submit(self, task: Callable[..., Any], **options: Any) -> str:
        request = self.app.request(task, **options)
        return str((await self.operations.submit(request, allow_unknown_handler=True)).job_id)

    async def run_of(self, job_id: str) -> Run:
        return (await self.operations.job_runs(job_id)).items[0]

    async def ended(self, job_id: str, status: str = "succeeded") -> Run:
        async def there() -> bool:
            page = await self.operations.job_runs(job_id)
            return bool(page.items) and page.items[0].status == status

        await eventually(there)
        return await self.run_of(job_id)

    async def rows(self) -> int:
        return int((await self.pool.query("select count(*) as count from public.effects"))[0]["count"])


@pytest.fixture
async def desk(pool: Pool, settings: Settings, operations: Operations) -> AsyncIterator[Desk]:
    await pool.query("create table public.effects (run_id text not null)")
    desk = Desk(pool, settings, operations)
    yield desk
    await desk.app.close()


class TestTransaction:
    async def test_the_write_and_the_success_are_one_commit(self, desk: Desk) -> None:
        inside = asyncio.Event()
        go_on = asyncio.Event()

        @desk.app.task()
        async def write(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute("insert into effects values ($1)", ctx.run_id)
                inside.set()
                await go_on.wait()

        job_id = await desk.submit(write)
        async with desk.working():
            await inside.wait()
            assert await desk.rows() == 0
            assert (await desk.run_of(job_id)).status == "running"
            go_on.set()
            run = await desk.ended(job_id)
        assert run.attempt == 1
        assert run.started_at is not None
        assert await desk.rows() == 1
        assert await count(desk.pool, "claims") == 0

    async def test_an_error_inside_rolls_both_back_and_the_run_is_retried(self, desk: Desk) -> None:
        @desk.app.task(retry_backoff="immediate")
        async def write(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute("insert into effects values ($1)", ctx.run_id)
                if ctx.attempt == 1:
                    raise ValueError("not yet")

        job_id = await desk.submit(write)
        async with desk.working():
            run = await desk.ended(job_id)
        assert run.attempt == 2
        assert await desk.rows() == 1

    async def test_what_follows_the_commit_changes_nothing(self, desk: Desk) -> None:
        @desk.app.task()
        async def write(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute("insert into effects values ($1)", ctx.run_id)
            raise ValueError("too late")

        job_id = await desk.submit(write)
        async with desk.working() as worker:
            run = await desk.ended(job_id)
            await worker.wait_idle()
        assert (run.status, [attempt.error for attempt in run.attempts]) == ("succeeded", [None])
        assert await count(desk.pool, "runs") == await count(desk.pool, "dead_letters") == 0

    async def test_a_lost_lease_rolls_both_back(self, desk: Desk) -> None:
        """The worker does not know yet; the fence is in the commit itself."""
        told: list[BaseException] = []

        @desk.app.task()
        async def write(ctx: Context) -> None:
            if ctx.attempt > 1:
                return
            try:
                async with ctx.transaction() as connection:
                    await connection.execute("insert into effects values ($1)", ctx.run_id)
                    await rescue_from_the_living(desk.pool)
            except LeaseLost as error:
                told.append(error)
                raise

        job_id = await desk.submit(write)
        async with desk.working():
            run = await desk.ended(job_id)
        assert run.attempt == 2
        assert [type(error) for error in told] == [LeaseLost]
        assert await desk.rows() == 0

    async def test_users_errors_are_their_own_and_their_session_state_does_not_leak(self, desk: Desk) -> None:
        seen: list[str] = []

        @desk.app.task(max_retries=0)
        async def write(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                seen.append(await connection.fetchval("show enable_seqscan"))
                seen.append(await connection.fetchval("show work_mem"))
                await connection.execute("set work_mem = '77MB'")
                await connection.execute("select * from no_such_table")

        first, second = await desk.submit(write), await desk.submit(write)
        async with desk.working(concurrency=1):
            for job_id in (first, second):
                run = await desk.ended(job_id, "dead")
                assert run.error is not None
                assert "UndefinedTableError" in run.error.type
        assert seen[0] == "on"
        assert seen[1] == seen[3] != "77MB"

    async def test_it_completes_a_run_once(self, desk: Desk) -> None:
        @desk.app.task(max_retries=0)
        async def twice(ctx: Context) -> None:
            async with ctx.transaction():
                pass
            async with ctx.transaction():
                pass

        job_id = await desk.submit(twice)
        async with desk.working():
            await desk.ended(job_id)

    async def test_handlers_that_hold_transactions_do_not_hold_up_the_worker(self, desk: Desk) -> None:
        release = asyncio.Event()
        holding = asyncio.Event()

        @desk.app.task()
        async def hold(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute("select 1")
                holding.set()
                await release.wait()

        @desk.app.task()
        async def quick() -> None:
            pass

        # More than there are connections of any kind.
        held = [await desk.submit(hold) for _ in range(30)]
        async with desk.working():
            await holding.wait()
            await desk.ended(await desk.submit(quick))
            release.set()
            for job_id in held:
                await desk.ended(job_id)


class TestLedger:
    KEY = "{{name}}:{{date}}"

    async def test_a_second_run_with_the_same_key_succeeds_without_calling_the_handler(self, desk: Desk) -> None:
        called: list[str] = []

        @desk.app.task(idempotency_key_template=self.KEY)
        async def bill(ctx: Context) -> str:
            called.append(ctx.idempotency_key)
            return "billed"

        first = await desk.submit(bill, name="customer-7")
        async with desk.working():
            await desk.ended(first)
            second, other = await desk.submit(bill, name="customer-7"), await desk.submit(bill, name="customer-8")
            again = await desk.ended(second)
            await desk.ended(other)
        assert (again.status, again.deduplicated, again.result) == ("succeeded", True, None)
        assert (await desk.run_of(first)).deduplicated is False
        assert len(called) == 2
        assert await count(desk.pool, "ledger") == 2

    async def test_a_failed_run_leaves_no_key(self, desk: Desk) -> None:
        calls: list[int] = []

        @desk.app.task(idempotency_key_template=self.KEY, retry_backoff="immediate")
        async def bill(ctx: Context) -> None:
            calls.append(ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError("no")

        async with desk.working():
            await desk.ended(await desk.submit(bill, name="x"))
        assert calls == [1, 2]

    async def test_the_default_key_costs_no_row(self, desk: Desk) -> None:
        @desk.app.task()
        async def plain() -> None:
            pass

        async with desk.working():
            await desk.ended(await desk.submit(plain))
        assert await count(desk.pool, "ledger") == 0

    async def test_a_key_is_forgotten_after_its_time(self, desk: Desk, pool: Pool) -> None:
        @desk.app.task(idempotency_key_template="always")
        async def bill() -> None:
            pass

        async with desk.working():
            await desk.ended(await desk.submit(bill))
            await pool.query("update duly.ledger set completed_at = completed_at - interval '8 days'")
            assert (await desk.ended(await desk.submit(bill))).deduplicated is False
            assert (await desk.ended(await desk.submit(bill))).deduplicated is True
        tidier = Tidier(pool, ledger_retention_seconds=7 * 86400)
        tidier.lead(True)
        await tidier.run_once()
        assert await count(pool, "ledger") == 1
        await pool.query("update duly.ledger set completed_at = completed_at - interval '8 days'")
        await tidier.run_once()
        assert await count(pool, "ledger") == 0

    async def test_keys_too_long_for_an_index_are_known_all_the_same(self, desk: Desk) -> None:
        @desk.app.task(idempotency_key_template="{{name}}" * 30)
        async def bill() -> None:
            pass

        async with desk.working():
            await desk.ended(await desk.submit(bill, name="é" * 200))
            assert (await desk.ended(await desk.submit(bill, name="é" * 200))).deduplicated is True

    async def test_the_key_and_the_success_are_one_commit_in_a_handlers_transaction(self, desk: Desk) -> None:
        @desk.app.task(idempotency_key_template="tx")
        async def write(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute("insert into effects values ($1)", ctx.run_id)

        async with desk.working():
            await desk.ended(await desk.submit(write))
            assert (await desk.ended(await desk.submit(write))).deduplicated is True
        assert await desk.rows() == 1

    async def test_another_tenants_key_is_another_key(self, desk: Desk) -> None:
        calls: list[str] = []

        @desk.app.task(idempotency_key_template="same")
        async def bill(ctx: Context) -> None:
            calls.append(ctx.run_id)

        async with desk.working():
            await desk.ended(await desk.submit(bill))
            from dataclasses import replace

            request = replace(desk.app.request(bill), tenant="other")
            other = await desk.operations.submit(request, allow_unknown_handler=True)

            async def done() -> bool:
                return await count(desk.pool, "history", "job_id = $1", other.job_id) == 1

            await eventually(done)
        assert len(calls) == 2


class TestProgress:
    async def test_it_is_seen_while_the_handler_runs_and_gone_when_it_has_ended(self, desk: Desk) -> None:
        go_on = asyncio.Event()

        @desk.app.task()
        async def slow(ctx: Context) -> None:
            ctx.progress(0.25, "a quarter\x00")
            await go_on.wait()

        job_id = await desk.submit(slow)
        async with desk.working():

            async def shown() -> bool:
                page = await desk.operations.job_runs(job_id)
                return page.items[0].progress is not None

            await eventually(shown, seconds=5)
            run = await desk.operations.get_run((await desk.run_of(job_id)).run_id)
            assert run.progress is not None
            assert (run.progress.fraction, run.progress.note) == (0.25, "a quarter\ufffd")
            go_on.set()
            assert (await desk.ended(job_id)).progress is None
        assert await count(desk.pool, "progress") == 1
        tidier = Tidier(desk.pool, ledger_retention_seconds=1)
        tidier.lead(True)
        await tidier.run_once()
        assert await count(desk.pool, "progress") == 0

    async def test_threads_say_it_too_and_only_the_last_word_counts(self, desk: Desk) -> None:
        go_on = threading.Event()

        @desk.app.task()
        def slow(ctx: Context) -> None:
            for step in range(10_000):
                ctx.progress(step / 10_000)
            ctx.progress(1, "done, nearly")
            go_on.wait(20)

        job_id = await desk.submit(slow)
        async with desk.working():

            async def last() -> bool:
                said = (await desk.run_of(job_id)).progress
                return said is not None and said.fraction == 1

            try:
                await eventually(last, seconds=10)
            finally:
                go_on.set()
            await desk.ended(job_id)

    async def test_a_fraction_beyond_the_whole_is_the_handlers_error(self, desk: Desk) -> None:
        @desk.app.task(max_retries=0)
        async def wrong(ctx: Context) -> None:
            ctx.progress(1.5)

        job_id = await desk.submit(wrong)
        async with desk.working():
            run = await desk.ended(job_id, "dead")
        assert run.error is not None
        assert "0 to 1" in run.error.message


class TestCancel:
    async def test_a_waiting_run_ends_at_once(self, desk: Desk) -> None:
        @desk.app.task()
        async def never() -> None:
            raise AssertionError("it was cancelled")

        job_id = await desk.submit(never)
        run = await desk.operations.cancel_run((await desk.run_of(job_id)).run_id)
        assert run.status == "cancelled"
        async with desk.working() as worker:
            await worker.wait_idle()
        assert (await desk.operations.get_job(job_id)).status == "completed"

    async def test_a_running_one_is_told_within_a_second(self, desk: Desk) -> None:
        began = asyncio.Event()
        told_after: list[float] = []
        loop = asyncio.get_running_loop()

        @desk.app.task()
        async def slow(ctx: Context) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                told_after.append(loop.time())
                assert ctx.cancelled

        job_id = await desk.submit(slow)
        async with desk.working():
            await began.wait()
            asked = loop.time()
            assert (await desk.operations.cancel_run((await desk.run_of(job_id)).run_id)).status == "running"
            run = await desk.ended(job_id, "cancelled")
        assert told_after[0] - asked < 1
        assert run.error is not None
        assert run.error.type == "Cancelled"
        assert await count(desk.pool, "dead_letters") == 0

    async def test_without_notifications_it_is_told_within_a_second_as_well(
        self, desk: Desk, settings: Settings
    ) -> None:
        desk.settings = settings.model_copy(
            update={"notifications": False, "worker_lease_seconds": 15.0, "heartbeat_seconds": None}
        )
        began = asyncio.Event()
        told: list[float] = []
        loop = asyncio.get_running_loop()

        @desk.app.task()
        async def slow() -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                told.append(loop.time())

        job_id = await desk.submit(slow)
        async with desk.working():
            await began.wait()
            asked = loop.time()
            await desk.operations.cancel_run((await desk.run_of(job_id)).run_id)
            await desk.ended(job_id, "cancelled")
        assert told[0] - asked < 1.5

    async def test_a_handler_that_ignores_it_is_given_up(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("duly.worker.executor.ABANDON_SECONDS", 0.2)
        began, end = asyncio.Event(), asyncio.Event()

        @desk.app.task(timeout_seconds=0.2, max_retries=0)
        async def stubborn() -> None:
            began.set()
            while not end.is_set():
                try:
                    await end.wait()
                except asyncio.CancelledError:
                    continue

        job_id = await desk.submit(stubborn)
        async with desk.working():
            run = await desk.ended(job_id, "dead")
            end.set()
        assert run.error is not None
        assert run.error.type == "timeout"


async def test_an_own_connection_is_an_asyncpg_one(desk: Desk) -> None:
    seen: list[bool] = []

    @desk.app.task()
    async def look(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            seen.append(isinstance(await connection.fetchrow("select 1 as one"), asyncpg.Record))

    async with desk.working():
        await desk.ended(await desk.submit(look))
    assert seen == [True]
    assert desk.settings.ledger_retention_seconds == timedelta(days=7).total_seconds()
