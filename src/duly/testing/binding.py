"""Apps on the test's store: what they submit, and from wherever, goes there and nowhere else."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from duly.app import Duly
from duly.config import Settings
from duly.operations import Operations
from duly.store.pool import Pool


class Binding:
    """Gives apps their operations for as long as a test runs.

    An app asks for its operations whenever it needs its store, from the event loop it is called on, and that question
    is answered here instead. Other loops than the test's (such as that of `submit_sync`) get connections of their own,
    because connections belong to a loop, with the same clock.
    """

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._settings = settings
        self._clock = pool.clock
        self._home = asyncio.get_running_loop()
        self._pools = {self._home: pool}
        self._locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._apps: list[Duly] = []

    def bind(self, app: Duly) -> None:
        if any(app is bound for bound in self._apps):
            return
        known: dict[asyncio.AbstractEventLoop, Operations] = {}

        async def operations() -> Operations:
            loop = asyncio.get_running_loop()
            async with self._locks.setdefault(loop, asyncio.Lock()):
                if loop not in known:
                    pool = await self._pool_of(loop)
                    known[loop] = await Operations.open(pool, self._settings, local_handlers=app.tasks.keys())
            return known[loop]

        async def close() -> None:
            loop = asyncio.get_running_loop()
            known.pop(loop, None)
            if loop is not self._home and (pool := self._pools.pop(loop, None)) is not None:
                await pool.close()

        # Before the class's own, for this app alone.
        app.__dict__.update(operations=operations, close=close)
        self._apps.append(app)

    async def close(self) -> None:
        """The apps are what they were."""
        for app in self._apps:
            del app.__dict__["operations"], app.__dict__["close"]
        for loop, pool in self._pools.items():
            if loop is not self._home and loop.is_running():
                with suppress(RuntimeError):  # it ended meanwhile
                    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pool.close(), loop))

    async def _pool_of(self, loop: asyncio.AbstractEventLoop) -> Pool:
        if loop not in self._pools:
            pool = await Pool.connect(self._pools[self._home].url, size=2)
            pool.clock = self._clock
            self._pools[loop] = pool
        return self._pools[loop]
