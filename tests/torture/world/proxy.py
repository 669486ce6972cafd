"""The cable between a process and a server: a TCP proxy that does what networks do, when it is told to.

It stands for the server's address. `point` moves that address to another server, as a virtual address would move:
new connections go there, old ones live on where they are. All proxies share one thread with a loop of its own, so
that a busy harness slows none of them; methods may be called from anywhere.

In the `postgres` protocol it reads messages, so that a fault can strike within or right after one statement, also one
that was prepared long before; every other protocol it passes on in the pieces it came in.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeVar

from harness.listening import Listener
from harness.pgwire import Answer, Statements, end, first_message, next_message

from .network import make_socket

T = TypeVar("T")

_READ = 64 * 1024

#: What changes something: a statement that does, or the end of a transaction that did.
WRITES = r"\b(insert into|update|delete from|commit)\b"


@dataclass(frozen=True)
class Place:
    """Where something listens: in which namespace (None: this machine's own), at which address."""

    namespace: str | None
    host: str
    port: int


@dataclass(eq=False)
class Strike:
    """Something armed for statements that match.

    `swallow`: carried out by the server, the answer thrown away and the connection reset.
    `sever`: sent as a whole, the connection reset at once: it may or may not be carried out.
    `cut`: only the first `after` bytes of the message are sent, then the connection is reset.
    """

    kind: Literal["swallow", "sever", "cut"]
    pattern: re.Pattern[bytes]
    times: int
    after: int = 0
    #: Statements that matched and are let pass before it strikes.
    skip: int = 0
    struck: list[str] = field(default_factory=list)


class ProxyThread:
    """The loop on which proxies run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()


class Proxy:
    """Listens in one place and forwards to another. Whole until told otherwise; `passing` makes it whole again."""

    def __init__(
        self,
        thread: ProxyThread,
        listen: Place,
        upstream: Place,
        *,
        protocol: Literal["postgres", "raw"],
        seed: int = 0,
    ) -> None:
        self._thread = thread
        self._place = listen
        self._upstream = upstream
        self._protocol = protocol
        self._random = Random(seed)
        self._links: set[_Link] = set()
        self._listener = Listener(self._serve)
        self._strikes: list[Strike] = []
        self._delay = (0.0, 0.0)
        self._loss = 0.0
        self._refusing = False
        self._to_server: asyncio.Event
        self._to_client: asyncio.Event
        #: Connections that were ever accepted.
        self.accepted = 0
        #: Pieces that were lost on their way at first.
        self.stalled = 0

    @property
    def host(self) -> str:
        return self._place.host

    @property
    def port(self) -> int:
        return self._place.port

    def start(self) -> None:
        self._thread.call(self._listen())

    def close(self) -> None:
        self._thread.call(self._close())

    # What it can do.

    def passing(self) -> None:
        """Whole again. What was held flows on, in order; nothing armed is left."""

        async def heal() -> None:
            self._delay, self._loss, self._refusing = (0.0, 0.0), 0.0, False
            self._strikes.clear()
            self._to_server.set()
            self._to_client.set()

        self._thread.call(heal())

    def point(self, upstream: Place) -> None:
        """New connections go there; those there are stay where they are."""
        self._upstream = upstream

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Everything takes that much longer, each way, give or take."""
        self._delay = (seconds, jitter)

    def lose(self, share: float) -> None:
        """That share of the pieces is lost once or twice before it arrives, as TCP makes of lost packets: it stalls."""
        self._loss = share

    def hold(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Half-open: connections stay and new ones are accepted, but nothing passes that way (or either way)."""

        async def close_gates() -> None:
            for held, gate in ((to_server, self._to_server), (to_client, self._to_client)):
                if held:
                    gate.clear()

        self._thread.call(close_gates())

    def refuse(self) -> None:
        """Reset every connection, and every new one at once."""
        self._refusing = True
        self.cut()

    def cut(self, *, reset: bool = True) -> int:
        """End every connection now, by RST or by FIN. Returns how many there were; new ones are welcome."""
        return self._thread.call(self._cut(lambda link: True, reset=reset))

    def cut_those_at(self, upstream: Place) -> int:
        """Reset the connections that were opened to that server, and no others."""
        return self._thread.call(self._cut(lambda link: link.upstream == upstream, reset=True))

    def strike(
        self,
        kind: Literal["swallow", "sever", "cut"],
        pattern: str = WRITES,
        *,
        times: int = 1,
        after: int = 0,
        skip: int = 0,
    ) -> Strike:
        """Arm something for the next statements whose text matches. See `Strike`."""
        armed = Strike(kind, re.compile(pattern.encode(), re.IGNORECASE), times, after, skip)

        async def arm() -> None:
            self._strikes.append(armed)

        self._thread.call(arm())
        return armed

    @property
    def connections(self) -> int:
        return len(self._links)

    # Its own side.

    async def _listen(self) -> None:
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self._to_server.set()
        self._to_client.set()
        listening = make_socket(self._place.namespace)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((self._place.host, self._place.port))
        await self._listener.open_on(listening)
        self._place = Place(self._place.namespace, self._place.host, self._listener.port)

    async def _close(self) -> None:
        await self._cut(lambda link: True, reset=True)
        await self._listener.close()

    async def _cut(self, chosen: Callable[[_Link], bool], *, reset: bool) -> int:
        links = [link for link in self._links if chosen(link)]
        for link in links:
            link.cut(reset=reset)
        return len(links)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        _keep_alive(writer)
        try:
            if self._refusing:
                raise ConnectionRefusedError
            upstream = self._upstream
            far = make_socket(upstream.namespace)
            try:
                async with asyncio.timeout(20):
                    await asyncio.get_running_loop().sock_connect(far, (upstream.host, upstream.port))
                far_reader, far_writer = await asyncio.open_connection(sock=far)
            except BaseException:
                far.close()
                raise
            _keep_alive(far_writer)
        except OSError:  # a time-out is one too
            end(writer, reset=True)
            return
        link = _Link(self, upstream, reader, writer, far_reader, far_writer)
        self._links.add(link)
        try:
            await link.carry()
        finally:
            self._links.discard(link)

    async def _gate(self, gate: asyncio.Event) -> None:
        await gate.wait()
        seconds, jitter = self._delay
        pause = max(0.0, seconds + self._random.uniform(-jitter, jitter))
        # 200 ms is the shortest that Linux waits before it sends again, and it doubles.
        if self._loss and self._random.random() < self._loss:
            self.stalled += 1
            pause += 0.2 if self._random.random() >= self._loss else 0.6
        if pause:
            await asyncio.sleep(pause)
            await gate.wait()

    def _strike_for(self, text: bytes) -> Strike | None:
        for strike in self._strikes:
            if strike.times > 0 and strike.pattern.search(text):
                if strike.skip > 0:
                    strike.skip -= 1
                    return None
                strike.times -= 1
                return strike
        return None


class _Link:
    """One client's connection and the one to the server that was opened for it."""

    def __init__(
        self,
        proxy: Proxy,
        upstream: Place,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self.upstream = upstream
        self._reader, self._writer = reader, writer
        self._far_reader, self._far_writer = far_reader, far_writer
        self._statements = Statements()
        self._swallowing: tuple[Strike, bytes] | None = None
        self._pumps: list[asyncio.Task[None]] = []

    async def carry(self) -> None:
        """Until either side is gone, then end the other too."""
        there = self._messages if self._proxy._protocol == "postgres" else self._pieces
        self._pumps = [asyncio.create_task(there()), asyncio.create_task(self._back())]
        try:
            ended, _ = await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
            # The end of one side is not told to the other through a gate that is shut: that is what half-open means.
            await (self._proxy._to_server if self._pumps[0] in ended else self._proxy._to_client).wait()
        finally:
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            for writer in (self._writer, self._far_writer):
                end(writer, reset=False)

    def cut(self, *, reset: bool) -> None:
        for writer in (self._writer, self._far_writer):
            end(writer, reset=reset)
        for pump in self._pumps:
            pump.cancel()

    async def _pieces(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._reader.read(_READ):
                await self._send(data)

    async def _messages(self) -> None:
        """Message by message, so that a fault strikes exactly where it was meant to."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            another = True
            while another:
                message, another = await first_message(self._reader)
                await self._send(message)
            while True:
                message = await next_message(self._reader)
                text = self._statements.carried_out_by(message)
                strike = self._proxy._strike_for(text) if text else None
                if strike is None:
                    await self._send(message)
                elif strike.kind == "swallow":
                    self._swallowing = (strike, text)
                    await self._send(message)
                else:
                    await self._send(message[: 5 + strike.after] if strike.kind == "cut" else message)
                    if strike.kind == "sever":
                        await self._rest_of_batch(message)
                    _note(strike, text)
                    self.cut(reset=True)
                    return

    async def _rest_of_batch(self, message: bytes) -> None:
        """A bound statement is carried out by what follows it; without that nothing was asked."""
        while message[:1] not in (b"Q", b"S"):
            message = await next_message(self._reader)
            await self._send(message)

    async def _back(self) -> None:
        with contextlib.suppress(OSError):
            answer = Answer()
            while data := await self._far_reader.read(_READ):
                if self._swallowing is not None:
                    # Only when the server is ready for the next statement is this one committed.
                    if answer.complete(data):
                        _note(*self._swallowing)
                        self.cut(reset=True)
                        return
                    continue
                await self._proxy._gate(self._proxy._to_client)
                self._writer.write(data)
                await self._writer.drain()

    async def _send(self, data: bytes) -> None:
        await self._proxy._gate(self._proxy._to_server)
        self._far_writer.write(data)
        await self._far_writer.drain()


def _note(strike: Strike, text: bytes) -> None:
    # Without what explains it: the statement itself tells what was hit.
    told = re.sub(r"--[^\n]*", "", text.decode(errors="replace").rstrip("\0"))
    strike.struck.append(" ".join(told.split())[:120])


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """As a server does that notices dead peers: a process killed behind a partition never says goodbye."""
    connection = writer.get_extra_info("socket")
    options = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3), (socket.TCP_NODELAY, 1))
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
