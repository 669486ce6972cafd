"""A run's log as a stream of server-sent events, for readers that do not want to ask again and again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from duly.api.documents import log_line_document
from duly.api.problems import Problem
from duly.errors import DulyError
from duly.model import LogPage
from duly.operations import Operations
from duly.store.pool import reading

#: Streams of one server; each costs a few statements per second at most.
MAX_STREAMS = 200
# A stream ends after this long, and its reader comes back with `Last-Event-ID` and its key.
LONGEST_SECONDS = 300.0
# Seconds of silence after which a comment is sent: proxies close connections on which nothing moves.
_BEAT_SECONDS = 10.0
_open = 0


async def stream_of(
    operations: Operations, run_id: str, *, cursor: str | None, attempt: int | None, tail: int | None
) -> Response:
    """Raises what the first read raises, before the answer begins."""
    if _open >= MAX_STREAMS:
        raise Problem(503, f"there are {MAX_STREAMS} streams already; try again later, or read page by page")
    pages = operations.runs.follow(run_id, cursor=cursor, attempt=attempt, tail=tail)
    first = await anext(pages)
    # `X-Accel-Buffering`: nginx would hold the events back.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    body = _events(operations.tenant, first, pages)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _events(tenant: str, first: LogPage, pages: AsyncIterator[LogPage]) -> AsyncIterator[bytes]:
    global _open
    _open += 1
    try:
        began = beat_at = time.monotonic()
        page = first
        while True:
            if page.items:
                yield b"".join(_event(page, index) for index in range(len(page.items)))
                beat_at = time.monotonic()
            elif time.monotonic() - beat_at >= _BEAT_SECONDS:
                yield b": nothing new\n\n"
                beat_at = time.monotonic()
            if page.complete:
                yield b"event: end\ndata: {}\n\n"
                return
            if time.monotonic() - began >= LONGEST_SECONDS:
                return
            try:
                with reading(tenant):
                    page = await anext(pages)
            except (DulyError, StopAsyncIteration):
                return  # the reader comes back, and is told
    except asyncio.CancelledError:
        return  # the server stops
    finally:
        _open -= 1


def _event(page: LogPage, index: int) -> bytes:
    line = page.items[index]
    # A cursor stands after a page; that of a line within it has the line's number.
    cursor = page.cursor if index == len(page.items) - 1 else ""
    mark = f"id: {cursor}\n" if cursor else ""
    return f"{mark}event: line\ndata: {json.dumps(log_line_document(line), ensure_ascii=False)}\n\n".encode()
