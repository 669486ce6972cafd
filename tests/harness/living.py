"""Takes jobs through every kind of event, for tests of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from duly import Context, Duly, Permanent, Snooze
from duly.config import Settings
from duly.model import DEFAULT_TENANT
from duly.node import running_scheduler, running_worker
from duly.operations import StoreOperations
from duly.store import maintenance
from duly.store.pool import Pool
from harness.store import count, put_now, take
from harness.waiting import eventually


async def live(pool: Pool, settings: Settings) -> None:
    """Submits, fires, retries, snoozes, buries, redrives, cancels, pauses and rescues jobs, and looks at everything."""
    store_operations = await StoreOperations.open(pool, settings)
    operations = store_operations.for_tenant(DEFAULT_TENANT)
    app = Duly(settings=settings)
    snoozed: set[str] = set()

    @app.task()
    async def fine(ctx: Context) -> dict[str, int]:
        ctx.progress(0.5, "half")
        return {"n": 1}

    @app.task()
    async def late(ctx: Context) -> None:
        if ctx.run_id not in snoozed:
            snoozed.add(ctx.run_id)
            raise Snooze(0.01)

    @app.task(max_retries=1, retry_backoff="immediate")
    async def bad(ctx: Context) -> None:
        raise ValueError("bad")

    @app.task()
    async def never(ctx: Context) -> None:
        raise Permanent("never")

    async def submit(task: Callable[..., Any], **options: Any) -> str:
        request = app.request(task, **options)
        return str((await operations.submit(request, allow_unknown_handler=True)).job_id)

    # A worker that is gone: rescue takes its runs back.
    await put_now(pool, 3, handler="fine")
    assert len((await take(pool, limit=3, lease=0.01)).runs) == 3
    await asyncio.sleep(0.02)
    assert (await maintenance.rescue(pool)).requeued == 3

    await store_operations.tenants.set("default", max_jobs=1000)
    at = pool.clock.now() + timedelta(seconds=1)
    jobs = [await submit(task) for task in (fine, late, bad, never)]
    jobs.append(await submit(fine, schedule=at))
    jobs.append(await submit(fine, schedule="every 1s", max_runs=2, idempotency_key_template="own:{{job_id}}"))
    paused = await submit(fine, schedule="every 1h")
    await operations.jobs.pause(paused)
    await operations.jobs.resume(paused)
    await operations.jobs.change(paused, {"priority": 7})
    cancelled = await submit(fine, schedule=at + timedelta(hours=1))
    await operations.jobs.cancel(cancelled)
    async with running_scheduler(pool, settings), running_worker(pool, app.tasks, settings):
        await operations.jobs.trigger(paused)

        async def ended() -> bool:
            # Three runs claimed before, five single ones, two of the interval, and the triggered one.
            return await count(pool, "history", "status in ('succeeded', 'dead')") == 3 + 5 + 2 + 1

        await eventually(ended, seconds=30)
        [letter] = [one for one in (await operations.dead_letters.page()).items if one.handler == "never"]
        await operations.dead_letters.redrive(letter.run_id)

        async def dead_again() -> bool:
            return await count(pool, "dead_letters") == 2 and await count(pool, "runs") == 0

        await eventually(dead_again, seconds=30)
    await operations.cluster.status()
    await operations.counts()
    await operations.cluster.figures()
    await store_operations.for_tenant("default").counts()
    for job_id in jobs:
        await operations.explain.occurrence(job_id)
        await operations.runs.page(job_id)
    await operations.jobs.page()
    assert await count(pool, "jobs", "status_reason is not null") == 0
    assert await count(pool, "parked") == 0
    await app.close()
