"""One connection for the parts that take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from duly.store.pool import Pool, connection_options, translated_errors


class Turns(Pool):
    """A store's pool whose statements all go over one connection.

    Firer, claimer and completer of a test work one after the other. To take a connection from a pool for each of their
    statements costs more (50 µs) than the statement's way there and back (35 µs), and a year has 40,000 of them.
    """

    def __init__(self, pool: Pool, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        super().__init__(pool._pool, pool.url)
        self.clock = pool.clock
        self._connection = connection
        self._turn = asyncio.Lock()

    @classmethod
    async def on(cls, pool: Pool) -> Turns:
        with translated_errors(pool.url):
            return cls(pool, await asyncpg.connect(pool.url, timeout=30, **connection_options(pool.url)))

    async def _fetch(self, sql: str, args: Sequence[Any], timeout: float | None = None) -> list[asyncpg.Record]:
        async with self._turn:
            return await self._connection.fetch(sql, *args, timeout=timeout)

    async def close(self) -> None:
        """The connection alone: the pool is its owner's."""
        await self._connection.close()
