"""A real server for tests that need one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from duly.api.connections import Limits
from duly.api.server import create_app, serve
from duly.operations import StoreOperations

Serving = Callable[..., AbstractAsyncContextManager[str]]


@asynccontextmanager
async def _serving(
    store_operations: StoreOperations, host: str = "127.0.0.1", *, app: Any = None, limits: Limits | None = None
) -> AsyncIterator[str]:
    stop = asyncio.Event()
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve(
            app or create_app(store_operations), host=host, port=0, started=started.set_result, stop=stop, limits=limits
        )
    )
    server.add_done_callback(lambda ended: None if started.done() else started.cancel())
    try:
        try:
            address = await started
        except asyncio.CancelledError:
            await server
            raise
        yield address
    finally:
        stop.set()
        await asyncio.wait([server], timeout=10)


@pytest.fixture
def serving() -> Serving:
    """`async with serving(operations) as url`: the API on a free port, until the end of the block."""
    return _serving
