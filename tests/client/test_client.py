"""`duly.Client` and `duly.AsyncClient` against the real API over a real store, and over connections that fail."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest

import duly
from duly import AsyncClient, Client
from duly.api.server import create_app, serve
from duly.client import calls, trying
from duly.config import Settings
from duly.errors import (
    ApiUnavailable,
    ConfigError,
    Conflict,
    Forbidden,
    InvalidInput,
    InvalidSchedule,
    LimitReached,
    NotFound,
    StoreUnavailable,
    Unauthorized,
)
from duly.model import DeadLetterFilter, JobRequest, Policy
from duly.node import running_worker
from duly.operations import Operations, StoreOperations
from duly.store.pool import Pool
from duly.worker.handler.task import Task
from harness.endpoint import Endpoint, reply, silence
from harness.httpline import Line
from harness.store import count, due_job, put
from harness.waiting import eventually


@asynccontextmanager
async def serving(store_operations: StoreOperations) -> AsyncIterator[str]:
    """The API on a port of its own; yields its address."""
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(create_app(store_operations), host="127.0.0.1", port=0, started=ready.set_result, stop=stop)
    )
    try:
        yield await asyncio.wait_for(ready, 30)
    finally:
        stop.set()
        await task


@pytest.fixture
async def url(store_operations: StoreOperations) -> AsyncIterator[str]:
    async with serving(store_operations) as address:
        yield address


class Caller:
    """Calls either client in the same way, so that each test runs with both."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._open: list[Client | AsyncClient] = []

    def at(self, url: str, api_key: str | None = None, **options: Any) -> Calls:
        client: Client | AsyncClient
        client = Client(url, api_key, **options) if self.kind == "sync" else AsyncClient(url, api_key, **options)
        self._open.append(client)
        return Calls(client)

    async def close(self) -> None:
        for client in self._open:
            if isinstance(client, AsyncClient):
                await client.close()
            else:
                client.close()


class Calls:
    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    async def __call__(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncClient):
            return await method(*args, **kwargs)
        return await asyncio.to_thread(method, *args, **kwargs)

    async def every(self, name: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        found = getattr(self.client, name)(*args, **kwargs)
        if isinstance(self.client, AsyncClient):
            return [one async for one in found]
        return await asyncio.to_thread(list, found)


@pytest.fixture(params=["sync", "async"])
async def caller(request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    caller = Caller(request.param)
    yield caller
    await caller.close()


@pytest.fixture
def call(caller: Caller, url: str) -> Calls:
    return caller.at(url)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "BASE_SECONDS", 0.01)


@asynccontextmanager
async def failing(pool: Pool, settings: Settings) -> AsyncIterator[None]:
    """A worker whose only task always fails for good."""

    async def fail() -> None:
        raise duly.Permanent("it cannot be done")

    async with running_worker(pool, {"fail": Task("fail", fail)}, settings):
        yield


# Every call


async def test_a_submitted_job_comes_back_with_every_field_that_was_given(call: Calls) -> None:
    job = await call(
        "submit", "sync", {"deep": [1, None, "ü"]}, schedule="30 2 * * *", timezone="Europe/Berlin", name="Abgleich",
        start_at=datetime(2030, 1, 1, tzinfo=UTC), end_at=datetime(2031, 1, 1, tzinfo=UTC), max_runs=12,
        queue="reports", priority=9, overlap="queue", max_retries=0, timeout_seconds=0.5, dst_gap="skip",
        labels={"team": "data"}, dedupe_key="nightly", payload_ref="s3://bucket/key",
    )  # fmt: skip
    assert isinstance(job, duly.model.Job)
    assert (job.name, job.handler, job.payload) == ("Abgleich", "sync", {"deep": [1, None, "ü"]})
    assert (job.kind, job.schedule, job.timezone) == ("cron", "30 2 * * *", "Europe/Berlin")
    assert (job.start_at, job.max_runs) == (datetime(2030, 1, 1, tzinfo=UTC), 12)
    assert job.policy == Policy(overlap="queue", max_retries=0, timeout_seconds=0.5, dst_gap="skip")
    assert (job.queue, job.priority, job.labels, job.dedupe_key) == ("reports", 9, {"team": "data"}, "nightly")
    assert job.payload_ref == "s3://bucket/key"
    assert job.next_run_at == datetime(2030, 1, 1, 1, 30, tzinfo=UTC)
    assert await call("get_job", job.job_id) == job
    assert await call("get_job", str(job.job_id)) == job


async def test_times_are_taken_from_any_zone_and_refused_without_one(call: Calls) -> None:
    at = datetime(2030, 6, 1, 12, tzinfo=UTC)
    job = await call("submit", "report", run_at=at.astimezone(duly.timing.load_zone("Asia/Tokyo")))
    assert job.next_run_at == at
    assert job.kind == "once"
    with pytest.raises(InvalidInput, match="offset"):
        await call("submit", "report", run_at=datetime(2030, 6, 1, 12))  # noqa: DTZ001 - that is the point
    with pytest.raises(InvalidInput, match="run_at"):
        await call("submit", "report", run_at=at, schedule="every 5m")


async def test_a_target_without_a_name_gets_the_name_that_the_library_gives_it(
    caller: Caller, url: str, store_operations: StoreOperations
) -> None:
    call = caller.at(url, (await store_operations.keys.create(role="operator")).text)
    job = await call("submit", {"type": "command", "argv": ["/usr/bin/backup", "--all"], "secret_env": {"PIN": "1234"}})
    assert job.name == "backup"
    assert job.handler == {"type": "command", "argv": ["/usr/bin/backup", "--all"], "secret_env": {"PIN": "***"}}


async def test_jobs_are_walked_page_by_page_while_others_are_submitted(
    call: Calls, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PAGE", 3)
    # Sorted: the database's clock may be measured anew between two submits, and ids follow it.
    made = sorted([(await operations.submit(JobRequest("a", schedule="every 1h", queue="q"))).job_id for _ in range(8)])
    await operations.submit(JobRequest("b", schedule="every 1h", labels={"team": "x"}))
    assert [job.job_id for job in await call.every("jobs", queue="q")] == made[::-1]
    assert [job.name for job in await call.every("jobs", label={"team": "x"})] == ["b"]
    assert await call.every("jobs", status="paused") == []
    page = await call("jobs_page", queue="q", limit=2)
    assert [job.job_id for job in page.items] == made[:5:-1]
    await operations.submit(JobRequest("a", schedule="every 1h", queue="q"))
    following = await call("jobs_page", queue="q", limit=2, cursor=page.next_cursor)
    assert [job.job_id for job in following.items] == made[5:3:-1]


async def test_a_job_can_be_changed_paused_resumed_and_cancelled(call: Calls) -> None:
    job = await call("submit", "report", schedule="every 1h")
    assert (await call("change", job.job_id, priority=8, labels={"a": "b"})).priority == 8
    current = await call("get_job", job.job_id)
    assert (await call("change", job.job_id, expected_version=current.version, queue="q")).queue == "q"
    with pytest.raises(Conflict):
        await call("change", job.job_id, expected_version=current.version, queue="r")
    paused = await call("pause", job.job_id, reason="for now")
    assert (paused.status, paused.status_reason) == ("paused", "for now")
    assert (await call("resume", job.job_id)).status == "active"
    assert (await call("cancel", job.job_id, running=True)).status == "cancelled"
    with pytest.raises(Conflict):
        await call("resume", job.job_id)


async def test_runs_are_triggered_listed_shown_and_cancelled(call: Calls) -> None:
    job = await call("submit", "report", schedule="every 1h", overlap="parallel")
    triggered = [await call("trigger", job.job_id) for _ in range(3)]
    listed = await call.every("runs", job.job_id)
    assert [run.run_id for run in listed] == [run.run_id for run in triggered[::-1]]
    assert (await call("get_run", triggered[0].run_id)).status == "queued"
    assert (await call("cancel_run", triggered[0].run_id)).status == "cancelled"
    with pytest.raises(Conflict):
        await call("cancel_run", triggered[0].run_id)
    page = await call("runs_page", job.job_id, limit=2)
    assert len(page.items) == 2
    assert page.next_cursor is not None


async def test_dead_letters_are_listed_shown_redriven_and_purged(call: Calls, pool: Pool, settings: Settings) -> None:
    async with failing(pool, settings):
        for name in ("one", "two", "three"):
            await call("submit", "fail", name=name)
        await eventually(lambda: _has(pool, "dead_letters", 3))
    letters = {letter.name: letter for letter in await call.every("dead_letters")}
    letter = letters["one"]
    assert (letter.error.message, letter.attempt) == ("it cannot be done", 1)
    assert await call("get_dead_letter", letter.run_id) == letter
    assert (await call("dead_letters_page", DeadLetterFilter(name="two"))).items == [letters["two"]]
    assert (await call("redrive", letter.run_id)).status == "queued"
    with pytest.raises(NotFound):
        await call("redrive", letter.run_id)
    await call("purge", letters["two"].run_id)
    with pytest.raises(NotFound):
        await call("purge", letters["two"].run_id)
    swept = await call("redrive_all", DeadLetterFilter(error_type=letters["three"].error.type))
    assert (swept.done, swept.refused) == (1, 0)
    assert await call("redrive_all") == duly.model.Swept(0, 0)
    assert await call.every("dead_letters") == []


async def test_dead_letters_are_purged_by_filter_or_all_at_once(call: Calls, pool: Pool, settings: Settings) -> None:
    async with failing(pool, settings):
        for name in ("one", "two", "two", "three"):
            await call("submit", "fail", name=name)
        await eventually(lambda: _has(pool, "dead_letters", 4))
        assert await call("purge_all", DeadLetterFilter(name="two")) == duly.model.Swept(2, 0)
        assert {letter.name for letter in await call.every("dead_letters")} == {"one", "three"}
        wanted = await call("call", calls.those_now())
        await call("submit", "fail", name="later")
        await eventually(lambda: _has(pool, "dead_letters", 3))
    # A run that died after the filter was made is not purged with the others.
    assert await call("call", calls.purge_some(wanted)) == (duly.model.Swept(2, 0), False)
    assert [letter.name for letter in await call.every("dead_letters")] == ["later"]
    with pytest.raises(InvalidInput) as refused:
        await call("call", calls.purge_some(DeadLetterFilter()))
    assert refused.value.field == "all"
    assert await call("purge_all") == duly.model.Swept(1, 0)
    assert await call("purge_all") == duly.model.Swept(0, 0)


async def test_a_purge_of_unknown_fate_is_not_sent_again(caller: Caller, line: Line) -> None:
    line.arm("DELETE ", "swallow", times=3)
    with pytest.raises(ApiUnavailable, match="not known"):
        await caller.at(line.url)("call", calls.purge_some(DeadLetterFilter(name="x")))
    assert line.struck == 1


async def test_every_occurrence_of_a_range_is_explained_page_by_page(
    call: Calls, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PAGE", 4)
    start = datetime(2031, 1, 1, tzinfo=UTC)
    job = await call("submit", "report", schedule="every 10m", start_at=start)
    found = await call.every("explanations", job.job_id, start=start, end=start + timedelta(hours=2))
    known = await operations.explain.between(str(job.job_id), start=start, end=start + timedelta(hours=2))
    assert [(one.scheduled_at, one.verdict, one.sentence) for one in found] == [
        (one.scheduled_at, one.verdict, one.sentence) for one in known
    ]
    assert len(found) == 13
    assert await call.every("explanations", job.job_id, start=start - timedelta(days=3650)) == []


async def test_a_task_that_no_worker_has_is_refused_unless_it_is_allowed(
    caller: Caller, pool: Pool, settings: Settings
) -> None:
    async with serving(await StoreOperations.open(pool, settings, local_handlers=["known"])) as address:
        call = caller.at(address)
        with pytest.raises(InvalidInput) as refused:
            await call("submit", "unknown")
        assert refused.value.field == "handler"
        assert (await call("submit", "unknown", allow_unknown_handler=True)).handler == "unknown"
        request = JobRequest("unknown")
        assert (await call("submit_many", [request]))[0].error is not None
        assert (await call("submit_many", [request], allow_unknown_handler=True))[0].created


async def test_what_dies_again_during_a_redrive_is_not_sent_again(call: Calls, pool: Pool, settings: Settings) -> None:
    async with failing(pool, settings):
        await call("submit", "fail", name="one")
        await eventually(lambda: _has(pool, "dead_letters", 1))
        wanted = await call("call", calls.those_now())
        await call("redrive_all")
        await eventually(lambda: _has(pool, "dead_letters", 1))
        assert await call("call", calls.redrive_some(wanted)) == (duly.model.Swept(0, 0), False)


SESSION = """
import sys
import time
from datetime import UTC, datetime

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "asyncpg":
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())

import duly

def until(look):
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found

with duly.Client(sys.argv[1]) as client:
    options = {"schedule": "0 9 * * MON", "labels": {"team": "ops"}, "allow_unknown_handler": True}
    job = client.submit("report", {"kind": "weekly"}, **options)
    assert isinstance(job, duly.Job) and job.shard is None and job.run_count == 0
    assert client.get_job(job.job_id) == job
    assert [found.job_id for found in client.jobs(label={"team": "ops"})] == [job.job_id]
    assert client.change(job.job_id, expected_version=job.version, queue="slow").queue == "slow"
    assert client.pause(job.job_id, reason="holiday").status_reason == "holiday"
    assert client.resume(job.job_id).status == "active"
    run = client.trigger(job.job_id)
    assert isinstance(run, duly.Run)
    assert [found.run_id for found in client.runs(job.job_id)] == [run.run_id]
    client.cancel_run(run.run_id)
    until(lambda: client.get_run(run.run_id).status == "cancelled")
    assert len(client.upcoming(job.job_id, count=3)) == 3
    assert client.explain(job.job_id).job_id == job.job_id
    options = {"timezone": "America/New_York", "dst_gap": "skip", "count": 1}
    shown = client.preview("30 2 * * *", after=datetime(2026, 3, 7, 12, tzinfo=UTC), **options)
    assert [one.dropped for one in shown.occurrences] == [True, False]
    items = client.submit_many([{"handler": "fail", "name": name} for name in ("one", "two", "three")])
    assert all(item.created for item in items)
    letters = until(lambda: [*found] if len(found := list(client.dead_letters())) == 3 else None)
    assert client.get_dead_letter(letters[0].run_id) == letters[0]
    client.purge(letters[0].run_id)
    client.redrive(letters[1].run_id)
    until(lambda: len(list(client.dead_letters())) == 2)
    assert client.purge_all(duly.DeadLetterFilter(queue="default")).done == 2
    assert client.cancel(job.job_id).status == "cancelled"
    assert client.stats().jobs >= 1 and client.cluster().nodes and client.forecast(minutes=5).start
assert not [name for name in sys.modules if name.startswith(("duly.store", "duly.operations", "duly.worker"))]
"""


async def test_a_client_needs_no_database_driver(url: str, pool: Pool, settings: Settings) -> None:
    """A whole session in a process that cannot import asyncpg, against the API in this one."""
    async with failing(pool, settings):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", SESSION, url, stderr=subprocess.PIPE)
        _, err = await asyncio.wait_for(process.communicate(), 150)
    assert process.returncode == 0, err.decode()


async def _has(pool: Pool, table: str, number: int) -> bool:
    return await count(pool, table) == number


async def test_previews_forecasts_explanations_and_upcoming_occurrences_are_values(call: Calls) -> None:
    zone = "America/New_York"
    preview = await call(
        "preview", "30 2 * * *", timezone=zone, after=datetime(2026, 3, 7, 12, tzinfo=UTC), count=2, dst_gap="skip"
    )
    assert preview == duly.operations.preview(
        "30 2 * * *", timezone=zone, after=datetime(2026, 3, 7, 12, tzinfo=UTC), count=2, dst_gap="skip"
    )
    assert preview.occurrences[0].dropped
    job = await call("submit", "report", schedule="every 10m", queue="q")
    coming = await call("upcoming", job.job_id, count=3)
    assert [one.scheduled_at for one in coming] == [job.next_run_at + timedelta(minutes=10) * n for n in range(3)]
    forecast = await call("forecast", minutes=55)
    assert forecast.total == 5
    assert {(item.queue, item.handler) for item in forecast.items} == {("q", "report")}
    explanation = await call("explain", job.job_id, at=job.next_run_at)
    assert (explanation.verdict, explanation.scheduled_at) == ("not_due", job.next_run_at)
    assert (await call("explain", job.job_id)).job_id == job.job_id


async def test_the_cluster_and_its_figures(call: Calls, pool: Pool, settings: Settings) -> None:
    async with failing(pool, settings):
        cluster = await call("cluster")
        workers = [node for node in cluster.nodes if node.kind == "worker"]
        assert [(node.alive, node.info["queues"]) for node in workers] == [(True, ["default"])]
        assert len(cluster.shards) == 64
        assert cluster.lag_seconds == 0
        await put(pool, due_job(pool, pool.clock.now() - timedelta(minutes=5)))
        assert 290 < (await call("cluster")).lag_seconds < 600
        await pool.query("delete from duly.jobs")
    stats = await call("stats")
    assert (stats.queued, stats.dead_letters, stats.oldest_overdue_at) == (0, 0, None)


def test_every_call_is_a_method_of_both_clients() -> None:
    public = {
        name
        for name, value in vars(calls).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == calls.__name__
    }
    assert len(public) > 25
    # Parts of `redrive_all` and `purge_all`, sent through `call` alone.
    steps = {"those_now", "redrive_some", "purge_some"}
    for client in (Client, AsyncClient):
        assert {name for name in public if not hasattr(client, name)} == steps
        for name in public - steps:
            assert getattr(client, name).__doc__


async def test_every_route_of_the_api_has_a_call(store_operations: StoreOperations) -> None:
    """Walks the server's own description, so that a route without a call is noticed."""
    paths = create_app(store_operations).openapi()["paths"]
    routes = {(verb.upper(), path) for path, verbs in paths.items() if path.startswith("/api/v1") for verb in verbs}
    of_jobs = ("get_job", "change", "cancel", "pause", "resume", "trigger", "upcoming", "explain", "runs_page")
    of_runs = ("get_run", "cancel_run", "run_logs_page", "get_dead_letter", "redrive", "purge")
    of_monitors = ("get_monitor", "remove_monitor", "ping_monitor")
    wanted = DeadLetterFilter(name="x")
    others = ("jobs_page", "dead_letters_page", "count_dead_letters", "audit_page", "monitors_page", "incidents_page",
              "maintenance_windows", "forecast", "cluster", "stats")  # fmt: skip
    from_now = datetime(2031, 5, 1, tzinfo=UTC)
    made: list[calls.Call[Any]] = [
        *(getattr(calls, name)("{job_id}") for name in of_jobs),
        *(getattr(calls, name)("{run_id}") for name in of_runs),
        *(getattr(calls, name)("{slug}") for name in of_monitors),
        *(getattr(calls, name)() for name in others),
        calls.set_monitor("{slug}", "@daily"),
        calls.ping_monitor_outcome("{slug}", cast("Any", "{outcome}")),
        calls.ack_incident("{incident_id}"),
        calls.add_maintenance_window(ends_at=from_now),
        calls.remove_maintenance_window("{window_id}"),
        calls.preview("now"),
        calls.redrive_some(wanted),
        calls.purge_some(wanted),
        calls.submit_request(JobRequest("x")),
        next(calls.submit_many([JobRequest("x")])),
    ]
    covered = {(one.method, "/api/v1" + one.path.replace("%7B", "{").replace("%7D", "}")) for one in made}
    assert routes - covered == set()
    assert covered - routes == set()


# Many jobs


async def test_a_batch_has_an_answer_for_each_job_in_order(call: Calls, pool: Pool) -> None:
    await call("submit", "a", dedupe_key="taken", schedule="every 1h")
    items = await call(
        "submit_many",
        [
            calls.request_of("a", {"n": 1}),
            calls.request_of("a", schedule="77 * * * *"),
            calls.request_of("a", dedupe_key="taken", schedule="every 1h"),
            calls.request_of("a", dedupe_key="taken", schedule="every 2h"),
        ],
    )
    assert [item.created for item in items] == [True, False, False, False]
    assert isinstance(items[0].job_id, UUID)
    assert isinstance(items[1].error, InvalidSchedule)
    assert items[2].job_id is not None
    assert items[2].error is None
    assert isinstance(items[3].error, Conflict)
    assert await count(pool, "jobs") == 2


async def test_a_large_batch_is_sent_in_parts_and_an_atomic_one_is_not(
    call: Calls, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_BATCH_JOBS", 4)
    requests = [calls.request_of("a", {"n": n}) for n in range(10)]
    items = await call("submit_many", iter(requests))
    assert [item.created for item in items] == [True] * 10
    assert len({item.job_id for item in items}) == 10
    with pytest.raises(InvalidInput, match="atomic"):
        await call("submit_many", requests, atomic=True)
    with pytest.raises(InvalidInput) as refused:
        await call("submit_many", [requests[0], calls.request_of("a", schedule="77 * * * *")], atomic=True)
    assert refused.value.field == "jobs[1].schedule"
    assert await count(pool, "jobs") == 10
    assert await call("submit_many", []) == []


def test_parts_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_BATCH_BYTES", 1000)
    flow = calls.submit_many([calls.request_of("a", "x" * 300) for _ in range(7)])
    sizes = []
    sent = next(flow)
    with suppress(StopIteration):
        while True:
            assert sent.body is not None
            sizes.append(len(sent.body))
            number = sent.body.count(b'"handler"')
            sent = flow.send([calls.BatchItem(uuid4(), True)] * number)
    assert len(sizes) > 2
    assert max(sizes) <= 1000


# Lost requests and answers


@pytest.fixture
async def line(url: str) -> AsyncIterator[Line]:
    async with Line(urlsplit(url).port or 0) as line:
        yield line


async def test_a_submit_whose_answer_was_lost_comes_to_one_job(caller: Caller, line: Line, pool: Pool) -> None:
    line.arm("POST /api/v1/jobs ", "swallow", times=2)
    call = caller.at(line.url)
    job = await call("submit", "report", {"n": 1})
    assert line.struck == 2
    assert await count(pool, "jobs") == 1
    assert (await call("get_job", job.job_id)).dedupe_key.startswith("client:")


async def test_a_submit_that_was_sent_again_is_still_a_new_job(caller: Caller, line: Line) -> None:
    line.arm("POST /api/v1/jobs ", "swallow")
    call = caller.at(line.url)
    assert (await call("submit_request", JobRequest("report"))).created
    assert (await call("submit_request", JobRequest("report", dedupe_key="mine"))).created
    assert not (await call("submit_request", JobRequest("report", dedupe_key="mine"))).created


async def test_a_batch_whose_answer_was_lost_comes_to_its_jobs_once(caller: Caller, line: Line, pool: Pool) -> None:
    line.arm("POST /api/v1/jobs/batch", "swallow")
    items = await caller.at(line.url)("submit_many", [calls.request_of("a", {"n": n}) for n in range(50)])
    assert line.struck == 1
    assert all(item.created for item in items)
    assert await count(pool, "jobs") == 50


async def test_without_a_key_a_submit_of_unknown_fate_is_not_sent_again(caller: Caller, line: Line, pool: Pool) -> None:
    line.arm("POST /api/v1/jobs ", "swallow", times=3)
    with pytest.raises(ApiUnavailable, match="not known") as unknown:
        await caller.at(line.url)("submit", "report", idempotent=False)
    assert unknown.value.sent
    assert line.struck == 1
    await eventually(lambda: _has(pool, "jobs", 1))
    assert (await pool.query("select dedupe_key from duly.jobs"))[0]["dedupe_key"] is None


async def test_a_trigger_of_unknown_fate_is_not_sent_again(caller: Caller, line: Line, pool: Pool) -> None:
    call = caller.at(line.url)
    job = await call("submit", "report", schedule="every 1h")
    line.arm("/trigger", "swallow", times=3)
    with pytest.raises(ApiUnavailable, match="not known"):
        await call("trigger", job.job_id)
    assert line.struck == 1
    await eventually(lambda: _has(pool, "runs", 1))


async def test_a_change_that_expects_a_version_is_not_sent_again(caller: Caller, line: Line) -> None:
    call = caller.at(line.url)
    job = await call("submit", "report", schedule="every 1h")
    line.arm("PATCH ", "swallow")
    with pytest.raises(ApiUnavailable, match="not known"):
        await call("change", job.job_id, expected_version=job.version, priority=7)
    line.arm("PATCH ", "swallow")
    assert (await call("change", job.job_id, priority=8)).priority == 8
    assert line.struck == 2


async def test_looking_pausing_and_cancelling_are_tried_again(caller: Caller, line: Line) -> None:
    call = caller.at(line.url)
    job = await call("submit", "report", schedule="every 1h")
    for marker, name, status in (("GET ", "get_job", "active"), ("/pause", "pause", "paused"),
                                 ("/resume", "resume", "active"), ("DELETE ", "cancel", "cancelled")):  # fmt: skip
        line.arm(marker, "swallow", times=2)
        assert (await call(name, job.job_id)).status == status
    assert line.struck == 8


async def test_a_page_that_was_lost_is_fetched_again_and_no_item_twice(
    caller: Caller, line: Line, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PAGE", 2)
    made = sorted([(await operations.submit(JobRequest("a"))).job_id for _ in range(5)])
    line.arm("cursor=", "swallow")
    assert [job.job_id for job in await caller.at(line.url).every("jobs")] == made[::-1]
    assert line.struck == 1


async def test_a_gateway_that_is_down_is_tried_again_and_named_in_the_end(caller: Caller, line: Line) -> None:
    line.arm("GET ", "garble", times=2)
    assert await caller.at(line.url).every("jobs") == []
    line.arm("GET ", "garble")
    with pytest.raises(ApiUnavailable, match="502"):
        await caller.at(line.url, retries=0).every("jobs")


async def test_retries_end_and_say_what_was_tried(caller: Caller, line: Line) -> None:
    line.arm("GET ", "cut", times=9)
    with pytest.raises(ApiUnavailable, match=r"GET http://127\.0\.0\.1:\d+/api/v1/jobs: no response") as ended:
        await caller.at(line.url, retries=2).every("jobs")
    assert line.struck == 3
    assert isinstance(ended.value, StoreUnavailable)


async def test_a_server_that_is_not_there_is_said_to_be_so(caller: Caller) -> None:
    async with Line(1) as line:
        port = line.port
    with pytest.raises(ApiUnavailable, match="no connection") as refused:
        await caller.at(f"http://127.0.0.1:{port}", retries=1)("submit", "report")
    assert not refused.value.sent


async def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(caller: Caller) -> None:
    async with Endpoint.serving() as server:
        server.on("/api/v1/stats", silence)
        with pytest.raises(ApiUnavailable, match="no response"):
            await caller.at(server.url("/"), timeout=0.2, retries=1)("stats")
        assert len(server.calls) == 2


def problem(status: int, kind: str, detail: str, **headers: str) -> bytes:
    body = json.dumps({"type": f"urn:duly:problem:{kind}", "title": kind, "status": status, "detail": detail})
    return reply(status, body, content_type="application/problem+json", **headers)


async def test_retry_after_is_obeyed_and_one_that_is_too_long_is_told(caller: Caller) -> None:
    async with Endpoint.serving() as server:
        server.on(
            "/api/v1/jobs/x/trigger",
            problem(429, "too-many-requests", "slowly, please", retry_after="1"),
            problem(429, "too-many-requests", "come back tomorrow", retry_after="3600"),
        )
        began = time.monotonic()
        with pytest.raises(LimitReached, match="tomorrow"):
            await caller.at(server.url("/"))("trigger", "x")
        assert time.monotonic() - began >= 1
        assert len(server.calls) == 2


def test_pauses_grow_and_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    monkeypatch.setattr(trying, "BASE_SECONDS", 0.2)
    drawn = []
    for _ in range(200):
        attempts = trying.Attempts("it", repeatable=True, patience=100, retries=8)
        drawn.append([attempts.after_error(httpx.ReadError("x")) for _ in range(8)])
    for number, pauses in enumerate(zip(*drawn, strict=True)):
        longest = min(3.0, 0.2 * 2**number)
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(set(pauses)) > 100


def test_a_call_is_retried_for_its_patience_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import httpx

    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(trying, "BASE_SECONDS", 0.2)
    attempts = trying.Attempts("GET it", repeatable=True, patience=30, retries=None)
    pauses: list[float] = []

    def keep_trying() -> None:
        nonlocal now
        while True:
            pauses.append(attempts.after_error(httpx.ConnectError("refused")))
            now += pauses[-1]

    with pytest.raises(ApiUnavailable, match="GET it: no connection"):
        keep_trying()
    assert 1000 + 30 - 3 <= now <= 1000 + 30
    assert max(pauses) <= 3
    assert caplog.text.count("GET it: no answer yet (refused); trying for 2") == 1


def test_a_short_failure_is_not_worth_a_message(caplog: pytest.LogCaptureFixture) -> None:
    import httpx

    attempts = trying.Attempts("it", repeatable=True, patience=30, retries=None)
    attempts.after_error(httpx.ConnectError("refused"))
    attempts.after_error(httpx.ConnectError("refused"))
    assert caplog.text == ""


def test_a_server_that_has_just_started_may_not_have_announced_its_local_key() -> None:
    import httpx

    attempts = trying.Attempts("it", repeatable=False, patience=30, retries=None)
    unkeyed = httpx.Response(401, request=httpx.Request("GET", "http://127.0.0.1:1/"))
    keyed = httpx.Response(401, request=httpx.Request("GET", "http://127.0.0.1:1/", headers={"Authorization": "x"}))
    assert attempts.after_answer(unkeyed) is None, "this server did not restart"
    attempts.after_error(httpx.ConnectError("refused"))
    assert attempts.after_answer(unkeyed) is not None
    assert attempts.after_answer(keyed) is None


# Refusals


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"schedule": "77 * * * *"}, "schedule"),
    ({"timezone": "Mars/Olympus"}, "timezone"),
    ({"priority": 12}, "priority"),
    ({"payload": {"a": "\x00"}}, "payload"),
    ({"payload": float("nan")}, "payload"),
    ({"payload": object()}, "payload"),
    ({"payload": "\ud800"}, "payload"),
    ({"queue": 5}, "queue"),
    ({"colour": "red"}, "colour"),
]


async def test_wrong_input_names_the_field_as_the_library_does(call: Calls) -> None:
    for options, field in WRONG:
        with pytest.raises(InvalidInput) as refused:
            await call("submit", "report", **options)
        assert refused.value.field == field
        assert type(refused.value) is (InvalidSchedule if field == "schedule" else InvalidInput)


async def test_several_wrong_fields_are_all_named(call: Calls) -> None:
    with pytest.raises(InvalidInput, match="queue") as refused:
        await call("submit", "report", priority="high", queue=5)
    assert "priority" in str(refused.value)


async def test_what_is_not_there_is_not_found_whatever_its_id_holds(call: Calls) -> None:
    for job_id in (uuid4(), "nonsense", "../jobs", "a/b?c#d", "%2e%2e", "ü", ".", "..", ""):
        with pytest.raises(NotFound):
            await call("get_job", job_id)
    with pytest.raises(NotFound):
        await call("get_run", "x" * 3000)


async def test_the_same_key_with_other_content_is_a_conflict(call: Calls) -> None:
    await call("submit", "report", dedupe_key="k")
    with pytest.raises(Conflict, match="k"):
        await call("submit", "other", dedupe_key="k")


async def test_keys_are_wanted_checked_and_held_to_their_role(
    caller: Caller, store_operations: StoreOperations, url: str
) -> None:
    reader = await store_operations.keys.create(tenant="acme", role="read")
    writer = await store_operations.keys.create(tenant="acme", role="write")
    await eventually(lambda: _refuses(caller, url))
    with pytest.raises(Unauthorized, match="unknown"):
        await caller.at(url, "duly_wrong")("stats")
    with pytest.raises(Forbidden, match="write"):
        await caller.at(url, reader.text)("submit", "report")
    job = await caller.at(url, writer.text)("submit", "report")
    assert job.tenant == "acme"
    assert [one.job_id for one in await caller.at(url, reader.text).every("jobs")] == [job.job_id]


async def _refuses(caller: Caller, url: str) -> bool:
    try:
        await caller.at(url)("stats")
    except Unauthorized:
        return True
    return False


async def test_a_store_that_is_away_is_tried_again_and_then_said_to_be_so(caller: Caller) -> None:
    async with Endpoint.serving() as server:
        server.on("/api/v1/jobs", problem(503, "store-unavailable", "no store"))
        with pytest.raises(StoreUnavailable, match="no store"):
            await caller.at(server.url("/"), "key", retries=2)("submit", "report")
        assert [call.headers["authorization"] for call in server.calls] == ["Bearer key"] * 3
        assert len({call.body for call in server.calls}) == 1


async def test_another_server_is_not_taken_for_duly(caller: Caller) -> None:
    async with Endpoint.serving() as server:
        for body in ("<h1>It works</h1>", "[]", "{}", "null", ""):
            server.on("/api/v1/jobs/x", reply(200, body, content_type="text/html"))
            with pytest.raises(ApiUnavailable, match="address"):
                await caller.at(server.url("/"))("get_job", "x")


async def test_the_key_is_not_carried_to_where_a_redirect_leads(caller: Caller) -> None:
    async with Endpoint.serving() as server:
        server.on("/api/v1/jobs/x", reply(307, location="/elsewhere"))
        with pytest.raises(ApiUnavailable, match="307"):
            await caller.at(server.url("/"), "key")("get_job", "x")
        assert [call.path for call in server.calls] == ["/api/v1/jobs/x"]


# Settings and secrets


async def test_the_key_is_in_no_repr_log_or_error(caller: Caller, url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    call = caller.at(url, "duly_very-secret", retries=0)
    texts = [repr(call.client), str(vars(call.client))]
    with pytest.raises(NotFound) as refused:
        await call("get_job", uuid4())
    texts += [str(refused.value), repr(refused.value), caplog.text]
    assert "very-secret" not in "\n".join(texts)
    assert url in texts[0]


@pytest.mark.parametrize(
    ("url", "key", "words"),
    [
        (None, None, "DULY_URL"),
        ("", None, "DULY_URL"),
        ("localhost:8080", None, "https://"),
        ("ftp://x", None, "https://"),
        ("http://", None, "https://"),
        ("http://user:hunter2@host", None, "password"),
        ("http://host/?a=b", None, r"\?"),
        ("http://host:99999999", None, "URL"),
        ("http://host", "two words", "API key"),
        ("http://host", "line\nbreak", "API key"),
    ],
)
def test_an_address_or_key_that_cannot_be_right_is_refused_at_once(
    settings: Settings, url: str | None, key: str | None, words: str
) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ConfigError, match=words) as refused:
            kind(url, key)
        assert "hunter2" not in str(refused.value)
        assert str(key) not in str(refused.value)


async def test_address_and_key_come_from_the_environment(
    settings: Settings, caller: Caller, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_URL", f"{url}/api/v1/")
    with Client() as client:
        assert repr(client) == f"<duly.Client {url}>"
        assert await asyncio.to_thread(list, client.jobs()) == []


def test_importing_duly_does_not_need_the_extra() -> None:
    """Without httpx, the client says which extra is missing."""
    program = (
        "import sys; sys.modules['httpx'] = None\n"
        "import duly\n"
        "try:\n    duly.Client\nexcept duly.DulyError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "duly[client]" in done.stdout
