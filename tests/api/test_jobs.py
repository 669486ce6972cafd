"""Submitting and reading jobs and runs over HTTP: the documents and what they promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from duly.api.schemas import AttemptDocument, ErrorDocument, JobDocument, RunDocument
from duly.api.server import create_app
from duly.config import Settings
from duly.errors import Permanent
from duly.model import JobRequest
from duly.node import running_worker
from duly.operations import Operations, StoreOperations
from duly.store.pool import Pool
from duly.worker.handler.task import Task

JOBS = "/api/v1/jobs"
MINIMAL: dict[str, Any] = {"name": "Weekly report", "handler": "send_report"}


@pytest.fixture
async def client(store_operations: StoreOperations) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_a_job_document_has_every_field_of_the_spec_with_its_default(client: httpx.AsyncClient) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    response = await client.post(JOBS, json=MINIMAL)
    assert response.status_code == 201
    assert response.headers["content-type"] == "application/json"
    job = response.json()
    assert response.headers["location"] == f"{JOBS}/{job['job_id']}"
    for read_only in ("job_id", "created_at", "updated_at", "last_run_at", "next_run_at"):
        value = job.pop(read_only)
        if read_only.endswith("_at") and value is not None:
            assert value.endswith("Z")
            assert datetime.fromisoformat(value) > before
    assert job == {
        "tenant": "default",
        "name": "Weekly report",
        "handler": "send_report",
        "payload": {},
        "payload_ref": None,
        "schedule": "now",
        "timezone": "UTC",
        "start_at": None,
        "end_at": None,
        "max_runs": None,
        "queue": "default",
        "priority": 5,
        "missed_window": "RUN_ONCE",
        "catch_up_window_seconds": None,
        "max_missed": 100,
        "overlap": "skip",
        "max_queued": 100,
        "max_retries": 3,
        "retry_backoff": "exponential",
        "retry_delay_seconds": 30,
        "retry_max_delay_seconds": 1800,
        "timeout_seconds": 300,
        "start_within_seconds": None,
        "jitter_seconds": 0,
        "dst_gap": "shift",
        "dst_fold": "first",
        "idempotency_key_template": "{{job_id}}:{{scheduled_at_unix}}",
        "ping_url": None,
        "alerts": None,
        "secret_fields": [],
        "dedupe_key": None,
        "labels": {},
        "status": "active",
        "status_reason": None,
        "paused_until": None,
        "run_count": 1,
        "version": 1,
    }


async def test_a_job_says_how_often_it_ran_and_a_list_gives_the_version_that_a_change_wants(
    client: httpx.AsyncClient,
) -> None:
    job_id = (await client.post(JOBS, json=MINIMAL | {"schedule": "every 1h"})).json()["job_id"]
    assert (await client.get(f"{JOBS}/{job_id}")).json()["run_count"] == 0
    assert (await client.patch(f"{JOBS}/{job_id}", json={"priority": 1})).status_code == 200
    listed = (await client.get(JOBS, params={"payload": "true"})).json()["items"][0]
    shown = await client.get(f"{JOBS}/{job_id}")
    assert shown.json() == listed
    assert shown.headers["etag"] == f'"{listed["version"]}"'
    headers = {"If-Match": f'"{listed["version"]}"'}
    assert (await client.patch(f"{JOBS}/{job_id}", json={"priority": 2}, headers=headers)).status_code == 200
    for field in ("run_count", "version"):
        refused = await client.patch(f"{JOBS}/{job_id}", json={field: 7})
        assert (refused.status_code, refused.json()["errors"][0]["message"]) == (422, "is read-only")


async def test_every_settable_field_comes_back_as_it_was_sent(client: httpx.AsyncClient) -> None:
    sent: dict[str, Any] = {
        "name": "Nächtlicher Abgleich <b>",
        "handler": "sync",
        "payload": {"deep": [1, 2.5, None, True, "ü", {"empty": {}}]},
        "payload_ref": "s3://bucket/key",
        "schedule": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "start_at": "2030-01-01T00:00:00Z",
        "end_at": "2031-01-01T00:00:00.500000Z",
        "max_runs": 12,
        "queue": "reports",
        "priority": 9,
        "missed_window": "RUN_ALL",
        "catch_up_window_seconds": 3600,
        "max_missed": 7,
        "overlap": "queue",
        "max_queued": 8,
        "max_retries": 0,
        "retry_backoff": "linear",
        "retry_delay_seconds": 1.5,
        "retry_max_delay_seconds": 60,
        "timeout_seconds": 0.25,
        "jitter_seconds": 30,
        "dst_gap": "skip",
        "dst_fold": "both",
        "idempotency_key_template": "{{name}}:{{date}}",
        "dedupe_key": "nightly",
        "labels": {"team": "data", "empty": ""},
    }
    created = (await client.post(JOBS, json=sent)).json()
    assert {field: created[field] for field in sent} == sent
    assert created["next_run_at"].startswith("2030-01-01T01:30:")
    read = await client.get(f"{JOBS}/{created['job_id']}")
    assert read.status_code == 200
    assert read.json() == created
    assert read.json().keys() == JobDocument.model_fields.keys()


async def test_times_are_utc_with_z_whatever_offset_they_came_with(client: httpx.AsyncClient) -> None:
    sent = MINIMAL | {"schedule": "every 1h", "start_at": "2030-06-01T12:00:00+02:00"}
    job = (await client.post(JOBS, json=sent)).json()
    assert job["start_at"] == "2030-06-01T10:00:00Z"
    assert job["next_run_at"] == "2030-06-01T10:00:00Z"


async def test_nulls_are_accepted_where_null_is_the_default(client: httpx.AsyncClient) -> None:
    fields = ("payload_ref", "schedule", "start_at", "end_at", "max_runs", "catch_up_window_seconds", "dedupe_key")
    response = await client.post(JOBS, json=MINIMAL | dict.fromkeys(fields))
    assert response.status_code == 201


async def test_any_json_is_a_payload(client: httpx.AsyncClient) -> None:
    payloads: list[Any] = [None, True, 0, -1.5, "text", [], [[]], {"": {}}, 10**300]
    for payload in payloads:
        response = await client.post(JOBS, json=MINIMAL | {"payload": payload})
        assert response.status_code == 201
        assert response.json()["payload"] == payload


async def test_the_same_dedupe_key_with_the_same_content_is_the_same_job(client: httpx.AsyncClient) -> None:
    body = MINIMAL | {"dedupe_key": "w-23", "retry_delay_seconds": 60}
    first = await client.post(JOBS, json=body)
    again = await client.post(JOBS, json=body | {"retry_delay_seconds": 60.0, "queue": "default"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]


async def test_the_same_dedupe_key_with_other_content_is_a_conflict(client: httpx.AsyncClient) -> None:
    await client.post(JOBS, json=MINIMAL | {"dedupe_key": "w-23"})
    response = await client.post(JOBS, json=MINIMAL | {"dedupe_key": "w-23", "payload": {"other": 1}})
    assert response.status_code == 409
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["field"] == "dedupe_key"


async def test_the_idempotency_key_header_means_dedupe_key(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "w-24"}
    first = await client.post(JOBS, json=MINIMAL, headers=key)
    assert first.json()["dedupe_key"] == "w-24"
    assert (await client.post(JOBS, json=MINIMAL, headers=key)).status_code == 200
    assert (await client.post(JOBS, json=MINIMAL | {"dedupe_key": "w-24"}, headers=key)).status_code == 200
    assert (await client.post(JOBS, json=MINIMAL | {"dedupe_key": "w-24"})).status_code == 200
    other = await client.post(JOBS, json=MINIMAL | {"priority": 1}, headers=key)
    assert (other.status_code, other.json()["field"]) == (409, "Idempotency-Key")


async def test_a_header_and_a_dedupe_key_that_differ_are_refused(client: httpx.AsyncClient) -> None:
    response = await client.post(JOBS, json=MINIMAL | {"dedupe_key": "a"}, headers={"Idempotency-Key": "b"})
    assert (response.status_code, response.json()["field"]) == (422, "Idempotency-Key")
    for headers in ([("Idempotency-Key", "a"), ("Idempotency-Key", "a")], [("Idempotency-Key", "x" * 201)],
                    [("Idempotency-Key", "")], [(b"Idempotency-Key", b"\xff")]):  # fmt: skip
        response = await client.post(JOBS, json=MINIMAL, headers=httpx.Headers(headers))
        assert (response.status_code, response.json()["field"]) == (422, "Idempotency-Key")
    assert (await client.get(JOBS)).json()["items"] == []


async def test_identical_submits_at_the_same_moment_make_one_job(client: httpx.AsyncClient) -> None:
    responses = await asyncio.gather(
        *(client.post(JOBS, json=MINIMAL, headers={"Idempotency-Key": "once"}) for _ in range(12))
    )
    assert sorted(response.status_code for response in responses) == [200] * 11 + [201]
    assert len({response.json()["job_id"] for response in responses}) == 1
    assert len((await client.get(JOBS)).json()["items"]) == 1


async def test_lists_are_filtered_by_status_queue_name_and_labels(
    client: httpx.AsyncClient, operations: Operations
) -> None:
    async def submit(name: str, **fields: Any) -> str:
        return str((await client.post(JOBS, json=MINIMAL | {"name": name, **fields})).json()["job_id"])

    async def listed(**query: str | list[str]) -> list[str]:
        response = await client.get(JOBS, params=query)
        assert response.status_code == 200
        return [job["name"] for job in response.json()["items"]]

    await submit("a", queue="q1", labels={"team": "data", "url": "x:y"}, schedule="every 1h")
    paused = await submit("b", queue="q1", labels={"team": "data"}, schedule="every 1h")
    await submit("c", queue="q2", labels={"team": "web"}, schedule="every 1h")
    await operations.jobs.pause(paused)
    assert await listed() == ["c", "b", "a"]
    assert await listed(queue="q1") == ["b", "a"]
    assert await listed(name="c") == ["c"]
    assert await listed(status="paused") == ["b"]
    assert await listed(label="team=data") == ["b", "a"]
    assert await listed(label=["team=data", "url=x:y"]) == ["a"]
    assert await listed(label="team=data", status="active", queue="q1") == ["a"]
    assert await listed(label="team=nobody") == []


async def test_paging_shows_every_job_once_while_others_are_inserted(client: httpx.AsyncClient) -> None:
    async def submit() -> str:
        return str((await client.post(JOBS, json=MINIMAL | {"schedule": "every 1h"})).json()["job_id"])

    expected = [await submit() for _ in range(7)][::-1]
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    for _ in range(10):
        page = (await client.get(JOBS, params={"limit": 3, **cursor})).json()
        assert page.keys() == {"items", "next_cursor"}
        seen += [job["job_id"] for job in page["items"]]
        await submit()
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == expected


async def test_a_jobs_runs_are_paged_newest_first_with_a_cursor_that_needs_no_quoting(
    client: httpx.AsyncClient, operations: Operations
) -> None:
    job_id = (await client.post(JOBS, json=MINIMAL | {"schedule": "every 1h", "overlap": "parallel"})).json()["job_id"]
    triggered = [(await operations.jobs.trigger(job_id)).run_id for _ in range(5)][::-1]
    seen: list[str] = []
    address: str | None = f"{JOBS}/{job_id}/runs?limit=2"
    while address is not None:
        page = (await client.get(address)).json()
        seen += [run["run_id"] for run in page["items"]]
        following = page["next_cursor"]
        address = following and f"{JOBS}/{job_id}/runs?limit=2&cursor={following}"
        if len(seen) == 2:
            await operations.jobs.trigger(job_id)
    assert seen == triggered


async def _ended(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            items = (await client.get(f"{JOBS}/{job_id}/runs")).json()["items"]
            if items and items[0]["finished_at"] is not None:
                assert len(items) == 1
                return dict(items[0])
            await asyncio.sleep(0.02)


async def test_a_run_document_has_every_field_of_the_spec(
    client: httpx.AsyncClient, pool: Pool, settings: Settings
) -> None:
    def greet(ctx: Any, who: str) -> dict[str, str]:
        if who == "nobody":
            raise Permanent("<script>nobody</script>")
        return {"greeting": f"Hello, {who}"}

    async with running_worker(pool, {"greet": Task("greet", greet)}, settings):
        body = {"name": "Greet", "handler": "greet"}
        job_id = (await client.post(JOBS, json=body | {"payload": {"who": "you"}})).json()["job_id"]
        run = await _ended(client, job_id)
        assert run.keys() == RunDocument.model_fields.keys()
        scheduled_at = run["scheduled_at"]
        assert scheduled_at.endswith("Z")
        assert run["started_at"].endswith("Z")
        assert run["finished_at"] >= run["started_at"]
        assert run["worker"]
        assert run["idempotency_key"].startswith(f"{job_id}:")
        assert run["run_id"].startswith(job_id)
        expected = {
            "job_id": job_id, "status": "succeeded", "attempt": 1, "missed": False, "deduplicated": False,
            "error": None, "result": {"greeting": "Hello, you"}, "note": None, "next_attempt_at": None,
        }  # fmt: skip
        assert {field: run[field] for field in expected} == expected
        shared = ("attempt", "started_at", "finished_at", "worker", "error")
        assert run["attempts"] == [{field: run[field] for field in shared}]

        job_id = (await client.post(JOBS, json=body | {"payload": {"who": "nobody"}})).json()["job_id"]
        run = await _ended(client, job_id)
        assert run["status"] == "dead"
        assert run["error"].keys() == ErrorDocument.model_fields.keys()
        assert run["error"]["message"] == "<script>nobody</script>"
        assert [attempt["attempt"] for attempt in run["attempts"]] == [1]
        assert run["attempts"][0].keys() == AttemptDocument.model_fields.keys()
        assert run["attempts"][0]["error"] == run["error"]

        live = (await client.get("/live")).json()
        assert [run["job_name"] for run in live["runs"]] == ["Greet", "Greet"]
        assert {run["status"] for run in live["runs"]} == {"succeeded", "dead"}
        assert live["status"]["counts"]["dead_letters"] == 1
        assert [node["kind"] for node in live["status"]["nodes"]] == ["worker"]
        assert live["status"]["nodes"][0]["alive"] is True


async def test_live_shows_active_jobs_with_their_next_occurrences(
    client: httpx.AsyncClient, operations: Operations
) -> None:
    submitted = await operations.submit(JobRequest("tick", name="Tick", schedule="every 10s"))
    job = await operations.jobs.get(str(submitted.job_id))
    await operations.jobs.pause(str((await operations.submit(JobRequest("tick", schedule="every 10s"))).job_id))
    live = (await client.get("/live")).json()
    assert live.keys() == {"now", "jobs", "runs", "status", "notices", "more_notices"}
    assert [shown["name"] for shown in live["jobs"]] == ["Tick"]
    moments = [datetime.fromisoformat(text) for text in live["jobs"][0]["upcoming"]]
    assert job.next_run_at is not None
    assert moments == [job.next_run_at + timedelta(seconds=10 * step) for step in range(3)]


async def test_live_shows_no_occurrence_beyond_max_runs(client: httpx.AsyncClient, operations: Operations) -> None:
    await operations.submit(JobRequest("tick", schedule="every 10s", max_runs=2))
    (shown,) = (await client.get("/live")).json()["jobs"]
    assert len(shown["upcoming"]) == 2


async def test_what_is_not_there_is_404(client: httpx.AsyncClient) -> None:
    unknown = "01900000-0000-7000-8000-000000000000"
    for path in (f"{JOBS}/{unknown}", f"{JOBS}/{unknown}/runs", f"{JOBS}/nonsense", f"{JOBS}/%00", f"{JOBS}/", "/nope"):
        response = await client.get(path)
        assert response.status_code == 404, path
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["status"] == 404
        assert response.json()["type"] == "urn:duly:problem:not-found"


async def test_another_tenants_job_is_404(
    client: httpx.AsyncClient, operations: Operations, store_operations: StoreOperations
) -> None:
    theirs = (await store_operations.for_tenant("theirs").submit(JobRequest("h", schedule="every 1h"))).job_id
    assert (await client.get(f"{JOBS}/{theirs}")).status_code == 404
    assert (await client.get(f"{JOBS}/{theirs}/runs")).status_code == 404
    assert (await client.get(JOBS)).json()["items"] == []


async def test_openapi_describes_the_documents(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/api/v1/openapi.json")).json()
    submit = schema["paths"][JOBS]["post"]
    assert submit["operationId"] == "submit_job"
    body = submit["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert set(schema["components"]["schemas"][body]["required"]) == {"name", "handler"}
    assert schema["components"]["schemas"]["JobDocument"]["properties"].keys() == JobDocument.model_fields.keys()
    assert "application/problem+json" in submit["responses"]["422"]["content"]


async def test_jobs_are_found_by_an_id_its_beginning_or_a_name(client: httpx.AsyncClient) -> None:
    made = [(await client.post(JOBS, json=MINIMAL | {"name": f"report {n}"})).json()["job_id"] for n in range(3)]

    async def found(text: str) -> list[str]:
        answer = (await client.get(JOBS, params={"find": text})).json()
        assert answer["next_cursor"] is None
        return [job["job_id"] for job in answer["items"]]

    assert await found(made[0]) == [made[0]]
    assert await found("report 1") == [made[1]]
    assert await found(made[0][:5]) == made[::-1], "made in the same days, so their ids begin alike"
    assert await found("nothing") == []
    for other in ({"queue": "default"}, {"limit": "5"}, {"label": "a=b"}):
        refused = await client.get(JOBS, params={"find": "report 1", **other})
        assert (refused.status_code, refused.json()["field"]) == (422, next(iter(other)))


async def test_dead_letters_are_counted_by_filter(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/v1/dead-letters/count")).json() == {"count": 0}
    assert (await client.get("/api/v1/dead-letters/count", params={"queue": "q"})).json() == {"count": 0}
    assert (await client.get("/api/v1/dead-letters/count", params={"limit": 1})).status_code == 422
