"""A TCP proxy between Duly and PostgreSQL that fails on demand: what networks do, at a moment the test chooses.

It runs in a thread with its own loop, so a test that blocks its loop does not stop it, and it knows enough of the
protocol to hit one statement: a fault is armed for a piece of SQL text and strikes when that statement is executed,
also when it was prepared long before.

    with Proxy(database_url) as proxy:
        fault = proxy.swallow("insert into duly.claims")    # executed by the server, never answered
        ...                                                 # anything that connects to proxy.url
        fault.wait()
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

from harness.listening import Listener
from harness.pgwire import Answer, Statements, end, first_message, next_message, refusal

T = TypeVar("T")

_READ = 64 * 1024


@dataclass(eq=False)
class Fault:
    """Something armed for the executions of a statement. `times` are left; `struck` counts those that happened."""

    marker: bytes
    kind: Literal["swallow", "cut", "answer"]
    times: int
    #: For a cut: how much of the statement's arguments still reaches the server.
    after: int = 0
    #: For an answer: the SQLSTATE.
    state: str = ""
    struck: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def wait(self, times: int = 1, *, seconds: float = 20) -> None:
        """Until it has struck that often."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.struck >= times, seconds):
                raise TimeoutError(f"{self.kind} of {self.marker!r} struck {self.struck} times, not {times}")

    def _strike(self) -> None:
        with self._changed:
            self.struck += 1
            self._changed.notify_all()


class Proxy:
    """Listens on a port of its own and forwards to the PostgreSQL of `upstream`. All methods may be called anywhere."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._address = _address(upstream)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._links: set[_Link] = set()
        self._listener = Listener(self._serve)
        self._faults: list[Fault] = []
        self._delay = 0.0
        self._refusing = False
        self._flowing: asyncio.Event
        #: Connections that were ever accepted.
        self.accepted = 0

    @property
    def url(self) -> str:
        """The upstream's URL, by way of this proxy."""
        parts = urlsplit(self._upstream)
        login = parts.netloc.rpartition("@")[0]
        return f"postgresql://{login}@127.0.0.1:{self._listener.port}{parts.path}?sslmode=disable"

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._on_loop(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop(self._listener.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # What it can do to everybody.

    def passing(self) -> None:
        """Whole again: nothing is delayed, held or refused, and no fault is armed. What was held flows on."""

        async def heal() -> None:
            self._delay, self._refusing = 0.0, False
            self._faults.clear()
            self._flowing.set()

        self._on_loop(heal())

    def delay(self, seconds: float) -> None:
        """Everything takes this much longer, each way."""
        self._delay = seconds

    def cut(self, *, reset: bool = True) -> int:
        """Cut every connection now, by RST or by FIN. Returns how many there were. New ones are welcome."""

        async def cut_all() -> int:
            links = list(self._links)
            for link in links:
                link.cut(reset=reset)
            return len(links)

        return self._on_loop(cut_all())

    def refuse(self) -> None:
        """Cut every connection, and every new one at once."""
        self._refusing = True
        self.cut()

    def black_hole(self) -> None:
        """Half-open: connections stay and new ones are accepted, but nothing passes either way."""

        async def hold() -> None:
            self._flowing.clear()

        self._on_loop(hold())

    def forget(self) -> int:
        """What a balancer does to idle flows: nothing passes on those that are there, and nobody is told. New ones are
        welcome. Returns how many there were."""

        async def silence() -> int:
            for link in self._links:
                link.silent = True
            return len(self._links)

        return self._on_loop(silence())

    # What it can do to one statement.

    def swallow(self, marker: str, *, times: int = 1) -> Fault:
        """The statement with this text reaches the server and is carried out; its answer reaches nobody."""
        return self._arm(Fault(marker.encode(), "swallow", times))

    def cut_within(self, marker: str, *, after: int = 0, times: int = 1) -> Fault:
        """Of the statement's arguments only the first `after` bytes reach the server, then the connection is gone."""
        return self._arm(Fault(marker.encode(), "cut", times, after))

    def answer(self, marker: str, state: str, *, times: int = 1) -> Fault:
        """The statement does not reach the server; its client is told that it failed with this SQLSTATE."""
        return self._arm(Fault(marker.encode(), "answer", times, state=state))

    def _arm(self, fault: Fault) -> Fault:
        async def arm() -> None:
            self._faults.append(fault)

        self._on_loop(arm())
        return fault

    # The proxy's own side.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _listen(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        await self._listener.open()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            end(writer, reset=True)
            return
        try:
            if isinstance(self._address, str):
                far_reader, far_writer = await asyncio.open_unix_connection(self._address)
            else:
                far_reader, far_writer = await asyncio.open_connection(*self._address)
        except OSError:
            end(writer, reset=True)
            return
        link = _Link(self, reader, writer, far_reader, far_writer)
        self._links.add(link)
        try:
            await link.carry()
        finally:
            self._links.discard(link)

    async def _gate(self) -> None:
        await self._flowing.wait()
        if self._delay:
            await asyncio.sleep(self._delay)
            await self._flowing.wait()

    def _fault_for(self, text: bytes) -> Fault | None:
        for fault in self._faults:
            if fault.times and fault.marker in text:
                fault.times -= 1
                return fault
        return None


class _Link:
    """One client's connection and the one to the server that was opened for it."""

    def __init__(
        self,
        proxy: Proxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._far_reader, self._far_writer = far_reader, far_writer
        self._statements = Statements()
        self._swallowing: Fault | None = None
        self._within = False  # a transaction, as far as its client has begun one
        self.silent = False
        self._pumps: list[asyncio.Task[None]] = []

    async def carry(self) -> None:
        """Until either side is gone, then end the other in the same way."""
        self._pumps = [asyncio.create_task(self._to_server()), asyncio.create_task(self._to_client())]
        try:
            await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in self._pumps:
                pump.cancel()
            # Before anything is waited for: the proxy may be closed meanwhile, and this is cancelled.
            for writer in (self._writer, self._far_writer):
                end(writer, reset=False)
            await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self, *, reset: bool) -> None:
        for writer in (self._writer, self._far_writer):
            end(writer, reset=reset)
        for pump in self._pumps:
            pump.cancel()

    async def _to_server(self) -> None:
        """Message by message, so that a fault strikes exactly where it was meant to."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            another = True
            while another:
                message, another = await first_message(self._reader)
                await self._send(message)
            while True:
                message = await next_message(self._reader)
                text = self._statements.carried_out_by(message)
                if text[:6].upper() in (b"BEGIN;", b"COMMIT", b"ROLLBA"):
                    self._within = text[:5].upper() == b"BEGIN"
                if text and (fault := self._proxy._fault_for(text)) is not None:
                    if fault.kind == "answer":
                        await self._answer(message, fault)
                        continue
                    if fault.kind == "cut":
                        await self._send(message[: 5 + fault.after])
                        fault._strike()
                        self.cut(reset=True)
                        return
                    self._swallowing = fault
                await self._send(message)

    async def _answer(self, message: bytes, fault: Fault) -> None:
        """In the server's place. What belongs to the same statement, up to its end, is not passed on either."""
        while message[:1] not in (b"S", b"Q"):
            message = await next_message(self._reader)
        self._writer.write(refusal(fault.state, within=self._within))
        await self._writer.drain()
        fault._strike()

    async def _to_client(self) -> None:
        with contextlib.suppress(OSError):
            answer = Answer()
            while data := await self._far_reader.read(_READ):
                if self._swallowing is not None:
                    # Only when the server is ready for the next statement is this one committed.
                    if answer.complete(data):
                        self._swallowing._strike()
                        self.cut(reset=True)
                        return
                    continue
                await self._gate()
                self._writer.write(data)
                await self._writer.drain()

    async def _gate(self) -> None:
        await self._proxy._gate()
        if self.silent:
            await asyncio.Event().wait()

    async def _send(self, data: bytes) -> None:
        await self._gate()
        self._far_writer.write(data)
        await self._far_writer.drain()


def _address(url: str) -> str | tuple[str, int]:
    """Where the PostgreSQL of this URL listens: the path of a Unix socket, or host and port."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    host = options.get("host", [parts.hostname or "127.0.0.1"])[0]
    port = int(options.get("port", [str(parts.port or 5432)])[0])
    return str(Path(host) / f".s.PGSQL.{port}") if host.startswith("/") else (host, port)
