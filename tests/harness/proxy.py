"""A TCP proxy between Duly and PostgreSQL that fails as networks do, at a moment that the test chooses.

The proxy runs in a thread with its own loop, so a test that blocks its loop does not stop the proxy. It knows enough of
the protocol to hit one statement: a fault is armed for a piece of SQL text and strikes when a statement with that text
is executed, even if the statement was prepared long before.

    with Proxy(database_url) as proxy:
        fault = proxy.swallow("insert into duly.claims")    # executed by the server, never answered
        ...                                                 # anything that connects to proxy.url
        fault.wait()
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from harness.forwarding import Armed, Forwarder, Link, LoopThread, Streams


@dataclass(eq=False, kw_only=True)
class Fault(Armed):
    """A fault for statements that contain `marker`. A test can wait until it has struck."""

    marker: bytes
    struck: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def matches(self, text: bytes) -> bool:
        return self.marker in text

    def note(self, text: bytes) -> None:
        with self._changed:
            self.struck += 1
            self._changed.notify_all()

    def wait(self, times: int = 1, *, seconds: float = 20) -> None:
        """Returns when the fault has struck `times` times."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.struck >= times, seconds):
                raise TimeoutError(f"{self.kind} of {self.marker!r} struck {self.struck} times, not {times}")


class Proxy(Forwarder):
    """Forwards to the PostgreSQL of `upstream`."""

    def __init__(self, upstream: str) -> None:
        super().__init__(LoopThread())
        self._upstream = upstream
        self._address = _address(upstream)
        self._delay = 0.0
        self._flowing: asyncio.Event

    @property
    def url(self) -> str:
        """The upstream's URL, by way of this proxy."""
        parts = urlsplit(self._upstream)
        login = parts.netloc.rpartition("@")[0]
        return f"postgresql://{login}@127.0.0.1:{self._listener.port}{parts.path}?sslmode=disable"

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._thread.call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.call(self._listener.close())
        self._thread.close()

    # Faults of all connections.

    def passing(self) -> None:
        """Heals the link: nothing is delayed, held or refused, and no fault is armed. Held data flow on."""

        async def heal() -> None:
            self._delay, self._refusing = 0.0, False
            self._armed.clear()
            self._flowing.set()

        self._thread.call(heal())

    def delay(self, seconds: float) -> None:
        """Delays all data by this time, in each direction."""
        self._delay = seconds

    def black_hole(self) -> None:
        """Half-open: connections stay and new ones are accepted, but nothing passes either way."""

        async def hold() -> None:
            self._flowing.clear()

        self._thread.call(hold())

    def forget(self) -> int:
        """Silences the present connections, as a load balancer does with idle ones: they stay open and nothing passes.

        New connections work. Returns the number of silenced ones.
        """

        async def silence() -> int:
            for link in self._links:
                link.silent = True
            return len(self._links)

        return self._thread.call(silence())

    # Faults of one statement.

    def swallow(self, marker: str, *, times: int = 1) -> Fault:
        """The server executes the statement with this text; its answer is lost."""
        return self._arm(Fault(marker=marker.encode(), kind="swallow", times=times))

    def cut_within(self, marker: str, *, after: int = 0, times: int = 1) -> Fault:
        """Only the first `after` bytes of the statement's arguments reach the server, then the connection is reset."""
        return self._arm(Fault(marker=marker.encode(), kind="cut", times=times, after=after))

    def answer(self, marker: str, state: str, *, times: int = 1) -> Fault:
        """The statement does not reach the server; its client gets an error with this SQLSTATE."""
        return self._arm(Fault(marker=marker.encode(), kind="answer", times=times, state=state))

    async def gate(self, link: Link, *, to_server: bool) -> None:
        await self._flowing.wait()
        if self._delay:
            await asyncio.sleep(self._delay)
            await self._flowing.wait()

    async def _listen(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        await self._listener.open()

    async def _connect(self, client: asyncio.StreamWriter) -> tuple[Streams, object]:
        if isinstance(self._address, str):
            return await asyncio.open_unix_connection(self._address), self._address
        return await asyncio.open_connection(*self._address), self._address


def _address(url: str) -> str | tuple[str, int]:
    """The address at which the PostgreSQL of this URL listens: the path of a Unix socket, or host and port."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    host = options.get("host", [parts.hostname or "127.0.0.1"])[0]
    port = int(options.get("port", [str(parts.port or 5432)])[0])
    return str(Path(host) / f".s.PGSQL.{port}") if host.startswith("/") else (host, port)
