"""`ctx.transaction()`: commits the handler's writes and the run's success together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from duly.clock import Clock
from duly.errors import LeaseLost, Unable
from duly.model import Succeeded
from duly.store import runs
from duly.store.pool import Pool, store_cannot_now
from duly.worker.execution import Execution

if TYPE_CHECKING:
    from duly.store.pool import Connection


class Transactions:
    """A connection pool for handlers: they may hold a connection for long, and claims and outcomes must not wait."""

    def __init__(self, url: str, clock: Clock, *, size: int, pgbouncer: bool, schema: str) -> None:
        self._url = url
        self._clock = clock
        self._size = size
        self._pgbouncer = pgbouncer
        self._schema = schema
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    @asynccontextmanager
    async def open(self, execution: Execution) -> AsyncIterator[Connection]:
        if execution.recorded:
            raise RuntimeError("ctx.transaction() has already completed this run")
        pool = await self._connected()
        recorded = False
        try:
            async with pool.lend() as within:
                yield within.connection
                assert execution.started_us is not None
                success = Succeeded(
                    execution.run, execution.started_us, self._clock.now_us(), key=execution.ledger_key
                )  # fmt: skip
                recorded = True
                # The fence: a claim that is gone records nothing. From here to the commit, rescue cannot take the run.
                if execution.stop is not None or await runs.complete(within, [success]) == 0:
                    raise LeaseLost("this worker no longer holds the run: the transaction is rolled back")
        except Exception as error:
            # After the record, an error of the store is not the handler's failure. History decides whether the commit
            # went through: the run is returned only if it did not, and no attempt counts.
            if recorded and store_cannot_now(error):
                raise Unable(f"the end of its transaction was not confirmed: {error}") from error
            raise
        execution.recorded = True

    async def _connected(self) -> Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await Pool.connect(
                    self._url, size=self._size, pgbouncer=self._pgbouncer, for_handlers=True, schema=self._schema
                )  # fmt: skip
        return self._pool
