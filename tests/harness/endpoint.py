"""A real HTTP server for tests of HTTP targets. It records requests, and misbehaves on demand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from harness.listening import Listener


@dataclass(frozen=True)
class Call:
    """One request as it came in."""

    method: str
    path: str
    #: Names in lower case.
    headers: dict[str, str]
    #: Every header as it was sent, in order.
    raw: list[tuple[str, str]]
    body: bytes


Behaviour = Callable[[Call, asyncio.StreamWriter], Awaitable[None]]


def reply(status: int = 200, body: bytes | str = b"", **headers: str) -> bytes:
    """An answer with its length. `retry_after="3"` becomes `retry-after: 3`."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + content


@dataclass
class Endpoint:
    """Answers each path with the answers of its list in turn, and with the last of them from then on."""

    port: int = 0
    scheme: str = "http"
    host: str = "127.0.0.1"
    answers: dict[str, list[bytes | Behaviour]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    #: Number of connections that have ended, in any way.
    gone: int = 0

    def on(self, path: str, *answers: bytes | Behaviour) -> str:
        """Sets the answers of a path. Returns its URL."""
        self.answers[path] = list(answers)
        return self.url(path)

    def url(self, path: str, host: str | None = None) -> str:
        return f"{self.scheme}://{host or self.host}:{self.port}{path}"

    def to(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]

    @classmethod
    @asynccontextmanager
    async def serving(
        cls, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Self]:
        endpoint = cls(scheme="https" if tls else "http", host=host)
        listener = Listener(endpoint._serve)
        await listener.open(host, port, tls=tls)
        endpoint.port = listener.port
        try:
            yield endpoint
        finally:
            await listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (call := await _read(reader)) is not None:
                self.calls.append(call)
                line = self.answers.get(call.path, [reply(404)])
                answer = line.pop(0) if len(line) > 1 else line[0]
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await _unless_gone(answer(call, writer), reader)
        except OSError:
            pass  # some tests let the client end the connection
        finally:
            self.gone += 1


async def _unless_gone(answering: Awaitable[None], reader: asyncio.StreamReader) -> None:
    """Answers until the caller closes the connection. A caller sends nothing while it waits for the answer."""
    answer = asyncio.ensure_future(answering)
    heard = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait([answer, heard], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ConnectionResetError("the caller has gone")
        await answer
    finally:
        for task in (answer, heard):
            task.cancel()
        await asyncio.gather(answer, heard, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Call | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    raw: Sequence[tuple[str, str]] = [(name, value.strip()) for name, _, value in (x.partition(":") for x in lines)]
    headers = {name.lower(): value for name, value in raw}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(method, path, headers, list(raw), body)


# Behaviours


async def silence(call: Call, writer: asyncio.StreamWriter) -> None:
    """Takes the call and never answers."""
    await asyncio.Event().wait()


async def trickle(call: Call, writer: asyncio.StreamWriter) -> None:
    """Sends a byte now and then, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(call: Call, writer: asyncio.StreamWriter) -> None:
    """Sends for ever, as much as the caller takes."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/plain\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def header_flood(call: Call, writer: asyncio.StreamWriter) -> None:
    """Sends headers without end."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def reset_midway(call: Call, writer: asyncio.StreamWriter) -> None:
    """Sends half an answer and resets the connection."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf of it")
    await writer.drain()
    writer.transport.abort()
    raise ConnectionResetError


async def refusal_cut_off(call: Call, writer: asyncio.StreamWriter) -> None:
    """Refuses, and closes the connection before it has sent the reason."""
    writer.write(b"HTTP/1.1 400 Bad\r\ncontent-length: 1000\r\n\r\nbecau")
    await writer.drain()
    writer.close()
    raise ConnectionResetError
