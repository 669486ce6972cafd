"""Strangers (sessions of other programs) lock tables of Duly in every mode, for longer than leases and graces, and keep
a snapshot as long. They also lock single jobs: the other jobs do not notice.

The list of tables comes from the catalog, so a new table is covered without a change here. Work that does not need the
locked table goes on. Work that needs it waits, and goes on by itself afterwards: nothing is parked, buried, lost or
recorded twice.

A few of the cases in which work has to wait are drawn (DULY_TEST_LOCKS_SEED repeats a draw). DULY_TEST_LOCKS=60 tests
all of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import asyncpg
import pytest

from duly import Context, Duly
from duly.config import Settings, load_settings
from duly.node import running_scheduler
from duly.operations import Operations
from duly.store.pool import PROMPT_SECONDS, Pool
from harness.store import count
from harness.waiting import drawn_seed, eventually
from harness.worker import Workbench

CASES = int(os.environ.get("DULY_TEST_LOCKS", "2"))
SEED = drawn_seed("DULY_TEST_LOCKS_SEED")
HOLD_SECONDS = 4.0
# An occurrence this soon after the lock may have been fired before it, so it proves nothing.
FIRED_BEFORE = timedelta(seconds=2)
JOBS = 6

# The locks of readers, writers, vacuum and CREATE INDEX CONCURRENTLY. Nothing that Duly does every second conflicts
# with them.
WEAK = ("ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE")
STRONG = ("SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE")
# Tables that a fire, a claim and a completion do not need, however they are locked.
NOT_NEEDED = {
    "api_keys", "attempts", "attempts_default", "catch_ups", "dead_letters", "job_changes", "keys", "ledger", "parked",
    "progress", "tenant_jobs", "tenants", "sql_submits",
}  # fmt: skip


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return load_settings(
        database_url=settings.database_url,
        worker_lease_seconds=3,
        leader_lease_seconds=2,
        poll_seconds=0.2,
        misfire_grace_seconds=1,
    )


@asynccontextmanager
async def locked(url: str, tables: Sequence[str], modes: Sequence[str]) -> AsyncIterator[None]:
    """Locks the tables in a stranger's session, whose snapshot is older than the locks."""
    connection = await asyncpg.connect(url, server_settings={"application_name": "a stranger"})
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("select count(*) from pg_class")
            for table in tables:
                for mode in modes:
                    await connection.execute(f"lock table only duly.{table} in {mode} mode")
            yield
    finally:
        await connection.close()


async def all_tables(pool: Pool) -> list[str]:
    rows = await pool.query(
        "select relname as name from pg_class where relnamespace = 'duly'::regnamespace and relkind in ('r', 'p') "
        "order by relname"
    )
    return [row["name"] for row in rows]


async def needed(pool: Pool, table: str) -> bool:
    today = (await pool.query("select to_char(duly.now() at time zone 'UTC', 'YYYYMMDD') as day"))[0]["day"]
    other_day = table[-8:].isdigit() and table != f"history_{today}"
    return table not in NOT_NEEDED and not other_day


async def drawn(pool: Pool) -> list[tuple[list[str], Sequence[str]]]:
    tables = await all_tables(pool)
    # Locks that must disturb nothing are held at once: weak ones on all tables, the strongest on tables not needed.
    idle = [table for table in tables if not await needed(pool, table)]
    cases = [(table, mode) for table in tables if table not in idle for mode in STRONG]
    random.Random(SEED).shuffle(cases)
    return [(tables, WEAK), (idle, STRONG[-1:]), *(([table], (mode,)) for table, mode in cases[:CASES])]


class Ticks:
    """Jobs of several kinds, each every second, none of which may lose an occurrence."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.pool = bench.pool
        self.jobs: list[str] = []

    async def submit(self) -> None:
        for n in range(JOBS):
            overlap = ("parallel", "queue", "skip")[n % 3]
            self.jobs.append(
                await self.bench.submit(
                    "tick",
                    schedule="every 1s",
                    overlap=overlap,
                    missed_window="RUN_ALL",
                    max_queued=1000,
                    max_retries=100,
                    retry_delay_seconds=0.1,
                    retry_max_delay_seconds=0.1,
                )
            )

    async def gone_on(self, since: datetime, jobs: Sequence[str] | None = None) -> bool:
        """Whether every job, or each of `jobs`, has succeeded with an occurrence after `since`."""
        jobs = self.jobs if jobs is None else jobs
        # Only today's partition is read: a query of the whole history waits for a lock on any day.
        rows = await self.pool.query(
            f"select count(distinct job_id) as count from duly.history_{self.pool.clock.now():%Y%m%d} "
            "where scheduled_at > $1 and status = 'succeeded' and job_id = any ($2::uuid[])",
            since,
            jobs,
        )
        return bool(rows[0]["count"] == len(jobs))

    async def lost(self, upto: datetime) -> list[tuple[str, datetime]]:
        """The occurrences since the first recorded one of each job that history lacks."""
        rows = await self.pool.query(
            "select job.job_id::text as job_id, at from (select job_id, min(scheduled_at) as first from duly.history "
            "where job_id = any ($2::uuid[]) group by job_id) job "
            "cross join lateral generate_series(job.first, $1, interval '1 second') at "
            "where not exists (select from duly.history h where h.job_id = job.job_id and h.scheduled_at = at)",
            upto,
            self.jobs,
        )
        return [(row["job_id"], row["at"]) for row in rows]

    async def check(self) -> None:
        """Checks that each occurrence that was due until now is recorded, or will be."""
        upto = self.pool.clock.now() - timedelta(seconds=1)

        async def whole() -> bool:
            return not await self.lost(upto)

        try:
            await eventually(whole, seconds=60)
        except TimeoutError:
            raise AssertionError(f"seed {SEED}: lost {await self.lost(upto)}") from None


async def test_what_can_go_on_goes_on_and_what_cannot_goes_on_afterwards(
    pool: Pool, settings: Settings, operations: Operations
) -> None:
    app = Duly(settings=settings)

    @app.task()
    async def tick(ctx: Context) -> None:
        pass

    bench = Workbench(pool, settings, operations, app)
    ticks = Ticks(bench)
    await ticks.submit()
    print(f"DULY_TEST_LOCKS_SEED={SEED}")
    async with running_scheduler(pool, settings), bench.working():
        began = pool.clock.now()
        await eventually(lambda: ticks.gone_on(began), seconds=30)
        for tables, modes in await drawn(pool):
            case = f"{', '.join(tables) if len(tables) < 3 else f'{len(tables)} tables'} in {', '.join(modes)} mode"
            disturbing = modes != WEAK and any([await needed(pool, table) for table in tables])
            print(f"{case}{': work that needs it waits' if disturbing else ''}")
            async with locked(pool.url, tables, modes):
                since = pool.clock.now()
                if disturbing:
                    await asyncio.sleep(HOLD_SECONDS)
                else:
                    async with asyncio.timeout(30):
                        await eventually(lambda at=since + FIRED_BEFORE: ticks.gone_on(at), seconds=30)  # type: ignore[misc]
                        if modes == WEAK:
                            await operations.cluster.status()
                            await operations.runs.page(ticks.jobs[0])
                            await bench.submit("tick")
                            await bench.submit("tick", schedule="every 1h")
                    await asyncio.sleep(max(0.0, HOLD_SECONDS - (pool.clock.now() - since).total_seconds()))
            freed = pool.clock.now()
            try:
                await eventually(lambda at=freed: ticks.gone_on(at), seconds=60)  # type: ignore[misc]
            except TimeoutError:
                raise AssertionError(f"nothing went on after {case}") from None
            assert await count(pool, "jobs", "status = 'paused'") == 0, case
            assert await count(pool, "parked") == 0, case
            assert await count(pool, "dead_letters") == 0, case
        await ticks.check()
    assert await count(pool, "history", "status not in ('succeeded', 'skipped')") == 0


async def test_jobs_that_a_stranger_keeps_locked_hold_up_no_others(
    pool: Pool, settings: Settings, operations: Operations
) -> None:
    app = Duly(settings=settings)

    @app.task()
    async def tick(ctx: Context) -> None:
        pass

    bench = Workbench(pool, settings, operations, app)
    ticks = Ticks(bench)
    await ticks.submit()
    async with running_scheduler(pool, settings), bench.working():
        began = pool.clock.now()
        await eventually(lambda: ticks.gone_on(began), seconds=30)
        # One job of each kind is locked, for so long that it is late: punctual and late jobs are fired differently.
        held, free = ticks.jobs[:3], ticks.jobs[3:]
        stranger = await asyncpg.connect(pool.url, server_settings={"application_name": "a stranger"})
        try:
            async with stranger.transaction():
                await stranger.execute("select from duly.jobs where job_id = any ($1::uuid[]) for update", held)
                until = pool.clock.now() + timedelta(seconds=HOLD_SECONDS)
                while (since := pool.clock.now()) < until:
                    # A statement that waited for the lock would do so until its time limit.
                    await eventually(lambda at=since: ticks.gone_on(at, free), seconds=PROMPT_SECONDS - 2)  # type: ignore[misc]
        finally:
            await stranger.close()
        freed = pool.clock.now()
        await eventually(lambda: ticks.gone_on(freed), seconds=60)
        await ticks.check()
    assert await count(pool, "jobs", "status = 'paused'") == 0
    assert await count(pool, "history", "status not in ('succeeded', 'skipped')") == 0
