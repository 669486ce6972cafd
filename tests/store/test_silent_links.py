"""Links that go silent without a reset, and nodes that no announcement reaches."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from duly.config import Settings
from duly.model import JobRequest, Policy
from duly.node import running_scheduler
from duly.operations import Operations
from duly.states import RunFlag
from duly.store.notifier import Notifier
from duly.store.pool import Pool
from harness.proxy import Proxy
from harness.scheduler import everything_read
from harness.store import count
from harness.waiting import eventually


async def test_without_notifications_nothing_near_is_late_or_lost(
    settings: Settings, operations: Operations, pool: Pool
) -> None:
    """The regular re-read is a minute away; without notifications the misfire grace sets the time between looks."""
    quiet = settings.model_copy(update={"notifications": False, "misfire_grace_seconds": 3.0})
    async with running_scheduler(pool, quiet) as node:
        await everything_read(node)
        due = pool.clock.now() + timedelta(seconds=2)
        soon = JobRequest(name="soon", handler="noop", schedule=due.isoformat())
        often = JobRequest(
            name="often", handler="noop", schedule="every 2s", policy=Policy(missed_window="SKIP", overlap="parallel")
        )
        ids = [(await operations.submit(one, allow_unknown_handler=True)).job_id for one in (soon, often)]

        async def fired() -> bool:
            return await count(pool, "runs", "job_id = $1", ids[0]) == 1 and await count(pool, "runs") >= 4

        await eventually(fired, seconds=15)
    assert await count(pool, "runs", "flags & $1 <> 0", int(RunFlag.MISSED)) == 0
    assert await count(pool, "history") == 0
    rows = await pool.query("select scheduled_at from duly.runs where job_id = $1 order by 1", ids[1])
    times = [row["scheduled_at"] for row in rows]
    assert times == [times[0] + n * timedelta(seconds=2) for n in range(len(times))]


async def test_a_listener_that_a_balancer_has_forgotten_is_replaced_within_seconds(
    database_url: str, pool: Pool
) -> None:
    heard: list[str | None] = []
    with Proxy(database_url) as proxy:
        notifier = Notifier(proxy.url, interval=0.5)
        notifier.listen("duly_due", heard.append)
        await notifier.start()
        try:
            await eventually(lambda: notifier.hearing)
            assert heard == [None]
            proxy.forget()
            await pool.query("select pg_notify('duly_due', 'lost')")
            # The listener is told to look when the loss is noticed, and again when the new connection listens.
            await eventually(lambda: heard == [None, None, None], seconds=15)
            await pool.query("select pg_notify('duly_due', 'heard')")
            await eventually(lambda: heard[-1] == "heard")
        finally:
            await notifier.stop()


async def test_a_session_that_does_not_listen_any_more_is_replaced(database_url: str, pool: Pool) -> None:
    """This is the case behind a pooler that was given as the direct address."""
    heard: list[str | None] = []
    notifier = Notifier(database_url, interval=0.2)
    notifier.listen("duly_due", heard.append)
    await notifier.start()
    try:
        await eventually(lambda: notifier.hearing)
        assert notifier._connection is not None
        await notifier._connection.execute("unlisten *")
        await eventually(lambda: len(heard) == 3)
        await pool.query("select pg_notify('duly_due', 'heard')")
        await eventually(lambda: heard[-1] == "heard")
    finally:
        await notifier.stop()


async def test_a_scheduler_looks_for_itself_while_its_listener_is_away(
    settings: Settings, operations: Operations, pool: Pool, database_url: str
) -> None:
    """LISTEN has a link of its own here, which does not come back; the pool's link works."""
    with Proxy(database_url) as proxy:
        direct = settings.model_copy(update={"direct_url": proxy.url, "misfire_grace_seconds": 3.0})
        async with running_scheduler(pool, direct) as node:
            assert node.notifier is not None
            await everything_read(node)
            await eventually(lambda: node.notifier is not None and node.notifier.hearing)
            proxy.refuse()
            await eventually(lambda: node.notifier is not None and not node.notifier.hearing)
            # Wait until the look that the loss itself causes is over.
            await asyncio.sleep(0.5)
            due = pool.clock.now() + timedelta(seconds=2)
            request = JobRequest(name="soon", handler="noop", schedule=due.isoformat())
            await operations.submit(request, allow_unknown_handler=True)

            async def fired() -> bool:
                return await count(pool, "runs", "flags = 0") == 1

            await eventually(fired, seconds=15)
