"""The calls that change jobs and runs, and the calls about past and coming occurrences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from duly.api import routes
from duly.api.schemas import (
    ClusterDocument,
    DeadLetterDocument,
    ExplanationDocument,
    ForecastDocument,
    JobDocument,
    PreviewDocument,
    RunDocument,
    StatsDocument,
)
from duly.api.server import create_app
from duly.config import Settings
from duly.errors import Permanent
from duly.model import JobRequest, Policy
from duly.node import running_worker
from duly.operations import Operations, StoreOperations, dead_letters
from duly.operations import forecast as forecasting
from duly.store.pool import Pool
from duly.worker.handler.task import Task
from harness.store import due_job, put
from harness.waiting import eventually

JOBS = "/api/v1/jobs"
MINIMAL: dict[str, Any] = {"name": "Weekly report", "handler": "send_report"}
HOURLY = MINIMAL | {"schedule": "every 1h"}


@pytest.fixture
async def client(store_operations: StoreOperations) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def submit(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post(JOBS, json=HOURLY | fields)
    assert response.status_code == 201, response.text
    return dict(response.json())


async def test_a_change_sets_what_is_named_and_leaves_the_rest(client: httpx.AsyncClient) -> None:
    job = await submit(client, labels={"a": "b"}, max_retries=7)
    response = await client.patch(f"{JOBS}/{job['job_id']}", json={"schedule": "0 0 1 1 *", "timezone": "Asia/Tokyo"})
    assert response.status_code == 200
    changed = response.json()
    JobDocument.model_validate(changed, strict=False)
    differing = {field for field in job if job[field] != changed[field]}
    assert differing == {"schedule", "timezone", "next_run_at", "updated_at", "version"}
    assert changed["next_run_at"].endswith("-12-31T15:00:00Z")
    assert (await client.get(f"{JOBS}/{job['job_id']}")).json() == changed


async def test_an_etag_says_when_somebody_else_was_faster(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    address = f"{JOBS}/{job['job_id']}"
    tag = (await client.get(address)).headers["etag"]
    first = await client.patch(address, json={"priority": 1}, headers={"If-Match": tag})
    assert first.status_code == 200
    stale = await client.patch(address, json={"priority": 2}, headers={"If-Match": tag})
    assert (stale.status_code, stale.json()["field"]) == (412, "If-Match")
    assert stale.headers["etag"] == first.headers["etag"] != tag
    assert (await client.get(address)).json()["priority"] == 1
    for fresh in (first.headers["etag"], f"{tag}, W/{first.headers['etag']}", "*"):
        assert (await client.patch(address, json={"priority": 1}, headers={"If-Match": fresh})).status_code == 200
    for wrong in ('"x"', "", "3, x", '"1'):
        assert (await client.patch(address, json={}, headers={"If-Match": wrong})).status_code == 422, wrong
    # The ETag of a submit's answer is accepted as well.
    again = await client.post(JOBS, json=HOURLY)
    tagged = {"If-Match": again.headers["etag"]}
    assert (await client.patch(again.headers["location"], json={"priority": 3}, headers=tagged)).status_code == 200


async def test_of_many_changes_with_one_etag_exactly_one_is_made(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    address = f"{JOBS}/{job['job_id']}"
    for _ in range(5):
        tag = {"If-Match": (await client.get(address)).headers["etag"]}
        bodies: list[dict[str, Any]] = [
            {"payload": {"n": n}, "queue": f"q-{tag['If-Match'][1:-1]}-{n}"} for n in range(8)
        ]
        answers = await asyncio.gather(*(client.patch(address, json=body, headers=tag) for body in bodies))
        assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
        winner = next(n for n, answer in enumerate(answers) if answer.status_code == 200)
        assert (await client.get(address)).json()["payload"] == {"n": winner}


WRONG_CHANGES: list[tuple[str, Any]] = [
    ("handler", ""), ("handler", {"type": "x"}),
    ("dedupe_key", "x"), ("status", "paused"), ("job_id", "x"), ("tenant", "x"),
    ("colour", "red"), ("priority", 10), ("priority", "5"), ("name", None), ("schedule", "77 * * * *"),
    ("timezone", "Mars/Olympus"), ("max_runs", 0), ("payload", "\x00"), ("labels", {"a": 1}), ("start_at", "soon"),
]  # fmt: skip


async def test_a_wrong_change_is_422_by_name_and_changes_nothing(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    for field, value in WRONG_CHANGES:
        refused = await client.patch(f"{JOBS}/{job['job_id']}", json={"priority": 1, field: value})
        assert refused.status_code == 422, field
        assert refused.json()["field"].partition(".")[0] == field
    assert (await client.get(f"{JOBS}/{job['job_id']}")).json() == job


async def test_another_handler_keeps_the_job(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    changed = await client.patch(f"{JOBS}/{job['job_id']}", json={"handler": "other"})
    assert (changed.status_code, changed.json()["handler"]) == (200, "other")
    assert changed.json()["next_run_at"] == job["next_run_at"]


async def test_a_run_now_job_can_be_changed_while_its_run_waits(client: httpx.AsyncClient) -> None:
    job = (await client.post(JOBS, json=MINIMAL)).json()
    changed = await client.patch(f"{JOBS}/{job['job_id']}", json={"priority": 9})
    assert (changed.status_code, changed.json()["status"], changed.json()["priority"]) == (200, "active", 9)


async def test_pause_resume_trigger_and_cancel(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    address = f"{JOBS}/{job['job_id']}"
    paused = await client.post(f"{address}/pause", json={"reason": "holidays"})
    shown = paused.json()
    assert (shown["status"], shown["status_reason"], shown["next_run_at"]) == ("paused", "holidays", None)
    assert (await client.get(f"{address}/upcoming")).json() == {"items": [], "next_cursor": None}
    assert (await client.post(f"{address}/resume")).json()["status"] == "active"
    assert (await client.post(f"{address}/pause")).json()["status_reason"] is None
    assert (await client.post(f"{address}/resume")).status_code == 200
    for body in (b"x", b"[]", b'{"reason": 5}', b'{"raeson": "x"}', b'{"reason": "\\u0000"}'):
        refused = await client.post(f"{address}/pause", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code == 422, body
    assert (await client.post(f"{address}/pause", content=b"reason")).status_code == 415

    triggered = await client.post(f"{address}/trigger")
    run = triggered.json()
    assert triggered.status_code == 201
    RunDocument.model_validate(run)
    assert triggered.headers["location"] == f"/api/v1/runs/{run['run_id']}"
    assert (await client.get(triggered.headers["location"])).json() == run
    cancelled = await client.post(f"/api/v1/runs/{run['run_id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert (await client.post(f"/api/v1/runs/{run['run_id']}/cancel")).status_code == 409

    waiting = (await client.post(f"{address}/trigger")).json()["run_id"]
    ended = await client.delete(address)
    assert (ended.status_code, ended.json()["status"], ended.json()["next_run_at"]) == (200, "cancelled", None)
    assert (await client.get(f"/api/v1/runs/{waiting}")).json()["status"] == "cancelled"
    assert (await client.delete(address)).status_code == 200
    for call in ("pause", "resume", "trigger"):
        assert (await client.post(f"{address}/{call}")).status_code == 409, call
    assert (await client.patch(address, json={"priority": 1})).status_code == 409
    assert (await client.delete(f"{address}?running=perhaps")).json()["field"] == "running"


async def test_delete_with_running_cancel_stops_what_runs(
    client: httpx.AsyncClient, pool: Pool, settings: Settings
) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def wait(ctx: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    # The first run is not told to stop and goes on; with a short grace the worker does not wait for it at the end.
    hasty = settings.model_copy(update={"shutdown_grace_seconds": 0.1})
    async with running_worker(pool, {"wait": Task("wait", wait)}, hasty):
        for query, stops in (("", False), ("?running=cancel", True)):
            started.clear()
            job_id = (await client.post(JOBS, json={"name": "n", "handler": "wait"})).json()["job_id"]
            await asyncio.wait_for(started.wait(), 20)
            if not stops:
                assert (await client.delete(f"{JOBS}/{job_id}")).status_code in (200, 409)
                assert not stopped.is_set()
            else:
                assert (await client.delete(f"{JOBS}/{job_id}{query}")).status_code == 200
                await asyncio.wait_for(stopped.wait(), 20)


async def test_dead_letters_are_listed_shown_redriven_and_forgotten(
    client: httpx.AsyncClient, pool: Pool, settings: Settings
) -> None:
    def fail(ctx: Any, n: int) -> None:
        raise (Permanent if n % 2 else ValueError)(f"no {n}")

    async with running_worker(pool, {"fail": Task("fail", fail)}, settings):
        for n in range(5):
            body = {"name": f"job {n}", "handler": "fail", "payload": {"n": n}, "max_retries": 0}
            assert (await client.post(JOBS, json=body)).status_code == 201

        async def all_dead() -> bool:
            return len((await client.get("/api/v1/dead-letters")).json()["items"]) == 5

        await eventually(all_dead)
    letters = (await client.get("/api/v1/dead-letters", params={"payload": "true"})).json()["items"]
    for letter in letters:
        DeadLetterDocument.model_validate(letter)
        assert (await client.get(f"/api/v1/dead-letters/{letter['run_id']}")).json() == letter

    async def listed(**query: str) -> list[str]:
        return [one["name"] for one in (await client.get("/api/v1/dead-letters", params=query)).json()["items"]]

    assert await listed(name="job 3") == ["job 3"]
    assert sorted(await listed(error_type=letters[0]["error"]["type"]))
    assert await listed(job_id=letters[2]["job_id"]) == [letters[2]["name"]]
    assert await listed(queue="other") == []
    assert await listed(since="2099-01-01T00:00:00Z") == []
    assert len(await listed(until="2099-01-01T00:00:00Z")) == 5
    paged: list[str] = []
    query: dict[str, str] = {"limit": "2"}
    while True:
        page = (await client.get("/api/v1/dead-letters", params=query)).json()
        paged += [one["run_id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert paged == [letter["run_id"] for letter in letters]
    for wrong in ("limit=0", "cursor=x", "since=yesterday", "job_di=x", "name=%00"):
        assert (await client.get(f"/api/v1/dead-letters?{wrong}")).status_code == 422, wrong

    one, two, *others = [letter["run_id"] for letter in letters]
    redriven = await client.post(f"/api/v1/dead-letters/{one}/redrive")
    assert (redriven.status_code, redriven.json()["status"], redriven.json()["attempt"]) == (200, "queued", 0)
    assert (await client.post(f"/api/v1/dead-letters/{one}/redrive")).status_code == 404
    gone = await client.delete(f"/api/v1/dead-letters/{two}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await client.get(f"/api/v1/dead-letters/{two}")).status_code == 404
    assert (await client.get(f"/api/v1/runs/{two}")).json()["status"] == "dead"
    wrong_bodies: list[dict[str, Any]] = [{"nmae": "x"}, {"since": 5}, {"job_id": []}]
    for wrong_body in wrong_bodies:
        assert (await client.post("/api/v1/dead-letters/redrive", json=wrong_body)).status_code == 422
    swept = await client.post("/api/v1/dead-letters/redrive", json={"name": "job 0"})
    assert swept.json() == {"redriven": int(others[-1] == letters[-1]["run_id"]), "refused": 0, "more": False}
    assert (await client.post("/api/v1/dead-letters/redrive", json={"all": True})).json()["redriven"] == 2
    assert (await client.get("/api/v1/dead-letters")).json()["items"] == []


async def test_dead_letters_are_forgotten_by_filter_and_all_of_them_only_when_that_is_said(
    client: httpx.AsyncClient, pool: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(ctx: Any) -> None:
        raise Permanent("no")

    letters = "/api/v1/dead-letters"
    async with running_worker(pool, {"fail": Task("fail", fail)}, settings):
        for name in ("a", "a", "b", "c", "c", "c"):
            assert (await client.post(JOBS, json={"name": name, "handler": "fail"})).status_code == 201

        async def all_dead() -> bool:
            return len((await client.get(letters)).json()["items"]) == 6

        await eventually(all_dead)

    async def left() -> list[str]:
        return sorted(one["name"] for one in (await client.get(letters)).json()["items"])

    everything = ["a", "a", "b", "c", "c", "c"]
    # A misspelt filter, an empty one or none must not be taken for "all".
    for wrong, field in (
        ("", "all"), ("?all=false", "all"), ("?nmae=a", "nmae"), ("?name=", "name"), ("?all=true&nmae=a", "nmae"),
        ("?since=yesterday", "since"), ("?all=maybe", "all"), ("?name=a&name=b", "name"),
    ):  # fmt: skip
        refused = await client.delete(letters + wrong)
        assert (refused.status_code, refused.json()["field"]) == (422, field), wrong
    assert (await client.delete(f"{letters}?job_id=x")).status_code == 404
    assert await left() == everything
    assert (await client.delete(f"{letters}?name=z")).json() == {"purged": 0, "more": False}
    assert (await client.delete(f"{letters}?name=a")).json() == {"purged": 2, "more": False}
    assert await left() == ["b", "c", "c", "c"]
    # One call purges a bounded number of dead letters, and says whether more are left.
    monkeypatch.setattr(routes.dead_letters, "MAX_SWEPT", 2)
    monkeypatch.setattr(dead_letters, "MAX_BATCH", 1)
    assert (await client.delete(f"{letters}?name=c")).json() == {"purged": 2, "more": True}
    assert (await client.delete(f"{letters}?name=c")).json() == {"purged": 1, "more": False}
    assert await left() == ["b"]
    assert (await client.delete(f"{letters}?all=true")).json() == {"purged": 1, "more": False}
    assert await left() == []


async def test_upcoming_shows_local_times_and_what_dst_does(client: httpx.AsyncClient) -> None:
    job = await submit(client, schedule="30 2 * * *", timezone="America/New_York", start_at="2031-03-08T00:00:00-05:00")
    items = (await client.get(f"{JOBS}/{job['job_id']}/upcoming", params={"count": 2})).json()["items"]
    assert [item["scheduled_at"] for item in items] == ["2031-03-08T07:30:00Z", "2031-03-09T07:00:00Z"]
    assert [item["local"] for item in items] == ["2031-03-08T02:30:00-05:00", "2031-03-09T03:00:00-04:00"]
    assert items[0]["note"] is None
    assert items[1]["note"]
    once = await submit(client, schedule="2031-05-01T09:00:00Z")
    only = (await client.get(f"{JOBS}/{once['job_id']}/upcoming")).json()["items"]
    assert [item["scheduled_at"] for item in only] == ["2031-05-01T09:00:00Z"]
    twice = await submit(client, max_runs=2)
    assert len((await client.get(f"{JOBS}/{twice['job_id']}/upcoming")).json()["items"]) == 2
    for wrong in ("count=0", "count=1001", "count=x"):
        assert (await client.get(f"{JOBS}/{job['job_id']}/upcoming?{wrong}")).json()["field"] == "count"


async def test_explain_answers_for_a_time_or_for_the_last(client: httpx.AsyncClient) -> None:
    job = await submit(client, schedule="0 0 1 1 *")
    address = f"{JOBS}/{job['job_id']}/explain"
    coming = (await client.get(address, params={"at": job["next_run_at"]})).json()
    ExplanationDocument.model_validate(coming)
    assert (coming["verdict"], coming["scheduled_at"]) == ("not_due", job["next_run_at"])
    assert (await client.get(address)).json()["verdict"] == "not_due"
    other = (await client.get(address, params={"at": "2031-05-05T05:05:05Z"})).json()
    assert other["verdict"] == "not_an_occurrence"
    for wrong in ("yesterday", "2031-01-01T00:00:00", "0001-01-01T00:00:00Z", ""):
        assert (await client.get(address, params={"at": wrong})).json()["field"] == "at", wrong


async def test_explain_answers_for_every_occurrence_of_a_range_page_by_page(
    client: httpx.AsyncClient, operations: Operations
) -> None:
    job = await submit(client, schedule="every 10m", start_at="2031-01-01T00:00:00Z")
    address = f"{JOBS}/{job['job_id']}/explain"
    bounds = {"from": "2031-01-01T00:00:00Z", "to": "2031-01-01T02:00:00+00:00"}
    whole = (await client.get(address, params=bounds)).json()
    assert whole["next_cursor"] is None
    assert len(whole["items"]) == 13
    for item in whole["items"]:
        ExplanationDocument.model_validate(item)
    assert {item["verdict"] for item in whole["items"]} == {"not_due"}
    library = await operations.explain.between(
        job["job_id"], start=datetime(2031, 1, 1, tzinfo=UTC), end=datetime(2031, 1, 1, 2, tzinfo=UTC)
    )
    moments = [item["scheduled_at"] for item in whole["items"]]
    assert [datetime.fromisoformat(moment) for moment in moments] == [one.scheduled_at for one in library]
    paged: list[str] = []
    cursor: str | None = None
    while True:
        # The cursor is sent as it came, without any quoting.
        more = "" if cursor is None else f"&cursor={cursor}"
        query = f"from=2031-01-01T00:00:00Z&to=2031-01-01T02:00:00Z&limit=5{more}"
        page = (await client.get(f"{address}?{query}")).json()
        paged += [item["scheduled_at"] for item in page["items"]]
        assert len(page["items"]) <= 5
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert paged == moments
    # Without `to` the range ends now: there was no occurrence yet.
    assert (await client.get(f"{address}?from=2026-01-01T00:00:00Z")).json() == {"items": [], "next_cursor": None}
    assert (await client.get(f"{address}?from=2031-01-01T00:00:00Z")).json() == {"items": [], "next_cursor": None}
    start = "from=2031-01-01T00:00:00Z"
    for wrong, field in (
        ("from=yesterday", "from"), ("from=", "from"), (f"{start}&to=2030-01-01T00:00:00Z", "to"),
        ("to=2031-01-01T00:00:00Z", "to"), ("cursor=2031-01-01T00:00:00Z", "cursor"),
        (f"{start}&at=2031-01-01T00:00:00Z", "at"), (f"{start}&limit=0", "limit"), (f"{start}&limit=1001", "limit"),
        ("limit=1001", "limit"),
        (f"{start}&cursor=x", "cursor"), (f"{start}&until=2031-01-01T00:00:00Z", "until"),
    ):  # fmt: skip
        refused = await client.get(f"{address}?{wrong}")
        assert (refused.status_code, refused.json()["field"]) == (422, field), wrong
    assert (await client.get(f"{JOBS}/019a7c1e-5b5e-7c3a-9d3f-2f6a1d0c4b7e/explain?{start}")).status_code == 404


async def test_a_preview_is_the_documented_one_and_saves_nothing(client: httpx.AsyncClient) -> None:
    body = {
        "schedule": "30 2 * * *", "timezone": "America/New_York", "dst_gap": "skip", "dst_fold": "first",
        "start_at": None, "after": "2026-03-07T12:00:00Z", "count": 1,
    }  # fmt: skip
    shown = (await client.post("/api/v1/schedules/preview", json=body)).json()
    PreviewDocument.model_validate(shown)
    assert shown.keys() == {"kind", "canonical", "occurrences"}
    assert all(one.keys() == {"scheduled_at", "local", "note", "dropped"} for one in shown["occurrences"])
    assert [one["dropped"] for one in shown["occurrences"]] == [True, False]
    assert shown["occurrences"][-1]["scheduled_at"] == "2026-03-09T06:30:00Z"
    assert shown["occurrences"][0]["note"]
    assert (
        len((await client.post("/api/v1/schedules/preview", json={"schedule": "@hourly"})).json()["occurrences"]) == 10
    )
    for field, value in [("schedule", "0 0 30 2 *"), ("timezone", "Mars/Olympus"), ("count", 0), ("after", "soon"),
                         ("dst_gap", "leap"), ("handler", "h")]:  # fmt: skip
        refused = await client.post("/api/v1/schedules/preview", json={"schedule": "@daily", field: value})
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert (await client.get(JOBS)).json()["items"] == []


async def test_cluster_and_stats_show_nodes_shards_workers_and_counts(
    client: httpx.AsyncClient, pool: Pool, settings: Settings
) -> None:
    await client.post(JOBS, json=MINIMAL | {"queue": "elsewhere"})
    async with running_worker(pool, {}, settings, queues={"q": 1}):
        cluster = (await client.get("/api/v1/cluster")).json()
    ClusterDocument.model_validate(cluster)
    assert [worker["queues"] for worker in cluster["workers"]] == [["q"]]
    assert len(cluster["shards"]) == 64
    assert cluster["lag_seconds"] == 0
    await put(pool, due_job(pool, pool.clock.now() - timedelta(minutes=5)))
    assert 290 < (await client.get("/api/v1/cluster")).json()["lag_seconds"] < 600
    stats = (await client.get("/api/v1/stats")).json()
    StatsDocument.model_validate(stats)
    assert (stats["scope"], stats["queued"], stats["running"]) == ("store", 1, 0)


# Forecast


async def test_a_forecast_counts_what_fires_by_minute_queue_and_handler(
    client: httpx.AsyncClient, operations: Operations, store_operations: StoreOperations, pool: Pool
) -> None:
    start = pool.clock.now()
    at = (start + timedelta(minutes=10)).replace(second=30, microsecond=0)
    text = at.isoformat()
    for _ in range(3):
        await operations.submit(JobRequest("once", schedule=text, queue="a"))
    await operations.submit(JobRequest("often", schedule="every 10m", start_at=at))
    await operations.submit(JobRequest("often", schedule="every 10m", start_at=at, max_runs=2))
    await store_operations.for_tenant("theirs").submit(JobRequest("cron", schedule="* * * * *"))
    late = await operations.submit(JobRequest("never", schedule="every 10m", start_at=at))
    await operations.jobs.pause(str(late.job_id))
    shown = (await client.get("/api/v1/forecast", params={"minutes": 45})).json()
    ForecastDocument.model_validate(shown)
    minutes = [(at + timedelta(minutes=10 * n)).replace(second=0) for n in range(4)]
    expected = [(minutes[0], "a", "once", 3)] + [
        (minute, "default", "often", 2 if n < 2 else 1) for n, minute in enumerate(minutes)
    ]
    found = [
        (datetime.fromisoformat(item["minute"]), item["queue"], item["handler"], item["fires"])
        for item in shown["items"]
    ]
    assert found == [one for one in sorted(expected) if one[0] < start + timedelta(minutes=45)]
    assert shown["total"] == sum(one[3] for one in found)
    assert (shown["estimated"], shown["cut"], shown["complete_until"]) == (False, False, shown["until"])
    for wrong in ("minutes=0", "minutes=1441", "minutes=x", "hours=1"):
        assert (await client.get(f"/api/v1/forecast?{wrong}")).status_code == 422, wrong


async def test_a_forecast_agrees_with_what_every_job_says_of_itself(operations: Operations) -> None:
    """A forecast with groups, jitter and bounds agrees with the sum of the single jobs' occurrences."""
    requests = [
        JobRequest("h", schedule=schedule, timezone=zone, start_at=start, policy=policy)
        for schedule in ("*/7 * * * *", "every 11m", "every 50s", "0 * * * *", "RRULE:FREQ=MINUTELY;INTERVAL=9")
        for zone in ("UTC", "Asia/Kolkata")
        for start in (None, datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=20))
        for policy in (Policy(), Policy(jitter_seconds=120))
    ]
    job_ids = [str((await operations.submit(request)).job_id) for request in requests]
    forecast = await operations.forecast(minutes=120)
    expected = 0
    for job_id in job_ids:
        expected += sum(
            forecast.start <= one.scheduled_at < forecast.until
            for one in await operations.jobs.upcoming(job_id, count=1000)
        )
    # A forecast knows the next run of a job only to the second, so one occurrence per job may cross the end.
    assert abs(forecast.total - expected) <= len(job_ids)
    assert expected > 1000


async def test_a_forecast_of_too_many_says_that_it_is_cut_and_where(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operations.submit(JobRequest("h", schedule="every 1s"))
    monkeypatch.setattr(forecasting, "_MAX_STEPS", 300)
    cut = await operations.forecast(minutes=60)
    assert cut.cut
    assert timedelta(minutes=3) <= cut.complete_until - cut.start <= timedelta(minutes=5)
    # Up to `complete_until` every fire is counted: one a second, in whole minutes except the first.
    assert {item.fires for item in cut.items[1:]} == {60}
    assert cut.items[-1].minute < cut.complete_until


async def test_a_forecast_of_a_full_store_is_estimated_from_some_shards(
    operations: Operations, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = pool.clock.now() + timedelta(minutes=5)
    await put(pool, *(due_job(pool, due, queue="herd") for _ in range(2000)))
    monkeypatch.setattr(forecasting, "_MAX_JOBS", 400)
    forecast = await operations.forecast(minutes=30)
    assert forecast.estimated
    assert 1000 <= forecast.total <= 3500
    monkeypatch.undo()
    exact = await operations.forecast(minutes=30)
    assert (exact.estimated, exact.total) == (False, 2000)
