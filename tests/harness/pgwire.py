"""The part of PostgreSQL's protocol that a proxy must know to strike at one statement."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

# Codes of first messages that ask for encryption; after them the client sends another first message.
_ENCRYPTION = (80877103, 80877104)


async def first_message(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Reads a first message, which has no type. Also returns whether another first message follows."""
    head = await reader.readexactly(4)
    body = await reader.readexactly(_length(head) - 4)
    return head + body, len(body) == 4 and _length(body) in _ENCRYPTION


async def next_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(_length(head[1:]) - 4)


class Statements:
    """The statements that one client has prepared, by name."""

    def __init__(self) -> None:
        self._texts: dict[bytes, bytes] = {}

    def carried_out_by(self, message: bytes) -> bytes:
        """The text of the statement that this message executes; empty if it executes none."""
        kind = message[:1]
        if kind == b"P":
            name, _, rest = message[5:].partition(b"\0")
            self._texts[name] = rest.partition(b"\0")[0]
        elif kind == b"B":
            return self._texts.get(message[5:].split(b"\0", 2)[1], b"")
        elif kind == b"Q":
            return message[5:]
        return b""


class Answer:
    """Looks for the end of an answer in a stream of messages that may arrive in any pieces."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def complete(self, data: bytes) -> bool:
        """Whether the server has said that it is ready for the next statement."""
        self._pending += data
        while len(self._pending) >= 5:
            end = 1 + _length(self._pending[1:5])
            if len(self._pending) < end:
                return False
            if self._pending[:1] == b"Z":
                return True
            del self._pending[:end]
        return False


def refusal(state: str, *, within: bool) -> bytes:
    """An error in place of an answer, and the message that the server is ready for the next statement.

    `within`: the error is inside a transaction, which has failed with it.
    """
    fields = {b"S": b"ERROR", b"V": b"ERROR", b"C": state.encode(), b"M": b"injected on the wire"}
    body = b"".join(kind + text + b"\0" for kind, text in fields.items()) + b"\0"
    return _message(b"E", body) + _message(b"Z", b"E" if within else b"I")


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """Ends a connection, in an orderly way or by RST."""
    connection = writer.get_extra_info("socket")
    if reset and connection is not None and connection.family != socket.AF_UNIX:
        # Without lingering the other side gets a reset, not an orderly end.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if reset:
        writer.transport.abort()
    else:
        writer.close()


def _length(data: bytes | bytearray) -> int:
    return int(struct.unpack("!i", data)[0])
