"""A task's own defaults apply whoever submits: by every way in, in every field that the submitter leaves out."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import psycopg
import pytest

from conftest import Server
from duly import AsyncClient, Client, Conflict, Duly, Forbidden, InvalidInput
from duly.api.server import create_app, serve
from duly.config import Settings
from duly.maintenance.sql_submits import SqlSubmits
from duly.model import DEFAULT_TENANT, NO_DEFAULTS, Alerts, Declarer, Job, JobRequest, Policy, TaskDefaults, complete
from duly.model.deploys import rank_of_setting
from duly.operations import Operations, StoreOperations
from duly.operations.sql_submits import plan_sql_submit
from duly.store import cluster
from duly.store.migrate import migrate
from duly.store.pool import Pool
from harness.old_store import make_first_store
from harness.processes import clean_environment
from harness.versions import previous_source
from harness.waiting import eventually
from harness.worker import Workbench

REPORT = TaskDefaults("reports", 8, Policy(max_retries=0, timeout_seconds=5))
LATER = datetime(2040, 1, 1, tzinfo=UTC)


def deploy(number: int | str | None, owner: str = "shop") -> Declarer:
    if number is None:
        return Declarer(owner)
    return Declarer(owner, str(number), rank_of_setting(str(number)))


async def offer(pool: Pool, by: Declarer | None = None, /, **tasks: TaskDefaults) -> list[str]:
    """Offers tasks as the worker of a deploy does, and returns those that keep other defaults."""
    return [task.name for task in await cluster.offer_tasks(pool, tasks, by=by or deploy(1))]


async def fresh(pool: Pool, settings: Settings) -> Operations:
    """The operations of a process that has just started."""
    return (await StoreOperations.open(pool, settings)).for_tenant(DEFAULT_TENANT)


def got(job: Job) -> tuple[Any, ...]:
    return job.queue, job.priority, job.policy.max_retries, job.policy.timeout_seconds


# The ways in


class Doors:
    """Every way to submit a job of a task that the submitter has not imported."""

    def __init__(self, pool: Pool, settings: Settings, store_operations: StoreOperations, url: str) -> None:
        self.pool, self.settings, self.url = pool, settings, url
        self.operations = store_operations.for_tenant(DEFAULT_TENANT)
        self.app = Duly(settings=settings)

    def request(self, fields: dict[str, Any]) -> JobRequest:
        return self.app.request("report", **fields)

    async def submit(self, fields: dict[str, Any]) -> Any:
        return (await self.operations.submit(self.request(fields))).job_id

    async def submit_many(self, fields: dict[str, Any]) -> Any:
        return (await self.operations.submit_many([self.request(fields)] * 120))[57].job_id

    async def submit_each(self, fields: dict[str, Any]) -> Any:
        return (await self.operations.submit_each([self.request(fields)]))[0].job_id  # type: ignore[union-attr]

    async def submit_each_atomic(self, fields: dict[str, Any]) -> Any:
        return (await self.operations.submit_each([self.request(fields)], atomic=True))[0].job_id  # type: ignore[union-attr]

    async def app_submit(self, fields: dict[str, Any]) -> Any:
        return await self.app.submit("report", **fields)

    async def app_submit_sync(self, fields: dict[str, Any]) -> Any:
        try:
            return await asyncio.to_thread(self.app.submit_sync, "report", **fields)
        finally:
            await asyncio.to_thread(self.app.close_sync)

    async def app_submit_many(self, fields: dict[str, Any]) -> Any:
        return (await self.app.submit_many([{"handler": "report", **fields}]))[0]

    async def _post(self, path: str, content: str, media_type: str) -> Any:
        async with httpx.AsyncClient(base_url=self.url) as client:
            answer = await client.post(f"/api/v1/{path}", content=content, headers={"Content-Type": media_type})
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def _body(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"name": "n", "handler": "report", **fields}

    async def rest(self, fields: dict[str, Any]) -> Any:
        return (await self._post("jobs", json.dumps(self._body(fields)), "application/json"))["job_id"]

    async def rest_batch(self, fields: dict[str, Any]) -> Any:
        # The second job is read by the models: it has a field that the quick reader leaves to them.
        bodies = [self._body(fields), {**self._body(fields), "catch_up_window_seconds": None}]
        items = (await self._post("jobs/batch", json.dumps(bodies), "application/json"))["items"]
        one, other = [await self.job(item["job_id"]) for item in items]
        assert got(one) == got(other)
        return one.job_id

    async def rest_batch_atomic(self, fields: dict[str, Any]) -> Any:
        body = json.dumps([self._body(fields)])
        return (await self._post("jobs/batch?atomic=true", body, "application/json"))["items"][0]["job_id"]

    async def rest_lines(self, fields: dict[str, Any]) -> Any:
        body = json.dumps(self._body(fields)) + "\n"
        return (await self._post("jobs/batch", body, "application/x-ndjson"))["items"][0]["job_id"]

    async def client(self, fields: dict[str, Any]) -> Any:
        with Client(self.url) as client:
            return (await asyncio.to_thread(client.submit, "report", **fields)).job_id

    async def client_many(self, fields: dict[str, Any]) -> Any:
        async with AsyncClient(self.url) as client:
            return (await client.submit_many([{"handler": "report", **fields}]))[0].job_id

    async def asyncpg_transaction(self, fields: dict[str, Any]) -> Any:
        connection = await asyncpg.connect(self.settings.database_url)
        try:
            async with connection.transaction():
                return await self.app.submit("report", connection=connection, **fields)
        finally:
            await connection.close()

    async def psycopg_transaction(self, fields: dict[str, Any]) -> Any:
        with psycopg.connect(self.settings.database_url or "") as connection:
            return self.app.submit_sync("report", connection=connection, **fields)

    async def _sql(self, fields: dict[str, Any], **more: Any) -> Any:
        own = {name: value for name, value in fields.items() if name in ("queue", "priority")} | more
        if policy := {name: value for name, value in fields.items() if name not in own}:
            own["policy"] = json.dumps(policy)
        connection = await asyncpg.connect(self.settings.database_url)
        given = "".join(f", {name} => ${number}" for number, name in enumerate(own, 1))
        try:
            return await connection.fetchval(f"select duly.submit('report'{given})", *own.values())
        finally:
            await connection.close()

    async def sql(self, fields: dict[str, Any]) -> Any:
        job_id = await self._sql(fields)
        rows = await self.pool.query("select queue, priority from duly.runs where job_id = $1", job_id)
        job = await self.job(job_id)
        assert [(row["queue"], row["priority"]) for row in rows] == [(job.queue, job.priority)]
        return job_id

    async def sql_moment(self, fields: dict[str, Any]) -> Any:
        return await self._sql(fields, run_at=LATER)

    async def sql_planned_by_python(self, fields: dict[str, Any]) -> Any:
        job_id = await self._sql(fields, schedule="every 1h")
        service = SqlSubmits(self.pool, plan=lambda job: plan_sql_submit(job, self.settings), notified=True)
        service.lead(True)
        await service.run_once()
        assert (await self.job(job_id)).status == "active"
        return job_id

    async def job(self, job_id: Any) -> Job:
        return await self.operations.jobs.get(str(job_id))


DOORS = sorted(name for name in vars(Doors) if not name.startswith("_") and name not in ("job", "request"))


@pytest.fixture
async def doors(pool: Pool, settings: Settings, store_operations: StoreOperations) -> AsyncIterator[Doors]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    api = create_app(store_operations)
    task = asyncio.create_task(serve(api, host="127.0.0.1", port=0, started=ready.set_result, stop=stop))
    doors = Doors(pool, settings, store_operations, await asyncio.wait_for(ready, 30))
    yield doors
    await doors.app.close()
    stop.set()
    await task


@pytest.mark.parametrize("door", DOORS)
async def test_what_is_left_out_comes_from_the_task_and_what_is_given_wins(doors: Doors, pool: Pool, door: str) -> None:
    await offer(pool, report=REPORT)
    submit: Callable[[dict[str, Any]], Awaitable[Any]] = getattr(doors, door)

    async def submitted(fields: dict[str, Any]) -> tuple[Any, ...]:
        return got(await doors.job(await submit(fields)))

    assert await submitted({}) == ("reports", 8, 0, 5)
    assert await submitted({"queue": "q", "priority": 2, "max_retries": 7}) == ("q", 2, 7, 5)
    # A value that is given wins also if it is the general default.
    general = {"queue": "default", "priority": 5, "max_retries": 3, "timeout_seconds": 300}
    assert await submitted(general) == ("default", 5, 3, 300)
    for name, place in (("queue", 0), ("priority", 1), ("max_retries", 2), ("timeout_seconds", 3)):
        expected = [*got_of(REPORT)]
        expected[place] = general[name]
        assert await submitted({name: general[name]}) == tuple(expected), name


def got_of(defaults: TaskDefaults) -> tuple[Any, ...]:
    return defaults.queue, defaults.priority, defaults.policy.max_retries, defaults.policy.timeout_seconds


async def test_every_field_of_a_policy_travels(pool: Pool, settings: Settings) -> None:
    policy = Policy(
        missed_window="SKIP", catch_up_window_seconds=60, max_missed=7, overlap="queue", max_queued=3, max_retries=1,
        retry_backoff="linear", retry_delay_seconds=0.5, retry_max_delay_seconds=10, timeout_seconds=2.5,
        start_within_seconds=9, jitter_seconds=4, dst_gap="skip", dst_fold="both",
        idempotency_key_template="{{name}}:{{date}}", secret_fields=("card.number",),
        ping_url="https://hc-ping.com/a-b", alerts=Alerts(late_seconds=60, not_finished_by="09:00"),
    )  # fmt: skip
    assert all(getattr(policy, name) != getattr(Policy(), name) for name in Policy.__slots__)
    await offer(pool, report=TaskDefaults(policy=policy))
    operations = await fresh(pool, settings)
    assert (await operations.submit(JobRequest("report", schedule="every 1h"))).job.policy == policy
    caller = await asyncpg.connect(settings.database_url)
    job_id = await caller.fetchval("select duly.submit('report', schedule => 'every 1h')")
    assert (await operations.jobs.get(str(job_id))).policy == policy
    # None is a value like any other.
    nothing: Any = {"catch_up_window_seconds": None, "start_within_seconds": None}
    request = Duly(settings=settings).request("report", schedule="every 1h", **nothing)
    expected = replace(policy, catch_up_window_seconds=None, start_within_seconds=None)
    assert (await operations.submit(request)).job.policy == expected
    job_id = await caller.fetchval("select duly.submit('report', policy => $1)", json.dumps(nothing))
    assert (await operations.jobs.get(str(job_id))).policy == expected
    await caller.close()


async def test_the_jitter_and_the_secrets_of_a_task_hold_in_a_batch(pool: Pool, settings: Settings) -> None:
    await offer(pool, report=TaskDefaults(policy=Policy(jitter_seconds=3600, secret_fields=("password",))))
    operations = await fresh(pool, settings)
    jobs = [JobRequest("report", schedule=LATER, payload={"n": number}) for number in range(150)]
    found = await operations.submit_many(jobs)
    rows = await pool.query("select next_run_at from duly.jobs where job_id = any ($1)", [one.job_id for one in found])
    assert len({row["next_run_at"] for row in rows}) > 100
    with pytest.raises(InvalidInput, match="password"):
        await operations.submit_many([jobs[0], replace(jobs[1], payload={"password": "***"})])


async def test_a_batch_of_many_tasks_gives_each_its_own(pool: Pool, settings: Settings) -> None:
    tasks = {f"task_{number}": TaskDefaults(f"q{number}", number % 10) for number in range(300)}
    await offer(pool, **tasks)
    await offer(pool, plain=NO_DEFAULTS)
    operations = await fresh(pool, settings)
    names = [*tasks, "plain"] * 4
    submitted = await operations.submit_many([JobRequest(name) for name in names])
    rows = await pool.query(
        "select handler, queue, priority from duly.jobs where job_id = any ($1)", [one.job_id for one in submitted]
    )
    assert len(rows) == len(names)
    assert {(row["handler"], row["queue"], row["priority"]) for row in rows} == {
        *((name, one.queue, one.priority) for name, one in tasks.items()),
        ("plain", "default", 5),
    }


async def test_a_task_that_the_app_has_imported_goes_by_its_code(pool: Pool, settings: Settings) -> None:
    await offer(pool, report=REPORT)
    app = Duly(settings=settings)

    @app.task(priority=7)
    def report() -> None: ...

    @app.cron("@daily")
    def daily() -> None: ...

    await offer(pool, daily=REPORT)
    operations = await fresh(pool, settings)
    for submitted in (await app.submit(report), await app.submit("report")):
        assert got(await operations.jobs.get(submitted)) == ("default", 7, 3, 300)
    declared = await app.declare()
    assert got(await operations.jobs.get(str(declared[0]))) == ("default", 5, 3, 300)
    await app.close()


async def test_a_change_leaves_out_what_it_leaves_out_and_stored_jobs_keep_what_they_got(
    pool: Pool, settings: Settings
) -> None:
    operations = await fresh(pool, settings)
    await offer(pool, report=REPORT)
    job = (await operations.submit(JobRequest("report", schedule="every 1h"))).job
    await offer(pool, deploy(2), report=TaskDefaults("other", 1, Policy(max_retries=9)))
    assert got(await operations.jobs.get(str(job.job_id))) == got(job)
    changed = await operations.jobs.change(str(job.job_id), {"timeout_seconds": 6})
    assert got(changed) == ("reports", 8, 0, 6)


# Whose offer counts


class TestDeploys:
    async def stored(self, pool: Pool, settings: Settings) -> Any:
        return got((await (await fresh(pool, settings)).submit(JobRequest("report"))).job)[:2]

    async def test_an_older_deploy_that_starts_again_changes_nothing(self, pool: Pool, settings: Settings) -> None:
        assert await offer(pool, deploy(41), report=TaskDefaults("old")) == []
        assert await offer(pool, deploy(42), report=TaskDefaults("new")) == []
        assert await offer(pool, deploy(41), report=TaskDefaults("old")) == ["report"]
        assert await offer(pool, deploy(9), report=TaskDefaults("old")) == ["report"]
        assert await offer(pool, deploy(None), report=TaskDefaults("old")) == ["report"]
        assert await self.stored(pool, settings) == ("new", 5)
        # Equal deploys: the last to start. Going back is a newer deploy.
        assert await offer(pool, deploy(42), report=TaskDefaults("newer")) == []
        assert await self.stored(pool, settings) == ("newer", 5)
        assert await offer(pool, deploy(43), report=TaskDefaults("old")) == []
        assert await self.stored(pool, settings) == ("old", 5)

    async def test_what_the_newest_deploy_no_longer_sets_is_cleared(self, pool: Pool, settings: Settings) -> None:
        await offer(pool, deploy(1), report=REPORT)
        assert await offer(pool, deploy(2), report=NO_DEFAULTS) == []
        assert await offer(pool, deploy(1), report=REPORT) == ["report"]
        assert await self.stored(pool, settings) == ("default", 5)
        rows = await pool.query("select defaults, deploy from duly.handlers")
        assert [tuple(row) for row in rows] == [(None, "2")]

    async def test_a_task_of_another_live_application_keeps_its_defaults(self, pool: Pool, settings: Settings) -> None:
        await offer(pool, deploy(9), report=TaskDefaults("shops"))
        node = await self.live(pool, "shop", "report")
        assert await offer(pool, deploy(10, "blog"), report=TaskDefaults("blogs")) == ["report"]
        assert await self.stored(pool, settings) == ("shops", 5)
        await cluster.leave(pool, node_id=node)
        # Without its workers nothing of it is left, and a rank among another application's deploys means nothing.
        assert await offer(pool, deploy(1, "blog"), report=TaskDefaults("blogs")) == []
        assert await self.stored(pool, settings) == ("blogs", 5)

    async def test_a_live_worker_without_the_task_does_not_keep_it(self, pool: Pool, settings: Settings) -> None:
        await offer(pool, deploy(9), report=TaskDefaults("shops"))
        await self.live(pool, "shop", "other")
        assert await offer(pool, deploy(1, "blog"), report=TaskDefaults("blogs")) == []

    async def test_applications_without_a_name_are_told_apart_by_their_deploys_only(self, pool: Pool) -> None:
        await offer(pool, deploy(2, ""), report=TaskDefaults("a"))
        assert await offer(pool, deploy(1, "shop"), report=TaskDefaults("b")) == ["report"]
        assert await offer(pool, deploy(3, "shop"), report=TaskDefaults("b")) == []

    async def test_an_offer_of_the_version_before_has_no_rank(self, pool: Pool, settings: Settings) -> None:
        await cluster.offer_handlers(pool, ["report"])
        assert await self.stored(pool, settings) == ("default", 5)
        assert await offer(pool, deploy(None, ""), report=TaskDefaults("new")) == []
        # Its worker that starts again beside newer ones changes nothing.
        await cluster.offer_handlers(pool, ["report"])
        assert await self.stored(pool, settings) == ("new", 5)

    async def test_two_workers_that_start_at_once_agree(self, pool: Pool, settings: Settings) -> None:
        tasks = {f"task_{number}": TaskDefaults("q") for number in range(50)}
        deploys = [deploy(number) for number in range(8)]
        await asyncio.gather(
            *(offer(pool, by, **{name: TaskDefaults(f"q{by.deploy}") for name in tasks}) for by in deploys)
        )
        rows = await pool.query("select distinct defaults ->> 'queue' as queue, deploy from duly.handlers")
        assert [tuple(row) for row in rows] == [("q7", "7")]

    async def live(self, pool: Pool, app: str, *tasks: str) -> UUID:
        info = {"app": deploy(1, app).info(DEFAULT_TENANT), "tasks": tasks}
        node = uuid4()
        await cluster.join(pool, node_id=node, kind="worker", name="w", version="0", lease_seconds=60, info=info)
        return node


# Workers


def defaults_in(pool: Pool) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def read() -> dict[str, Any]:
        rows = await pool.query("select name, defaults from duly.handlers")
        return {row["name"]: row["defaults"] and json.loads(row["defaults"]) for row in rows}

    return read


async def test_a_worker_offers_what_its_tasks_set_and_only_that(bench: Workbench, pool: Pool) -> None:
    @bench.app.task(queue="reports", priority=8, max_retries=0, timeout_seconds=5, retry_backoff="exponential")
    def report() -> None: ...

    @bench.app.task(max_retries=3, queue="default")
    def plain() -> None: ...

    async with bench.working():
        assert await defaults_in(pool)() == {
            "report": {"queue": "reports", "priority": 8, "policy": {"max_retries": 0, "timeout_seconds": 5}},
            "plain": None,
        }
        request = JobRequest("report")
        job = (await (await fresh(pool, bench.settings)).submit(request)).job
        assert got(job) == ("reports", 8, 0, 5)


async def test_an_invalid_default_is_the_workers_error_and_not_the_submitters(
    bench: Workbench, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.app.task(queue="q" * 101)
    def wrong() -> None: ...

    @bench.app.task(idempotency_key_template="{{nonsense}}")
    def also_wrong() -> None: ...

    async with bench.working():
        assert await defaults_in(pool)() == {"wrong": None, "also_wrong": None}
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(said) == 2
    assert "'wrong'" in said[0]
    assert "queue" in said[0]


async def test_an_older_worker_says_once_whose_defaults_stay(
    bench: Workbench, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.app.task(queue="old")
    def report() -> None: ...

    @bench.app.task(queue="same")
    def same() -> None: ...

    await offer(pool, deploy(42), report=TaskDefaults("new"), same=TaskDefaults("same"))
    async with bench.working(app=deploy(41).info(DEFAULT_TENANT)) as worker:
        assert (await defaults_in(pool)())["report"] == {"queue": "new"}
        await worker._offering.offer(pool)
        assert not worker._offering.open
    said = [one.getMessage() for one in caplog.records if "defaults" in one.getMessage()]
    assert len(said) == 1
    assert "task 'report'" in said[0]
    assert "deploy 42" in said[0]
    assert "deploy 41 of app 'shop'" in said[0]
    assert "same" not in said[0]


async def test_a_worker_of_another_application_takes_over_when_that_one_is_gone(
    bench: Workbench, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.app.task(queue="blogs")
    def report() -> None: ...

    node = await TestDeploys().live(pool, "shop", "report")
    await offer(pool, deploy(1), report=TaskDefaults("shops"))
    async with bench.working(app=deploy(1, "blog").info(DEFAULT_TENANT)) as worker:
        assert await defaults_in(pool)() == {"report": {"queue": "shops"}}
        await worker._offering.run_once()
        said = [one.getMessage() for one in caplog.records if "defaults" in one.getMessage()]
        assert len(said) == 1
        assert "app 'shop'" in said[0]
        await cluster.leave(pool, node_id=node)
        await worker._offering.run_once()
        assert await defaults_in(pool)() == {"report": {"queue": "blogs"}}
        assert not worker._offering.open


async def test_a_worker_that_the_store_forgot_offers_its_defaults_again(bench: Workbench, pool: Pool) -> None:
    @bench.app.task(queue="reports")
    def report() -> None: ...

    async with bench.working() as worker:
        await pool.query("truncate duly.nodes, duly.handlers")
        worker.leases.poke()

        async def offered() -> bool:
            worker._offering.wake()
            return await defaults_in(pool)() == {"report": {"queue": "reports"}}

        await eventually(offered)


# How fresh


async def test_a_process_learns_of_a_change_within_seconds_and_asks_no_more_for_it(
    pool: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await offer(pool, report=REPORT)
    operations = await fresh(pool, settings)
    moment = 1000.0
    monkeypatch.setattr("duly.operations.core.time", type("Time", (), {"monotonic": staticmethod(lambda: moment)}))
    asked: list[str] = []
    fetch = Pool.fetch

    async def noted(self: Pool, name: str, *args: Any) -> Any:
        asked.append(name)
        return await fetch(self, name, *args)

    monkeypatch.setattr(Pool, "fetch", noted)
    row = Pool.row

    async def noted_row(self: Pool, name: str, *args: Any) -> Any:
        asked.append(name)
        return await row(self, name, *args)

    monkeypatch.setattr(Pool, "row", noted_row)

    async def submitted() -> str:
        asked.clear()
        return (await operations.submit(JobRequest("report"))).job.queue

    assert await submitted() == "reports"
    await offer(pool, deploy(2), report=TaskDefaults("new"))
    assert await submitted() == "reports"
    assert set(asked) == {"jobs/submit"}
    moment += 2.0
    assert await submitted() == "new"
    # One statement brings the tenant's limits, as ever, and the defaults.
    assert set(asked) == {"tenants/known_beside_offers", "jobs/submit"}
    await offer(pool, deploy(3), report=NO_DEFAULTS)
    moment += 2.0
    assert await submitted() == "default"


async def test_a_task_that_is_new_brings_its_defaults_to_the_first_submit(
    pool: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 1000.0
    monkeypatch.setattr("duly.operations.core.time", type("Time", (), {"monotonic": staticmethod(lambda: moment)}))
    operations = await fresh(pool, settings)
    await offer(pool, other=NO_DEFAULTS)
    await operations.submit(JobRequest("other"))
    await offer(pool, report=REPORT)
    # Within the time for which what the process knows is believed.
    assert got((await operations.submit(JobRequest("report"))).job) == ("reports", 8, 0, 5)
    await offer(pool, deploy(2), report=NO_DEFAULTS)
    moment += 2.0
    assert (await operations.submit(JobRequest("report"))).job.queue == "default"


# Bounds of tenants


async def test_the_bounds_of_a_tenant_see_the_queue_that_results(
    pool: Pool, settings: Settings, store_operations: StoreOperations
) -> None:
    await offer(pool, report=REPORT, plain=NO_DEFAULTS)
    await store_operations.tenants.set("free", queues=["reports"])
    await store_operations.tenants.set("bound", queues=["default"])
    opened = await StoreOperations.open(pool, settings)
    free, bound = opened.for_tenant("free"), opened.for_tenant("bound")
    caller = await asyncpg.connect(settings.database_url)
    submit = "select duly.submit('report', tenant => $1, queue => $2)"
    assert (await free.submit(JobRequest("report"))).job.queue == "reports"
    assert (await bound.submit(JobRequest("report", queue="default"))).job.queue == "default"
    await caller.fetchval(submit, "free", None)
    await caller.fetchval(submit, "bound", "default")
    for operations, request in (
        (bound, JobRequest("report")),
        (free, JobRequest("report", queue="default")),
        (free, JobRequest("plain")),
    ):
        with pytest.raises(Forbidden, match="queue"):
            await operations.submit(request)
        with pytest.raises(Forbidden, match="queue"):
            await operations.submit_many([request, request])
        assert isinstance((await operations.submit_each([request]))[0], Forbidden)
    for tenant, queue in (("bound", None), ("free", "default")):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="queue"):
            await caller.fetchval(submit, tenant, queue)
    await caller.close()


# The same key again


class TestTheSameKeyAgain:
    async def submit(self, pool: Pool, settings: Settings, **fields: Any) -> Any:
        request = Duly(settings=settings).request("report", {"n": 1}, dedupe_key="k", **fields)
        one = (await (await fresh(pool, settings)).submit(request)).job_id
        each = await (await fresh(pool, settings)).submit_each([request])
        assert one == each[0].job_id  # type: ignore[union-attr]
        return one

    async def test_a_change_of_the_defaults_in_between_makes_no_conflict(self, pool: Pool, settings: Settings) -> None:
        for fields in ({}, {"priority": 2, "max_retries": 1}):
            await pool.query("truncate duly.jobs, duly.runs, duly.handlers")
            first = await self.submit(pool, settings, **fields) if not fields else None
            for number, defaults in enumerate((REPORT, TaskDefaults("x", 1, Policy(dst_fold="both")), NO_DEFAULTS)):
                await offer(pool, deploy(number), report=defaults)
                again = await self.submit(pool, settings, **fields)
                first = first or again
                assert again == first, number

    async def test_what_the_job_got_may_be_sent_back_or_left_out(self, pool: Pool, settings: Settings) -> None:
        await offer(pool, report=REPORT)
        first = await self.submit(pool, settings)
        given = {"queue": "reports", "priority": 8, "max_retries": 0, "timeout_seconds": 5}
        assert await self.submit(pool, settings, **given) == first
        assert await self.submit(pool, settings, queue="reports") == first
        with pytest.raises(Conflict):
            await self.submit(pool, settings, queue="elsewhere")
        with pytest.raises(Conflict):
            await self.submit(pool, settings, max_retries=1)
        await pool.query("truncate duly.jobs, duly.runs")
        first = await self.submit(pool, settings, **given)
        assert await self.submit(pool, settings) == first

    async def test_a_local_time_that_the_task_reads_otherwise_is_the_same(self, pool: Pool, settings: Settings) -> None:
        when = {"schedule": "2031-11-02T01:30", "timezone": "America/New_York"}
        first = await self.submit(pool, settings, **when)
        await offer(pool, report=TaskDefaults(policy=Policy(dst_fold="second")))
        assert await self.submit(pool, settings, **when) == first

    async def test_in_sql(self, pool: Pool, settings: Settings) -> None:
        caller = await asyncpg.connect(settings.database_url)

        async def submit(more: str = "") -> Any:
            return await caller.fetchval(
                f"select duly.submit('report', dedupe_key => 'k', allow_unknown_handler => true {more})"
            )

        given = """, queue => 'reports', priority => 8, policy => '{"max_retries": 0, "timeout_seconds": 5}'"""
        first = await submit()
        await offer(pool, report=REPORT)
        assert await submit() == first
        assert await submit(given) == first
        assert await submit(", queue => 'reports'") == first
        assert await submit(", queue => 'default', priority => 5") == first
        for other in (", queue => 'x'", ", priority => 9", """, policy => '{"max_retries": 1}'"""):
            with pytest.raises(asyncpg.UniqueViolationError, match="dedupe_key"):
                await submit(other)
        await offer(pool, deploy(2), report=TaskDefaults("new", 1))
        assert await submit() == first
        await pool.query("truncate duly.jobs, duly.runs")
        await offer(pool, deploy(3), report=REPORT)
        first = await submit(given)
        assert await submit() == first
        await caller.close()


# A store of the version before


@pytest.fixture
async def first_store(server: Server) -> AsyncIterator[Pool]:
    pool = await Pool.connect(await make_first_store(server))
    await pool.read_steps()
    yield pool
    await pool.close()


async def test_on_a_store_of_the_version_before_all_is_as_it_was_until_it_is_migrated(
    first_store: Pool, settings: Settings
) -> None:
    there = settings.model_copy(update={"database_url": first_store.url})
    operations = await fresh(first_store, there)
    bench = Workbench(first_store, there, operations)

    @bench.app.task(queue="reports")
    def report() -> None: ...

    async with bench.working() as worker:
        assert (await operations.submit(JobRequest("report"))).job.queue == "default"
        app = Duly(settings=there)
        connection = await asyncpg.connect(first_store.url)
        joined = await app.submit("report", connection=connection)
        assert (await operations.jobs.get(joined)).queue == "default"
        await migrate(first_store)
        assert first_store.has_step(cluster.DEFAULTS_STEP)
        worker._offering.wake()

        async def offered() -> bool:
            return (await (await fresh(first_store, there)).submit(JobRequest("report"))).job.queue == "reports"

        await eventually(offered)
        joined = await app.submit("report", connection=connection)
        assert (await operations.jobs.get(joined)).queue == "reports"
        await connection.close()


_SUBMIT_BY_THE_VERSION_BEFORE = """
import asyncio, json, sys
from duly.config import load_settings
from duly import Duly

async def main():
    app = Duly(settings=load_settings(database_url=sys.argv[1]))
    for number, fields in enumerate(json.loads(sys.argv[2])):
        print(await app.submit("report", {"n": 1}, dedupe_key=f"k{number}", allow_unknown_handler=True, **fields))
    await app.close()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_the_keys_of_jobs_of_the_version_before_stay_valid(
    first_store: Pool, settings: Settings, tmp_path: Path
) -> None:
    there = settings.model_copy(update={"database_url": first_store.url})
    own = {"queue": "reports", "priority": 8, "max_retries": 0, "timeout_seconds": 5}
    requests: list[dict[str, Any]] = [
        {},
        {"queue": "default", "max_retries": 3},
        {"queue": "q", "jitter_seconds": 3},
        own,
    ]
    calls = ["", ", queue => 'default', priority => 5", """, queue => 'q', policy => '{"max_retries": 3}'"""]
    environment = {**clean_environment(), "PYTHONPATH": str(previous_source(tmp_path))}
    program = [sys.executable, "-c", _SUBMIT_BY_THE_VERSION_BEFORE, first_store.url, json.dumps(requests)]
    done = await asyncio.to_thread(
        subprocess.run, program, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    before = done.stdout.split()
    caller = await asyncpg.connect(first_store.url)

    async def by_sql() -> list[str]:
        statements = [f"select duly.submit('report', dedupe_key => 's{n}'{call})" for n, call in enumerate(calls)]
        return [str(await caller.fetchval(statement)) for statement in statements]

    before_by_sql = await by_sql()
    await migrate(first_store)
    for number, defaults in enumerate((NO_DEFAULTS, REPORT, TaskDefaults("other", 1, Policy(max_retries=7)))):
        await offer(first_store, deploy(number), report=defaults)
        app = Duly(settings=there)
        again = [
            await app.submit("report", {"n": 1}, dedupe_key=f"k{key}", **fields) for key, fields in enumerate(requests)
        ]
        assert again == before
        assert await by_sql() == before_by_sql
        await app.close()
    # What leaves out the defaults that an older application filled in is the same job, too.
    await offer(first_store, deploy(4), report=REPORT)
    app = Duly(settings=there)
    assert await app.submit("report", {"n": 1}, dedupe_key="k3") == before[3]
    await app.close()
    await caller.close()


# Values


def test_what_a_task_sets_survives_the_store() -> None:
    for defaults in (NO_DEFAULTS, REPORT, TaskDefaults(priority=0), TaskDefaults(policy=Policy(secret_fields=("a",)))):
        stored = defaults.to_stored()
        assert TaskDefaults.from_stored(None if stored is None else json.loads(stored)) == defaults
    assert NO_DEFAULTS.to_stored() is None
    assert not NO_DEFAULTS
    assert REPORT


def test_what_cannot_be_read_is_left_out() -> None:
    stored = {"queue": "", "priority": 11, "policy": {"max_retries": -1, "new_field": 1, "timeout_seconds": 5}, "x": 1}
    assert TaskDefaults.from_stored(stored) == TaskDefaults(policy=Policy(timeout_seconds=5))
    unreadable: list[object] = [[], "x", 5, None, {"policy": "x"}, {"queue": "q" * 101}]
    for nothing in unreadable:
        assert TaskDefaults.from_stored(nothing) == NO_DEFAULTS


def test_a_complete_request_is_complete() -> None:
    request = complete(JobRequest("report"), REPORT)
    assert request.is_complete
    assert complete(request, TaskDefaults("other")) is request
    assert (request.queue, request.priority, request.policy) == ("reports", 8, REPORT.policy)
