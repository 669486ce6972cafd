"""LISTEN on a connection of its own.

A notification only ever makes something happen sooner: it may be lost (a pooler, a failover, a reconnect), so every
listener has a poll behind it. After a reconnect every listener is called with None: look for yourself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import asyncpg

from duly.service import Service
from duly.store.pool import connection_options, translated_errors

log = logging.getLogger("duly.store")

Listener = Callable[[str | None], None]


class Notifier(Service):
    """Keeps one listening connection alive."""

    interval = 20.0

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._listeners: dict[str, list[Listener]] = {}
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._was_connected = False

    def listen(self, channel: str, listener: Listener) -> None:
        """Before start."""
        self._listeners.setdefault(channel, []).append(listener)

    async def run_once(self) -> float | None:
        if self._connection is None or self._connection.is_closed():
            await self._connect()
        return None

    async def stop(self) -> None:
        await super().stop()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _connect(self) -> None:
        with translated_errors(self._url):
            connection = await asyncpg.connect(self._url, timeout=10, **connection_options(pgbouncer=False))
            connection.add_termination_listener(self._lost)
            for channel in self._listeners:
                await connection.add_listener(channel, self._heard)
        self._connection = connection
        # Whatever was said while nobody listened is gone.
        for listeners in self._listeners.values():
            for listener in listeners:
                listener(None)
        self._was_connected = True

    def _heard(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        for listener in self._listeners.get(channel, ()):
            listener(str(payload))

    def _lost(self, _connection: Any) -> None:
        if not self.stopping:
            log.warning("the listening connection was lost; polling until it is back")
            # Runs inside the protocol's own clean-up: reconnect from the loop.
            asyncio.get_running_loop().call_soon(self.wake)
