"""A pool that sends every statement over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from duly.store.pool import Pool, connection_options, translated_errors


class SingleConnection(Pool):
    """For the firer, claimer and completer of a test, which work one after the other.

    Taking a connection from a pool costs 50 µs per statement, more than the statement's round trip (35 µs), and a
    virtual year has 40,000 statements. Transactions still use the connections of `pool`.
    """

    def __init__(self, pool: Pool, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        super().__init__(pool.connections, pool.url, schema=pool.schema)
        self.clock = pool.clock
        self._steps = pool._steps
        self._connection = connection
        self._lock = asyncio.Lock()

    @classmethod
    async def on(cls, pool: Pool) -> SingleConnection:
        with translated_errors(pool.url):
            return cls(pool, await asyncpg.connect(pool.url, timeout=30, **connection_options(pool.url)))

    async def _fetch(self, sql: str, args: Sequence[Any], timeout: float | None = None) -> list[asyncpg.Record]:
        async with self._lock:
            return await self._connection.fetch(sql, *args, timeout=timeout)

    async def close(self) -> None:
        """Closes this connection only; `pool` belongs to its maker."""
        await self._connection.close()
