"""The SDK: tasks, declared jobs, submits with and without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from duly import Conflict, Context, Duly, InvalidInput, UnknownHandler
from duly.client.calls import request_of
from duly.config import Settings
from duly.errors import ConfigError
from duly.model import JobRequest, Policy, each_request
from duly.operations import Operations, StoreOperations
from duly.store import cluster
from duly.store.pool import Pool
from harness.store import count


@pytest.fixture
async def app(settings: Settings) -> AsyncIterator[Duly]:
    app = Duly(settings=settings)

    @app.task(queue="reports", priority=7, max_retries=5)
    async def send_report(ctx: Context, report_type: str) -> None: ...

    yield app
    await app.close()


async def test_a_job_gets_its_tasks_defaults_and_may_override_each(app: Duly) -> None:
    operations = await app.operations()
    plain = await operations.jobs.get(await app.submit("send_report", {"report_type": "weekly"}))
    assert (plain.queue, plain.priority, plain.policy.max_retries) == ("reports", 7, 5)
    other = await operations.jobs.get(
        await app.submit("send_report", {"report_type": "x"}, queue="slow", priority=1, max_retries=0, name="special")
    )
    assert (other.queue, other.priority, other.policy.max_retries, other.name) == ("slow", 1, 0, "special")


async def test_a_job_can_be_submitted_for_a_moment(app: Duly) -> None:
    moment = datetime(2031, 1, 1, 9, tzinfo=UTC)
    operations = await app.operations()
    job = await operations.jobs.get(await app.submit("send_report", {"report_type": "x"}, run_at=moment))
    assert (job.kind, job.next_run_at, job.status) == ("once", moment, "active")


async def test_run_at_and_schedule_together_are_refused(app: Duly) -> None:
    with pytest.raises(InvalidInput, match="run_at"):
        await app.submit("send_report", run_at=datetime.now(UTC), schedule="every 1h")


@pytest.mark.parametrize("options", [{"priorty": 1}, {"tenant": "other"}, {"job_id": "x"}])
async def test_a_field_that_a_job_does_not_have_is_refused_by_name(app: Duly, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        await app.submit("send_report", **options)


async def test_a_function_that_is_no_task_is_refused(app: Duly) -> None:
    def stranger() -> None: ...

    with pytest.raises(InvalidInput, match="stranger"):
        await app.submit(stranger)


async def test_a_misspelt_task_is_refused_and_the_known_ones_are_named(app: Duly) -> None:
    with pytest.raises(UnknownHandler, match="send_report"):
        await app.submit("send_reprot", {})
    assert await app.submit("send_reprot", {}, allow_unknown_handler=True)


async def test_a_task_that_only_a_worker_has_is_known_through_the_store(app: Duly, pool: Pool) -> None:
    await cluster.offer_handlers(pool, ["elsewhere"])
    assert await app.submit("elsewhere")


async def test_two_tasks_of_one_name_are_refused(app: Duly) -> None:
    with pytest.raises(InvalidInput, match="send_report"):

        @app.task(name="send_report")
        def another() -> None: ...


async def test_code_without_an_event_loop_submits_too(app: Duly, pool: Pool) -> None:
    def plain_code() -> list[str]:
        ids = [app.submit_sync("send_report", {"report_type": "x"}) for _ in range(3)]
        app.close_sync()
        return ids

    ids = await asyncio.to_thread(plain_code)
    assert len(set(ids)) == 3
    assert await count(pool, "jobs") == 3
    assert not any(thread.name == "duly-sync" for thread in threading.enumerate())


async def test_the_same_dedupe_key_is_the_same_job_and_other_content_a_conflict(app: Duly, pool: Pool) -> None:
    first = await app.submit("send_report", {"report_type": "w"}, dedupe_key="w-23")
    assert await app.submit("send_report", {"report_type": "w"}, dedupe_key="w-23") == first
    with pytest.raises(Conflict, match="w-23"):
        await app.submit("send_report", {"report_type": "other"}, dedupe_key="w-23")
    assert await count(pool, "jobs") == 1


async def test_a_hundred_pairs_of_twins_at_the_same_moment_are_a_hundred_jobs(app: Duly, pool: Pool) -> None:
    async def pair(n: int) -> tuple[str, str]:
        payload = {"report_type": str(n)}
        one, other = await asyncio.gather(
            *(app.submit("send_report", payload, dedupe_key=f"twin-{n}") for _ in range(2))
        )
        return one, other

    pairs = await asyncio.gather(*(pair(n) for n in range(100)))
    assert all(one == other for one, other in pairs)
    assert await count(pool, "jobs") == 100


async def test_many_jobs_go_in_whole_or_not_at_all(app: Duly, pool: Pool) -> None:
    requests = [app.request("send_report", {"report_type": str(n)}) for n in range(20)]
    with pytest.raises(InvalidInput, match=r"jobs\[7\]\.schedule"):
        await app.submit_many([*requests[:7], app.request("send_report", schedule="77 * * * *"), *requests[7:]])
    assert await count(pool, "jobs") == 0
    assert len(await app.submit_many(requests)) == 20


async def test_many_may_be_mappings_of_fields(app: Duly, pool: Pool) -> None:
    given: list[JobRequest | Mapping[str, Any]] = [
        {"handler": "send_report", "payload": {"n": 1}, "priority": 3},
        app.request("send_report"),
    ]
    assert len(await app.submit_many(given)) == 2
    assert await count(pool, "jobs", "priority = 3 and queue = 'reports'") == 1
    for wrong, field in (
        ({"payload": {}}, "jobs[1].handler"),
        ({"handler": "send_report", "prioritty": 1}, "jobs[1].prioritty"),
        ("send_report", "jobs[1]"),
        ({"handler": "send_report", "priority": 99}, "jobs[1].priority"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await app.submit_many([given[0], wrong])  # type: ignore[list-item]
        assert caught.value.field == field
    made = each_request(given, lambda handler, rest: request_of(handler, **rest))  # as the clients do
    assert [request.priority for request in made] == [3, 7]


async def test_a_bulk_of_jobs_that_have_nothing_in_common_goes_in_quickly(app: Duly, pool: Pool) -> None:
    """Distinct due times make distinct schedules; the statement must not compare every job with every other."""
    start = datetime(2031, 1, 1, tzinfo=UTC)
    requests = [
        app.request("send_report", run_at=start + timedelta(seconds=n), labels={"n": str(n)}) for n in range(5000)
    ]
    async with asyncio.timeout(10):
        await app.submit_many(requests)
    assert await count(pool, "jobs") == 5000


class TestDeclared:
    """`@app.cron`: the code declares the job."""

    def _app(self, settings: Settings, schedule: str, **options: Any) -> Duly:
        app = Duly(settings=settings)

        @app.cron(schedule, **options)
        def digest(ctx: Context) -> None: ...

        return app

    async def test_it_is_registered_once_however_often_it_is_declared(self, settings: Settings, pool: Pool) -> None:
        app = self._app(settings, "0 9 * * MON", timezone="America/New_York", max_retries=1)
        first = await app.declare()
        again = await asyncio.gather(*(app.declare() for _ in range(10)))
        assert all(ids == first for ids in again)
        job = await (await app.operations()).jobs.get(str(first[0]))
        assert (job.name, job.schedule, job.timezone) == ("digest", "0 9 * * MON", "America/New_York")
        assert job.policy == Policy(max_retries=1)
        assert await count(pool, "jobs") == 1
        await app.close()

    async def test_a_changed_decorator_changes_the_job_and_keeps_its_id(self, settings: Settings, pool: Pool) -> None:
        old = self._app(settings, "every 1h")
        new = self._app(settings, "every 2h", priority=9)
        job_id = (await old.declare())[0]
        assert await new.declare() == [job_id]
        job = await (await new.operations()).jobs.get(str(job_id))
        assert (job.schedule, job.priority) == ("every 2h", 9)
        assert job.next_run_at == job.created_at + timedelta(hours=2)
        assert await count(pool, "jobs") == 1
        await old.close()
        await new.close()

    async def test_a_job_that_somebody_paused_stays_paused_through_a_deploy(self, settings: Settings) -> None:
        old, new = self._app(settings, "every 1h"), self._app(settings, "every 2h")
        job_id = str((await old.declare())[0])
        operations = await new.operations()
        await operations.jobs.pause(job_id)
        await new.declare()
        job = await operations.jobs.get(job_id)
        assert (job.status, job.next_run_at, job.schedule) == ("paused", None, "every 2h")
        await old.close()
        await new.close()

    async def test_the_function_can_still_be_called_as_it_is(self, settings: Settings) -> None:
        app = Duly(settings=settings)

        @app.cron("@daily")
        def double(n: int = 2) -> int:
            return 2 * n

        assert double(21) == 42


async def test_paging_through_jobs_meets_each_once_even_while_new_ones_come(operations: Operations) -> None:
    async def add(n: int) -> None:
        requests = [JobRequest("noop", schedule="every 1h") for _ in range(n)]
        await operations.submit_many(requests, allow_unknown_handler=True)

    await add(25)
    seen = []
    cursor = None
    while True:
        page = await operations.jobs.page(limit=10, cursor=cursor)
        seen += [job.job_id for job in page.items]
        await add(3)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 25
    assert seen == sorted(seen, reverse=True)


class TestChanges:
    @pytest.fixture
    async def job_id(self, operations: Operations) -> str:
        submitted = await operations.submit(JobRequest("noop", schedule="every 1h"), allow_unknown_handler=True)
        return str(submitted.job_id)

    async def test_pausing_and_resuming_starts_with_the_next_future_occurrence(
        self, operations: Operations, job_id: str
    ) -> None:
        before = await operations.jobs.get(job_id)
        paused = await operations.jobs.pause(job_id, reason="maintenance")
        assert (paused.status, paused.next_run_at, paused.status_reason) == ("paused", None, "maintenance")
        assert (await operations.jobs.pause(job_id)).status == "paused"
        resumed = await operations.jobs.resume(job_id)
        assert (resumed.status, resumed.next_run_at) == ("active", before.next_run_at)
        assert (await operations.jobs.resume(job_id)).status == "active"

    async def test_triggering_makes_extra_runs_and_does_not_move_the_schedule(
        self, operations: Operations, pool: Pool, job_id: str
    ) -> None:
        before = await operations.jobs.get(job_id)
        runs = {await operations.jobs.trigger(job_id) for _ in range(5)}
        assert len(runs) == 5
        assert await count(pool, "runs") == 5
        assert (await operations.jobs.get(job_id)).next_run_at == before.next_run_at

    async def test_cancelling_ends_it_and_what_waits(self, operations: Operations, pool: Pool, job_id: str) -> None:
        await operations.jobs.trigger(job_id)
        job = await operations.jobs.cancel(job_id)
        assert (job.status, job.next_run_at) == ("cancelled", None)
        assert await count(pool, "history", "status = 'cancelled'") == 1
        assert (await operations.jobs.cancel(job_id)).status == "cancelled"
        for refused in (operations.jobs.pause, operations.jobs.resume, operations.jobs.trigger):
            with pytest.raises(Conflict, match="cancelled"):
                await refused(job_id)

    async def test_another_tenants_job_is_not_there(self, store_operations: StoreOperations, job_id: str) -> None:
        from duly import NotFound

        operations = store_operations.for_tenant("other")
        for call in (
            operations.jobs.get,
            operations.jobs.pause,
            operations.jobs.trigger,
            operations.jobs.cancel,
            operations.runs.page,
        ):
            with pytest.raises(NotFound):
                await call(job_id)


async def test_an_application_is_of_the_tenant_of_its_code_else_of_the_settings(
    settings: Settings, store_operations: StoreOperations, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_TENANT", "by-environment")
    apps = [
        Duly(database_url, tenant="by-code"),
        Duly(database_url),
        Duly(settings=settings.changed(tenant="by-settings"), tenant=None),
        Duly(settings=settings.changed(tenant="other"), tenant="over-settings"),
    ]
    connection = await asyncpg.connect(database_url)
    try:
        for app in apps:

            @app.cron("every 1h", name="declared")
            async def declared() -> None: ...

            await app.submit("declared", name="submitted")
            await asyncio.to_thread(app.submit_sync, "declared", name="without a loop")
            await app.submit("declared", name="joined", connection=connection)
            await app.declare()
    finally:
        await connection.close()
        for app in apps:
            await asyncio.to_thread(app.close_sync)
            await app.close()
    for tenant in ("by-code", "by-environment", "by-settings", "over-settings"):
        page = await store_operations.for_tenant(tenant).jobs.page()
        assert sorted(job.name for job in page.items) == ["declared", "joined", "submitted", "without a loop"], tenant
    assert (await store_operations.for_tenant("default").jobs.page()).items == []


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb"])
async def test_a_tenant_that_is_none_is_refused(settings: Settings, name: str) -> None:
    with pytest.raises(ConfigError, match="tenant"):
        Duly(settings=settings, tenant=name)
    with pytest.raises(ConfigError, match="tenant"):
        _ = Duly(tenant=name).tenant
