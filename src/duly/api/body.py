"""Reading a request's body: bounded in size, in depth and in the numbers it holds, before anything else sees it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import zlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from duly.api.problems import FieldError, Problem

# Far beyond what anybody writes by hand, far below where Python's and PostgreSQL's parsers give up: what is accepted
# here can be read again from any depth of the call stack.
MAX_DEPTH = 200
# A client that sends too much is listened to a little longer, because closing the connection while it still sends
# would destroy the answer before it is read.
_LINGER_BYTES = 16 * 1024 * 1024
_LINGER_SECONDS = 5

# A string (an unterminated one runs to the end, so that no position is looked at twice) or a bracket.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class _Unusable:
    """Stands in the parsed body for a number that cannot be kept, until its field is known."""

    def __init__(self, message: str) -> None:
        self.message = message


async def read_object(request: Request, *, limit: int) -> dict[str, Any]:
    """The JSON object that a request carries, or a `Problem`."""
    body = await _read(request, limit)
    return parse_object(body)


def parse_object(body: bytes) -> dict[str, Any]:
    _check_depth(body)
    try:
        value = json.loads(body.decode(), parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise _invalid("body", f"is not JSON: {error.msg}, line {error.lineno} column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise _invalid("body", "is not JSON: it is not UTF-8") from error
    except (RecursionError, ValueError) as error:
        raise _invalid("body", "is not JSON that can be read") from error
    if not isinstance(value, dict):
        raise _invalid("body", "must be a JSON object")
    for field, content in value.items():
        if (unusable := _find_unusable(content)) is not None:
            raise _invalid(field, unusable.message)
    return value


def _invalid(field: str, message: str) -> Problem:
    return Problem.invalid([FieldError(field, message)])


async def _read(request: Request, limit: int) -> bytes:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = re.fullmatch(r'\s*charset\s*=\s*"?([^";]*)"?\s*', parameters.lower())
    if media_type.strip().lower() != "application/json" or (charset and charset[1].strip() not in ("utf-8", "utf8")):
        raise Problem(415, "the body must be JSON in UTF-8: Content-Type: application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise Problem(415, "the body may be compressed with gzip only", headers={"Accept-Encoding": "gzip"})
    too_large = Problem(
        413, f"the body must be at most {limit} bytes", errors=[FieldError("body", f"must be at most {limit} bytes")]
    )
    declared = request.headers.get("content-length", "")
    waits_for_leave = request.headers.get("expect", "").lower() == "100-continue"
    if waits_for_leave and re.fullmatch("[0-9]+", declared) and (len(declared) > 18 or int(declared) > limit):
        raise too_large
    unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    received = 0
    body = bytearray()
    stream = aiter(request.stream())
    try:
        async for chunk in stream:
            received += len(chunk)
            # One byte more than allowed is all that is ever unpacked.
            body += chunk if unpack is None else unpack.decompress(chunk, limit + 1 - len(body))
            if received > limit or len(body) > limit:
                await _linger(stream)
                raise too_large
    except zlib.error as error:
        raise _invalid("body", "is not gzip, though Content-Encoding says so") from error
    if unpack is not None and (not unpack.eof or unpack.unused_data):
        raise _invalid("body", "is not one whole gzip stream")
    return bytes(body)


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


def _check_depth(body: bytes) -> None:
    """Count brackets before parsing: a parser that recurses would be out of stack before it could name the field."""
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
                raise _invalid(field.decode(errors="replace"), f"is nested too deeply: at most {MAX_DEPTH} levels")
        else:
            depth -= 1


def _integer(text: str) -> int | _Unusable:
    try:
        return int(text)
    except ValueError:
        return _Unusable("holds a number with too many digits")


def _float(text: str) -> float | _Unusable:
    value = float(text)
    return value if math.isfinite(value) else _Unusable("holds a number that is too large")


def _constant(text: str) -> _Unusable:
    return _Unusable(f"must be JSON: {text} is not")


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
