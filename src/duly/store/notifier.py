"""LISTEN on a connection of its own.

A notification only makes something happen sooner: it may be lost (a pooler, a failover, a reconnect), so every listener
also polls. When the connection is lost and when it is back, every listener is called with None: poll now.

A connection that only listens cannot tell silence from a dead link: a balancer that forgets an idle flow sends no
reset. So the notifier asks on its own connection at each interval whether the session still listens, and replaces a
connection that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import asyncpg

from duly.schema_name import DEFAULT_SCHEMA
from duly.service import Service
from duly.store.pool import connection_options, translated_errors
from duly.store.statements import statement
from duly.store.translation import in_schema

log = logging.getLogger("duly.store")

# Timeout of that question. A session that only listens answers in a millisecond; a slower one delivers too late.
ANSWER_SECONDS = 2.0

Listener = Callable[[str | None], None]


class Notifier(Service):
    """Keeps one listening connection alive."""

    interval = 5.0

    def __init__(self, url: str, *, interval: float | None = None, schema: str = DEFAULT_SCHEMA) -> None:
        """`interval`: seconds between two questions whether the connection still listens."""
        super().__init__()
        if interval is not None:
            self.interval = interval
        self._url = url
        self._schema = schema
        self._listeners: dict[str, list[Listener]] = {}
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def hearing(self) -> bool:
        """Whether a notification would arrive, as far as is known: the last question was answered."""
        return self._connection is not None and not self._connection.is_closed()

    def listen(self, channel: str, listener: Listener) -> None:
        """Registers a listener of a channel, which statements call by the same name. Only before start."""
        self._listeners.setdefault(in_schema(channel, self._schema), []).append(listener)

    async def run_once(self) -> float | None:
        if self._connection is not None and not await self._listens(self._connection):
            self._connection.terminate()
        if not self.hearing:
            await self._connect()
        return None

    async def stop(self) -> None:
        await super().stop()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _listens(self, connection: asyncpg.Connection[asyncpg.Record]) -> bool:
        try:
            channels = await connection.fetchval(statement("stores/listening"), timeout=ANSWER_SECONDS)
        except (TimeoutError, OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
            return False
        return set(self._listeners) <= set(channels)

    async def _connect(self) -> None:
        with translated_errors(self._url):
            connection = await asyncpg.connect(
                self._url, timeout=10, command_timeout=ANSWER_SECONDS, **connection_options(self._url)
            )
            try:
                for channel in self._listeners:
                    await connection.add_listener(channel, self._heard)
            except BaseException:
                connection.terminate()
                raise
        connection.add_termination_listener(self._lost)
        self._connection = connection
        # Notifications sent meanwhile are lost.
        self._tell_to_look()

    def _tell_to_look(self) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener(None)

    def _heard(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        for listener in self._listeners.get(channel, ()):
            listener(str(payload))

    def _lost(self, _connection: Any) -> None:
        if not self.stopping:
            log.warning("the listening connection was lost; polling until it is back")
            # Runs inside the protocol's own clean-up: reconnect from the loop.
            asyncio.get_running_loop().call_soon(self._look_until_back)

    def _look_until_back(self) -> None:
        self._tell_to_look()
        self.wake()
