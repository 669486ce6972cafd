"""The PostgreSQL of the tests, and a fresh store on it for every test.

A store is a copy of a template that was migrated once: a copy takes some 0.1 s, so no test has to share one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from duly.errors import ConfigError, MissingExtra, StoreUnusable
from duly.schema_name import DEFAULT_SCHEMA, check_schema
from duly.store import embedded
from duly.store.migrate import migrate
from duly.store.pool import Pool, connection_options, translated_errors
from duly.testing.statements import testing_statement

DATABASE_URL, SCHEMA = "DULY_TEST_DATABASE_URL", "DULY_TEST_SCHEMA"
# The data lives only as long as the tests, so settings that protect it from a crash would only cost time.
_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
# One shard: a step then reads one index, and a re-read is one statement. Tests cannot observe a job's shard.
_SHARDS = 1

T = TypeVar("T")


class StoreServer:
    """Makes stores. It creates and drops databases of its own; other databases of the server are not touched."""

    def __init__(self, url: str, *, schema: str | None = None) -> None:
        """`schema`: the schema of the stores; default: the one that `DULY_TEST_SCHEMA` names, else duly."""
        try:
            self.schema = check_schema(schema or os.environ.get(SCHEMA) or DEFAULT_SCHEMA)
        except ValueError as error:
            raise ConfigError(f"schema ({SCHEMA}): {error}") from error
        self._url = url
        self._template = _new_name()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[str]:
        """The address of an empty store, which is dropped at the end."""
        name = _new_name()
        await self._create(name, self._template)
        try:
            yield self._at(name)
        finally:
            await self._drop(name)

    async def prepare(self) -> None:
        await self._create(self._template, "template1")
        pool = await Pool.connect(self._at(self._template), size=1, schema=self.schema)
        try:
            await migrate(pool, shards=_SHARDS)
        finally:
            await pool.close()

    async def close(self) -> None:
        await self._drop(self._template)

    def _at(self, name: str) -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{name}"))

    async def _create(self, name: str, template: str) -> None:
        try:
            await self._execute(
                testing_statement("create_database").format(name=name, template=template),
                testing_statement("settle_database").format(name=name),
            )
        except StoreUnusable as error:
            if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                raise
            raise ConfigError(
                f"every test gets a database of its own, and the user of {DATABASE_URL} may not create databases: "
                "run: alter role … createdb"
            ) from error

    async def _drop(self, name: str) -> None:
        await self._execute(testing_statement("drop_database").format(name=name))

    async def _execute(self, *statements: str) -> None:
        with translated_errors(self._url):
            connection = await asyncpg.connect(self._url, timeout=30, **connection_options(self._url))
            try:
                for statement in statements:
                    await connection.execute(statement, timeout=60)
            finally:
                await connection.close()


@contextmanager
def running_server(database_url: str | None = None, *, schema: str | None = None) -> Iterator[StoreServer]:
    """The PostgreSQL at `database_url` or `DULY_TEST_DATABASE_URL`; else an embedded one in a temporary folder."""
    with _address(database_url or os.environ.get(DATABASE_URL)) as url:
        server = StoreServer(url, schema=schema)
        _on_a_loop_of_its_own(server.prepare)
        try:
            yield server
        finally:
            _on_a_loop_of_its_own(server.close)


@contextmanager
def _address(database_url: str | None) -> Iterator[str]:
    if database_url is not None:
        yield database_url
        return
    with tempfile.TemporaryDirectory(prefix="duly-test-", ignore_cleanup_errors=True) as folder:
        try:
            running = embedded.start(Path(folder), settings=_SETTINGS)
        except MissingExtra as error:
            raise MissingExtra(f"duly.testing without {DATABASE_URL}", "embedded") from error
        try:
            yield running.url
        finally:
            running.release()


def _on_a_loop_of_its_own(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # In a thread, because this one may have a running loop, or one that pytest has set.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, call()).result()


def _new_name() -> str:
    # Random, because test runs on several machines may share a server.
    return f"duly_test_{secrets.token_hex(8)}"
