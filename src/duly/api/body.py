"""Reading a request's body, with bounds on its size, its depth and its numbers, before any other code sees it.

The time is at most proportional to the size of the body, and long work gives other requests a turn. A body of many
documents is read one at a time: their number and the size of each are checked before the next one is parsed.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import math
import re
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import accumulate
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from duly.api.problems import FieldError, Problem
from duly.checks import MAX_DEPTH
from duly.turns import Turns

# Bytes and seconds for which the rest of a body that is too large is still received: closing the connection while the
# client sends would destroy the answer before it is read.
_LINGER_BYTES = 16 * 1024 * 1024
_LINGER_SECONDS = 5
# Bytes that are unpacked, or counted, in one step: a few kilobytes of gzip can hold any number of megabytes.
_STEP_BYTES = 256 * 1024
# Estimated memory that the documents of one body may take at most: three bytes of JSON can become a list of 64.
_MAX_HELD_BYTES = 96 * 1024 * 1024
_CONTAINER_BYTES, _KEY_BYTES, _VALUE_BYTES = 200, 120, 40
# Upper bound of the memory that parsed JSON takes, as a multiple of its length.
_MAX_HELD_PER_BYTE = 100

# A string (an unterminated one runs to the end, so that no position is scanned twice) or a bracket.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
# Brackets as signed bytes, +1 and -1, and all bytes that are no brackets.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SPACES = re.compile(r"[ \t\n\r]*")
_BLANK = re.compile(rb"\s*")


class _Unusable:
    """Placeholder in the parsed body for a number that cannot be stored, until its field is known."""

    def __init__(self, message: str) -> None:
        self.message = message


JSON = ("application/json",)
# The first is the usual name; clients send the others as well.
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")


async def read_object(request: Request, *, limit: int) -> dict[str, Any]:
    """The JSON object that a request carries, or a `Problem`."""
    return Parser().document((await read_bytes(request, limit=limit))[1])


async def read_optional_object(request: Request, *, limit: int) -> dict[str, Any]:
    """`read_object` for a call whose body is optional: an empty body has no fields."""
    if "content-type" not in request.headers:
        async for chunk in request.stream():
            if chunk:
                raise Problem(415, "the body must be JSON in UTF-8: Content-Type: application/json")
        return {}
    body = (await read_bytes(request, limit=limit))[1]
    return Parser().document(body) if body.strip() else {}


class Parser:
    """Reads JSON documents, one or many. A number that cannot be stored is refused by the name of its field."""

    def __init__(self) -> None:
        self._clean = True
        self._decode = json.JSONDecoder(
            parse_int=self._integer, parse_float=self._number, parse_constant=self._constant
        ).raw_decode

    def document(self, body: bytes) -> dict[str, Any]:
        """The one object in these bytes, or a `Problem`."""
        if _is_deep(body):
            raise _too_deep(_deep_field(body))
        try:
            text = body.decode()
            value, end = self.value(text, _SPACES.match(text).end())  # type: ignore[union-attr]
            if (end := _SPACES.match(text, end).end()) != len(text):  # type: ignore[union-attr]
                raise json.JSONDecodeError("Extra data", text, end)
        except json.JSONDecodeError as error:
            if not body.strip():
                raise _invalid("body", "is empty and must be JSON") from error
            raise _invalid("body", f"is not JSON: {error.msg}, line {error.lineno} column {error.colno}") from error
        except UnicodeDecodeError as error:
            raise _invalid("body", "is not JSON: it is not UTF-8") from error
        except RecursionError as error:
            raise _too_deep(_deep_field(body)) from error
        return self.checked(value)

    def value(self, text: str, start: int) -> tuple[Any, int]:
        """The value that begins there, and where it ends.

        As deep as it may be: a parser that runs out of stack says so, and what is deeper than a payload may be is
        refused with the payload.
        """
        self._clean = True
        try:
            return self._decode(text, start)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            raise _invalid("body", "is not JSON that can be read") from error

    def checked(self, value: object) -> dict[str, Any]:
        """The value that was read last, if it is an object that can be stored."""
        if not isinstance(value, dict):
            raise _invalid("body", "must be a JSON object")
        if not self._clean:
            for field, content in value.items():
                if (unusable := _find_unusable(content)) is not None:
                    raise _invalid(field, unusable.message)
        return value

    def _integer(self, text: str) -> int | _Unusable:
        try:
            return int(text)
        except ValueError:
            self._clean = False
            return _Unusable("holds a number with too many digits")

    def _number(self, text: str) -> float | _Unusable:
        value = float(text)
        if math.isfinite(value):
            return value
        self._clean = False
        return _Unusable("holds a number that is too large")

    def _constant(self, text: str) -> _Unusable:
        self._clean = False
        return _Unusable(f"must be JSON: {text} is not")


#: A document, or the problem with it.
Read = dict[str, Any] | Problem


async def read_array(body: bytes, *, most: int, each: int) -> list[Read]:
    """The objects of a JSON array: at most `most`, each of at most `each` bytes.

    Nothing after the first that is too many or too large is parsed, and the whole is never text at once.
    """
    parser, turns, window = Parser(), Turns(), _Window(body, each)
    room = await _Room.for_all_of(body, turns)
    read: list[Read] = []
    try:
        if not window.skip_spaces():
            raise _invalid("body", "is empty and must be JSON")
        if not window.take("["):
            raise _invalid("body", "must be a JSON array of jobs")
        if window.skip_spaces() and window.take("]"):
            window.end()
            return read
        while True:
            check_number(len(read) + 1, most)
            value, text = window.element(parser)
            room.hold(text)
            try:
                read.append(parser.checked(value))
            except Problem as problem:
                read.append(problem.bare())
            await turns.give()
            if window.take("]"):
                window.end()
                return read
            window.take(",")
    except json.JSONDecodeError as error:
        raise _invalid("body", f"is not JSON: {error.msg}, at job {len(read)} of the array") from error
    except UnicodeDecodeError as error:
        raise _invalid("body", "is not JSON: it is not UTF-8") from error
    except RecursionError as error:
        raise _too_deep("body") from error


async def read_lines(body: bytes, *, most: int, each: int) -> list[Read]:
    """Read each line by itself: an invalid line, such as the last of a truncated stream, does not affect the others."""
    parser, turns = Parser(), Turns()
    room = await _Room.for_all_of(body, turns)
    read: list[Read] = []
    for start, end in _lines(body):
        check_number(len(read) + 1, most)
        if end - start > each:
            read.append(_invalid("body", f"must be at most {each} bytes, this line is {end - start}"))
            continue
        line = body[start:end]
        room.hold(line)
        try:
            read.append(parser.document(line))
        except Problem as problem:
            read.append(problem.bare())
        await turns.give()
    return read


def _lines(body: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of every line that is not blank."""
    start = 0
    while (start := _BLANK.match(body, start).end()) < len(body):  # type: ignore[union-attr]
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        yield start, end
        start = end


def check_number(jobs: int, most: int) -> None:
    if jobs > most:
        message = f"must be at most {most} jobs"
        raise Problem(413, f"body: {message}", errors=[FieldError("body", message)])


class _Window:
    """A window of a long JSON array as text: enough for the element that is being read, and little more.

    A value that ends where the window ends (a number, say) may go on after it, so it is read again with more text.
    """

    def __init__(self, body: bytes, each: int) -> None:
        self._body = body
        self._each = each
        self._taken = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0

    def _more(self) -> bool:
        """Drop the text that was read and decode as much again as an element may have."""
        if self._taken >= len(self._body):
            return False
        chunk = self._body[self._taken : self._taken + self._each]
        self._taken += len(chunk)
        self._text = self._text[self._at :] + self._decoder.decode(chunk, final=self._taken >= len(self._body))
        self._at = 0
        return True

    def skip_spaces(self) -> bool:
        """Whether the array has another element."""
        while True:
            self._at = _SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return True
            if not self._more():
                return False

    def take(self, character: str) -> bool:
        if self._at < len(self._text) and self._text[self._at] == character:
            self._at += 1
            return True
        return False

    def end(self) -> None:
        if self.skip_spaces():
            raise json.JSONDecodeError("Extra data", "", 0)

    def element(self, parser: Parser) -> tuple[Any, str]:
        """The next value and its text; the window includes the comma or bracket after it."""
        self.skip_spaces()
        while True:
            try:
                value, end = parser.value(self._text, self._at)
                after = _SPACES.match(self._text, end).end()  # type: ignore[union-attr]
                if self._text[after : after + 1] not in (",", "]"):
                    raise json.JSONDecodeError("Expecting ',' delimiter", "", 0)
            except json.JSONDecodeError:
                if len(self._text) - self._at <= self._each and self._more():
                    continue
                self._refuse_large(len(self._text) - self._at if self._taken < len(self._body) else 0)
                raise
            self._refuse_large(end - self._at)
            text = self._text[self._at : end]
            self._at = after
            return value, text

    def _refuse_large(self, size: int) -> None:
        if size > self._each:
            message = f"must be at most {self._each} bytes for each job"
            raise Problem(413, f"body: {message}", errors=[FieldError("body", message)])


class _Room:
    """An estimate of the memory that the documents of one body take, from their text."""

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts
        self._left = _MAX_HELD_BYTES

    @classmethod
    async def for_all_of(cls, body: bytes, turns: Turns) -> _Room:
        """Whether the documents need not be estimated one by one: most bodies are short, or have few values."""
        if len(body) * _MAX_HELD_PER_BYTE <= _MAX_HELD_BYTES:
            return cls(counts=False)
        held = len(body)
        for start in range(0, len(body), _STEP_BYTES):
            held += _structure_bytes(body[start : start + _STEP_BYTES])
            await turns.give()
        return cls(counts=held > _MAX_HELD_BYTES)

    def hold(self, text: str | bytes) -> None:
        if not self._counts:
            return
        if isinstance(text, str):
            text = text.encode()
        # Characters within strings are no structure.
        self._left -= _structure_bytes(_STRINGS.sub(b"", text)) + len(text)
        if self._left < 0:
            message = "holds too many values for one body: send them in several"
            raise Problem(413, f"body: {message}", errors=[FieldError("body", message)])


def _structure_bytes(text: bytes) -> int:
    return (
        (text.count(b"[") + text.count(b"{")) * _CONTAINER_BYTES
        + text.count(b":") * _KEY_BYTES
        + text.count(b",") * _VALUE_BYTES
    )


def _invalid(field: str, message: str) -> Problem:
    return Problem.invalid([FieldError(field, message)])


def _too_deep(field: str) -> Problem:
    return _invalid(field, f"is nested too deeply: at most {MAX_DEPTH} levels")


def _too_large(limit: int) -> Problem:
    message = f"must be at most {limit} bytes"
    return Problem(413, f"the body {message}", errors=[FieldError("body", message)])


async def read_bytes(request: Request, *, limit: int, media_types: Sequence[str] = JSON) -> tuple[str, bytes]:
    """The whole body and its media type, which must be one of these."""
    media_type, charset = read_content_type(request.headers.get("content-type", ""))
    if media_type not in media_types or charset not in ("utf-8", "utf8"):
        raise Problem(415, f"the body must be JSON in UTF-8: Content-Type: {' or '.join(media_types[:2])}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise Problem(415, "the body may be compressed with gzip only", headers={"Accept-Encoding": "gzip"})
    declared = request.headers.get("content-length", "")
    waits_for_leave = request.headers.get("expect", "").lower() == "100-continue"
    if waits_for_leave and re.fullmatch("[0-9]+", declared) and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(limit)
    unpack = _Inflating(limit) if encoding == "gzip" else None
    received = 0
    body = bytearray()
    stream = aiter(request.stream())
    try:
        async for chunk in stream:
            received += len(chunk)
            if unpack is None:
                body += chunk
            else:
                await unpack.add(chunk, body)
            if received > limit or len(body) > limit:
                await _linger(stream)
                raise _too_large(limit)
    except zlib.error as error:
        raise _invalid("body", "is not gzip, though Content-Encoding says so") from error
    if unpack is not None and not unpack.is_whole:
        raise _invalid("body", "is not one whole gzip stream")
    return media_type, bytes(body)


def read_content_type(header: str) -> tuple[str, str]:
    """The media type and the charset, which is UTF-8 where none is named.

    By cuts, not by a pattern: one that matches spaces in several places tries them all, and a header may be full of
    them.
    """
    media_type, *parameters = header.lower().split(";")
    charset = "utf-8"
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset":
            charset = value.strip().strip('"').strip()
    return media_type.strip(), charset


class _Inflating:
    """Unpacks gzip in steps, up to one byte more than allowed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns = Turns()
        self._has_more = False
        self._stream = zlib.decompressobj(wbits=31)

    async def add(self, chunk: bytes, body: bytearray) -> None:
        if self._stream.eof:
            # Bytes after the end of the gzip stream are not kept: the whole body is refused for them.
            self._has_more = self._has_more or bool(chunk)
            return
        while (room := self._limit + 1 - len(body)) > 0:
            step = min(room, _STEP_BYTES)
            inflated = self._stream.decompress(chunk, step)
            body += inflated
            chunk = self._stream.unconsumed_tail
            # A full step may leave output pending even if the whole chunk is consumed.
            if not chunk and len(inflated) < step:
                return
            await self._turns.give()

    @property
    def is_whole(self) -> bool:
        return self._stream.eof and not self._stream.unused_data and not self._has_more


async def _linger(stream: AsyncIterator[bytes]) -> None:
    discarded = 0
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            async for chunk in stream:
                discarded += len(chunk)
                if discarded > _LINGER_BYTES:
                    return
    except (TimeoutError, ClientDisconnect):
        return


def _is_deep(body: bytes) -> bool:
    """Count brackets to find the depth: a recursive parser would exhaust the stack before it could name the field."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    steps = _STRINGS.sub(b"", body).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH


def _deep_field(body: bytes) -> str:
    """The field of a body that is nested too deeply."""
    depth = 0
    field = b"body"
    for token in _STRUCTURE.finditer(body):
        first = body[token.start()]
        if first == 0x22:  # a string; outside all brackets but the first it is a key, or a value that opens none
            if depth == 1:
                field = token[0][1:-1]
        elif first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                break
        else:
            depth -= 1
    return field.decode(errors="replace")


def _find_unusable(value: Any) -> _Unusable | None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, _Unusable):
            return item
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return None
