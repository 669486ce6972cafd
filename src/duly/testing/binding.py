"""Apps on the test's store: all that they submit, from whichever event loop, goes there and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from duly.app import Duly
from duly.config import Settings
from duly.operations import StoreOperations
from duly.store.pool import Pool


class Binding:
    """Redirects apps to the test's store for as long as a test runs.

    Event loops other than the test's (such as that of `submit_sync`) get connections of their own, because connections
    belong to a loop, with the same clock.
    """

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings
        self._home = asyncio.get_running_loop()
        self._others: set[asyncio.AbstractEventLoop] = set()
        self._apps: list[tuple[Duly, Callable[[], None]]] = []

    def bind(self, app: Duly) -> None:
        if all(app is not bound for bound, _ in self._apps):
            self._apps.append((app, app.redirect(self._opening)))

    async def close(self) -> None:
        """Gives the apps their own stores back."""
        for app, restore in self._apps:
            await app.close()
            for loop in self._others:
                if loop.is_running():
                    with suppress(RuntimeError):  # the loop ended meanwhile
                        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(app.close(), loop))
            restore()

    @asynccontextmanager
    async def _opening(self, app: Duly) -> AsyncIterator[StoreOperations]:
        loop = asyncio.get_running_loop()
        if loop is self._home:
            yield await StoreOperations.open(self._pool, self._settings, local_handlers=app.tasks.keys())
            return
        self._others.add(loop)
        pool = await Pool.connect(self._pool.url, size=2, schema=self._pool.schema)
        pool.clock = self._pool.clock
        try:
            yield await StoreOperations.open(pool, self._settings, local_handlers=app.tasks.keys())
        finally:
            await pool.close()
