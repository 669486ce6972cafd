"""A proxy to an HTTP server that fails on demand, for tests of clients on a bad network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Self

from harness.listening import Listener, until_one_ends

Kind = Literal["swallow", "cut", "garble"]


class Line:
    """Forwards to a port on loopback. A fault strikes connections whose request holds its marker:

    - `swallow`: the server carries the request out; its answer is thrown away and the connection reset
    - `cut`: the connection is reset before the server sees the request
    - `garble`: the client gets a 502 in HTML, which the server has not sent
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._faults: list[tuple[bytes, Kind]] = []
        self.requests: list[bytes] = []
        self.struck = 0
        self._listener = Listener(self._forward)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arm(self, marker: str, kind: Kind, *, times: int = 1) -> None:
        self._faults += [(marker.encode(), kind)] * times

    async def __aenter__(self) -> Self:
        await self._listener.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        struck: list[Kind] = []
        ways = [
            asyncio.create_task(self._requests(reader, far_writer, writer, struck.append)),
            asyncio.create_task(self._answers(far_reader, writer, struck)),
        ]
        await until_one_ends(ways, writer, far_writer)

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        far: asyncio.StreamWriter,
        near: asyncio.StreamWriter,
        strike: Callable[[Kind], None],
    ) -> None:
        while data := await reader.read(1 << 20):
            self.requests.append(data)
            for fault in self._faults:
                if fault[0] in data:
                    self._faults.remove(fault)
                    self.struck += 1
                    if fault[1] == "cut":
                        return
                    if fault[1] == "garble":
                        near.write(
                            b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>"
                        )
                        await near.drain()
                        return
                    strike(fault[1])
                    break
            far.write(data)
            await far.drain()

    async def _answers(self, far: asyncio.StreamReader, near: asyncio.StreamWriter, struck: list[Kind]) -> None:
        while data := await far.read(1 << 20):
            if struck:
                return
            near.write(data)
            await near.drain()
