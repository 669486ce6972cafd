"""`ctx.progress()`: visible while the handler runs, from coroutines and threads, and gone when the run has ended."""

from __future__ import annotations

import asyncio
import threading

from duly import Context
from duly.maintenance.tidier import Tidier
from harness.store import count
from harness.waiting import eventually
from harness.worker import Workbench


async def test_it_is_seen_while_the_handler_runs_and_gone_when_it_has_ended(bench: Workbench) -> None:
    go_on = asyncio.Event()

    @bench.app.task()
    async def slow(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter\x00")
        await go_on.wait()

    job_id = await bench.submit(slow)
    async with bench.working():

        async def shown() -> bool:
            page = await bench.operations.runs.page(job_id)
            return page.items[0].progress is not None

        await eventually(shown, seconds=5)
        run = await bench.operations.runs.get((await bench.run_of(job_id)).run_id)
        assert run.progress is not None
        assert (run.progress.fraction, run.progress.note) == (0.25, "a quarter\ufffd")
        go_on.set()
        assert (await bench.succeeded(job_id)).progress is None
    assert await count(bench.pool, "progress") == 1
    tidier = Tidier(
        bench.pool, ledger_retention_seconds=1, audit_retention_seconds=86400, run_log_retention_seconds=3600
    )
    tidier.lead(True)
    await tidier.run_once()
    assert await count(bench.pool, "progress") == 0


async def test_threads_say_it_too_and_only_the_last_word_counts(bench: Workbench) -> None:
    go_on = threading.Event()

    @bench.app.task()
    def slow(ctx: Context) -> None:
        for step in range(10_000):
            ctx.progress(step / 10_000)
        ctx.progress(1, "done, nearly")
        go_on.wait(20)

    job_id = await bench.submit(slow)
    async with bench.working():

        async def last() -> bool:
            said = (await bench.run_of(job_id)).progress
            return said is not None and said.fraction == 1

        try:
            await eventually(last, seconds=10)
        finally:
            go_on.set()
        await bench.succeeded(job_id)


async def test_a_fraction_beyond_the_whole_is_the_handlers_error(bench: Workbench) -> None:
    @bench.app.task(max_retries=0)
    async def wrong(ctx: Context) -> None:
        ctx.progress(1.5)

    job_id = await bench.submit(wrong)
    async with bench.working():
        run = await bench.end_of(job_id, "dead")
    assert run.error is not None
    assert "0 to 1" in run.error.message
