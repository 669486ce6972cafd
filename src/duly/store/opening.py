"""From settings to a store that answers: the user's PostgreSQL, or the embedded one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from duly.config import Settings
from duly.errors import DulyError
from duly.homes import default_home
from duly.store import embedded
from duly.store.migrate import check_version, migrate
from duly.store.pool import Pool

log = logging.getLogger("duly.store")

# How often each user of an embedded PostgreSQL looks whether it is still there.
WATCH_SECONDS = 1.0
# One that cannot be started, or does not live for long, is started again less and less often.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LIVED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OpenStore:
    pool: Pool
    embedded: bool
    """The PostgreSQL is ours: it was started for this process, or is shared with others on this machine."""


@asynccontextmanager
async def open_store(
    settings: Settings, *, size: int | None = None, migrating: bool = False, checked: bool = True
) -> AsyncIterator[OpenStore]:
    """Connect, and make sure that the store is of this version.

    The embedded store is always brought up to date: nobody else looks after it. The user's own only if `migrating`.
    """
    server, watch = None, None
    url = settings.database_url
    if url is None:
        home = settings.home or default_home()
        server = await asyncio.to_thread(embedded.start, home)
        url = server.url
        watch = asyncio.create_task(_keep_up(server), name="duly-embedded")
    try:
        pool = await Pool.connect(url, size=size or settings.pool_size, pgbouncer=settings.pgbouncer)
        try:
            if server is not None or migrating:
                await migrate(pool, shards=settings.shards)
                await pool.measure_clock()
            elif checked:
                await check_version(pool)
            yield OpenStore(pool, embedded=server is not None)
        finally:
            await pool.close()
    finally:
        if watch is not None:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        if server is not None:
            await asyncio.to_thread(server.release)


async def _keep_up(server: embedded.EmbeddedServer) -> None:
    """Start an embedded PostgreSQL again that was killed or crashed: nobody else looks after it."""
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), FIRST_PAUSE
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if not await asyncio.to_thread(lambda: server.ended):
            continue
        if loop.time() - began >= LIVED_SECONDS:
            pause = FIRST_PAUSE
        log.error("the embedded PostgreSQL in %s has ended; starting it again in %g s", server.home, pause)
        await asyncio.sleep(pause)
        pause, began = min(LONGEST_PAUSE, pause * 2), loop.time()
        try:
            await asyncio.to_thread(server.revive)
        except DulyError as error:
            log.error("it did not start: %s", error)
        else:
            log.warning("the embedded PostgreSQL in %s is up again", server.home)
