"""The connection pool, and the one place where database errors become Duly's own."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from os import environ
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit
from weakref import WeakValueDictionary

import asyncpg
from asyncpg import connect_utils

from duly.addresses import check_postgres, known_options, shown_postgres
from duly.clock import DatabaseClock
from duly.errors import ConfigError, DataRefused, DulyError, StoreBusy, StoreUnavailable, StoreUnusable
from duly.store.statements import statement, with_own_functions

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy
    from asyncpg.transaction import Transaction

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

log = logging.getLogger("duly.store")
T = TypeVar("T")

# A statement that lost a deadlock or a serialisation race changed nothing, so it may simply be sent again. So may one
# whose prepared form went out of date when somebody altered a table: asyncpg has forgotten that form by now.
_RETRYABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)
_TRIES = 6
# A statement that took too long is cancelled on the server. If that is not acknowledged soon, the link is dead.
_CANCEL_SECONDS = 1.0
# For as long, though, the server is asked to: whatever nobody waits for any more must not go on, nor wait for a lock.
_CANCEL_LONGER_SECONDS = 15.0
# What claims, completes, fires and beats is over in milliseconds and can be sent again without harm; whoever sends it
# holds a lease of seconds. A link that fell silent without a reset costs such a statement this long and not the usual
# minute. By the clock and not by TCP_USER_TIMEOUT: a proxy's kernel acknowledges whatever it gets, and a server that
# does not read for as long (a checkpoint under a bulk submit) would be cut off by it in the middle of a copy.
_PROMPT = ("runs/", "fires/", "cluster/")
PROMPT_SECONDS = 12.0
# How much longer than its own process waits for it a statement may go on: on a server that nobody could tell to stop.
_ORPHAN_SECONDS = 5.0
# From this many elements on, planning a statement for its arguments pays.
LARGE = 100

# What a driver says when there is no link, or none that it can use.
_NO_LINK = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# What is said of one batch of data and of no other: data exceptions and violated constraints.
_DATA = ("22", "23")
# The user, the database or the schema is not as it has to be: refused logins, missing databases, schemas, tables,
# functions and columns, rights that were not granted.
_NOT_SET_UP = {
    "3D000": "does not exist: create it, then run: duly migrate",
    "3F000": "is not set up ({}); run: duly migrate",
    "42P01": "is not set up ({}); run: duly migrate",
    "42703": "is not set up ({}); run: duly migrate",
    "42883": "is not set up ({}); run: duly migrate",
    "42501": "does not let its user do that ({}); grant it, or set another user",
}
# What is said of no row, whatever the statement holds: links, transactions, logins, databases, lost races, resources,
# locks that were waited for too long, and somebody who ended it.
_OF_NO_ROW = ("08", "25", "28", "3D", "40", "53", "55P03", "57")
# A connection to such a server is of no more use: it has become read-only or is about to go.
_SPENT = ("25006", "57P01", "57P02", "57P03", "57P05")


# Whose questions are asked here; None: nobody's in particular.
_reader: ContextVar[str | None] = ContextVar("duly_reader", default=None)


@contextmanager
def reading(tenant: str) -> Iterator[None]:
    """Whatever is asked meanwhile is asked for this tenant and only read: a pool may bound that (`bound_reads`)."""
    before = _reader.set(tenant)
    try:
        yield
    finally:
        _reader.reset(before)


class Querier(Protocol):
    """What can run a named statement: the pool, or one connection inside a transaction."""

    @property
    def can_copy(self) -> bool:
        """Whether what `together` gives can `copy`."""
        ...

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]: ...

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None: ...

    async def fetch_planned(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Like `fetch`, planned for these very arguments.

        After five executions PostgreSQL plans a prepared statement for arrays of ten elements, whatever their size:
        a batch of 2,000 then joins by comparing every element with every other (180 µs a job instead of 13 in a
        fire). Planning anew costs a millisecond or two, which only a large batch is worth.
        """
        ...

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        """Several statements as one transaction. `work` is done again from its start if it only lost a race."""
        ...

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        """Rows in PostgreSQL's binary format, into a table of ours. Only inside `together`."""
        ...


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Whatever a database or the way to it can answer with, as one of three errors.

    | SQLSTATE | becomes |
    | --- | --- |
    | 22, 23: these data can never be stored | `DataRefused` |
    | the login, the database or the schema is not as it has to be | `StoreUnusable` |
    | anything else, and no answer at all: the store cannot now | `StoreUnavailable` |

    Only the first may be held against a job or an outcome. The others are tried again, however long it takes; what one
    row among many may have drawn (`may_be_one_rows`), in the end without that row.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _translated(error, url) from error
    except asyncpg.ClientConfigurationError:
        raise _no_address(url) from None
    except TimeoutError as error:
        raise StoreUnavailable(f"PostgreSQL at {shown_postgres(url)} did not answer in time") from error
    except _NO_LINK as error:
        raise _unreachable(error, url) from error


def _translated(error: asyncpg.PostgresError, url: str) -> DulyError:
    state = error.sqlstate or ""
    if state.startswith(_DATA):
        return DataRefused(str(error))
    if state.startswith("28"):
        return StoreUnusable(f"PostgreSQL at {shown_postgres(url)} refused the user or password: {error}")
    if (wrong := _NOT_SET_UP.get(state)) is not None:
        return StoreUnusable(f"the store at {shown_postgres(url)} {wrong.format(error)}")
    if state.startswith(("08", "57P")):
        return _unreachable(error, url)
    return StoreUnavailable(f"PostgreSQL at {shown_postgres(url)} cannot do it now: {error} (SQLSTATE {state})")


def may_be_one_rows(error: DulyError) -> bool:
    """Whether the server answered a statement with what one of its rows may have drawn, and no other would.

    A trigger of somebody's, a limit, a damaged page. Nothing of the statement was done. Unless it is `DataRefused`
    nobody is to blame; but whatever draws it every time must not take others down with it (`store/sifting.py`).
    """
    if isinstance(error, DataRefused):
        return True
    cause = error.__cause__
    return isinstance(cause, asyncpg.PostgresError) and not (cause.sqlstate or "08").startswith(_OF_NO_ROW)


def store_cannot_now(error: BaseException) -> bool:
    """Of an error at the end of somebody else's transaction: whether it says nothing of what was done there.

    Violated constraints, lost races and an earlier statement that failed do.
    """
    if isinstance(error, asyncpg.PostgresError):
        return not (error.sqlstate or "").startswith((*_DATA, "25P", "40"))
    return isinstance(error, _NO_LINK)


def _no_address(url: str) -> ConfigError:
    """In words of our own: what a parser says of an address may quote a password."""
    try:
        check_postgres(url)
    except ValueError as error:
        why = str(error)
    else:
        options = known_options(url)
        why = f"look at its options ({', '.join(options)})" if options else "look at PostgreSQL's variables (PG…)"
    return ConfigError(
        f"DULY_DATABASE_URL (or DULY_DIRECT_URL) is not a usable PostgreSQL address: {why}; it is like "
        "postgresql://user:password@host:5432/database"
    )


def _unreachable(error: Exception, url: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"PostgreSQL at {shown_postgres(url)} cannot be reached: {str(error) or type(error).__name__}"
    )


def is_spent(error: BaseException) -> bool:
    """Whether the connection that said so is to be ended: what leads to a standby now would do so for ever."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _SPENT


class InTransaction:
    """Named statements on one connection, inside a transaction that is already open."""

    can_copy = True

    def __init__(self, connection: Connection, prompt_seconds: float | None = None) -> None:
        """`prompt_seconds`: how long statements may take that are over in milliseconds."""
        self.connection = connection
        self._prompt_seconds = prompt_seconds

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        return await self.connection.fetch(statement(name), *args, timeout=self._timeout(name))

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        return await self.connection.fetchrow(statement(name), *args, timeout=self._timeout(name))

    async def fetch_planned(self, name: str, *args: Any) -> list[asyncpg.Record]:
        timeout = self._timeout(name)
        prepared = await self.connection.prepare(statement(name), timeout=timeout)
        return await prepared.fetch(*args, timeout=timeout)

    def _timeout(self, name: str) -> float | None:
        return self._prompt_seconds if name.startswith(_PROMPT) else None

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        return await work(self)

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        async def one_by_one() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        await self.connection.copy_to_table(
            table, schema_name="duly", columns=columns, source=one_by_one(), format="binary"
        )


class Pool:
    """Connections to one store. Every call is one statement and one transaction, unless `transaction` is used."""

    can_copy = True

    def __init__(
        self, pool: asyncpg.Pool[asyncpg.Record], url: str, command_timeout: float = 60, *, pooled: bool = False
    ) -> None:
        """`pooled`: there is a pooler in transaction mode behind the address."""
        self._pool = pool
        self.pooled = pooled
        self.url = url
        self._cancel_seconds = min(_CANCEL_SECONDS, command_timeout)
        self._prompt_seconds = min(PROMPT_SECONDS, command_timeout)
        self._cancelling: set[asyncio.Task[None]] = set()
        #: How long a call may wait for a free connection; None: for ever.
        self.acquire_seconds: float | None = None
        self._read_seconds: float | None = None
        # Of each tenant that reads just now, how many more connections its reads may have.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.clock = DatabaseClock()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        size: int = 4,
        pgbouncer: bool = False,
        connect_timeout: float = 10,
        command_timeout: float = 60,
        for_handlers: bool = False,
    ) -> Pool:
        """`for_handlers`: for users' own statements, which get PostgreSQL's own settings and all the time they need."""

        async def no_reset(_: Connection) -> None:
            # Duly leaves no session state behind, so the reset statement after every use would be a wasted round trip.
            return

        with translated_errors(url):
            try:
                pool = await asyncpg.create_pool(
                    url,
                    # With any, asyncpg would reconnect behind our back and log a traceback for each time that failed.
                    min_size=0,
                    max_size=size,
                    timeout=connect_timeout,
                    command_timeout=None if for_handlers else command_timeout,
                    reset=None if for_handlers else no_reset,
                    max_inactive_connection_lifetime=300,
                    **connection_options(
                        url,
                        pgbouncer=pgbouncer,
                        for_handlers=for_handlers,
                        # Somewhat longer than anybody here waits for it: then the process or its link is gone.
                        statement_seconds=command_timeout + _ORPHAN_SECONDS,
                    ),
                )
                self = cls(pool, url, command_timeout, pooled=pgbouncer)
                try:
                    for _ in range(3):
                        await self.measure_clock()
                except BaseException:
                    pool.terminate()
                    raise
            except ValueError:
                raise _no_address(url) from None
        return self

    async def close(self) -> None:
        busy = [_place(connection) for connection in _in_use(self._pool)]
        try:
            async with asyncio.timeout(5):
                await self._pool.close()
        except (asyncpg.PostgresError, *_NO_LINK):
            for where in busy:
                self._cancel_on_server(where)
            self._pool.terminate()
        if self._cancelling:
            _, slow = await asyncio.wait(self._cancelling, timeout=self._cancel_seconds)
            for task in slow:
                task.cancel()

    def bound_reads(self, seconds: float) -> None:
        """From now on a statement inside `reading` is given up after that time, and cancelled on the server. One
        tenant's have at most half of the connections at once, so that others are served whatever that one asks for."""
        self._read_seconds = seconds

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        timeout = self._prompt_seconds if name.startswith(_PROMPT) else None
        return await self._surely(lambda: self._fetch(statement(name), args, timeout))

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def fetch_planned(self, name: str, *args: Any) -> list[asyncpg.Record]:
        if self.pooled:
            # No statement is kept there: each is planned for its arguments anyway, and needs no transaction for it.
            return await self.fetch(name, *args)
        return await self.together(lambda within: within.fetch_planned(name, *args))

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        async def once() -> T:
            # Not `transaction`, which says a lost race in other words: `_surely` must still know it for one.
            async with self._transaction() as transaction:
                return await work(transaction)

        return await self._surely(once)

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        raise AssertionError("a copy is part of a transaction")

    async def query(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        """One statement as its own transaction."""
        return await self._surely(lambda: self._fetch(sql, args))

    async def _fetch(self, sql: str, args: Sequence[Any], timeout: float | None = None) -> list[asyncpg.Record]:
        seconds, reader = self._read_seconds, _reader.get()
        if seconds is None or reader is None:
            return await self._fetch_any(sql, args, timeout)
        async with self._share(reader):
            try:
                return await self._fetch_any(sql, args, seconds if timeout is None else min(seconds, timeout))
            except TimeoutError as error:
                raise StoreBusy(
                    f"this took longer than {seconds:g} s and was given up: ask for less at once, or try again"
                ) from error

    async def _fetch_any(self, sql: str, args: Sequence[Any], timeout: float | None) -> list[asyncpg.Record]:
        connection = await self._acquire()
        try:
            rows = await connection.fetch(sql, *args, timeout=timeout)
        except (TimeoutError, asyncio.CancelledError):
            await self._give_up(connection)
            raise
        except BaseException as error:
            if is_spent(error):
                connection.terminate()
            await self._pool.release(connection)
            raise
        await self._pool.release(connection)
        return rows

    @asynccontextmanager
    async def _share(self, reader: str) -> AsyncIterator[None]:
        share = self._shares.get(reader)
        if share is None:
            share = self._shares[reader] = asyncio.Semaphore(max(1, self._pool.get_max_size() // 2))
        try:
            async with asyncio.timeout(self.acquire_seconds):
                await share.acquire()
        except TimeoutError as error:
            raise StoreBusy(
                f"too much is being read for this tenant: no turn came within {self.acquire_seconds:g} s; try again"
            ) from error
        try:
            yield
        finally:
            share.release()

    async def _acquire(self) -> PoolConnectionProxy[asyncpg.Record]:
        if self.acquire_seconds is None:
            return await self._pool.acquire()
        try:
            return await self._pool.acquire(timeout=self.acquire_seconds)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"no connection to PostgreSQL at {shown_postgres(self.url)} was free within {self.acquire_seconds:g} s"
            ) from error

    async def _give_up(self, connection: PoolConnectionProxy[asyncpg.Record], block: Transaction | None = None) -> None:
        """End a statement or a transaction that was not answered in time or is not wanted now: first on the server.

        The driver asks the server to cancel it. If that is acknowledged the connection is whole and goes back. If not,
        the link is dead, and so may be others that lie idle; the server is asked once more, beside whatever follows.
        What led here is what the caller has to hear of, so nothing is raised but a cancellation.
        """
        real, where = _real(connection), _place(_real(connection))
        try:
            if block is not None:
                async with asyncio.timeout(self._cancel_seconds):
                    await block.rollback()
            await self._pool.release(connection, timeout=self._cancel_seconds)
        except BaseException as error:
            self._cancel_on_server(where)
            if real is not None:
                real.terminate()
            with suppress(asyncpg.InterfaceError, asyncpg.InternalClientError):  # it may have been released by that
                await self._pool.release(connection)
            await self._pool.expire_connections()
            if isinstance(error, asyncio.CancelledError):
                raise

    def _cancel_on_server(self, where: dict[str, Any] | None) -> None:
        """On a link of its own, whatever becomes of the connection that it is about."""
        if where is None:
            return

        async def ask() -> None:
            utilities: Any = connect_utils
            with suppress(asyncpg.PostgresError, *_NO_LINK):
                async with asyncio.timeout(_CANCEL_LONGER_SECONDS):
                    await utilities._cancel(loop=asyncio.get_running_loop(), **where)

        task = asyncio.get_running_loop().create_task(ask(), name="duly-cancel")
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _surely(self, send: Callable[[], Awaitable[T]]) -> T:
        """Sent again if it only lost a race against another, or met a queue of notifications that is full no longer."""
        relieved = False
        with translated_errors(self.url):
            for attempt in range(1, _TRIES + 1):
                try:
                    return await send()
                except asyncpg.ProgramLimitExceededError:
                    if relieved:
                        raise
                    relieved = True
                    await self._fetch(statement("store/notifications"), ())
                except _RETRYABLE:
                    if attempt == _TRIES:
                        raise
                    await asyncio.sleep(random.uniform(0, 0.01 * 2**attempt))  # noqa: S311
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[InTransaction]:
        with translated_errors(self.url):
            async with self._transaction() as transaction:
                yield transaction

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[InTransaction]:
        async with self._begun() as connection:
            yield InTransaction(connection, self._prompt_seconds)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[InTransaction]:
        """A transaction for statements that are not ours: their errors are the borrower's, as they are."""
        async with self._begun() as connection:
            yield InTransaction(connection)

    @asynccontextmanager
    async def _begun(self) -> AsyncIterator[Connection]:
        connection = await self._acquire()
        real, block = _real(connection), connection.transaction()
        try:
            await block.start()
            yield connection
            await block.commit()
        except (TimeoutError, asyncio.CancelledError):
            await self._give_up(connection, block)
            raise
        except BaseException as error:
            if is_spent(error):
                real.terminate()
            if not real.is_closed() and real.is_in_transaction():
                try:
                    await block.rollback()
                except BaseException:
                    await self._give_up(connection)
                    raise
            await self._pool.release(connection)
            raise
        await self._pool.release(connection)

    async def measure_clock(self) -> None:
        """Compare clocks. Cheap, and services do it as they go."""
        sent = time.monotonic()
        rows = await self.query("select duly.now() as now") if await self._has_clock() else []
        if rows:
            self.clock.observe(rows[0]["now"], sent, time.monotonic())

    _clock_known = False

    async def _has_clock(self) -> bool:
        if not self._clock_known:
            rows = await self.query("select pg_catalog.to_regproc('duly.now') is not null as there")
            self._clock_known = bool(rows[0]["there"])
        return self._clock_known


# The driver cancels a statement only as long as its connection lives. These give what it takes to do so afterwards.


def _real(connection: Any) -> Any:
    """The connection behind what a pool gives out; None if it was taken back."""
    return connection._con


def _place(connection: Any) -> dict[str, Any] | None:
    protocol = None if connection is None else connection._protocol
    if protocol is None:
        return None
    return {
        "addr": connection._addr,
        "params": connection._params,
        "backend_pid": protocol.backend_pid,
        "backend_secret": protocol.backend_secret,
    }


def _in_use(pool: Any) -> list[Any]:
    return [holder._con for holder in pool._holders if holder._in_use is not None and holder._con is not None]


class _PooledConnection(asyncpg.Connection):
    """Leaves the session as it was: asyncpg itself turns JIT off for its look at array types, and on again afterwards,
    in statements of their own, which behind a pooler reach different sessions."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mine: Any = self
        mine._server_caps = mine._server_caps._replace(jit=False)
        # That look names no schema, and the path is the role's here.
        mine._intro_query = with_own_functions(mine._intro_query)


# Whatever the role, the database or the server say, for a session of ours it is this.
_SETTINGS = {
    # Functions and operators of ours are those of PostgreSQL, not those that somebody has put into a schema where
    # everybody may. Everything else is named with its schema.
    "search_path": "pg_catalog, pg_temp",
    # Duly waits and gives up by its own clocks, and tries again what only lost a race.
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    # A process that is stopped in the middle of a transaction must not keep its row locks: a shard's next leader waits
    # for them.
    "idle_in_transaction_session_timeout": "5s",
    # A client whose machine or link vanished without a word is gone for the server within a minute, not two hours: what
    # listens and does not read in the end stops everybody's notifications.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60s",
    # Statements hold literals with a backslash, and casts between times and texts.
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    # JIT compiles for longer than our short statements run.
    "jit": "off",
    # Sequential scans are off because a prepared statement keeps the plan of its first executions: a worker that starts
    # on an empty queue would go on to read the whole queue for every claim when it fills (404 ms a claim with 100,000
    # runs, measured). Whatever has no index is still scanned. The plans need all else that there is.
    "enable_seqscan": "off",
    "enable_indexscan": "on",
    "enable_indexonlyscan": "on",
    "enable_bitmapscan": "on",
    "enable_nestloop": "on",
    "enable_partition_pruning": "on",
    "plan_cache_mode": "auto",
    # Not default_transaction_read_only: with it a server says that its disk is full or that another is the primary now.
}


def connection_options(
    url: str, *, pgbouncer: bool = False, for_handlers: bool = False, statement_seconds: float = 0
) -> dict[str, Any]:
    """What every connection of ours is opened with. `statement_seconds`: the server ends a statement after as long; 0:
    never."""
    try:
        check_postgres(url)
    except ValueError:
        # The driver would take a part of the password for a host or a database, and say so to others.
        raise _no_address(url) from None
    options: dict[str, Any] = {}
    if not _says_which_server(url):
        # Behind one name or among several hosts, only a server that can be written to is of use.
        options["target_session_attrs"] = "read-write"
    if pgbouncer:
        # Behind a transaction-mode pooler a prepared statement may not be there next time, and start-up parameters
        # other than the application's name are refused. docs/sql.md says what to set for the role instead.
        return options | {
            "statement_cache_size": 0,
            "server_settings": {"application_name": "duly"},
            "connection_class": _PooledConnection,
        }
    if for_handlers:
        return options | {"server_settings": {"application_name": "duly handler"}}
    timeout = {"statement_timeout": str(round(statement_seconds * 1000))}
    return options | {"server_settings": {"application_name": "duly", **_SETTINGS, **timeout}}


def _says_which_server(url: str) -> bool:
    asked = parse_qs(urlsplit(url).query)
    return bool(
        {"target_session_attrs", "service"} & set(asked) or {"PGTARGETSESSIONATTRS", "PGSERVICE"} & set(environ)
    )
