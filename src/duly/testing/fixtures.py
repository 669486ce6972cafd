"""The pytest fixtures. Loaded by `pytest_plugins = ["duly.testing"]`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from duly.testing.server import StoreServer, running_server
from duly.testing.virtual import DulyTest

# In its strict mode, the default, pytest-asyncio accepts only async fixtures made with its own decorator. Without
# pytest-asyncio the plain decorator is right: anyio's plugin handles it.
async_fixture: Any
try:
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = pytest.fixture


@pytest.fixture(scope="session")
def duly_test_server() -> Iterator[StoreServer]:
    """The PostgreSQL of this session: the server of `DULY_TEST_DATABASE_URL`, or an embedded one."""
    with running_server() as server:
        yield server


@async_fixture  # type: ignore[untyped-decorator]
async def duly_test(duly_test_server: StoreServer) -> AsyncIterator[DulyTest]:
    """A store, an app and a clock of this test's own."""
    async with DulyTest.open(duly_test_server) as test:
        yield test
