"""Limits on connections: time to send a request and to read its answer, size of a head, number of connections.

uvicorn waits for ever for a client that has connected. Here, once per second, all connections are checked, and those
whose client is too slow in sending a head or a body or in reading an answer are closed; a request pays two attributes
for it. When the limit of connections is reached, idle ones are closed for new ones.
"""

from __future__ import annotations

import logging
import re
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from duly.api.problems import MEDIA_TYPE, Problem

log = logging.getLogger("duly.api")
# uvicorn logs a warning per invalid request, so that any client could fill the log. Only errors are logged.
_quiet = logging.getLogger("duly.api.connections")
_quiet.setLevel(logging.WARNING)
_quiet.addFilter(lambda record: record.levelno != logging.WARNING)

# File descriptors reserved at least for PostgreSQL, files, and connections that are accepted but not checked yet.
_MIN_RESERVED = 64
_MAX_CONNECTIONS = 4096
# Connections that are accepted before the first of them is checked.
ACCEPTED_AT_ONCE = 64
# Seconds and bytes for which a refused client is still received: closing while it sends would destroy the answer.
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 256 * 1024
# Seconds that the rest of a body may take after its request has been answered.
_REST_SECONDS = 5.0
_LOG_SECONDS = 10.0

# Characters that no header has. The parser's own pattern refuses them too, but backtracks over the spaces before them.
_CONTROL = re.compile(rb"[\x00\x0b\x0c\r]")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one connection, and of all together."""

    head_seconds: float = 10.0
    #: Maximum time between two parts of a body, and between two parts of an answer that the client reads.
    pause_seconds: float = 30.0
    #: Minimum average rate of a body or an answer after `pause_seconds`.
    least_bytes_per_second: int = 8 * 1024
    idle_seconds: float = 5.0
    head_bytes: int = 64 * 1024
    headers: int = 100
    #: Maximum number of connections. None: as many as the limit of open files allows.
    connections: int | None = None
    #: Maximum size of all answers together that clients have requested and not read.
    unread_bytes: int = 64 * 1024 * 1024
    look_seconds: float = 1.0


def room_for_connections() -> int:
    """The number of connections that the limit of open files allows, with a share reserved."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    kept_back = min(max(_MIN_RESERVED + ACCEPTED_AT_ONCE, files // 8), files // 2)
    return max(1, min(_MAX_CONNECTIONS, files - kept_back))


class Crowd:
    """All connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.most = limits.connections or room_for_connections()
        self.all: set[Connection] = set()
        #: Idle connections, longest idle first.
        self.waiting: OrderedDict[Connection, None] = OrderedDict()
        self.turned_away = 0
        #: Time counted in steps between checks, so that clients are not blamed for a time in which this process stood
        #: still.
        self.clock = 0.0
        self._looked_at = time.monotonic()
        self._log_at = 0.0

    def enter(self, connection: Connection) -> bool:
        """Whether the connection may stay; if the limit is reached, the longest idle one is closed for it."""
        self.all.add(connection)
        if len(self.all) > self.most:
            self.turned_away += 1
            if not self.waiting:
                self.all.discard(connection)
                return False
            self.waiting.popitem(last=False)[0].drop()
        self.waiting[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        self.all.discard(connection)
        self.waiting.pop(connection, None)

    def look(self) -> None:
        """Close connections whose client is too slow. Called often; it checks once per second."""
        now = time.monotonic()
        if (passed := now - self._looked_at) < self.limits.look_seconds:
            return
        self._looked_at = now
        step = min(passed, 2 * self.limits.look_seconds)
        self.clock += step
        for connection in list(self.all):
            connection.look(self.clock, step)
        self._bound_unread()
        if self.turned_away and now >= self._log_at:
            self._log_at = now + _LOG_SECONDS
            log.warning(
                "%d connections were ended or turned away: at most %d are served at once, as the limit of open files "
                "(ulimit -n) has room for",
                self.turned_away,
                self.most,
            )
            self.turned_away = 0

    def _bound_unread(self) -> None:
        unread = sum(connection.unread for connection in self.all)
        if unread <= self.limits.unread_bytes:
            return
        # Connections whose client reads nothing, longest first.
        stuck = [connection for connection in self.all if connection.unread and connection.stuck_since is not None]
        for connection in sorted(stuck, key=lambda one: one.stuck_since or 0.0):
            unread -= connection.unread
            connection.drop()
            if unread <= self.limits.unread_bytes:
                return


class _Lines(ReceiveBuffer):
    """The receive buffer, from which the parser takes the lines of heads and trailers."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits
        #: Of the last head: whether it has the one of two headers for a body's end that few requests have.
        self.may_say_its_length_twice = False

    def maybe_extract_lines(self) -> list[bytearray] | None:
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines:
            if len(lines) > self._limits.headers + 1:
                raise _refused(431, f"a request may have {self._limits.headers} headers")
            if sum(map(len, lines)) > self._limits.head_bytes:
                raise _refused(431, f"a request's head may be {self._limits.head_bytes} bytes long")
            head = b"\n".join(lines)
            if _CONTROL.search(head):
                raise _refused(400, "a request's head must not hold control characters")
            self.may_say_its_length_twice = b"\ntransfer-encoding" in head.lower()
        return lines


class _Reading(h11.Connection):
    def __init__(self, limits: Limits) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._receive_buffer: _Lines = _Lines(limits)
        self.requests = 0

    @property
    def has_part_of_a_head(self) -> bool:
        return len(self._receive_buffer) > 0

    def next_event(self) -> Any:
        event = super().next_event()
        if type(event) is h11.Request:
            self.requests += 1
            if self._receive_buffer.may_say_its_length_twice:
                names = [name for name, _ in event.headers]
                if b"transfer-encoding" in names and b"content-length" in names:
                    # A proxy may go by the other header: the next bytes would be a request to only one of the two.
                    raise _refused(400, "a request has Content-Length or Transfer-Encoding, not both")
        return event


def _refused(status: int, detail: str) -> h11.RemoteProtocolError:
    return h11.RemoteProtocolError(detail, error_status_hint=status)


class Connection(H11Protocol):
    """The connection of one client."""

    conn: _Reading
    cycle: Any

    def __init__(self, *arguments: Any, crowd: Crowd, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._crowd = crowd
        self._limits = crowd.limits
        self.conn = _Reading(crowd.limits)
        self.logger = _quiet
        self._received = 0
        self._heard = True
        self._heard_at = 0.0
        # At the last check: the client's phase, its beginning, and the bytes received until then.
        self._phase: tuple[str, int] = ("", 0)
        self._since = 0.0
        self._received_before = 0
        # The unread part of its answer: bytes, since when, since when no byte of it was read, and the maximum.
        self.unread = 0
        self._unread_since = 0.0
        self._unread_most = 0
        self.stuck_since: float | None = None
        self._ends_at: float | None = None
        self._lingered = 0

    # Callbacks of uvicorn's protocol

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self._crowd.enter(self):
            # The connection is not counted, so it cannot stay until its answer is read.
            transport.write(_answer(503, "too many connections at the moment; try again"))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ends_at is not None:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES:
                self.transport.abort()
            return
        self._received += len(data)
        self._heard = True
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._crowd.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        if self in self._crowd.all:
            self._crowd.waiting[self] = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed; called where the error is handled."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError):
            status = 431 if error.error_status_hint == 431 else 400
            self._turn_away(status, str(error)[:200])
        else:
            self._turn_away(400, msg)

    def shutdown(self) -> None:
        if self._ends_at is None:
            super().shutdown()
        else:
            self.drop()

    # Refusing and closing

    def _turn_away(self, status: int, detail: str) -> None:
        """Answer and close the connection, whatever the client sends after that."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # A request is being handled: no other answer can be sent, so the handler is told that the client is gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        self.transport.write(_answer(status, detail))
        self._unset_keepalive_if_required()
        self._crowd.waiting.pop(self, None)
        self._ends_at = self._crowd.clock + _LINGER_SECONDS
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def drop(self) -> None:
        """Close the connection at once and drop the unread part of its answer."""
        self.transport.abort()
        self._crowd.leave(self)

    def look(self, now: float, step: float) -> None:
        """Close the connection if its client is too slow; `step` is the time since the last check."""
        limits = self._limits
        if self._heard:
            self._heard, self._heard_at = False, now
        if self._ends_at is not None:
            if now >= self._ends_at:
                self.drop()
            return
        if self._is_stuck(now):
            self.drop()
            return
        phase = self._what_it_is_at()
        if (phase, self.conn.requests) != self._phase:
            self._phase = phase, self.conn.requests
            self._since = now
            self._received_before = self._received
        elif phase == "head" and now - self._since >= limits.head_seconds:
            if self.conn.has_part_of_a_head:
                self._turn_away(408, f"the head must arrive within {limits.head_seconds:g} s")
            else:
                self.drop()
        elif phase == "body" and (self.flow.read_paused or self.conn.they_are_waiting_for_100_continue):
            # The client would send, but reading is paused.
            self._since += step
            self._heard_at = now
        elif phase == "body" and self._is_late(now):
            self._turn_away(408, "the body arrives too slowly")
        elif phase == "rest" and now - self._since >= _REST_SECONDS:
            self.drop()

    def _what_it_is_at(self) -> str:
        answered = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.SEND_BODY:
            return "rest" if answered else "body"
        if answered and self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.has_part_of_a_head):
            return "head"
        return "other"

    def _is_late(self, now: float) -> bool:
        limits = self._limits
        allowed = limits.pause_seconds + (self._received - self._received_before) / limits.least_bytes_per_second
        return now - self._heard_at >= limits.pause_seconds or now - self._since >= allowed

    def _is_stuck(self, now: float) -> bool:
        """Whether the client reads its answer too slowly, or not at all."""
        unread = self.transport.get_write_buffer_size()
        if not unread:
            self.unread, self.stuck_since = 0, None
            return False
        if not self.unread:
            self._unread_since, self._unread_most = now, 0
            self.stuck_since = None
        elif unread < self.unread:
            self.stuck_since = None
        elif self.stuck_since is None:
            self.stuck_since = now - self._limits.look_seconds
        self.unread = unread
        self._unread_most = max(self._unread_most, unread)
        limits = self._limits
        if self.stuck_since is not None and now - self.stuck_since >= limits.pause_seconds:
            return True
        # An answer that is still being produced may go on for as long as the client reads it.
        whole = self.cycle is not None and self.cycle.response_complete
        allowed = limits.pause_seconds + self._unread_most / limits.least_bytes_per_second
        return whole and now - self._unread_since >= allowed


_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def _answer(status: int, detail: str) -> bytes:
    """Writes the answer without the parser, whose state is unknown after invalid input."""
    body = bytes(Problem(status, detail).response().body)
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {MEDIA_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def protocol_for(crowd: Crowd) -> Callable[..., Connection]:
    """The class from which uvicorn makes its connections."""

    def make(*arguments: Any, **options: Any) -> Connection:
        return Connection(*arguments, crowd=crowd, **options)

    return make
