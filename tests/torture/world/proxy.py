"""The cable between a process and a server: a TCP proxy that fails as networks do, when it is told to.

The proxy stands for the server's address. `point` moves that address to another server, like a virtual address: new
connections go there, old ones stay where they are. All proxies share one thread with its own event loop, so that a
busy harness does not slow them down; methods may be called from any thread.

In the `postgres` protocol the proxy reads messages, so that a fault can strike within or right after one statement,
even one that was prepared long before. Data of any other protocol pass in the pieces in which they arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from harness.forwarding import Armed, Forwarder, Link, LoopThread, Streams

from .network import make_socket

#: Statements that write, and commits.
WRITES = r"\b(insert into|update|delete from|commit)\b"


@dataclass(frozen=True)
class Place:
    """An address at which something listens, and its network namespace (None: this machine's own)."""

    namespace: str | None
    host: str
    port: int


@dataclass(eq=False, kw_only=True)
class Strike(Armed):
    """A fault for statements that match `pattern`. `struck` lists the statements it hit."""

    pattern: re.Pattern[bytes]
    struck: list[str] = field(default_factory=list)

    def matches(self, text: bytes) -> bool:
        return self.pattern.search(text) is not None

    def note(self, text: bytes) -> None:
        # Without comments, so that the noted text begins with the statement itself.
        told = re.sub(r"--[^\n]*", "", text.decode(errors="replace").rstrip("\0"))
        self.struck.append(" ".join(told.split())[:120])


class Proxy(Forwarder):
    """Listens in one place and forwards to another. Its methods inject faults; `passing` heals them all."""

    def __init__(
        self,
        thread: LoopThread,
        listen: Place,
        upstream: Place,
        *,
        protocol: Literal["postgres", "raw"],
        seed: int = 0,
    ) -> None:
        super().__init__(thread, by_message=protocol == "postgres")
        self._place = listen
        self._upstream = upstream
        self._random = Random(seed)
        self._delay = (0.0, 0.0)
        self._loss = 0.0
        self._to_server: asyncio.Event
        self._to_client: asyncio.Event
        #: Number of pieces that were lost at first and sent again.
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

    def passing(self) -> None:
        """Heals the link: held data flow on in order, and no fault is armed."""

        async def heal() -> None:
            self._delay, self._loss, self._refusing = (0.0, 0.0), 0.0, False
            self._armed.clear()
            self._to_server.set()
            self._to_client.set()

        self._thread.call(heal())

    def point(self, upstream: Place) -> None:
        """Sends new connections to `upstream`; open ones stay with their server."""
        self._upstream = upstream

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Delays everything by `seconds`, give or take `jitter`, each way."""
        self._delay = (seconds, jitter)

    def lose(self, share: float) -> None:
        """Loses this share of the pieces once or twice before they arrive: they stall, as lost packets do under TCP."""
        self._loss = share

    def hold(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Half-open: connections stay and new ones are accepted, but no data pass in the held directions."""

        async def close_gates() -> None:
            for held, gate in ((to_server, self._to_server), (to_client, self._to_client)):
                if held:
                    gate.clear()

        self._thread.call(close_gates())

    def cut_those_at(self, upstream: Place) -> int:
        """Resets the connections that were opened to that server, and no others."""
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
        """Arms a fault for the next statements whose text matches. See `Strike`."""
        compiled = re.compile(pattern.encode(), re.IGNORECASE)
        return self._arm(Strike(pattern=compiled, kind=kind, times=times, after=after, skip=skip))

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

    async def _connect(self, client: asyncio.StreamWriter) -> tuple[Streams, object]:
        _keep_alive(client)
        upstream = self._upstream
        far = make_socket(upstream.namespace)
        try:
            async with asyncio.timeout(20):
                await asyncio.get_running_loop().sock_connect(far, (upstream.host, upstream.port))
            streams = await asyncio.open_connection(sock=far)
        except BaseException:
            far.close()
            raise
        _keep_alive(streams[1])
        return streams, upstream

    async def before_end(self, *, to_server: bool) -> None:
        # Half-open: while the gate is shut, one side does not learn that the other has ended.
        await (self._to_server if to_server else self._to_client).wait()

    async def gate(self, link: Link, *, to_server: bool) -> None:
        gate = self._to_server if to_server else self._to_client
        await gate.wait()
        seconds, jitter = self._delay
        pause = max(0.0, seconds + self._random.uniform(-jitter, jitter))
        # Linux waits at least 200 ms before it sends again, and then twice as long.
        if self._loss and self._random.random() < self._loss:
            self.stalled += 1
            pause += 0.2 if self._random.random() >= self._loss else 0.6
        if pause:
            await asyncio.sleep(pause)
            await gate.wait()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Sets keep-alive, so that dead peers are noticed: a process killed behind a partition closes no connection."""
    connection = writer.get_extra_info("socket")
    options = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3), (socket.TCP_NODELAY, 1))
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
