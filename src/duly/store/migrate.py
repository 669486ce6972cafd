"""Brings a store to this Duly's version: the steps in order, each once, under a lock, while others work.

A step runs in one transaction together with the row that records it. The lock is a transaction-level advisory lock, so
it also holds behind a transaction-mode pooler and ends with a process that dies.

A step may take as long as it needs, but it must not wait long for a table: a session that waits for an exclusive lock
makes all others wait behind it, for as long as some report takes. So each wait ends after a second, the transaction is
rolled back, and it is retried after a pause for the others. A store that is up to date is only read.

A step that says `-- concurrently` builds indexes beside all writers, which no transaction can do. Its statements run
one by one, each may be repeated, and the index that a dead attempt has left unfinished is dropped first.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from duly.errors import DulyError, StoreMismatch, StoreUnavailable, StoreUnusable
from duly.store import maintenance
from duly.store.pool import Pool, connection_options, translated_errors
from duly.store.statements import statement
from duly.store.steps import (
    BASELINE,
    FENCE,
    MIN_VERSION,
    ROUTINES,
    Phase,
    Recorded,
    Release,
    Routines,
    Step,
    check,
    check_min_version,
    row_of,
    this_release,
)
from duly.store.translation import in_schema, lock_key
from duly.version import parsed

log = logging.getLogger("duly.store")

Tell = Callable[[str], None]

DEFAULT_SHARDS = 64
MINIMUM_SERVER = 140000
# Wait for a lock, during which all other sessions wait too, and the pause for them before the next try.
LOCK_WAIT = "1s"
PAUSE_SECONDS = 2.0
# Seconds without getting the lock after which the migration fails and names the sessions that hold it.
PATIENCE_SECONDS = 600.0
# Time between two messages about a step that takes long.
PROGRESS_SECONDS = 10.0
# Time for the server to confirm that it cancelled the statement under way.
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A step or the routines that `migrate` would apply. `waits_for`: live nodes that are too old for it."""

    what: Step | Routines
    waits_for: tuple[str, ...] = ()


async def recorded(pool: Pool) -> Recorded:
    """What the store has."""
    there = await pool.query("select pg_catalog.to_regclass('duly.migrations') is not null as there")
    return Recorded.of(await pool.fetch("stores/migrations")) if there[0]["there"] else Recorded()


async def plan(
    pool: Pool, *, release: Release | None = None, phase: Phase | None = None, target: int | None = None
) -> list[Planned]:
    """What `migrate` would apply, in order. The last ones may have to wait until older nodes have ended."""
    release = release or this_release()
    release.check_number(target, "target")
    await _check_server(pool)
    now = await recorded(pool)
    check_min_version(now.min_version, release)
    chosen = [Planned(one) for one in chosen_of(now, release, phase, target)]
    if BASELINE not in now.steps:
        return chosen
    return [
        Planned(one.what, await _too_old(pool, one.what))
        if isinstance(one.what, Step) and one.what.phase == "after"
        else one
        for one in chosen
    ]


def chosen_of(
    now: Recorded, release: Release, phase: Phase | None = None, target: int | None = None
) -> list[Step | Routines]:
    """What is to be applied, in order: additive steps, the routines that use them, destructive steps."""
    pending = [step for step in now.pending(release) if target is None or step.number <= target]
    chosen: list[Step | Routines] = []
    if phase != "after":
        chosen += [step for step in pending if step.phase == "before"]
        left_out = [step for step in now.pending(release) if step.phase == "before" and step not in chosen]
        # Routines use the tables of all steps. The baseline brings them with it.
        if not left_out and BASELINE in now.steps and now.wants(release.routines):
            chosen.append(release.routines)
    if phase != "before":
        chosen += [step for step in pending if step.phase == "after"]
    return chosen


async def migrate(
    pool: Pool,
    *,
    shards: int = DEFAULT_SHARDS,
    tell: Tell = log.info,
    release: Release | None = None,
    phase: Phase | None = None,
    target: int | None = None,
    create_schema: bool = True,
    patience: float | None = None,
) -> list[Step | Routines]:
    """Brings the store up to this Duly's version. Safe to call from many processes at once, and while others work.

    `tell` gets messages about slow steps and about those that wait for older nodes. Partitions that cannot be made now
    are left to the schedulers. `patience`: seconds in which each step is tried again while a lock is in its way.
    """
    release = release or this_release()
    release.check_number(target, "target")
    await _check_server(pool)
    applied: list[Step | Routines] = []
    now = await recorded(pool)
    check_min_version(now.min_version, release)
    chosen = chosen_of(now, release, phase, target)
    if chosen or not await _is_made(pool):
        runner = _Runner(pool, release, shards, tell, create_schema=create_schema, patience=patience)
        applied = await runner.apply(chosen)
    await pool.read_steps()
    if BASELINE not in (await recorded(pool)).steps:
        return applied  # a phase or a target that leaves out the baseline
    try:
        done = await maintenance.ensure_partitions(pool)
    except (DulyError, asyncpg.PostgresError) as error:
        tell(f"the history's partitions could not be made; a scheduler makes them: {error}")
    else:
        for failure in done.failed:
            tell(f"a partition could not be made, its rows stay in the default one: {failure}")
    return applied


async def _is_made(pool: Pool) -> bool:
    rows = await pool.query("select pg_catalog.to_regclass('duly.store') is not null as there")
    if not rows[0]["there"]:
        return False
    rows = await pool.query("select exists (select from duly.store) as made")
    return bool(rows[0]["made"])


async def _too_old(pool: Pool, step: Step) -> tuple[str, ...]:
    """The live nodes that a destructive step would break."""
    rows = await pool.fetch("cluster/live_versions")
    return _older(rows, step)


def _older(rows: list[asyncpg.Record], step: Step) -> tuple[str, ...]:
    least = parsed(step.min_version or "")
    return tuple(f"{row['kind']} {row['name']} ({row['version']})" for row in rows if parsed(row["version"]) < least)


class _Waits(Exception):
    """A destructive step that must not be applied yet."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        super().__init__(", ".join(nodes))


class _Runner:
    """Applies steps over a connection of its own."""

    def __init__(
        self,
        pool: Pool,
        release: Release,
        shards: int,
        tell: Tell,
        *,
        create_schema: bool,
        patience: float | None = None,
    ) -> None:
        self._patience = PATIENCE_SECONDS if patience is None else patience
        self._pool = pool
        self._release = release
        self._shards = shards
        self._tell = tell
        self._create_schema = create_schema

    async def apply(self, chosen: list[Step | Routines]) -> list[Step | Routines]:
        applied: list[Step | Routines] = []
        with translated_errors(self._pool.url):
            async with _connection(self._pool) as connection:
                for one in chosen or [self._release.steps[0]]:
                    try:
                        async with self._progress(connection, one):
                            if await self._patiently(connection, one):
                                applied.append(one)
                    except _Waits as waits:
                        # Steps after it may rely on it.
                        self._tell(f"{one.label} waits until these older nodes have ended: {waits}")
                        break
        return applied

    @asynccontextmanager
    async def _progress(self, connection: Connection, one: Step | Routines) -> AsyncIterator[None]:
        """Tells now and then that a step is under way."""
        began, session = time.monotonic(), connection.pid

        async def tell() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                try:
                    rows = await self._pool.fetch("stores/index_progress", session)
                except DulyError:
                    rows = []  # the step itself says what is wrong
                doing = "".join(f", index {row['name']}: {row['phase']}, {row['percent']} %" for row in rows)
                self._tell(f"{one.label} has been under way for {time.monotonic() - began:.0f} s{doing}")

        telling = asyncio.create_task(tell(), name="duly-progress")
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    async def _patiently(self, connection: Connection, one: Step | Routines) -> bool:
        """Applies one step, retrying while a lock is in the way. False: it was applied already."""
        began = time.monotonic()
        while True:
            try:
                if isinstance(one, Step) and one.concurrently:
                    return await self._concurrently(connection, one)
                async with connection.transaction(isolation="read_committed"):
                    return await self._in_transaction(connection, one)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
                holders = await _holders(self._pool)
                if time.monotonic() - began > self._patience:
                    raise StoreUnavailable(
                        f"{one.label} could not be applied: {holders}; "
                        "end those sessions or wait for them, then run: duly migrate"
                    ) from error
                self._tell(f"{one.label} waits for a lock, and is tried again: {holders}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _in_transaction(self, connection: Connection, one: Step | Routines) -> bool:
        now = await self._locked(connection)
        began = time.monotonic()
        if isinstance(one, Routines):
            new = now.wants(one)
            if new:
                await self._put_routines(connection, one)
        else:
            new = one.number not in now.steps
            if new:
                await self._refuse_older(connection, one)
                await connection.execute(one.sql)
                await self._record(connection, one)
                if one.number == BASELINE:
                    # Version 0.1.0 takes a store that has the baseline for a whole one.
                    await self._put_routines(connection, self._release.routines)
            if one.number == BASELINE and not await connection.fetchval("select exists (select from duly.store)"):
                await connection.execute("insert into duly.store (shard_count) values ($1)", self._shards)
                await connection.execute(
                    "insert into duly.shards (shard) select generate_series(0, $1::int - 1)", self._shards
                )
        if (took := time.monotonic() - began) > 1:
            self._tell(f"{one.label} took {took:.0f} s")
        return new

    async def _locked(self, connection: Connection) -> Recorded:
        """Takes the lock until the transaction ends, and reads what the store has."""
        # Behind a pooler the role sets the path, and views stay bound to what they referred to when they were created.
        await connection.execute("set local search_path = pg_catalog, pg_temp")
        await connection.execute(f"set local lock_timeout = '{LOCK_WAIT}'")
        await connection.execute("set local statement_timeout = 0")
        await connection.execute("select pg_advisory_xact_lock($1)", lock_key(connection.schema))
        # `if not exists` would ask for the right to create before it looks.
        if not await connection.fetchval("select exists (select from pg_namespace where nspname = 'duly')"):
            if not (self._create_schema and await connection.fetchval(_MAY_CREATE)):
                role = await connection.fetchval("select quote_ident(current_user)")
                raise StoreUnusable(
                    f"there is no schema {connection.schema} in this database, and it is not to be created from here; "
                    f"let the database's owner run: create schema {connection.schema} authorization {role}"
                )
            await connection.execute("create schema duly")
        if await connection.fetchval("select to_regclass('duly.migrations') is null"):
            await connection.execute(
                "create table duly.migrations (version integer primary key, name text not null, "
                "checksum text not null, applied_at timestamptz not null default clock_timestamp())"
            )
        now = Recorded.of(await connection.fetch(statement("stores/migrations")))
        check_min_version(now.min_version, self._release)
        return now

    async def _put_routines(self, connection: Connection, routines: Routines) -> None:
        await connection.execute(routines.sql)
        await connection.execute(*_record(ROUTINES, routines.version, routines.checksum))

    async def _refuse_older(self, connection: Connection, step: Step) -> None:
        if step.phase == "after" and (
            nodes := _older(await connection.fetch(statement("cluster/live_versions")), step)
        ):
            raise _Waits(nodes)

    async def _record(self, connection: Connection, step: Step) -> None:
        await connection.execute(*_record(row_of(step.number), step.name, step.checksum))
        least = step.min_version
        if least is None:
            return
        before = await connection.fetchval("select name from duly.migrations where version = $1", MIN_VERSION)
        if before is None or parsed(before) < parsed(least):
            await connection.execute(*_record(MIN_VERSION, least, ""))
        if parsed(least) > parsed("0.1.0"):
            await connection.execute(*_record(FENCE, "not for 0.1.0", ""))

    async def _concurrently(self, connection: Connection, step: Step) -> bool:
        # The lock is held by a transaction elsewhere, which has no snapshot: building an index waits for snapshots.
        async with _connection(self._pool) as guard, guard.transaction(isolation="read_committed"):
            await guard.execute("set local idle_in_transaction_session_timeout = 0")
            now = await self._locked(guard)
            if step.number in now.steps:
                return False
            await self._refuse_older(guard, step)
            # The driver leaves its last portal open, with a snapshot, for which the index would wait for ever. A
            # statement without arguments closes it.
            await guard.execute("select 1")
            for one in statements_of(step.sql):
                if (name := index_of(one)) is not None:
                    valid = await connection.fetchval(_VALID, name)
                    if valid:
                        continue
                    if valid is not None:
                        await connection.execute(f"drop index concurrently if exists duly.{name}")
                await connection.execute(one)
            await self._record(guard, step)
        return True


_MAY_CREATE = "select has_database_privilege(current_database(), 'create')"
_INDEX = re.compile(r"create (?:unique )?index concurrently (?:if not exists )?(?P<name>\w+)")
_VALID = """\
select i.indisvalid from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
where c.relname = $1 and c.relnamespace = 'duly'::pg_catalog.regnamespace"""


def index_of(sql: str) -> str | None:
    """The name of the index that a statement builds beside all writers."""
    made = _INDEX.match(sql)
    return None if made is None else made["name"]


def statements_of(sql: str) -> list[str]:
    """The statements of a step that runs outside a transaction: each ends with a semicolon at the end of a line."""
    code = "\n".join(line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return [one.strip() for one in re.split(r";\s*(?:\n|$)", code) if one.strip()]


def _record(number: int, name: str, checksum: str) -> tuple[str, int, str, str]:
    return _RECORD, number, name, checksum


_RECORD = """\
insert into duly.migrations (version, name, checksum) values ($1, $2, $3)
on conflict (version) do update
set name = excluded.name, checksum = excluded.checksum, applied_at = excluded.applied_at"""


class Connection:
    """A connection of its own. Its texts say `duly.`, as all texts do, and mean this store's schema."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], schema: str) -> None:
        self._connection = connection
        self.schema = schema
        self.transaction = connection.transaction
        self.pid = connection.get_server_pid()

    async def execute(self, sql: str, *args: Any) -> None:
        await self._connection.execute(in_schema(sql, self.schema), *args)

    async def fetch(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        return await self._connection.fetch(in_schema(sql, self.schema), *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        return await self._connection.fetchval(in_schema(sql, self.schema), *args)


@asynccontextmanager
async def _connection(pool: Pool) -> AsyncIterator[Connection]:
    """A connection without a timeout: the pool's give up after a minute."""
    connection = await asyncpg.connect(pool.url, timeout=10, **connection_options(pool.url, pgbouncer=pool.pooled))
    try:
        yield Connection(connection, pool.schema)
    finally:
        # Waits until the server has cancelled the statement: a client that just goes leaves it waiting for its lock.
        try:
            await connection.close(timeout=_CLOSE_SECONDS)
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


async def _holders(pool: Pool) -> str:
    """The sessions that have locked Duly's tables, for a message."""
    rows = await pool.query(statement("stores/lock_holders"))
    if not rows:
        return "another session had one of its tables locked"
    return "; ".join(
        f"process {row['pid']} ({row['who']}) has had {row['tables']} locked for {row['seconds']:.0f} s: {row['doing']}"
        for row in rows
    )


async def check_version(pool: Pool, *, release: Release | None = None) -> None:
    """Raises if this Duly must not work on the store, so that a node does not touch it."""
    await _check_server(pool)
    now = await recorded(pool)
    if BASELINE not in now.steps and (others := await other_schemas(pool)):
        raise StoreMismatch(
            f"the schema {pool.schema} of this database holds no Duly, and {others[0]} does: set "
            f"DULY_SCHEMA={others[0]}, or make another Duly with: duly migrate"
        )
    check(now, release or this_release())
    await pool.read_steps()


async def other_schemas(pool: Pool) -> list[str]:
    """The other schemas of the database that hold a Duly; not more than a few."""
    return [row["name"] for row in await pool.fetch("stores/other_schemas", pool.schema)]


async def _check_server(pool: Pool) -> None:
    try:
        rows = await pool.query(
            "select pg_catalog.current_setting('server_version_num')::int as number, pg_catalog.version() as text"
        )
    except asyncpg.PostgresError as error:
        raise StoreMismatch(f"this server does not answer like PostgreSQL: {error}") from error
    if rows[0]["number"] < MINIMUM_SERVER:
        raise StoreMismatch(f"Duly needs PostgreSQL 14 or newer; this is {rows[0]['text'].split(' on ')[0]}")
