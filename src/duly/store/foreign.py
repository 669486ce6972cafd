"""The caller's own connection, whatever driver it is of: named statements run on it, in the transaction it has open.

| given | how it is asked |
| --- | --- |
| asyncpg `Connection`, also one that a pool lent | as our own connections are |
| psycopg 3 `Connection`, `AsyncConnection` | a cursor of its own |
| psycopg2 `connection` | a cursor |
| SQLAlchemy `Connection`, `Session`, `AsyncConnection`, `AsyncSession`, `scoped_session` | `exec_driver_sql` |
| Django `connection`, `connections["…"]` | a cursor |

None of these libraries is imported: an object says by the module of its class what it is. Errors of the database stay
the driver's own, because the transaction and its fate are the caller's.

Statements are the same files. For drivers that count no parameters, `$3` becomes `%(p3)s`, and an array becomes the
text that PostgreSQL reads as one: drivers differ in how they write arrays of UUIDs, of bytes or of nothing but nulls,
and all of them can write a text.
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
from duly.store.pool import InTransaction, Querier
from duly.store.statements import statement

T = TypeVar("T")

_UUID_OID = 2950
_KINDS = (
    "an asyncpg, psycopg or psycopg2 connection, a SQLAlchemy connection or session, or a Django connection, "
    "all of them to PostgreSQL"
)


class Foreign(Protocol):
    """A recognised connection: whether it must be awaited, and how a statement is run on it."""

    asynchronous: bool

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]: ...


def recognise(connection: object) -> Foreign:
    """The adapter for a connection, or an `InvalidInput` that says what can be given."""
    # The classes it is made of, nearest first: a subclass of the user's is what its base is.
    for kind in type(connection).__mro__:
        package = kind.__module__.partition(".")[0]
        if (make := _ADAPTERS.get((package, kind.__name__))) is not None:
            return make(connection)
    shown = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if type(connection).__name__ in ("Pool", "ConnectionPool", "AsyncConnectionPool", "Engine", "AsyncEngine"):
        raise InvalidInput("connection", f"is {shown}, which holds many: give the one that your transaction is on")
    raise InvalidInput("connection", f"is {shown}, which is not known here: give {_KINDS}")


class Joined:
    """An `Querier` on the caller's connection. Its clock is the database's, as it was when somebody asked."""

    clock: Clock

    def __init__(self, foreign: Foreign) -> None:
        self._foreign = foreign

    async def fetch(self, name: str, *args: Any) -> list[Any]:
        return await self._foreign.run(name, args)

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
            # The caller has none open: then each of our calls is one of its own, as each statement would be.
            async with self._foreign.connection.transaction():
                return await work(self)
        return await work(self)

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        assert isinstance(self._foreign, _Asyncpg)
        await InTransaction(self._foreign.connection).copy(table, columns, pieces)


# Connections of asyncpg's that know the types of our arrays.
_knowing: WeakSet[Any] = WeakSet()


async def _know_types(connection: Any) -> None:
    """Let asyncpg look at these types while PostgreSQL's own functions are all that can be meant.

    It looks them up at their first use, by functions and operators that it names without a schema: with the caller's
    search_path they may be somebody else's. What is looked up stays known to the connection; the path goes back.
    """
    real = getattr(connection, "_con", connection)  # what a pool lends stands for one of its own
    if real in _knowing:
        return
    begin, end = "begin", "rollback"
    if connection.is_in_transaction():
        begin, end = "savepoint duly_types", "rollback to savepoint duly_types; release savepoint duly_types"
    await connection.execute(f"{begin}; set local search_path = pg_catalog, pg_temp")
    try:
        await connection.prepare(statement("store/array_types"))
    finally:
        await connection.execute(end)
    _knowing.add(real)


def lacks_rights(error: BaseException) -> bool:
    """Whether a driver says that the connection's role may not do that. Some wrap what another one has said."""
    told = (error, getattr(error, "orig", None), error.__cause__)
    return any(getattr(one, name, None) == "42501" for one in told for name in ("sqlstate", "pgcode"))


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, in this very thread: the drivers it calls block by themselves.

    A connection belongs to the thread, or to the greenlet, that the caller uses it in. An event loop elsewhere is no
    place for it.
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

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        await _know_types(self.connection)
        return await InTransaction(self.connection).fetch(name, *args)


@dataclass(frozen=True, slots=True)
class _Psycopg:
    connection: Any
    asynchronous = False

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        # Rows as tuples, whatever the connection's own row factory makes of them.
        with self.connection.cursor(row_factory=_plain_rows) as cursor:
            cursor.execute(_percent(name), _texts(args))
            return _records(cursor.description, cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _AsyncPsycopg:
    connection: Any
    asynchronous = True

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        async with self.connection.cursor(row_factory=_plain_rows) as cursor:
            await cursor.execute(_percent(name), _texts(args))
            return _records(cursor.description, await cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _Psycopg2:
    connection: Any
    asynchronous = False

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        # The plain cursor, whatever class the connection makes by default.
        with self.connection.cursor(cursor_factory=_plain_cursor()) as cursor:
            cursor.execute(_percent(name), _texts(args))
            return _records(cursor.description, cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _Django:
    connection: Any
    asynchronous = False

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(_percent(name), _texts(args))
            return _records(cursor.description, cursor.fetchall())


@dataclass(frozen=True, slots=True)
class _SQLAlchemy:
    connection: Any
    asynchronous = False

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        return _fetch_all(self.connection.exec_driver_sql(*_for_dialect(self.connection.dialect, name, args)))


@dataclass(frozen=True, slots=True)
class _SQLAlchemySession:
    session: Any
    asynchronous = False

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        return await _SQLAlchemy(self.session.connection()).run(name, args)


@dataclass(frozen=True, slots=True)
class _AsyncSQLAlchemy:
    connection: Any
    asynchronous = True

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        sql, given = _for_dialect(self.connection.dialect, name, args)
        if self.connection.dialect.driver == "asyncpg":
            await _know_types((await self.connection.get_raw_connection()).driver_connection)
        return _fetch_all(await self.connection.exec_driver_sql(sql, given))


@dataclass(frozen=True, slots=True)
class _AsyncSQLAlchemySession:
    session: Any
    asynchronous = True

    async def run(self, name: str, args: Sequence[Any]) -> list[Any]:
        return await _AsyncSQLAlchemy(await self.session.connection()).run(name, args)


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


def _for_dialect(dialect: Any, name: str, args: Sequence[Any]) -> tuple[str, Any]:
    if dialect.name == "postgresql" and dialect.driver == "asyncpg":
        return statement(name), tuple(args)
    if dialect.name == "postgresql" and dialect.driver.startswith("psycopg"):
        return _percent(name), _texts(args)
    raise InvalidInput(
        "connection",
        f"is SQLAlchemy's over {dialect.name}+{dialect.driver}: give one over psycopg, psycopg2 or asyncpg",
    )


@cache
def _percent(name: str) -> str:
    """A statement for drivers that take `%(p1)s`.

    Without its comments: some drivers write values into the text themselves, and would do so there too, where a line
    break in a value ends the comment.
    """
    bare = re.sub(r"--[^\n]*", "", statement(name))
    return re.sub(r"\$(\d+)", r"%(p\1)s", bare.replace("%", "%%"))


def _texts(args: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": _as_text(value) for number, value in enumerate(args, 1)}


def _as_text(value: Any) -> Any:
    """Arrays as PostgreSQL writes them, and what not every driver knows as text; the rest as it is."""
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
    """Rows by column name, with UUIDs and bytes as such: some drivers give texts and views of memory."""
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
