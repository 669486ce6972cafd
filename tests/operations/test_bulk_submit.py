"""Submits of many jobs: copied if possible and inserted otherwise, with the same result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly import Duly, InvalidInput
from duly.config import Settings
from duly.errors import Conflict, DataRefused, Forbidden, StoreUnavailable
from duly.model import DEFAULT_TENANT, JobRequest, Policy, SubmittedId
from duly.operations import Operations, StoreOperations
from duly.operations.preparing import Preparing
from duly.operations.rights import Rights
from duly.store import copying, ids, jobs
from duly.store.jobs import NewJob
from duly.store.pool import LARGE, Pool
from harness.proxy import Proxy
from harness.store import SHARDS, count
from harness.waiting import eventually

MOMENT = datetime(2031, 1, 1, 9, 30, 15, 123456, tzinfo=UTC)
MANY = 3 * LARGE


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def far_operations(proxy: Proxy, settings: Settings) -> AsyncIterator[Operations]:
    """A client that reaches its database only by way of the proxy."""
    pool = await Pool.connect(proxy.url, size=4)
    yield (await StoreOperations.open(pool, settings)).for_tenant(DEFAULT_TENANT)
    await pool.close()


@pytest.fixture
def app(settings: Settings) -> Duly:
    app = Duly(settings=settings)
    app.task("noop")(lambda: None)
    return app


async def freeze(pool: Pool, moment: datetime) -> None:
    await pool.query("update duly.clock set frozen_at = $1", moment)


def prepared(requests: list[JobRequest], settings: Settings, now: datetime) -> list[NewJob]:
    preparing = Preparing(now, tenant=DEFAULT_TENANT, settings=settings, shard_count=SHARDS)
    job_ids = ids.new_job_ids(len(requests), 1_700_000_000_000_000)
    return [preparing.prepare(job_id, request) for job_id, request in zip(job_ids, requests, strict=True)]


class Ear:
    """Collects the notifications that leaders and workers get."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection
        self._heard: list[tuple[str, object]] = []

    @classmethod
    async def open(cls, url: str) -> Ear:
        self = cls(await asyncpg.connect(url))
        for channel in ("duly_work", "duly_due", "the_end"):
            await self._connection.add_listener(channel, self._hear)
        return self

    def _hear(self, _connection: object, _pid: object, channel: str, payload: object) -> None:
        self._heard.append((channel, payload))

    async def heard(self) -> list[tuple[str, object]]:
        """The notifications since the last call. They arrive in the order of commits, so `the_end` comes last."""
        await self._connection.execute("notify the_end")
        await eventually(lambda: ("the_end", "") in self._heard)
        heard, self._heard = self._heard[:-1], []
        return sorted(heard, key=str)

    async def close(self) -> None:
        await self._connection.close()


VARIED = [
    JobRequest("noop"),
    JobRequest("noop", payload={"text": 'ü "quoted" \\ \n 🙂', "n": [1, 2.5, None, True]}, name="näme 🙂"),
    JobRequest("noop", payload=None, payload_ref="s3://bucket/ö"),
    JobRequest("noop", payload="x" * 200_000),
    JobRequest("noop", queue="other", priority=9),
    JobRequest("noop", queue="other", priority=0, labels={"team": "däta", "b": ""}),
    JobRequest("noop", policy=Policy(max_retries=7, overlap="queue", timeout_seconds=0.5)),
    JobRequest("noop", schedule=MOMENT),
    JobRequest("noop", schedule="1950-01-01T00:00:00.000001Z"),
    JobRequest("noop", schedule="9998-12-31T23:59:59.999999Z"),
    JobRequest("noop", schedule="2031-06-01T09:30", timezone="Europe/Berlin"),
    JobRequest("noop", schedule="every 15m", max_runs=2**31 - 1),
    JobRequest("noop", schedule="every 15m", start_at=MOMENT, end_at=MOMENT + timedelta(days=9)),
    JobRequest("noop", schedule="0 9 * * MON", timezone="America/New_York", policy=Policy(jitter_seconds=600)),
    JobRequest("noop", schedule="RRULE:FREQ=WEEKLY;BYDAY=MO,TU"),
    JobRequest({"type": "http", "url": "https://example.com/hook", "headers": {"X-A": "1"}}),
    JobRequest({"type": "http", "url": "https://example.com/hook"}, schedule=MOMENT),
]


async def test_what_is_copied_is_stored_and_told_as_what_is_inserted(
    pool: Pool, settings: Settings, database_url: str
) -> None:
    now = datetime(2030, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    created_at = now - timedelta(microseconds=1234)
    await freeze(pool, now)
    ear = await Ear.open(database_url)
    edge = timedelta(minutes=15)
    batches = [
        VARIED,
        [JobRequest("noop", schedule=MOMENT) for _ in range(5)],
        # Jobs due within the leaders' horizon are announced: one by one, or as a range. The horizon itself is included.
        [JobRequest("noop", schedule=now + edge + timedelta(microseconds=n)) for n in range(-1, 2)],
        [JobRequest("noop", schedule=now + timedelta(seconds=n)) for n in range(50)],
        [JobRequest("noop", schedule=now + timedelta(seconds=n)) for n in range(51)],
        [JobRequest("noop", queue=f"q{n % 3}") for n in range(200)],
    ]
    try:
        for batch in batches:
            rows = prepared(batch, settings, created_at)
            found = []
            for store in (jobs.submit, copying.copy):
                assert await store(pool, rows, created_at=created_at) == {row.job_id for row in rows}
                stored = [
                    await pool.query(f"select * from duly.{table} t order by job_id") for table in ("jobs", "runs")
                ]
                found.append((stored, await ear.heard()))
                await pool.query("delete from duly.jobs")
                await pool.query("delete from duly.runs")
            inserted, copied = found
            assert copied == inserted
            assert len(copied[0][0]) == len(batch)
            assert len(copied[0][1]) == sum(row.immediate for row in rows)
    finally:
        await ear.close()


async def test_a_bulk_submit_is_copied_and_what_has_a_key_is_not(far_operations: Operations, proxy: Proxy) -> None:
    marker = "COPY "
    copied = proxy.swallow(marker, times=1)
    await far_operations.submit_many([JobRequest("noop") for _ in range(LARGE - 1)])
    await far_operations.submit_many([JobRequest("noop", dedupe_key=str(n)) for n in range(MANY)])
    assert copied.struck == 0
    await far_operations.submit_many([JobRequest("noop") for _ in range(LARGE)])
    assert copied.struck == 1


@pytest.mark.parametrize("where", ["COMMIT", 'COPY "duly"."jobs"', 'COPY "duly"."runs"', "pg_notify"])
async def test_a_bulk_submit_whose_answer_is_lost_stores_every_job_once(
    pool: Pool, far_operations: Operations, proxy: Proxy, where: str
) -> None:
    lost = proxy.swallow(where)
    requests = [JobRequest("noop", payload={"n": n}) for n in range(MANY)]
    submitted = await far_operations.submit_many(requests)
    assert lost.struck == 1
    assert all(one.created for one in submitted)
    rows = await pool.query("select job_id, payload from duly.jobs")
    assert {row["job_id"]: json.loads(row["payload"])["n"] for row in rows} == {
        one.job_id: n for n, one in enumerate(submitted)
    }
    assert len(rows) == MANY == await count(pool, "runs")


async def test_a_bulk_submit_that_gets_no_answer_at_all_says_so_and_is_not_there_twice(
    pool: Pool, far_operations: Operations, proxy: Proxy
) -> None:
    lost = proxy.swallow("COMMIT", times=2)
    with pytest.raises(StoreUnavailable):
        await far_operations.submit_many([JobRequest("noop") for _ in range(MANY)])
    assert lost.struck == 2
    assert await count(pool, "jobs") == MANY == await count(pool, "runs")


async def test_a_batch_of_the_api_whose_answer_is_lost_stores_every_job_once(
    pool: Pool, far_operations: Operations, proxy: Proxy
) -> None:
    lost = proxy.swallow("COMMIT")
    answers = await far_operations.submit_each([JobRequest("noop") for _ in range(MANY)])
    assert lost.struck == 1
    assert all(isinstance(one, SubmittedId) and one.created for one in answers)
    assert await count(pool, "jobs") == MANY == await count(pool, "runs")


async def test_one_bad_job_among_ten_thousand_is_named_and_nothing_is_stored(
    pool: Pool, operations: Operations, store_operations: StoreOperations
) -> None:
    requests = [JobRequest("noop", payload={"n": n}, schedule=MOMENT) for n in range(10_000)]
    requests[7_777] = JobRequest("noop", payload={"n": float("inf")}, schedule=MOMENT)
    with pytest.raises(InvalidInput) as refused:
        await operations.submit_many(requests)
    assert refused.value.field == "jobs[7777].payload"
    assert await count(pool, "jobs") == 0
    # If each job has an answer of its own, the others are stored.
    answers = await store_operations.for_tenant("default").submit_each(requests)
    assert [index for index, one in enumerate(answers) if not isinstance(one, SubmittedId)] == [7_777]
    assert await count(pool, "jobs") == 9_999
    assert len({row["job_id"] for row in await pool.query("select job_id from duly.jobs")} & _ids(answers)) == 9_999


def _ids(answers: list[Any]) -> set[UUID]:
    return {one.job_id for one in answers if isinstance(one, SubmittedId)}


async def test_duplicates_within_a_bulk_submit_and_with_what_is_there_come_to_one_job(
    pool: Pool, operations: Operations
) -> None:
    def request(n: int, **changes: Any) -> JobRequest:
        return JobRequest("noop", payload={"n": n}, schedule=MOMENT, dedupe_key=f"key {n}", **changes)

    (there,) = await operations.submit_many([request(0)])
    plain = [JobRequest("noop", schedule=MOMENT) for _ in range(MANY)]
    submitted = await operations.submit_many([request(0), *plain, request(1), request(1), request(2)])
    assert submitted[0] == SubmittedId(there.job_id, created=False)
    assert all(one.created for one in submitted[1 : MANY + 1])
    first, second, other = submitted[-3:]
    assert (first.created, second) == (True, SubmittedId(first.job_id, created=False))
    assert other.created
    assert await count(pool, "jobs") == MANY + 3
    with pytest.raises(Conflict, match="key 1"):
        await operations.submit_many([*plain, request(1, queue="other")])


async def test_many_jobs_are_there_if_the_callers_transaction_commits_and_not_if_it_is_rolled_back(
    pool: Pool, app: Duly, database_url: str
) -> None:
    connection = await asyncpg.connect(database_url)
    # The caller's own type codecs must not change the rows.
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)
    requests = [app.request("noop", {"n": n}) for n in range(MANY)]
    try:
        rolled_back = connection.transaction()
        await rolled_back.start()
        await app.submit_many(requests, connection=connection)
        assert await connection.fetchval("select count(*) from duly.jobs") == MANY
        assert await count(pool, "jobs") == 0
        await rolled_back.rollback()
        assert await count(pool, "jobs") == 0 == await count(pool, "runs")

        await connection.execute("begin")
        job_ids = await app.submit_many(requests, connection=connection)
        await connection.execute("commit")
        assert await count(pool, "runs") == MANY
        rows = await pool.query("select job_id, payload from duly.jobs order by job_id")
        assert [str(row["job_id"]) for row in rows] == job_ids
        assert [json.loads(row["payload"]) for row in rows] == [{"n": n} for n in range(MANY)]
    finally:
        await connection.close()
        await app.close()


async def test_many_jobs_on_a_connection_without_a_transaction_are_stored_whole_or_not_at_all(
    pool: Pool, app: Duly, database_url: str
) -> None:
    await pool.query("alter table duly.runs add constraint no_runs check (queue <> 'refused')")
    connection = await asyncpg.connect(database_url)
    try:
        with pytest.raises(asyncpg.CheckViolationError):
            await app.submit_many([app.request("noop", queue="refused") for _ in range(MANY)], connection=connection)
        assert await count(pool, "jobs") == 0
        await app.submit_many([app.request("noop") for _ in range(MANY)], connection=connection)
        assert await count(pool, "jobs") == MANY == await count(pool, "runs")
    finally:
        await connection.close()
        await app.close()


async def test_a_copy_that_the_database_refuses_leaves_nothing_behind(pool: Pool, operations: Operations) -> None:
    await pool.query("alter table duly.runs add constraint no_runs check (queue <> 'refused')")
    with pytest.raises(DataRefused):
        await operations.submit_many([JobRequest("noop", queue="refused") for _ in range(MANY)])
    assert await count(pool, "jobs") == 0
    # The connections still work.
    await asyncio.gather(*(operations.submit_many([JobRequest("noop") for _ in range(MANY)]) for _ in range(8)))
    assert await count(pool, "jobs") == 8 * MANY == await count(pool, "runs")


async def test_a_submitter_that_is_cancelled_in_the_middle_of_a_copy_leaves_nothing_half_done(
    pool: Pool, operations: Operations
) -> None:
    requests = [JobRequest("noop", payload="x" * 20_000) for _ in range(500)]
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
        task = asyncio.create_task(operations.submit_many(requests))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stored = await count(pool, "jobs")
        assert stored % len(requests) == 0
        assert await count(pool, "runs") == stored
    assert await operations.submit_many(requests)


async def test_commands_without_the_right_are_refused_whatever_is_beside_them(
    pool: Pool, operations: Operations
) -> None:
    requests = [JobRequest("noop"), JobRequest({"type": "command", "argv": ["id"]})]
    with pytest.raises(Forbidden, match="submitting a command needs the role operator") as refused:
        await operations.submit_many(requests, allow_unknown_handler=True, rights=Rights.of("write"))
    assert refused.value.field == "jobs[1].handler"
    assert await count(pool, "jobs") == 0
    assert len(await operations.submit_many(requests, allow_unknown_handler=True, rights=Rights.of("operator"))) == 2
