"""From settings to a store that answers: the user's PostgreSQL, or the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from duly.config import Settings
from duly.store import embedded
from duly.store.migrate import check_version, migrate
from duly.store.pool import Pool


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
    server = None
    url = settings.database_url
    if url is None:
        home = settings.home or embedded.default_home()
        server = await asyncio.to_thread(embedded.start, home)
        url = server.url
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
        if server is not None:
            await asyncio.to_thread(server.release)
