"""Partitions are made beside long readers, and take over the rows that had to wait in the default partition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly.store import maintenance
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.store import count
from harness.waiting import eventually

DAY = timedelta(days=1)


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A session, as of a report or a backup, that has read history and stays in its transaction."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("select count(*) from duly.history")
            await connection.execute("select count(*) from duly.attempts")
            yield connection
    finally:
        await connection.close()


async def forget_days(pool: Pool, *, beyond: int) -> None:
    """Drops the days that are `beyond` or more days ahead, as if they had not been made."""
    rows = await pool.query(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent in "
        "('duly.history'::regclass, 'duly.attempts'::regclass) "
        "and right(inhrelid::regclass::text, 8) > to_char((now() at time zone 'UTC')::date + $1::int, 'YYYYMMDD') "
        "and right(inhrelid::regclass::text, 8) ~ '^[0-9]+$'",
        beyond - 1,
    )
    for row in rows:
        await pool.query(f"drop table {row['name']}")
    await pool.query("select duly.write_has_ended(current_date - 1, current_date - 1)")


async def record(pool: Pool, *moments: datetime, job_id: UUID | None = None) -> None:
    await pool.query(
        "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status) "
        "select coalesce($2, gen_random_uuid()), at, at, 1, 'succeeded' from unnest($1::timestamptz[]) at",
        moments,
        job_id,
    )


async def try_and_fail(pool: Pool, *moments: datetime) -> None:
    await pool.query(
        "insert into duly.attempts (job_id, scheduled_at, attempt, claim_id, worker_id, finished_at, error) "
        "select gen_random_uuid(), at, 1, gen_random_uuid(), gen_random_uuid(), at, '{}' "
        "from unnest($1::timestamptz[]) at",
        moments,
    )


async def days_of(pool: Pool, parent: str = "history") -> set[date]:
    rows = await pool.query(
        "select to_date(right(inhrelid::regclass::text, 8), 'YYYYMMDD') as day from pg_inherits "
        "where inhparent = $1::text::regclass and inhrelid::regclass::text ~ '_[0-9]{8}$'",
        f"duly.{parent}",
    )
    return {row["day"] for row in rows}


async def days_later(pool: Pool, days: float) -> datetime:
    """Sets the clock ahead, as if no partitions had been made for `days` days. Returns the new time."""
    rows = await pool.query("update duly.clock set frozen_at = now() + $1::interval returning frozen_at", days * DAY)
    moment = rows[0]["frozen_at"]
    assert isinstance(moment, datetime)
    return moment


async def asleep(pool: Pool) -> bool:
    """Whether some statement is in the middle of its pg_sleep."""
    rows = await pool.query(
        "select from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
    )
    return bool(rows)


class TestALongReader:
    async def test_nobody_waits_with_the_partition_that_waits_for_it(self, pool: Pool) -> None:
        await forget_days(pool, beyond=6)
        job_id, now = uuid4(), pool.clock.now()
        longest = 0.0

        async def look_on() -> None:
            nonlocal longest
            while True:
                began = time.monotonic()
                await pool.query("select duly.has_ended($1, $2)", job_id, now)
                await pool.query("select count(*) from duly.history where job_id = $1", job_id)
                await record(pool, now + timedelta(microseconds=time.monotonic_ns() // 1000 % 1_000_000))
                longest = max(longest, time.monotonic() - began)

        async with reading(pool.url):
            looking = asyncio.create_task(look_on())
            began = time.monotonic()
            done = await maintenance.ensure_partitions(pool)
            took = time.monotonic() - began
            await asyncio.sleep(0.2)
            looking.cancel()
        assert done.made == 0
        assert done.put_off is not None
        assert took < 2
        assert longest < 1
        assert await count(pool, "history") > 1
        done = await maintenance.ensure_partitions(pool)
        assert (done.made, done.put_off, done.failed) == (4, None, [])


class TestRowsInTheDefaultPartition:
    async def test_days_without_a_scheduler_get_their_partitions_and_their_rows(self, pool: Pool) -> None:
        now = await days_later(pool, 12)
        moments = [now - n * DAY for n in range(4)] + [now + 2 * DAY]
        job_id = uuid4()
        await record(pool, *moments, job_id=job_id)
        await try_and_fail(pool, *moments)
        assert await count(pool, "history_default") == 5
        done = await maintenance.ensure_partitions(pool)
        assert (done.put_off, done.failed) == (None, [])
        assert await count(pool, "history_default") == await count(pool, "attempts_default") == 0
        assert await count(pool, "history") == await count(pool, "attempts") == 5
        expected = {(now + n * DAY).date() for n in range(-3, 8)}
        assert expected <= await days_of(pool)
        assert expected <= await days_of(pool, "attempts")
        for moment in moments:
            rows = await pool.query("select duly.has_ended($1, $2) as ended", job_id, moment)
            assert rows[0]["ended"]

    async def test_what_is_older_than_the_partitions_stays_there(self, pool: Pool) -> None:
        """Such a day gets no partition: a day with a partition counts as one from which nothing was pruned."""
        await record(pool, datetime(2001, 2, 3, tzinfo=UTC), job_id=(job_id := uuid4()))
        assert (await maintenance.ensure_partitions(pool)).made == 0
        assert await count(pool, "history_default") == 1
        rows = await pool.query("select duly.has_ended($1, '2001-02-03Z') as ended", job_id)
        assert rows[0]["ended"]

    async def test_a_store_with_such_rows_can_be_migrated(self, pool: Pool) -> None:
        now = await days_later(pool, 9)
        await record(pool, now, now + DAY)
        assert await migrate(pool) == []
        assert {now.date(), now.date() + DAY} <= await days_of(pool)

    async def test_past_days_are_made_up_for_in_passes(self, pool: Pool) -> None:
        now = await days_later(pool, 30)
        await record(pool, *(now - n * DAY for n in range(2, 15)))
        made = [(await maintenance.ensure_partitions(pool)).made for _ in range(3)]
        assert made == [18 + 8, 5, 0]
        assert await count(pool, "history_default") == 0
        assert await count(pool, "history") == 13

    async def test_a_day_that_cannot_be_made_does_not_stop_the_others(self, pool: Pool) -> None:
        now = await days_later(pool, 20)
        # The partition cannot be made: each table has a row type of the same name, and the domain takes that name.
        await pool.query(f"create domain duly.history_{now:%Y%m%d} as text")
        done = await maintenance.ensure_partitions(pool)
        assert done.made == 17
        assert len(done.failed) == 1
        assert f"history {now:%Y-%m-%d}: " in done.failed[0]
        await record(pool, now)
        assert await migrate(pool) == []

    async def test_a_day_with_very_many_rows_is_left_where_it_is(
        self, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(maintenance, "MAX_MOVED_ROWS", 5)
        now = await days_later(pool, 20)
        await record(pool, *(now + n * timedelta(microseconds=1) for n in range(6)))
        done = await maintenance.ensure_partitions(pool)
        assert done.made == 17
        assert done.failed == [f"history {now:%Y-%m-%d}: crowded"]
        assert await count(pool, "history_default") == 6

    async def test_a_statement_that_began_before_the_move_finds_the_row(self, pool: Pool) -> None:
        now = await days_later(pool, 20)
        await record(pool, now, job_id=(job_id := uuid4()))
        slow = "select duly.has_ended($1, $2) as ended from (select pg_sleep(3) offset 0) s"
        other = await asyncpg.connect(pool.url)
        # The session has a plan from before the move, which must not lead to the row's old place.
        assert await other.fetchval("select duly.has_ended($1, $2)", job_id, now) is True
        asked = asyncio.create_task(other.fetchval(slow, job_id, now))
        await eventually(lambda: asleep(pool))
        done = await maintenance.ensure_partitions(pool)
        assert done.made == 18
        assert await asked is True
        await other.close()

    async def test_an_outcome_that_is_on_its_way_to_the_default_partition_is_not_refused(self, pool: Pool) -> None:
        now = await days_later(pool, 20)
        await record(pool, now)
        other = await asyncpg.connect(pool.url)
        coming = asyncio.create_task(
            other.execute(
                "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status) "
                "select gen_random_uuid(), $1, $1, 1, 'succeeded' from (select pg_sleep(3) offset 0) s",
                now,
            )
        )
        await eventually(lambda: asleep(pool))
        done = await maintenance.ensure_partitions(pool)
        assert done.put_off == f"history {now:%Y-%m-%d}"
        await coming
        await other.close()
        assert (await maintenance.ensure_partitions(pool)).put_off is None
        assert await count(pool, f"history_{now:%Y%m%d}") == 2

    async def test_outcomes_that_come_meanwhile_are_recorded_once(self, pool: Pool) -> None:
        now = await days_later(pool, 20)
        moments = [now + n * timedelta(microseconds=1) for n in range(400)]
        told: dict[datetime, int] = dict.fromkeys(moments, 0)
        job_id, began = uuid4(), asyncio.Event()

        async def complete(part: list[datetime]) -> None:
            for moment in part:
                rows = await pool.query(
                    "with done as (insert into duly.history (job_id, scheduled_at, finished_at, attempt, status) "
                    "values ($1, $2, $2, 1, 'succeeded') on conflict do nothing returning 1) "
                    "select count(*)::int as count from done",
                    job_id,
                    moment,
                )
                told[moment] += rows[0]["count"]
                began.set()
                rows = await pool.query("select duly.has_ended($1, $2) as ended", job_id, moment)
                assert rows[0]["ended"]

        # Each outcome is recorded by two tasks that do not know of each other.
        working = [
            asyncio.create_task(complete(part))
            for part in (moments[:200], moments[:200][::-1], moments[200:], moments[200:][::-1])
        ]
        await began.wait()
        while not (done := await maintenance.ensure_partitions(pool)).made >= 1 or done.put_off:
            assert not done.failed
        await asyncio.gather(*working)
        assert set(told.values()) == {1}
        assert await count(pool, "history") == 400
        assert await count(pool, "history_default") == 0


class TestHasEnded:
    async def locks(self, pool: Pool, sql: str, *args: Any) -> set[str]:
        async with pool.transaction() as transaction:
            await transaction.connection.fetch(sql, *args)
            rows = await transaction.connection.fetch(
                "select c.relname as name from pg_locks l join pg_class c on c.oid = l.relation "
                "where l.pid = pg_backend_pid() and c.relkind in ('r', 'p') and c.relname ~ '^(history|attempts)'"
            )
        return {row["name"] for row in rows}

    @pytest.mark.parametrize("days", [0, -1, 3, 12, -40])
    async def test_it_locks_the_day_it_asks_and_no_other(self, pool: Pool, days: int) -> None:
        at = pool.clock.now() + days * DAY
        await pool.query(
            "select duly.make_partition(parent, $1, 0) from unnest(array['history', 'attempts']) as p (parent)",
            at.date(),
        )
        locked = await self.locks(pool, "select duly.has_ended($1, $2)", uuid4(), at)
        assert locked == {"history_default", f"history_{at:%Y%m%d}"}
        locked = await self.locks(pool, "select duly.attempts_of($1, $2)", uuid4(), at)
        assert locked == {"attempts_default", f"attempts_{at:%Y%m%d}"}

    @pytest.mark.parametrize("days", [0, -1, 3, 12, -40])
    async def test_it_knows_every_day(self, pool: Pool, days: int) -> None:
        at, job_id = pool.clock.now() + days * DAY, uuid4()
        ask = "select duly.has_ended($1, $2) as ended"
        await record(pool, at, job_id=job_id)
        assert (await pool.query(ask, job_id, at))[0]["ended"]
        assert not (await pool.query(ask, job_id, at + timedelta(microseconds=1)))[0]["ended"]
        assert not (await pool.query(ask, uuid4(), at))[0]["ended"]
        for nothing in (None, "infinity", "-infinity"):
            rows = await pool.query("select duly.has_ended($1, $2::text::timestamptz) as ended", job_id, nothing)
            assert rows[0]["ended"] is False

    async def test_it_is_written_anew_when_days_pass(self, pool: Pool) -> None:
        source = "select prosrc from pg_proc where proname = 'has_ended'"
        before = await pool.query(source)
        await maintenance.ensure_partitions(pool)
        assert await pool.query(source) == before
        now = await days_later(pool, 2)
        await maintenance.ensure_partitions(pool)
        (after,) = await pool.query(source)
        assert f"history_{now + 7 * DAY:%Y%m%d}" in after["prosrc"]

    async def test_whoever_reads_the_jobs_needs_no_right_on_tomorrows_partition(self, pool: Pool) -> None:
        role = f"reader_{uuid4().hex}"
        await record(pool, now := pool.clock.now(), job_id=(job_id := uuid4()))
        async with pool.transaction() as transaction:
            connection = transaction.connection
            await connection.execute(f"create role {role}; grant usage on schema duly to {role}")
            await connection.execute(f"grant execute on function duly.has_ended to {role}; set role {role}")
            assert await connection.fetchval("select duly.has_ended($1, $2)", job_id, now)
            await connection.execute(f"reset role; drop owned by {role}; drop role {role}")
