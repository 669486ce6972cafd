"""Reading a request's body: bounded in size, in depth and in the numbers it holds, before anything else sees it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import zlib
from collections.abc import AsyncIterator, Sequence
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


JSON = ("application/json",)
# The first is the usual name, the others are met as well.
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")


async def read_object(request: Request, *, limit: int) -> dict[str, Any]:
    """The JSON object that a request carries, or a `Problem`."""
    return parse_object((await read_bytes(request, limit=limit))[1])


async def read_optional_object(request: Request, *, limit: int) -> dict[str, Any]:
    """The same for a call whose body may be left out: no bytes are no fields."""
    if "content-type" not in request.headers:
        async for chunk in request.stream():
            if chunk:
                raise Problem(415, "the body must be JSON in UTF-8: Content-Type: application/json")
        return {}
    body = (await read_bytes(request, limit=limit))[1]
    return parse_object(body) if body.strip() else {}


def parse_object(body: bytes) -> dict[str, Any]:
    _check_depth(body)
    value, clean = parse_json(body)
    if not isinstance(value, dict):
        raise _invalid("body", "must be a JSON object")
    if not clean:
        refuse_unusable(value)
    return value


def parse_json(body: bytes) -> tuple[Any, bool]:
    """What the bytes say, and whether all of it can be kept; if not, `refuse_unusable` names the field.

    As deep as it may be: a parser that runs out of stack says so, and what is deeper than a payload may be is refused
    with the payload.
    """
    clean = True

    def integer(text: str) -> int | _Unusable:
        nonlocal clean
        try:
            return int(text)
        except ValueError:
            clean = False
            return _Unusable("holds a number with too many digits")

    def number(text: str) -> float | _Unusable:
        nonlocal clean
        value = float(text)
        if math.isfinite(value):
            return value
        clean = False
        return _Unusable("holds a number that is too large")

    def constant(text: str) -> _Unusable:
        nonlocal clean
        clean = False
        return _Unusable(f"must be JSON: {text} is not")

    try:
        value = json.loads(body.decode(), parse_int=integer, parse_float=number, parse_constant=constant)
    except json.JSONDecodeError as error:
        if not body.strip():
            raise _invalid("body", "is empty and must be JSON") from error
        raise _invalid("body", f"is not JSON: {error.msg}, line {error.lineno} column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise _invalid("body", "is not JSON: it is not UTF-8") from error
    except RecursionError as error:
        raise _invalid("body", f"is nested too deeply: at most {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise _invalid("body", "is not JSON that can be read") from error
    return value, clean


def refuse_unusable(document: dict[str, Any]) -> None:
    for field, content in document.items():
        if (unusable := _find_unusable(content)) is not None:
            raise _invalid(field, unusable.message)


def _invalid(field: str, message: str) -> Problem:
    return Problem.invalid([FieldError(field, message)])


async def read_bytes(request: Request, *, limit: int, media_types: Sequence[str] = JSON) -> tuple[str, bytes]:
    """The whole body and its media type, which must be one of these."""
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    charset = re.fullmatch(r'\s*charset\s*=\s*"?([^";]*)"?\s*', parameters.lower())
    if media_type not in media_types or (charset and charset[1].strip() not in ("utf-8", "utf8")):
        raise Problem(415, f"the body must be JSON in UTF-8: Content-Type: {' or '.join(media_types[:2])}")
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
    return media_type, bytes(body)


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
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
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
