"""Opens the store that the settings name: the user's PostgreSQL, or the embedded one."""

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

# Interval at which each user of an embedded PostgreSQL checks that it is still running.
WATCH_SECONDS = 1.0
# Pauses before starting it again: they double while it does not start, or ends within LIVED_SECONDS.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
LIVED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OpenStore:
    pool: Pool
    embedded: bool
    """Duly runs this PostgreSQL: it was started for this process, or is shared with others on this machine."""


@asynccontextmanager
async def open_store(
    settings: Settings, *, size: int | None = None, migrating: bool = False, checked: bool = True
) -> AsyncIterator[OpenStore]:
    """Connects, and makes sure that this version works on the store.

    The embedded store is always migrated, because no one else maintains it; the user's own only if `migrating`.
    """
    server, watch = None, None
    url = settings.database_url
    if url is None:
        home = settings.home or default_home()
        server = await asyncio.to_thread(embedded.start, home)
        url = server.url
        watch = asyncio.create_task(_keep_up(server), name="duly-embedded")
    try:
        pool = await Pool.connect(
            url, size=size or settings.pool_size, pgbouncer=settings.pgbouncer, schema=settings.schema
        )
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
    """Restarts an embedded PostgreSQL that was killed or crashed: no one else maintains it."""
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), FIRST_PAUSE_SECONDS
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if not await asyncio.to_thread(lambda: server.ended):
            continue
        if loop.time() - began >= LIVED_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        log.error("the embedded PostgreSQL in %s has ended; starting it again in %g s", server.home, pause)
        await asyncio.sleep(pause)
        pause, began = min(MAX_PAUSE_SECONDS, pause * 2), loop.time()
        try:
            await asyncio.to_thread(server.revive)
        except DulyError as error:
            log.error("the embedded PostgreSQL did not start: %s", error)
        else:
            log.warning("the embedded PostgreSQL in %s is up again", server.home)
