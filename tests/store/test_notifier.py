"""Listening: after a reconnect every listener of the node is told to look for itself."""

from __future__ import annotations

import asyncio
from functools import partial

from duly.store.notifier import Notifier
from duly.store.pool import Pool


async def test_what_was_announced_while_nobody_listened_is_looked_for(pool: Pool, database_url: str) -> None:
    heard: dict[str, asyncio.Queue[tuple[str | None, bool]]] = {
        "duly_due": asyncio.Queue(),
        "duly_work": asyncio.Queue(),
    }
    notifier = Notifier(database_url)

    async def look() -> None:
        """Waits until every listener is told to look, at a moment when the next announcement would be heard."""
        for queue in heard.values():
            while await queue.get() != (None, True):
                pass

    def note(channel: str, said: str | None) -> None:
        heard[channel].put_nowait((said, notifier.hearing))

    for channel in heard:
        notifier.listen(channel, partial(note, channel))
    await notifier.start()
    try:
        async with asyncio.timeout(20):
            await look()
            await pool.query("select pg_notify('duly_work', 'now')")
            assert await heard["duly_work"].get() == ("now", True)
            rows = await pool.query(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid() and query ilike 'listen%'"
            )
            assert len(rows) == 1
            await look()
            await pool.query("select pg_notify('duly_work', 'again')")
            assert await heard["duly_work"].get() == ("again", True)
    finally:
        await notifier.stop()
