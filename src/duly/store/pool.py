"""The connection pool, and the one place where database errors become Duly's own."""

from __future__ import annotations

import asyncio
import logging
import math
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
from duly.schema_name import DEFAULT_SCHEMA
from duly.store.statements import composed, statement, with_own_functions
from duly.store.steps import steps_of
from duly.store.translation import in_schema

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy
    from asyncpg.transaction import Transaction

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

log = logging.getLogger("duly.store")
T = TypeVar("T")

# A statement that lost a deadlock or a serialisation race changed nothing, so it may be sent again. So may one whose
# prepared form went out of date when a table was altered: asyncpg has forgotten that form by now.
_RETRYABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)
_TRIES = 6
# Time for the server to acknowledge that it cancelled a statement that took too long. Without it, the link is dead.
_CANCEL_SECONDS = 1.0
# Time for cancelling over a link of its own then: a statement without a caller must neither go on nor wait for a lock.
_CANCEL_LONGER_SECONDS = 15.0
# Statements that claim, complete, fire and beat take milliseconds and can be sent again without harm; their senders
# hold leases of seconds. A link that fell silent without a reset costs such a statement this long and not the usual
# minute. By the clock and not by TCP_USER_TIMEOUT: a proxy's kernel acknowledges everything it gets, and a server that
# does not read for as long (a checkpoint under a bulk submit) would be cut off by it in the middle of a copy.
_PROMPT = ("runs/", "fires/", "cluster/", "jobs/put_in_order")
PROMPT_SECONDS = 12.0
# Seconds after its own process gave it up that the server ends a statement by itself, if it could not be told to.
_ORPHAN_SECONDS = 5.0
# Seconds between two questions for a step that the store did not have.
STEPS_SECONDS = 5.0
# From this many elements on, planning a statement for its arguments pays.
LARGE = 100

# The driver's errors when there is no link, or none that it can use.
_NO_LINK = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# SQLSTATE classes about the data that were sent: data exceptions and violated constraints.
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
# SQLSTATEs that no single row can cause: links, transactions, logins, databases, lost races, resources, lock timeouts,
# and cancelled statements.
_OF_NO_ROW = ("08", "25", "28", "3D", "40", "53", "55P03", "57")
# SQLSTATEs after which the connection is useless: the server has become read-only or is shutting down.
_SPENT = ("25006", "57P01", "57P02", "57P03", "57P05")


# The tenant for which the current task reads; None: no particular one.
_reader: ContextVar[str | None] = ContextVar("duly_reader", default=None)


@contextmanager
def reading(tenant: str) -> Iterator[None]:
    """Marks statements as reads for this tenant, which a pool may bound (`bound_reads`)."""
    before = _reader.set(tenant)
    try:
        yield
    finally:
        _reader.reset(before)


class Querier(Protocol):
    """Runs named statements: the pool, or one connection inside a transaction."""

    @property
    def can_copy(self) -> bool:
        """Whether the querier that `together` passes to its work can `copy`."""
        ...

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]: ...

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None: ...

    async def fetch_planned(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Like `fetch`, planned for these very arguments.

        After five executions PostgreSQL plans a prepared statement for arrays of ten elements, whatever their size:
        a batch of 2,000 then joins by comparing every element with every other (180 µs per job instead of 13 in a
        fire). Planning again costs a millisecond or two, which pays only for a large batch.
        """
        ...

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        """Runs several statements as one transaction. `work` is repeated from its start if it only lost a race."""
        ...

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        """Copies rows in PostgreSQL's binary format into one of Duly's tables. Only inside `together`."""
        ...

    def has_step(self, number: int) -> bool:
        """Whether the store has this step of the migrations (`store/steps.py`). Without it, its feature is off."""
        ...


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turns every error of the database, or of the link to it, into one of three.

    | SQLSTATE | becomes |
    | --- | --- |
    | 22, 23: these data can never be stored | `DataRefused` |
    | the login, the database or the schema is wrong | `StoreUnusable` |
    | anything else, and no answer at all: the store cannot do it now | `StoreUnavailable` |

    Only the first may be blamed on a job or an outcome. Statements are retried after the others, however long it
    takes; if one row among many may be the cause (`may_be_one_rows`), in the end without that row.
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
    """Whether a single row of the statement may have caused the server's error.

    Examples are a user's trigger, a limit, a damaged page. Nothing of the statement was done. Only `DataRefused` blames
    the row; but a row that causes the error every time must not take others down with it (`store/sifting.py`).
    """
    if isinstance(error, DataRefused):
        return True
    cause = error.__cause__
    return isinstance(cause, asyncpg.PostgresError) and not (cause.sqlstate or "08").startswith(_OF_NO_ROW)


def store_cannot_now(error: BaseException) -> bool:
    """Whether an error at the end of a caller's transaction says nothing about the statements in it.

    Violated constraints, lost races and a failed earlier statement do.
    """
    if isinstance(error, asyncpg.PostgresError):
        return not (error.sqlstate or "").startswith((*_DATA, "25P", "40"))
    return isinstance(error, _NO_LINK)


def _no_address(url: str) -> ConfigError:
    """An error in Duly's own words: a parser's message about an address may quote a password."""
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
    """Whether the connection must be closed: one that leads to a standby now would do so for ever."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _SPENT


class InTransaction:
    """Named statements on one connection, inside a transaction that is already open."""

    can_copy = True

    def __init__(
        self,
        connection: Connection,
        prompt_seconds: float | None = None,
        has_step: Callable[[int], bool] = lambda number: False,
        schema: str = DEFAULT_SCHEMA,
    ) -> None:
        """`prompt_seconds`: the timeout of statements that normally take milliseconds."""
        self.connection = connection
        self.schema = schema
        self._prompt_seconds = prompt_seconds
        self._has_step = has_step

    def has_step(self, number: int) -> bool:
        return self._has_step(number)

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        sql, given = composed(name, self.schema, args, has_audit=self._has_step)
        return await self.connection.fetch(sql, *given, timeout=self._timeout(name))

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        sql, given = composed(name, self.schema, args, has_audit=self._has_step)
        return await self.connection.fetchrow(sql, *given, timeout=self._timeout(name))

    async def fetch_planned(self, name: str, *args: Any) -> list[asyncpg.Record]:
        timeout = self._timeout(name)
        sql, given = composed(name, self.schema, args, has_audit=self._has_step)
        prepared = await self.connection.prepare(sql, timeout=timeout)
        return await prepared.fetch(*given, timeout=timeout)

    def _timeout(self, name: str) -> float | None:
        return self._prompt_seconds if name.startswith(_PROMPT) else None

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        return await work(self)

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        async def one_by_one() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        await self.connection.copy_to_table(
            table, schema_name=self.schema, columns=columns, source=one_by_one(), format="binary"
        )


class Pool:
    """Connections to one store. Every call is one statement and one transaction, unless `transaction` is used."""

    can_copy = True

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        url: str,
        command_timeout: float = 60,
        *,
        pooled: bool = False,
        schema: str = DEFAULT_SCHEMA,
    ) -> None:
        """`pooled`: there is a pooler in transaction mode behind the address. `schema`: the store's."""
        self._pool = pool
        self.pooled = pooled
        self.url = url
        self.schema = schema
        self._cancel_seconds = min(_CANCEL_SECONDS, command_timeout)
        self._prompt_seconds = min(PROMPT_SECONDS, command_timeout)
        self._cancelling: set[asyncio.Task[None]] = set()
        #: Seconds that a call may wait for a free connection; None: for ever.
        self.acquire_seconds: float | None = None
        self._read_seconds: float | None = None
        # Per tenant that is reading, the number of further connections its reads may use.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.clock = DatabaseClock()
        self._steps: frozenset[int] = frozenset()
        self._steps_read_at = -math.inf
        self._reading_steps: asyncio.Task[None] | None = None

    @property
    def connections(self) -> asyncpg.Pool[asyncpg.Record]:
        """The driver's pool, for another `Pool` over the same connections."""
        return self._pool

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
        schema: str = DEFAULT_SCHEMA,
    ) -> Pool:
        """`for_handlers`: for users' own statements, with PostgreSQL's own settings and without a timeout."""

        async def no_reset(_: Connection) -> None:
            # Duly leaves no session state behind, so the reset statement after every use would be a wasted round trip.
            return

        with translated_errors(url):
            try:
                pool = await asyncpg.create_pool(
                    url,
                    # With more, asyncpg would reconnect by itself and log a traceback for each failure.
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
                        # A little longer than this process waits: by then the process or its link is gone.
                        statement_seconds=command_timeout + _ORPHAN_SECONDS,
                    ),
                )
                self = cls(pool, url, command_timeout, pooled=pgbouncer, schema=schema)
                try:
                    for _ in range(3):
                        await self.measure_clock()
                    if not for_handlers:
                        await self.read_steps()
                except BaseException:
                    pool.terminate()
                    raise
            except ValueError:
                raise _no_address(url) from None
        return self

    async def close(self) -> None:
        if self._reading_steps is not None:
            self._reading_steps.cancel()
        busy = [_cancel_key(connection) for connection in _in_use(self._pool)]
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
        """Gives up statements inside `reading` after that time, and cancels them on the server. One tenant's reads get
        at most half of the connections at once, so that other tenants are served whatever it asks for."""
        self._read_seconds = seconds

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        timeout = self._prompt_seconds if name.startswith(_PROMPT) else None
        sql, given = composed(name, self.schema, args, has_audit=self.has_step)
        return await self._surely(lambda: self._fetch(sql, given, timeout))

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def fetch_planned(self, name: str, *args: Any) -> list[asyncpg.Record]:
        if self.pooled:
            # A pooler keeps no prepared statement: each is planned for its arguments anyway, without a transaction.
            return await self.fetch(name, *args)
        return await self.together(lambda within: within.fetch_planned(name, *args))

    async def together(self, work: Callable[[Querier], Awaitable[T]]) -> T:
        async def once() -> T:
            # Not `transaction`, which translates errors: `_surely` must still recognise a lost race.
            async with self._transaction() as transaction:
                return await work(transaction)

        return await self._surely(once)

    async def copy(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        raise AssertionError("a copy is part of a transaction")

    async def query(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        """Runs one statement as its own transaction. Its text says `duly.`, and means this store's schema."""
        return await self._surely(lambda: self._fetch(in_schema(sql, self.schema), args))

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
        """Ends a statement or a transaction that timed out or was cancelled: first on the server.

        The driver asks the server to cancel it. If the server acknowledges, the connection is intact and goes back. If
        not, the link is dead, and other idle ones may be too; the server is asked once more in the background. The
        caller must see the original error, so nothing is raised here but a cancellation.
        """
        real, where = _real(connection), _cancel_key(_real(connection))
        try:
            if block is not None:
                async with asyncio.timeout(self._cancel_seconds):
                    await block.rollback()
            await self._pool.release(connection, timeout=self._cancel_seconds)
        except BaseException as error:
            self._cancel_on_server(where)
            if real is not None:
                real.terminate()
            with suppress(asyncpg.InterfaceError, asyncpg.InternalClientError):  # terminate() may have released it
                await self._pool.release(connection)
            await self._pool.expire_connections()
            if isinstance(error, asyncio.CancelledError):
                raise

    def _cancel_on_server(self, where: dict[str, Any] | None) -> None:
        """Cancels over a link of its own, whatever happens to the connection in question."""
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
        """Sends again after a lost race, and once after a full notification queue, which asking for its usage
        relieves."""
        relieved = False
        with translated_errors(self.url):
            for attempt in range(1, _TRIES + 1):
                try:
                    return await send()
                except asyncpg.ProgramLimitExceededError:
                    if relieved:
                        raise
                    relieved = True
                    await self._fetch(statement("stores/notifications"), ())
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
            yield InTransaction(connection, self._prompt_seconds, self.has_step, self.schema)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[InTransaction]:
        """A transaction for a user's statements: their errors reach the user unchanged."""
        async with self._begun() as connection:
            yield InTransaction(connection, has_step=self.has_step, schema=self.schema)

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
        """Compares this machine's clock with the database's. Cheap; services do it as they go."""
        sent = time.monotonic()
        rows = await self.query("select duly.now() as now") if await self._has_clock() else []
        if rows:
            self.clock.observe(rows[0]["now"], sent, time.monotonic())

    def has_step(self, number: int) -> bool:
        """As the `Querier`'s. Of a step that was not there, the store is asked again now and then, in the background:
        it may be migrated while this process runs. A step that is there is never asked for."""
        if number in self._steps:
            return True
        now = time.monotonic()
        if now - self._steps_read_at >= STEPS_SECONDS and self._reading_steps is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return False
            self._steps_read_at = now
            self._reading_steps = loop.create_task(self._read_steps_again(), name="duly-steps")
        return False

    async def _read_steps_again(self) -> None:
        try:
            await self.read_steps()
        except (DulyError, asyncpg.PostgresError, *_NO_LINK) as error:
            log.debug("the store's steps could not be read, and are read later: %s", error)
        finally:
            self._reading_steps = None

    async def read_steps(self) -> None:
        """Reads which steps the store has; none if it is empty."""
        if await self._has_clock():
            rows = await self.fetch("stores/migrations")
            self._steps = steps_of(row["version"] for row in rows)
            self._steps_read_at = time.monotonic()

    _clock_known = False

    async def _has_clock(self) -> bool:
        if not self._clock_known:
            rows = await self.query("select pg_catalog.to_regproc('duly.now') is not null as there")
            self._clock_known = bool(rows[0]["there"])
        return self._clock_known


# The driver cancels a statement only while its connection lives. These functions give what is needed afterwards.


def _real(connection: Any) -> Any:
    """The connection behind a pool's proxy; None if the pool took it back."""
    return connection._con


def _cancel_key(connection: Any) -> dict[str, Any] | None:
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
    """Leaves the session as it was: asyncpg turns JIT off to read array types, and on again afterwards, in separate
    statements, which behind a pooler reach different sessions."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mine: Any = self
        mine._server_caps = mine._server_caps._replace(jit=False)
        # That query names no schema, and here the role sets the search_path.
        mine._intro_query = with_own_functions(mine._intro_query)


# The settings of Duly's sessions, whatever the role, the database or the server say.
_SETTINGS = {
    # Unqualified functions and operators are PostgreSQL's own, not ones that a user put into a schema open to all.
    # Everything else is named with its schema.
    "search_path": "pg_catalog, pg_temp",
    # Duly has its own timeouts, and retries lost races.
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    # A process that is suspended inside a transaction must not keep its row locks: a shard's next leader waits for
    # them.
    "idle_in_transaction_session_timeout": "5s",
    # The server notices within a minute, not two hours, that a client's machine or link has vanished: a listener that
    # does not read ends up blocking all notifications.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60s",
    # Statements contain literals with a backslash, and casts between times and strings.
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    # JIT compiles for longer than our short statements run.
    "jit": "off",
    # Sequential scans are off because a prepared statement keeps the plan of its first executions: a worker that starts
    # on an empty queue would go on to read the whole queue for every claim when it fills (404 ms per claim with 100,000
    # runs, measured). Tables without an index are still scanned. The plans need all other methods.
    "enable_seqscan": "off",
    "enable_indexscan": "on",
    "enable_indexonlyscan": "on",
    "enable_bitmapscan": "on",
    "enable_nestloop": "on",
    "enable_partition_pruning": "on",
    "plan_cache_mode": "auto",
    # Not default_transaction_read_only: servers set it when their disk is full or they are no longer the primary.
}


def connection_options(
    url: str, *, pgbouncer: bool = False, for_handlers: bool = False, statement_seconds: float = 0
) -> dict[str, Any]:
    """The options of every connection that Duly opens. `statement_seconds`: the server's statement timeout; 0: none."""
    try:
        check_postgres(url)
    except ValueError:
        # The driver would take a part of the password for a host or a database, and put it into messages.
        raise _no_address(url) from None
    options: dict[str, Any] = {}
    if not _says_which_server(url):
        # Behind one name or among several hosts, only a writable server is of use.
        options["target_session_attrs"] = "read-write"
    if pgbouncer:
        # Behind a transaction-mode pooler a prepared statement may be missing next time, and start-up parameters other
        # than the application's name are refused. docs/sql.md says what to set for the role instead.
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
