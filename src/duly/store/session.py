"""One direct connection, for session locks, which live as long as it does.

Never through a pooler: there the next statement may run in another session, and a lock would stay with a stranger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg

from duly.schema_name import DEFAULT_SCHEMA
from duly.store.pool import connection_options, translated_errors
from duly.store.statements import statement


class DirectSession:
    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], url: str, schema: str) -> None:
        self._connection = connection
        self._url = url
        self.schema = schema

    @classmethod
    async def open(
        cls, url: str, *, lost: Callable[[DirectSession], None], timeout: float = 10, schema: str = DEFAULT_SCHEMA
    ) -> DirectSession:
        """`lost` is called once when the connection ends, for whatever reason."""
        with translated_errors(url):
            connection = await asyncpg.connect(url, timeout=timeout, **connection_options(url))
        self = cls(connection, url, schema)
        connection.add_termination_listener(lambda _: lost(self))
        return self

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        with translated_errors(self._url):
            return await self._connection.fetchrow(statement(name, self.schema), *args)

    @property
    def closed(self) -> bool:
        return self._connection.is_closed()

    def end(self) -> None:
        """Closes at once, without telling the server, which releases the locks when it sees the connection gone."""
        if not self._connection.is_closed():
            self._connection.terminate()
