"""The server ends connections with slow heads, slow bodies, unread answers or invalid heads, and too many of them."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from duly.api import connections, server
from duly.api.connections import Crowd, Limits, room_for_connections
from harness.waiting import eventually

LARGE = 24 * 1024 * 1024
QUICK = Limits(head_seconds=0.4, pause_seconds=0.4, look_seconds=0.05, idle_seconds=30)


class App:
    """An app whose answer depends on the path."""

    def __init__(self) -> None:
        self.state = SimpleNamespace()  # without `access`: nothing here needs a key
        self.go_on = asyncio.Event()
        self.begun = 0
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        answer = b"ok"
        if scope["path"] == "/wait":
            await self.go_on.wait()
        elif scope["path"] == "/large":
            answer = bytes(LARGE)
        elif scope["path"] == "/body":
            body = b""
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message["body"]
                if not message["more_body"]:
                    break
            self.bodies.append(body)
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, text: str | bytes) -> None:
        self.writer.write(text.encode() if isinstance(text, str) else text)

    async def rest(self) -> bytes:
        """Everything that arrives until the server ends the connection."""
        read = b""
        async with asyncio.timeout(20):
            try:
                while data := await self.reader.read(65536):
                    read += data
            except ConnectionError:
                pass
        return read

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split(b" ", 2)[1]), await self.reader.readexactly(length)

    async def is_open(self) -> bool:
        self.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return (await self.answer())[0] == 200
        except (ConnectionError, asyncio.IncompleteReadError):
            return False


class Site:
    def __init__(self, app: App, port: int, crowd: Crowd) -> None:
        self.app, self.port, self.crowd = app, port, crowd
        self._clients: list[Client] = []

    async def connect(self, *, receives: int | None = None) -> Client:
        line = socket.socket()
        if receives is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        line.setblocking(False)
        await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", self.port))
        client = Client(*await asyncio.open_connection(sock=line, limit=1 << 20))
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.writer.close()


@pytest.fixture
def site(serving: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    crowds: list[Crowd] = []

    class Known(Crowd):
        def __init__(self, limits: Limits) -> None:
            super().__init__(limits)
            crowds.append(self)

    monkeypatch.setattr(server, "Crowd", Known)

    @asynccontextmanager
    async def open_site(limits: Limits) -> AsyncIterator[Site]:
        app = App()
        async with serving(None, app=app, limits=limits) as url:
            made = Site(app, int(url.rpartition(":")[2]), crowds[-1])
            try:
                yield made
            finally:
                made.close()

    return open_site


async def test_an_answer_on_a_kept_connection_waits_for_no_acknowledgement(site: Any) -> None:
    """With Nagle's algorithm each would wait 40 ms: head and body are sent apart, and callers acknowledge late."""
    async with site(QUICK) as here:
        client = await here.connect()
        took = []
        for _ in range(60):
            began = time.monotonic()
            assert await client.is_open()
            took.append(time.monotonic() - began)
        # The first answers are acknowledged at once. Of the later ones a single fast one is enough, on a busy machine.
        assert min(took[30:]) < 0.03, took


async def test_a_head_that_does_not_come_ends_the_connection(site: Any) -> None:
    async with site(QUICK) as here:
        silent, begun, again, dripping = [await here.connect() for _ in range(4)]
        begun.send("GET / HTTP/1.1\r\nHost: local")
        assert await again.is_open()
        again.send("GET /second")

        async def drip() -> None:
            while not dripping.reader.at_eof() and not dripping.writer.is_closing():
                dripping.send("X")
                await asyncio.sleep(0.02)

        dripped = asyncio.create_task(drip())
        assert await silent.rest() == b""
        for client in (begun, again, dripping):
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        dripped.cancel()
        await eventually(lambda: not here.crowd.all)
        assert here.app.begun == 1


@pytest.mark.parametrize("paced", [False, True], ids=["silent", "a byte at a time"])
async def test_a_body_that_does_not_come_ends_the_connection(site: Any, paced: bool) -> None:
    # A byte now and then is no pause, but the body as a whole is far too slow.
    async with site(Limits(pause_seconds=0.6, least_bytes_per_second=1000, look_seconds=0.05)) as here:
        client = await here.connect()
        client.send("POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx")

        async def drip() -> None:
            while paced and not client.writer.is_closing():
                client.send("x")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        answer = await client.rest()
        dripping.cancel()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 408
        await eventually(lambda: not here.crowd.all)
        assert here.app.bodies == []


async def test_a_client_is_not_blamed_for_what_the_server_does_not_read(site: Any) -> None:
    """The body stalls because the server does not read it, for far longer than a pause may be."""
    async with site(Limits(pause_seconds=0.2, least_bytes_per_second=10_000_000, look_seconds=0.05)) as here:
        client = await here.connect()
        client.send(b"POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000\r\n\r\n" + bytes(300_000))
        await eventually(lambda: here.app.begun == 1 and any(one.flow.read_paused for one in here.crowd.all))
        clock = here.crowd.clock
        await eventually(lambda: here.crowd.clock > clock + 0.6)
        here.app.go_on.set()
        assert await client.answer() == (200, b"ok")


async def test_what_follows_an_answer_that_came_before_the_body_does_not_keep_the_connection(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_REST_SECONDS", 0.3)
    async with site(Limits(look_seconds=0.05)) as here:
        client = await here.connect()
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx")
        assert await client.answer() == (200, b"ok")
        client.send("x")
        assert await client.rest() == b""


async def test_an_answer_that_nobody_reads_is_let_go(site: Any) -> None:
    async with site(QUICK) as here:
        client = await here.connect(receives=4096)
        client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await eventually(lambda: any(one.unread for one in here.crowd.all))
        await eventually(lambda: not here.crowd.all)
        assert len(await client.rest()) < LARGE


async def test_many_answers_that_nobody_reads_are_let_go_at_once(site: Any) -> None:
    limits = Limits(unread_bytes=LARGE * 2, look_seconds=0.05)
    async with site(limits) as here:
        clients = [await here.connect(receives=4096) for _ in range(6)]
        for client in clients:
            client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await eventually(lambda: here.app.begun == 6)
        await eventually(lambda: sum(one.transport.get_write_buffer_size() for one in here.crowd.all) <= LARGE * 2)
        # Connections are closed long before their pause is too long, and no more of them than necessary.
        assert here.crowd.all


async def test_an_answer_that_is_read_slowly_but_steadily_arrives(site: Any) -> None:
    async with site(QUICK) as here:
        client = await here.connect(receives=262_144)
        client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        clock, read = here.crowd.clock, 0
        while read < LARGE:
            data = await client.reader.read(1 << 20)
            assert data
            read += len(data)
            looked = here.crowd.clock
            if looked < clock + 2 * QUICK.pause_seconds:
                await eventually(lambda looked=looked: here.crowd.clock > looked)  # type: ignore[misc]


async def test_who_waits_for_nothing_makes_room_and_the_log_says_so_once(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="duly.api"):
        async with site(Limits(connections=3, look_seconds=0.05)) as here:
            busy, idle, fresh = [await here.connect() for _ in range(3)]
            busy.send("GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually(lambda: here.app.begun == 1)
            assert await idle.is_open()
            late = await here.connect()
            # `fresh` has never sent a request, so it has been idle longest; `idle`, which sent one, is next.
            assert await fresh.rest() == b""
            assert await late.is_open()
            later = await here.connect()
            assert await idle.rest() == b""
            assert await later.is_open()
            for client in (late, later):
                client.send("GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually(lambda: not here.crowd.waiting)
            refused = await here.connect()
            assert (await refused.rest()).startswith(b"HTTP/1.1 503 ")
            here.app.go_on.set()
            for client in (busy, late, later):
                assert await client.answer() == (200, b"ok")
            await eventually(lambda: "turned away: at most 3" in caplog.text)
            assert caplog.text.count("turned away") == 1


@pytest.mark.parametrize(
    ("files", "room"), [(1024, 896), (resource.RLIM_INFINITY, 4096), (1_000_000, 4096), (256, 128), (40, 20)]
)
def test_a_share_of_the_file_limit_is_kept_back(files: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert room_for_connections() == room


HEADS: dict[str, tuple[bytes, int]] = {
    "a hundred headers": (b"X: y\r\n" * 99, 200),
    "one more": (b"X: y\r\n" * 100, 431),
    "twenty thousand": (b"a:b\r\n" * 20_000, 431),
    "64 KiB and more at once": (b"X: " + b"y" * 66_000 + b"\r\n", 431),
    "almost 64 KiB": (b"X: " + b"y" * 65_000 + b"\r\n", 200),
    "without end": (b"X: " + b"y" * 300_000, 431),
    "a NUL": (b"X: a\x00b\r\n", 400),
    "spaces before a NUL": (b"X:" + b" " * 60_000 + b"\x00\r\n", 400),
    "a form feed": (b"X:   \x0c\r\n", 400),
    "a bare return": (b"X: a\rb\r\n", 400),
    "a length and chunks": (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
    "chunks and a length": (b"transfer-encoding: chunked\r\ncontent-length: 0\r\n", 400),
    "two lengths": (b"Content-Length: 5\r\nContent-Length: 6\r\n", 400),
    "a signed length": (b"Content-Length: +5\r\n", 400),
    "5,000 digits of a length": (b"Content-Length: " + b"9" * 5000 + b"\r\n", 400),
    "gzip, chunked": (b"Transfer-Encoding: gzip, chunked\r\n", 400),
    "a space before the colon": (b"Content-Length : 5\r\n", 400),
}


async def test_a_head_is_bounded_and_says_in_one_way_how_long_its_body_is(site: Any) -> None:
    async with site(Limits(look_seconds=0.05)) as here:
        for case, (headers, status) in HEADS.items():
            client, begun = await here.connect(), here.app.begun
            client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")
            try:
                answered = (await client.answer())[0]
            except ConnectionError:
                answered = 431 if case == "without end" else 0  # closed before it was read whole
            assert answered == status, case
            if status != 200:
                # The bytes that follow are not read as a request.
                client.send("0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert await client.rest() == b"", case
            assert here.app.begun == begun + (status == 200), case


async def test_what_follows_a_chunked_body_is_bounded_like_a_head(site: Any) -> None:
    async with site(Limits(look_seconds=0.05)) as here:
        for trailer in (b"X: y\r\n" * 200, b"X:" + b" " * 60_000 + b"\x00\r\n"):
            client = await here.connect()
            client.send("POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
            client.send(trailer + b"\r\n")
            assert (await client.answer())[0] in (400, 431)
        assert here.app.bodies == []


async def test_one_client_after_another_is_served_while_slow_ones_hold_on(site: Any) -> None:
    async with site(Limits(connections=20, look_seconds=0.05)) as here:
        for _ in range(200):
            slow = await here.connect()
            slow.send("GET / HTTP/1.1\r\nHost")
        for _ in range(30):
            assert await (await here.connect()).is_open()
        assert len(here.crowd.all) <= 20
