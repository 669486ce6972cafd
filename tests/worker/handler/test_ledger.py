"""The ledger of idempotency keys: a run whose key is known succeeds without calling its handler."""

from __future__ import annotations

from duly import Context
from duly.maintenance.tidier import Tidier
from duly.operations import StoreOperations
from duly.store.pool import Pool
from harness.store import count
from harness.waiting import eventually
from harness.worker import Workbench

KEY = "{{name}}:{{date}}"


async def test_a_second_run_with_the_same_key_succeeds_without_calling_the_handler(bench: Workbench) -> None:
    called: list[str] = []

    @bench.app.task(idempotency_key_template=KEY)
    async def bill(ctx: Context) -> str:
        called.append(ctx.idempotency_key)
        return "billed"

    first = await bench.submit(bill, name="customer-7")
    async with bench.working():
        await bench.succeeded(first)
        second, other = await bench.submit(bill, name="customer-7"), await bench.submit(bill, name="customer-8")
        again = await bench.succeeded(second)
        await bench.succeeded(other)
    assert (again.status, again.deduplicated, again.result) == ("succeeded", True, None)
    assert (await bench.run_of(first)).deduplicated is False
    assert len(called) == 2
    assert await count(bench.pool, "ledger") == 2


async def test_a_failed_run_leaves_no_key(bench: Workbench) -> None:
    calls: list[int] = []

    @bench.app.task(idempotency_key_template=KEY, retry_backoff="immediate")
    async def bill(ctx: Context) -> None:
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("no")

    async with bench.working():
        await bench.succeeded(await bench.submit(bill, name="x"))
    assert calls == [1, 2]


async def test_the_default_key_costs_no_row(bench: Workbench) -> None:
    @bench.app.task()
    async def plain() -> None:
        pass

    async with bench.working():
        await bench.succeeded(await bench.submit(plain))
    assert await count(bench.pool, "ledger") == 0


async def test_a_key_is_forgotten_after_its_time(bench: Workbench, pool: Pool) -> None:
    @bench.app.task(idempotency_key_template="always")
    async def bill() -> None:
        pass

    async with bench.working():
        await bench.succeeded(await bench.submit(bill))
        await pool.query("update duly.ledger set completed_at = completed_at - interval '8 days'")
        assert (await bench.succeeded(await bench.submit(bill))).deduplicated is False
        assert (await bench.succeeded(await bench.submit(bill))).deduplicated is True
    tidier = Tidier(
        pool, ledger_retention_seconds=7 * 86400, audit_retention_seconds=86400, run_log_retention_seconds=3600
    )
    tidier.lead(True)
    await tidier.run_once()
    assert await count(pool, "ledger") == 1
    await pool.query("update duly.ledger set completed_at = completed_at - interval '8 days'")
    await tidier.run_once()
    assert await count(pool, "ledger") == 0


async def test_keys_too_long_for_an_index_are_known_all_the_same(bench: Workbench) -> None:
    @bench.app.task(idempotency_key_template="{{name}}" * 30)
    async def bill() -> None:
        pass

    async with bench.working():
        await bench.succeeded(await bench.submit(bill, name="é" * 200))
        assert (await bench.succeeded(await bench.submit(bill, name="é" * 200))).deduplicated is True


async def test_the_key_and_the_success_are_one_commit_in_a_handlers_transaction(bench: Workbench) -> None:
    await bench.pool.query("create table public.effects (run_id text not null)")

    @bench.app.task(idempotency_key_template="tx")
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("insert into effects values ($1)", ctx.run_id)

    async with bench.working():
        await bench.succeeded(await bench.submit(write))
        assert (await bench.succeeded(await bench.submit(write))).deduplicated is True
    assert (await bench.pool.query("select count(*) as count from public.effects"))[0]["count"] == 1


async def test_another_tenants_key_is_another_key(bench: Workbench) -> None:
    calls: list[str] = []

    @bench.app.task(idempotency_key_template="same")
    async def bill(ctx: Context) -> None:
        calls.append(ctx.run_id)

    async with bench.working():
        await bench.succeeded(await bench.submit(bill))
        others = (await StoreOperations.open(bench.pool, bench.settings)).for_tenant("other")
        other = await others.submit(bench.app.request(bill), allow_unknown_handler=True)

        async def done() -> bool:
            return await count(bench.pool, "history", "job_id = $1", other.job_id) == 1

        await eventually(done)
    assert len(calls) == 2
