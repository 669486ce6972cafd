"""The listener below the tests' own servers and proxies: each connection has a task, and none is left open."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """Accepts connections from `open` to `close`. Each is closed when its task ends, also after an error."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._serving: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        self._listens(await asyncio.start_server(self._accept, host, port, ssl=tls))

    async def open_on(self, listening: socket.socket) -> None:
        """Listens on a socket that is already bound."""
        self._listens(await asyncio.start_server(self._accept, sock=listening, backlog=512))

    def _listens(self, server: asyncio.Server) -> None:
        self._server = server
        self.port = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Accepts no more connections and resets the open ones. Their sockets are closed when this returns."""
        # A client that connected just before this reaches `_accept` in the loop's next turns. If the server were closed
        # before that, the client's socket would stay open.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await turns()
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self.end_all()

    async def end_all(self) -> None:
        """Cancels the tasks of all present connections."""
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await turns()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Noted here and not in the task: a task that is cancelled before its first step could not close the writer.
        self._writers.add(writer)
        serving = asyncio.get_running_loop().create_task(self._serve_one(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(lambda _: self._served(serving, writer))

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer)

    def _served(self, serving: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._serving.discard(serving)
        self._writers.discard(writer)
        writer.close()


async def until_one_ends(ways: Sequence[asyncio.Task[None]], *ends: asyncio.StreamWriter) -> None:
    """Waits until one of a forwarder's two directions ends, then cancels the other and resets both connections."""
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        for end in ends:
            end.transport.abort()


async def turns() -> None:
    """Waits a few turns of the loop, in which closed or aborted connections close their sockets."""
    for _ in range(5):
        await asyncio.sleep(0)
