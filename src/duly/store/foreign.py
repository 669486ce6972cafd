"""Runs named statements on the caller's own connection, of any driver, in the transaction that it has open.

| connection | how statements run |
| --- | --- |
| asyncpg `Connection`, also a pool's proxy | as on Duly's own connections |
| psycopg 3 `Connection`, `AsyncConnection` | a cursor of its own |
| psycopg2 `connection` | a cursor |
| SQLAlchemy `Connection`, `Session`, `AsyncConnection`, `AsyncSession`, `scoped_session` | `exec_driver_sql` |
| Django `connection`, `connections["…"]` | a cursor |

None of these libraries is imported: the module of an object's class tells what it is. Database errors stay the driver's
own, because the transaction and its fate are the caller's.

The statements are the same files. For drivers without numbered parameters, `$3` becomes `%(p3)s`, and an array becomes
the string that PostgreSQL reads as one: drivers differ in how they write arrays of UUIDs, of bytes or of only nulls,
and all of them can write a string.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Protocol, TypeVar
from uuid import UUID
from weakref import WeakSet

from duly.clock import Clock
from duly.errors import InvalidInput
from duly.schema_name import DEFAULT_SCHEMA
from duly.store.pool import InTransaction, Querier
from duly.store.statements import composed, statement

T = TypeVar("T")

_UUID_OID = 2950
_KINDS = (
    "an asyncpg, psycopg or psycopg2 connection, a SQLAlchemy connection or session, or a Django connection, "
    "all of them to PostgreSQL"
)


class Foreign(Protocol):
    """A recognised connection: whether it must be awaited, and how a statement runs on it."""

    asynchronous: bool

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]: ...


def recognise(connection: object) -> Foreign:
    """The adapter for a connection; raises `InvalidInput` with the kinds that are accepted."""
    # Its classes, nearest first: a user's subclass is treated as its base.
    for kind in type(connection).__mro__:
        package = kind.__module__.partition(".")[0]
        if (make := _ADAPTERS.get((package, kind.__name__))) is not None:
            return make(connection)
    shown = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if type(connection).__name__ in ("Pool", "ConnectionPool", "AsyncConnectionPool", "Engine", "AsyncEngine"):
        raise InvalidInput("connection", f"is {shown}, which holds many: give the one that your transaction is on")
    raise InvalidInput("connection", f"is {shown}, which is not known here: give {_KINDS}")


class Joined:
    """A `Querier` on the caller's connection. Its clock shows the database's time when that was last asked."""

    clock: Clock
    #: The steps that the store has.
    steps: frozenset[int] = frozenset()

    def __init__(self, foreign: Foreign, schema: str = DEFAULT_SCHEMA) -> None:
        self._foreign = foreign
        self.schema = schema

    def has_step(self, number: int) -> bool:
        return number in self.steps

    async def fetch(self, name: str, *args: Any) -> list[Any]:
        return await self._foreign.run(*composed(name, self.schema, args, has_audit=self.has_step))

    async def row(self, name: str, *args: Any) -> Any:
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def fetch_planned(self, name: str, *args: Any) -> list[Any]:
        # Few callers repeat a large batch often enough on one connection for PostgreSQL to keep its plan.
        return await self.fetch(name, *args)

    @property
    def can_copy(self) -> bool:
        return isinstance(self._foreign, _Asyncpg)

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        if isinstance(self._foreign, _Asyncpg) and not self._foreign.connection.is_in_transaction():
            # The caller has no transaction open: then each call is one of its own, as each statement would be.
            async with self._foreign.connection.transaction():
                return await work(self)
        return await work(self)

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        assert isinstance(self._foreign, _Asyncpg)
        await InTransaction(self._foreign.connection, schema=self.schema).copy(table, columns, pieces)


# The asyncpg connections that know the array types.
_knowing: WeakSet[Any] = WeakSet()


async def _know_types(connection: Any) -> None:
    """Makes asyncpg read these types while only PostgreSQL's own functions can be found.

    asyncpg reads them at their first use, by functions and operators without a schema: the caller's search_path may
    lead to others. The connection keeps the types; the path is restored.
    """
    real = getattr(connection, "_con", connection)  # a pool's proxy stands for a connection
    if real in _knowing:
        return
    begin, end = "begin", "rollback"
    if connection.is_in_transaction():
        begin, end = "savepoint duly_types", "rollback to savepoint duly_types; release savepoint duly_types"
    await connection.execute(f"{begin}; set local search_path = pg_catalog, pg_temp")
    try:
        await connection.prepare(statement("stores/array_types"))
    finally:
        await connection.execute(end)
    _knowing.add(real)


def lacks_rights(error: BaseException) -> bool:
    """Whether the error says that the connection's role lacks a right. Some drivers wrap another one's error."""
    chain = (error, getattr(error, "orig", None), error.__cause__)
    return any(getattr(one, name, None) == "42501" for one in chain for name in ("sqlstate", "pgcode"))


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, in this very thread: the drivers that it calls block by themselves.

    A connection belongs to the thread, or the greenlet, in which the caller uses it, and not to an event loop
    elsewhere.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("a synchronous connection was waited for")


@dataclass(frozen=True, slots=True)
class _Asyncpg:
    connection: Any
    asynchronous = True

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        await _know_types(self.connection)
        rows: list[Any] = await self.connection.fetch(sql, *args)
        return rows


@dataclass(frozen=True, slots=True)
class _Psycopg:
    connection: Any
    asynchronous = False

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        # Rows as tuples, whatever the connection's own row factory is.
        with self.connection.cursor(row_factory=_plain_rows) as cursor:
            cursor.execute(_percent(sql), _texts(args))
            return _records(cursor.description, cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _AsyncPsycopg:
    connection: Any
    asynchronous = True

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        async with self.connection.cursor(row_factory=_plain_rows) as cursor:
            await cursor.execute(_percent(sql), _texts(args))
            return _records(cursor.description, await cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _Psycopg2:
    connection: Any
    asynchronous = False

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        # The plain cursor, whatever the connection's default class is.
        with self.connection.cursor(cursor_factory=_plain_cursor()) as cursor:
            cursor.execute(_percent(sql), _texts(args))
            return _records(cursor.description, cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _Django:
    connection: Any
    asynchronous = False

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(_percent(sql), _texts(args))
            return _records(cursor.description, cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _SQLAlchemy:
    connection: Any
    asynchronous = False

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        return _fetch_all(self.connection.exec_driver_sql(*_for_dialect(self.connection.dialect, sql, args)))


@dataclass(frozen=True, slots=True)
class _SQLAlchemySession:
    session: Any
    asynchronous = False

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        return await _SQLAlchemy(self.session.connection()).run(sql, args)


@dataclass(frozen=True, slots=True)
class _AsyncSQLAlchemy:
    connection: Any
    asynchronous = True

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        text, given = _for_dialect(self.connection.dialect, sql, args)
        if self.connection.dialect.driver == "asyncpg":
            await _know_types((await self.connection.get_raw_connection()).driver_connection)
        return _fetch_all(await self.connection.exec_driver_sql(text, given))


@dataclass(frozen=True, slots=True)
class _AsyncSQLAlchemySession:
    session: Any
    asynchronous = True

    async def run(self, sql: str, args: Sequence[Any]) -> list[Any]:
        return await _AsyncSQLAlchemy(await self.session.connection()).run(sql, args)


def _of_django(connection: Any) -> Foreign:
    if connection.vendor != "postgresql":
        raise InvalidInput("connection", f"is Django's to {connection.vendor}, and jobs are stored in PostgreSQL")
    return _Django(connection)


_ADAPTERS: dict[tuple[str, str], Callable[[Any], Foreign]] = {
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("psycopg", "Connection"): _Psycopg,
    ("psycopg", "AsyncConnection"): _AsyncPsycopg,
    ("psycopg2", "connection"): _Psycopg2,
    ("sqlalchemy", "Connection"): _SQLAlchemy,
    ("sqlalchemy", "Session"): _SQLAlchemySession,
    ("sqlalchemy", "scoped_session"): _SQLAlchemySession,
    ("sqlalchemy", "AsyncConnection"): _AsyncSQLAlchemy,
    ("sqlalchemy", "AsyncSession"): _AsyncSQLAlchemySession,
    ("sqlalchemy", "async_scoped_session"): _AsyncSQLAlchemySession,
    ("django", "ConnectionProxy"): _of_django,
    ("django", "BaseDatabaseWrapper"): _of_django,
}


def _for_dialect(dialect: Any, sql: str, args: Sequence[Any]) -> tuple[str, Any]:
    if dialect.name == "postgresql" and dialect.driver == "asyncpg":
        return sql, tuple(args)
    if dialect.name == "postgresql" and dialect.driver.startswith("psycopg"):
        return _percent(sql), _texts(args)
    raise InvalidInput(
        "connection",
        f"is SQLAlchemy's over {dialect.name}+{dialect.driver}: give one over psycopg, psycopg2 or asyncpg",
    )


@cache
def _percent(sql: str) -> str:
    """A statement for drivers that take `%(p1)s`.

    Comments are removed: some drivers insert values into the string themselves, and would do so in comments too, where
    a line break in a value ends the comment.
    """
    bare = re.sub(r"--[^\n]*", "", sql)
    return re.sub(r"\$(\d+)", r"%(p\1)s", bare.replace("%", "%%"))


def _texts(args: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": _as_text(value) for number, value in enumerate(args, 1)}


def _as_text(value: Any) -> Any:
    """Arrays as PostgreSQL writes them, UUIDs as strings; other values unchanged."""
    if isinstance(value, list | tuple):
        return "{" + ",".join([_element(one) for one in value]) + "}"
    return str(value) if isinstance(value, UUID) else value


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int | UUID):
        return str(value)
    if isinstance(value, datetime):
        return f'"{value.isoformat()}"'
    if isinstance(value, bytes):
        return rf'"\\x{value.hex()}"'
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    raise TypeError(f"no array of ours holds {type(value).__name__}")


def _records(description: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows by column name, with UUIDs and bytes as such: some drivers return strings and memory views."""
    columns = [(column[0], column[1] == _UUID_OID) for column in description]
    return [{name: _plain(value, is_uuid) for (name, is_uuid), value in zip(columns, row, strict=True)} for row in rows]


def _plain(value: Any, is_uuid: bool) -> Any:
    if is_uuid and isinstance(value, str):
        return UUID(value)
    return bytes(value) if isinstance(value, memoryview) else value


def _fetch_all(result: Any) -> list[dict[str, Any]]:
    return _records(result.cursor.description, result.fetchall())


def _plain_rows(_cursor: Any) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return tuple


def _plain_cursor() -> Any:
    return sys.modules["psycopg2.extensions"].cursor
