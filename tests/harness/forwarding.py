"""The common part of the fault proxies: connections are forwarded, and an armed fault strikes at exactly one statement.

`harness.proxy.Proxy` stands between a test and its PostgreSQL, `torture.world.proxy.Proxy` between the processes of the
torture and their servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from harness.listening import Listener
from harness.pgwire import Answer, Statements, end, first_message, next_message, refusal

T = TypeVar("T")
F = TypeVar("F", bound="Armed")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_READ = 64 * 1024


class LoopThread:
    """An event loop in a thread of its own, so that a test that blocks its own loop does not stop a proxy."""

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


@dataclass(eq=False, kw_only=True)
class Armed:
    """A fault that is armed for the next `times` executions of a statement.

    `swallow`: the server executes the statement; its answer is thrown away and the connection reset.
    `sever`: the statement is sent whole and the connection reset at once: the server may or may not execute it.
    `cut`: only the first `after` bytes of the message's body are sent, then the connection is reset.
    `answer`: the statement does not reach the server; the client gets an error with the SQLSTATE `state`.
    """

    kind: Literal["swallow", "sever", "cut", "answer"]
    times: int = 1
    #: Number of matching statements that pass before the fault strikes.
    skip: int = 0
    after: int = 0
    state: str = ""

    def matches(self, text: bytes) -> bool:
        raise NotImplementedError

    def note(self, text: bytes) -> None:
        """Called after the fault has struck the statement with this text."""
        raise NotImplementedError


class Forwarder:
    """Listens on a port and forwards every connection. All public methods may be called from any thread."""

    def __init__(self, thread: LoopThread, *, by_message: bool = True) -> None:
        self._thread = thread
        self._listener = Listener(self._serve)
        self._links: set[Link] = set()
        self._armed: list[Armed] = []
        self._refusing = False
        #: Whether PostgreSQL's messages are read; any other protocol is forwarded in the pieces it came in.
        self.by_message = by_message
        #: The number of connections that were ever accepted.
        self.accepted = 0

    @property
    def connections(self) -> int:
        return len(self._links)

    def cut(self, *, reset: bool = True) -> int:
        """Ends every connection now, by RST or by FIN, and accepts new ones. Returns the number of ended ones."""
        return self._thread.call(self._cut(lambda link: True, reset=reset))

    def refuse(self) -> None:
        """Resets every connection, and from now on each new one at once."""
        self._refusing = True
        self.cut()

    def fault_for(self, text: bytes) -> Armed | None:
        """The fault that strikes at this statement, or None."""
        for fault in self._armed:
            if fault.times > 0 and fault.matches(text):
                if fault.skip > 0:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
        return None

    async def gate(self, link: Link, *, to_server: bool) -> None:
        """Returns when the next piece may pass in this direction."""
        raise NotImplementedError

    async def before_end(self, *, to_server: bool) -> None:
        """Returns when the end of one side may be passed on to the other."""

    async def _connect(self, client: asyncio.StreamWriter) -> tuple[Streams, object]:
        """Opens the connection to the server for this client. Also returns the address of that server."""
        raise NotImplementedError

    def _arm(self, fault: F) -> F:
        async def arm() -> None:
            self._armed.append(fault)

        self._thread.call(arm())
        return fault

    async def _cut(self, chosen: Callable[[Link], bool], *, reset: bool) -> int:
        links = [link for link in self._links if chosen(link)]
        for link in links:
            link.cut(reset=reset)
        return len(links)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            if self._refusing:
                raise ConnectionRefusedError
            far, upstream = await self._connect(writer)
        except OSError:  # TimeoutError is an OSError too
            end(writer, reset=True)
            return
        link = Link(self, (reader, writer), far, upstream)
        self._links.add(link)
        try:
            await link.carry()
        finally:
            self._links.discard(link)


class Link:
    """A client's connection, and the connection to the server that was opened for it."""

    def __init__(self, proxy: Forwarder, near: Streams, far: Streams, upstream: object) -> None:
        self._proxy = proxy
        self._reader, self._writer = near
        self._far_reader, self._far_writer = far
        self.upstream = upstream
        #: Whether data no longer pass, although both connections stay open.
        self.silent = False
        self._statements = Statements()
        self._swallowing: tuple[Armed, bytes] | None = None
        self._in_transaction = False  # whether the client has begun a transaction
        self._pumps: list[asyncio.Task[None]] = []

    async def carry(self) -> None:
        """Forwards until one side ends its connection, then ends the other side's."""
        there = self._messages if self._proxy.by_message else self._pieces
        self._pumps = [asyncio.create_task(there()), asyncio.create_task(self._to_client())]
        try:
            ended, _ = await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
            await self._proxy.before_end(to_server=self._pumps[0] in ended)
        finally:
            for pump in self._pumps:
                pump.cancel()
            # Before the first await: closing the proxy cancels this task.
            for writer in (self._writer, self._far_writer):
                end(writer, reset=False)
            await asyncio.gather(*self._pumps, return_exceptions=True)

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
        """Forwards message by message, so that a fault strikes at exactly one statement."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            another = True
            while another:
                message, another = await first_message(self._reader)
                await self._send(message)
            while True:
                message = await next_message(self._reader)
                text = self._statements.carried_out_by(message)
                if text[:6].upper() in (b"BEGIN;", b"COMMIT", b"ROLLBA"):
                    self._in_transaction = text[:5].upper() == b"BEGIN"
                fault = self._proxy.fault_for(text) if text else None
                if fault is None:
                    await self._send(message)
                elif fault.kind == "swallow":
                    self._swallowing = (fault, text)
                    await self._send(message)
                elif fault.kind == "answer":
                    await self._rest_of(message)
                    self._writer.write(refusal(fault.state, within=self._in_transaction))
                    await self._writer.drain()
                    fault.note(text)
                else:
                    if fault.kind == "cut":
                        await self._send(message[: 5 + fault.after])
                    else:
                        await self._send(message)
                        for following in await self._rest_of(message):
                            await self._send(following)
                    fault.note(text)
                    self.cut(reset=True)
                    return

    async def _rest_of(self, message: bytes) -> list[bytes]:
        """The messages that follow a bound statement until its execution is asked for."""
        rest: list[bytes] = []
        while message[:1] not in (b"Q", b"S"):
            message = await next_message(self._reader)
            rest.append(message)
        return rest

    async def _to_client(self) -> None:
        with contextlib.suppress(OSError):
            answer = Answer()
            while data := await self._far_reader.read(_READ):
                if self._swallowing is not None:
                    # The statement is committed only when the server is ready for the next one.
                    if answer.complete(data):
                        fault, text = self._swallowing
                        fault.note(text)
                        self.cut(reset=True)
                        return
                    continue
                await self._gate(to_server=False)
                self._writer.write(data)
                await self._writer.drain()

    async def _send(self, data: bytes) -> None:
        await self._gate(to_server=True)
        self._far_writer.write(data)
        await self._far_writer.drain()

    async def _gate(self, *, to_server: bool) -> None:
        await self._proxy.gate(self, to_server=to_server)
        if self.silent:
            await asyncio.Event().wait()
