"""`duly.submit` in plain SQL: a job is stored complete or planned within a second; a refusal names the field."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.config import Settings
from duly.model import JobRequest
from duly.node import SchedulerNode, running_scheduler
from duly.operations import Operations, StoreOperations
from duly.store import cluster
from duly.store.pool import Pool
from harness.store import SHARDS, count
from harness.waiting import eventually
from harness.worker import Workbench

MOMENT = datetime(2031, 1, 1, 9, 30, 15, 123456, tzinfo=UTC)
MANUAL = Path(__file__).parents[2] / "docs/sql.md"


@pytest.fixture
async def caller(database_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A plain connection, as a program without Duly has it."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def submit(caller: asyncpg.Connection[asyncpg.Record], **arguments: Any) -> str:
    arguments.setdefault("handler", "send_report")
    given = ", ".join(f"{name} => ${number}" for number, name in enumerate(arguments, 1))
    values = [json.dumps(value) if isinstance(value, dict | list) else value for value in arguments.values()]
    return str(await caller.fetchval(f"select duly.submit({given})", *values))


@pytest.fixture
async def scheduler(pool: Pool, settings: Settings) -> AsyncIterator[SchedulerNode]:
    """A real scheduler that leads all shards."""
    async with running_scheduler(pool, settings.model_copy(update={"pool_size": 8})) as node:

        async def leads_all() -> bool:
            return await count(pool, "shards", "node_id = $1", node.node_id) == SHARDS

        await eventually(leads_all)
        yield node


# One-offs


async def test_a_job_without_a_schedule_is_in_the_queue_at_the_commit(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, operations: Operations
) -> None:
    async with caller.transaction():
        job_id = await submit(caller, payload={"report_type": "weekly"}, queue="reports", priority=7)
        assert await count(pool, "jobs") == await count(pool, "runs") == 0
    job = await operations.jobs.get(job_id)
    assert (job.handler, job.name, job.payload) == ("send_report", "send_report", {"report_type": "weekly"})
    assert (job.kind, job.schedule, job.status, job.run_count) == ("once", "now", "active", 1)
    runs = await pool.query("select * from duly.runs")
    assert [(str(run["job_id"]), run["queue"], run["priority"], run["state"]) for run in runs] == [
        (job_id, "reports", 7, "queued")
    ]
    assert runs[0]["scheduled_at"] == job.last_run_at == job.created_at


async def test_a_rollback_leaves_nothing(caller: asyncpg.Connection[asyncpg.Record], pool: Pool) -> None:
    for arguments in ({}, {"schedule": "every 1m"}, {"run_at": MOMENT}):
        begun = caller.transaction()
        await begun.start()
        await submit(caller, **arguments)
        await begun.rollback()
    assert [await count(pool, table) for table in ("jobs", "runs", "sql_submits")] == [0, 0, 0]


async def test_it_runs_like_any_other(
    caller: asyncpg.Connection[asyncpg.Record], bench: Workbench, operations: Operations
) -> None:
    @bench.app.task("greet")
    async def greet(name: str) -> str:
        return f"hello, {name}"

    async with bench.working():
        job_id = await submit(caller, handler="greet", payload={"name": "world"})
        assert (await bench.end_of(job_id, seconds=30)).result == "hello, world"
    assert (await operations.jobs.get(job_id)).status == "completed"


async def test_a_moment_is_planned_at_once_as_python_would(
    caller: asyncpg.Connection[asyncpg.Record], operations: Operations
) -> None:
    job = await operations.jobs.get(await submit(caller, run_at=MOMENT, timezone="Europe/Berlin"))
    other = await operations.submit(JobRequest("send_report", schedule=MOMENT, timezone="Europe/Berlin"))
    twin = await operations.jobs.get(str(other.job_id))
    assert (job.kind, job.schedule, job.next_run_at, job.status, job.timezone) == (
        twin.kind, twin.schedule, twin.next_run_at, twin.status, twin.timezone,
    )  # fmt: skip


async def test_a_moment_that_is_near_fires_on_time(
    caller: asyncpg.Connection[asyncpg.Record], scheduler: SchedulerNode, pool: Pool
) -> None:
    job_id = await submit(caller, run_at=datetime.now(UTC) + timedelta(milliseconds=300))

    async def fired() -> bool:
        return await count(pool, "runs", "job_id = $1", UUID(job_id)) == 1

    await eventually(fired, seconds=10)


async def test_ids_ascend_and_lie_in_their_shard(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, operations: Operations
) -> None:
    earlier = (await operations.submit(JobRequest("x"))).job_id
    await asyncio.sleep(0.005)
    made = [UUID(await submit(caller)) for _ in range(20)]
    await asyncio.sleep(0.005)
    later = (await operations.submit(JobRequest("x"))).job_id
    assert all(earlier < job_id < later and job_id.version == 7 for job_id in made)
    assert await count(pool, "jobs", f"shard <> duly.shard_of(job_id, {SHARDS})") == 0


async def test_every_field_arrives(caller: asyncpg.Connection[asyncpg.Record], operations: Operations) -> None:
    job = await operations.jobs.get(
        await submit(
            caller, name="café, weekly", payload={"ключ": [1, None, 2.5]}, payload_ref="s3://b/k", queue="q'1",
            priority=0, dedupe_key="w-23", tenant="default", labels={"team": 'a"b'}, run_at=MOMENT,
            policy={"max_retries": 0, "overlap": "queue", "timeout_seconds": 0.5},
        )
    )  # fmt: skip
    assert (job.name, job.payload, job.payload_ref) == ("café, weekly", {"ключ": [1, None, 2.5]}, "s3://b/k")
    assert (job.queue, job.priority, job.dedupe_key, job.labels) == ("q'1", 0, "w-23", {"team": 'a"b'})
    assert (job.policy.max_retries, job.policy.overlap, job.policy.timeout_seconds) == (0, "queue", 0.5)


# Recurring jobs


async def test_a_recurring_job_is_planned_and_fires_within_a_second(
    caller: asyncpg.Connection[asyncpg.Record], scheduler: SchedulerNode, pool: Pool, operations: Operations
) -> None:
    waits = []
    for number in range(5):
        started = time.monotonic()
        job_id = await submit(caller, schedule="every 1s", name=f"n{number}")

        async def planned(job_id: str = job_id) -> bool:
            return (await operations.jobs.get(job_id)).status == "active"

        await eventually(planned)
        waits.append(time.monotonic() - started)
    assert sorted(waits)[2] < 1.0, waits
    job = await operations.jobs.get(job_id)
    assert (job.kind, job.schedule, job.status_reason) == ("interval", "every 1s", None)

    async def fired() -> bool:
        return await count(pool, "runs", "job_id = $1", UUID(job_id)) >= 1

    await eventually(fired, seconds=10)
    rows = await pool.query("select min(scheduled_at) as first from duly.runs where job_id = $1", UUID(job_id))
    assert rows[0]["first"] == job.created_at + timedelta(seconds=1)
    assert await count(pool, "sql_submits") == 0


async def test_it_becomes_what_python_would_have_made_of_it(
    caller: asyncpg.Connection[asyncpg.Record], scheduler: SchedulerNode, operations: Operations
) -> None:
    for schedule, zone in (
        ("0 9 * * MON", "America/New_York"),
        ("PT15M", "UTC"),
        ("2031-03-08T09:30", "Europe/Berlin"),
        ("RRULE:FREQ=DAILY;COUNT=3", "UTC"),
    ):
        start_at = None if schedule.startswith("2031") else MOMENT
        job_id = await submit(caller, schedule=schedule, timezone=zone, start_at=start_at)

        async def planned(job_id: str = job_id) -> bool:
            return (await operations.jobs.get(job_id)).status == "active"

        await eventually(planned)
        job = await operations.jobs.get(job_id)
        other = await operations.submit(
            JobRequest("send_report", schedule=schedule, timezone=zone, start_at=start_at), allow_unknown_handler=True
        )
        twin = await operations.jobs.get(str(other.job_id))
        assert (job.kind, job.schedule, job.next_run_at) == (twin.kind, twin.schedule, twin.next_run_at)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"schedule": "77 * * * *"}, "schedule"),
        ({"schedule": "0 0 30 2 *"}, "never fire"),
        ({"schedule": "every fortnight"}, "schedule"),
        ({"schedule": "0 9 * * *", "timezone": "Mars/Olympus"}, "timezone"),
        ({"schedule": "0 9 * * *", "timezone": "../../etc/passwd"}, "timezone"),
        ({"schedule": "every 1h", "end_at": datetime(2001, 1, 1, tzinfo=UTC)}, "end_at"),
        ({"handler": '{"type": "http", "url": "ftp://x"}'}, "handler.url"),
        ({"handler": '{"type": "command", "argv": "rm -rf /"}'}, "handler.argv"),
        ({"policy": {"idempotency_key_template": "{{nonsense}}"}}, "idempotency_key_template"),
    ],
)
async def test_what_only_python_can_refuse_is_paused_with_the_reason(
    caller: asyncpg.Connection[asyncpg.Record],
    scheduler: SchedulerNode,
    operations: Operations,
    pool: Pool,
    arguments: dict[str, Any],
    said: str,
) -> None:
    job_id = await submit(caller, **arguments)

    async def looked_at() -> bool:
        return await count(pool, "sql_submits") == 0

    await eventually(looked_at)
    job = await operations.jobs.get(job_id)
    assert job.status == "paused"
    assert job.status_reason is not None
    assert said in job.status_reason
    assert await count(pool, "job_changes", "what = 'parked'") == 1


async def test_a_job_that_nobody_has_planned_yet_says_so_and_loses_nothing(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, settings: Settings, operations: Operations
) -> None:
    job_id = await submit(caller, schedule="every 1h", policy={"missed_window": "RUN_ALL"})
    job = await operations.jobs.get(job_id)
    assert job.status == "paused"
    assert "not planned" in (job.status_reason or "")
    # No scheduler runs for three hours: the occurrences since then are late, as for any other job.
    await pool.query("update duly.clock set shift = interval '3 hours 1 minute'")
    await pool.measure_clock()
    async with running_scheduler(pool, settings):

        async def caught_up() -> bool:
            return await count(pool, "runs") == 3

        await eventually(caught_up)
    assert (await operations.jobs.get(job_id)).next_run_at == job.created_at + timedelta(hours=4)


async def test_without_notifications_it_is_planned_within_a_second_too(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, settings: Settings, operations: Operations
) -> None:
    async with running_scheduler(pool, settings.model_copy(update={"notifications": False})):
        await eventually(lambda: count_is(pool, "shards", "node_id is not null", SHARDS))
        started = time.monotonic()
        job_id = await submit(caller, schedule="every 1h")

        async def planned() -> bool:
            return (await operations.jobs.get(job_id)).status == "active"

        await eventually(planned)
        # The service polls once a second; the rest allows for a busy machine.
        assert time.monotonic() - started < 3


async def count_is(pool: Pool, table: str, where: str, wanted: int) -> bool:
    return await count(pool, table, where) == wanted


async def test_a_job_that_is_cancelled_before_it_was_planned_stays_so(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, settings: Settings, operations: Operations
) -> None:
    job_id = await submit(caller, schedule="every 1h")
    await operations.jobs.cancel(job_id)
    async with running_scheduler(pool, settings):
        await eventually(lambda: count_is(pool, "sql_submits", "true", 0))
    job = await operations.jobs.get(job_id)
    assert (job.status, job.next_run_at) == ("cancelled", None)


async def test_an_http_target_and_a_template_of_ones_own_run_once_they_are_checked(
    caller: asyncpg.Connection[asyncpg.Record], scheduler: SchedulerNode, operations: Operations, pool: Pool
) -> None:
    http = await submit(caller, handler='{"type": "http", "url": "https://example.org/hook"}')
    own = await submit(caller, policy={"idempotency_key_template": "{{name}}:{{date}}"})
    await eventually(lambda: count_is(pool, "runs", "true", 2))
    job = await operations.jobs.get(http)
    assert job.handler == {"type": "http", "url": "https://example.org/hook"}
    assert (await operations.runs.page(own)).items[0].status == "queued"


# Immediate refusals


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"handler": ""}, "handler"),
        ({"handler": None}, "handler"),
        ({"handler": "x" * 201}, "handler"),
        ({"handler": "a\nb"}, "handler"),
        ({"handler": '{"type": "telnet"}'}, "handler.type"),
        ({"handler": "{nonsense"}, "handler"),
        ({"name": ""}, "name"),
        ({"name": "a\x07b"}, "name"),
        ({"name": "x\u0085y"}, "name"),
        ({"queue": ""}, "queue"),
        ({"queue": "q" * 101}, "queue"),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"tenant": ""}, "tenant"),
        ({"payload": None}, "payload"),
        ({"payload": {"x": "y" * 262_144}}, "payload"),
        ({"payload_ref": ""}, "payload_ref"),
        ({"payload_ref": "x" * 2_049}, "payload_ref"),
        ({"dedupe_key": ""}, "dedupe_key"),
        ({"schedule": ""}, "schedule"),
        ({"schedule": "x" * 20_001}, "schedule"),
        ({"schedule": "every 1h", "run_at": MOMENT}, "run_at"),
        ({"run_at": datetime(1800, 1, 1, tzinfo=UTC)}, "run_at"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"max_runs": 0}, "max_runs"),
        ({"start_at": MOMENT, "end_at": MOMENT}, "end_at"),
        ({"labels": {"a": 1}}, "labels"),
        ({"labels": [1]}, "labels"),
        ({"labels": {str(n): "x" for n in range(33)}}, "labels"),
        ({"policy": {"max_retris": 1}}, "policy.max_retris"),
        ({"policy": {"max_retries": -1}}, "max_retries"),
        ({"policy": {"max_retries": 1.5}}, "max_retries"),
        ({"policy": {"max_retries": True}}, "max_retries"),
        ({"policy": {"overlap": "perhaps"}}, "overlap"),
        ({"policy": {"timeout_seconds": 0}}, "timeout_seconds"),
        ({"policy": {"timeout_seconds": "5"}}, "timeout_seconds"),
        ({"policy": [1]}, "policy"),
    ],
)
async def test_a_wrong_argument_is_an_exception_that_names_the_field(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=rf"duly\.submit: {re.escape(field)}: ") as caught:
        await submit(caller, **arguments)
    assert caught.value.column_name == field
    assert len(str(caught.value)) < 400
    assert [await count(pool, table) for table in ("jobs", "runs", "sql_submits")] == [0, 0, 0]


async def test_nul_infinity_and_broken_json_cannot_even_be_asked_for(
    caller: asyncpg.Connection[asyncpg.Record],
) -> None:
    for sql in (
        r"""select duly.submit('x', payload => '{"a": "\u0000"}')""",
        "select duly.submit('x', payload => '{')",
        "select duly.submit('x', run_at => 'infinity')",
        "select duly.submit('x', run_at => '-infinity')",
        "select duly.submit()",
    ):
        with pytest.raises(asyncpg.PostgresError):
            await caller.fetchval(sql)


async def test_a_payload_that_python_could_not_read_is_refused(caller: asyncpg.Connection[asyncpg.Record]) -> None:
    for payload in ("[" * 201 + "]" * 201, '{"a":' * 201 + "1" + "}" * 201, "[" + "9" * 5_000 + "]", "1e5000"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="payload"):
            await caller.fetchval("select duly.submit('x', payload => $1)", payload)
    for payload in ("[" * 200 + "]" * 200, json.dumps(["[{" * 500]), "9" * 1_000, json.dumps([{"a": []}] * 1_000)):
        assert await caller.fetchval("select duly.submit('x', payload => $1)", payload)


@pytest.mark.parametrize(
    "text",
    [
        "'; drop table duly.jobs; --",
        "$$; select pg_sleep(100); $$",
        "%s %(p1)s %I %L {0} :name ?",
        "\\'; delete from duly.jobs where true or '1'='1",
        "<img src=x onerror=alert(1)>",
        "name {{7*7}} {name}",
    ],
)
async def test_texts_that_look_like_code_are_texts(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, operations: Operations, text: str
) -> None:
    job = await operations.jobs.get(
        await submit(caller, handler=text, name=text, queue=text, dedupe_key=text, payload={text: text})
    )
    assert (job.handler, job.name, job.queue, job.dedupe_key, job.payload) == (text, text, text, text, {text: text})
    paused = await operations.jobs.get(await submit(caller, handler=text, schedule=text, timezone=text))
    assert (paused.schedule, paused.timezone) == (text, text)
    with pytest.raises(asyncpg.PostgresError, match="dedupe_key"):
        await submit(caller, handler=text, dedupe_key=text)
    assert await count(pool, "jobs") == 2


async def test_a_hostile_search_path_changes_nothing(caller: asyncpg.Connection[asyncpg.Record], pool: Pool) -> None:
    await caller.execute("create schema hostile")
    await caller.execute(
        "create function hostile.lower(text) returns text language sql as $$ select 'every 1s' $$; "
        "set search_path = hostile, pg_catalog"
    )
    await submit(caller, schedule="NOW")
    assert await count(pool, "runs") == 1


async def test_a_misspelt_task_is_refused_once_workers_are_known(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool
) -> None:
    assert await submit(caller, handler="anything")
    await cluster.offer_handlers(pool, ["send_report"])
    assert await submit(caller)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="send_reprot"):
        await submit(caller, handler="send_reprot")
    assert await submit(caller, handler="send_reprot", allow_unknown_handler=True)


# Repeated submits


async def test_the_same_key_and_arguments_are_the_same_job_before_and_after_it_was_planned(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, settings: Settings
) -> None:
    for arguments in ({}, {"schedule": "PT15M"}, {"run_at": MOMENT}):
        key = str(arguments)
        first = await submit(caller, payload={"b": 1, "a": 2}, dedupe_key=key, **arguments)
        assert await submit(caller, payload={"a": 2, "b": 1}, dedupe_key=key, **arguments) == first
    async with running_scheduler(pool, settings):
        await eventually(lambda: count_is(pool, "sql_submits", "true", 0))
    again = await submit(caller, payload={"a": 2, "b": 1}, dedupe_key=str({"schedule": "PT15M"}), schedule="PT15M")
    assert await count(pool, "jobs") == 3
    assert await count(pool, "jobs", "job_id = $1", UUID(again)) == 1


async def test_the_same_key_with_other_arguments_is_an_exception_and_another_tenants_is_not(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool
) -> None:
    first = await submit(caller, dedupe_key="w-23")
    for other in ({"payload": {"n": 1}}, {"queue": "q"}, {"schedule": "every 1h"}, {"priority": 6}, {"name": "n"}):
        with pytest.raises(asyncpg.UniqueViolationError, match=first):
            await submit(caller, dedupe_key="w-23", **other)
    assert await submit(caller, dedupe_key="w-23", tenant="other") != first
    assert await count(pool, "jobs") == 2


async def test_a_hundred_pairs_of_twins_at_the_same_moment_are_a_hundred_jobs(database_url: str, pool: Pool) -> None:
    async with asyncpg.create_pool(database_url, min_size=8, max_size=8) as many:

        async def one(number: int, twin: int) -> str:
            arguments = f"'send_report', dedupe_key => 'k{number}'"
            if number % 2:
                arguments += ", schedule => 'every 1h'"
            async with many.acquire() as connection, connection.transaction():
                return str(await connection.fetchval(f"select duly.submit({arguments})"))

        answers = await asyncio.gather(*(one(number, twin) for number in range(100) for twin in range(2)))
    assert all(answers[at] == answers[at + 1] for at in range(0, 200, 2))
    assert await count(pool, "jobs") == 100
    assert await count(pool, "runs") == await count(pool, "sql_submits") == 50


async def test_a_tenants_limit_holds(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, store_operations: StoreOperations
) -> None:
    await store_operations.tenants.set("default", max_jobs=2)
    await submit(caller, dedupe_key="a")
    await submit(caller, schedule="every 1h")
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="tenant"):
        await submit(caller)
    assert await submit(caller, dedupe_key="a")
    assert await submit(caller, tenant="other")
    assert await count(pool, "jobs", "tenant = 'default'") == 2


# The manual


async def test_the_snippets_of_the_manual_run(
    caller: asyncpg.Connection[asyncpg.Record], pool: Pool, scheduler: SchedulerNode, store_operations: StoreOperations
) -> None:
    snippets = re.findall(r"```sql\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    assert len(snippets) >= 5
    for snippet in snippets:
        await caller.execute(snippet)
    await eventually(lambda: count_is(pool, "sql_submits", "true", 0))
    assert await count(pool, "jobs") >= 5
    assert await count(pool, "jobs", "status = 'paused'") == 0
    # The rights that the manual grants are enough.
    await store_operations.tenants.set("default", max_jobs=100)
    await caller.execute("set role shop")
    for arguments in ({}, {"schedule": "every 1h", "dedupe_key": "k"}, {"run_at": MOMENT}):
        await submit(caller, allow_unknown_handler=True, **arguments)
