"""Bulk submit: an answer for every job in its place, all or nothing on request, and nothing half-done."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from duly.api.routes import batch
from duly.api.schemas import read_job
from duly.api.server import create_app
from duly.config import load_settings
from duly.errors import InvalidInput
from duly.model import JobRequest
from duly.operations import Operations, StoreOperations
from duly.store.pool import Pool
from harness.store import count
from harness.waiting import eventually

JOBS = "/api/v1/jobs"
BATCH = f"{JOBS}/batch"
NDJSON = {"Content-Type": "application/x-ndjson"}
MINIMAL: dict[str, Any] = {"name": "Weekly report", "handler": "send_report"}


@pytest.fixture
async def client(store_operations: StoreOperations) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def lines(*jobs: Any) -> bytes:
    return b"".join(json.dumps(job).encode() + b"\n" for job in jobs)


MIXED: list[tuple[Any, int, str | None]] = [
    (MINIMAL, 201, None),
    (MINIMAL | {"priority": 99}, 422, "priority"),
    (MINIMAL | {"schedule": "every 1h", "timeout_seconds": 60.0, "labels": {"a": "b"}}, 201, None),
    (MINIMAL | {"tenant": "theirs"}, 422, "tenant"),
    ({"name": "no handler"}, 422, "handler"),
    (["not an object"], 422, "body"),
    (MINIMAL | {"dedupe_key": "one"}, 201, None),
    (MINIMAL | {"dedupe_key": "one"}, 200, None),
    (MINIMAL | {"dedupe_key": "one", "payload": {"other": 1}}, 409, "dedupe_key"),
    (MINIMAL | {"dedupe_key": "known"}, 200, None),
    (MINIMAL | {"start_at": "2030-01-01T00:00:00Z", "schedule": "@daily"}, 201, None),
    (MINIMAL | {"max_retries": "3"}, 422, "max_retries"),
    (MINIMAL | {"payload": {"x": "\x00"}}, 422, "payload"),
    (MINIMAL | {"schedule": "77 * * * *"}, 422, "schedule"),
]


@pytest.mark.parametrize("kind", ["array", "lines"])
async def test_every_job_of_a_batch_has_its_own_answer_in_its_place(client: httpx.AsyncClient, kind: str) -> None:
    known = (await client.post(JOBS, json=MINIMAL | {"dedupe_key": "known"})).json()["job_id"]
    jobs = [job for job, _, _ in MIXED]
    if kind == "array":
        response = await client.post(BATCH, json=jobs)
    else:
        response = await client.post(BATCH, content=lines(*jobs), headers=NDJSON)
    assert response.status_code == 200
    items = response.json()["items"]
    assert [item["status"] for item in items] == [status for _, status, _ in MIXED]
    for item, (job, status, field) in zip(items, MIXED, strict=True):
        if field is None:
            stored = (await client.get(f"{JOBS}/{item['job_id']}")).json()
            assert stored["name"] == job["name"]
            assert stored["payload"] == job.get("payload", {})
        else:
            assert item.keys() == {"status", "error"}
            assert (item["error"]["status"], item["error"]["field"]) == (status, field)
    assert items[6]["job_id"] == items[7]["job_id"]
    assert items[9]["job_id"] == known
    assert len((await client.get(JOBS)).json()["items"]) == 5


async def test_atomic_stores_all_or_nothing_and_names_all_that_is_wrong(client: httpx.AsyncClient) -> None:
    good = [MINIMAL | {"dedupe_key": f"k-{n}"} for n in range(3000)]
    for wrong, status, field in [
        (MINIMAL | {"priority": 99}, 422, "priority"),
        (["no"], 422, "body"),
        (MINIMAL | {"dedupe_key": "k-0", "payload": 1}, 409, "dedupe_key"),
        (MINIMAL | {"queue": ""}, 422, "queue"),
    ]:
        refused = await client.post(f"{BATCH}?atomic=true", json=[*good, wrong])
        assert refused.status_code == status
        problem = refused.json()
        assert problem["field"] == f"jobs[3000].{field}"
        assert problem["detail"].startswith("nothing was stored: ")
        assert (await client.get(JOBS)).json()["items"] == []
    accepted = await client.post(f"{BATCH}?atomic=true", json=[*good, good[0]])
    assert [item["status"] for item in accepted.json()["items"]] == [201] * 3000 + [200]
    again = await client.post(f"{BATCH}?atomic=true", json=good)
    assert [item["job_id"] for item in again.json()["items"]] == [
        item["job_id"] for item in accepted.json()["items"][:3000]
    ]


async def test_a_stream_whose_last_line_was_cut_off_stores_the_others_and_says_so(client: httpx.AsyncClient) -> None:
    cut = lines(MINIMAL, MINIMAL, MINIMAL)[:-20]
    refused = await client.post(f"{BATCH}?atomic=true", content=cut, headers=NDJSON)
    assert (refused.status_code, refused.json()["field"]) == (422, "jobs[2].body")
    assert (await client.get(JOBS)).json()["items"] == []
    items = (await client.post(BATCH, content=cut, headers=NDJSON)).json()["items"]
    assert [item["status"] for item in items] == [201, 201, 422]
    assert items[2]["error"]["field"] == "body"
    assert len((await client.get(JOBS)).json()["items"]) == 2


async def test_a_connection_that_breaks_in_the_middle_of_a_stream_leaves_nothing(
    store_operations: StoreOperations, pool: Pool, serving: Any, client: httpx.AsyncClient
) -> None:
    async with serving(store_operations) as url:
        port = httpx.URL(url).port
        for query in ("", "?atomic=true"):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST {BATCH}{query} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = lines(*[MINIMAL] * 1000)
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        async with httpx.AsyncClient(base_url=url) as other:
            # The server still works, and has had time to handle the broken requests.
            assert (await other.post(BATCH, content=lines(MINIMAL), headers=NDJSON)).status_code == 200
    assert await count(pool, "jobs") == 1


async def test_a_batch_of_ten_thousand_is_taken_and_one_more_is_413(client: httpx.AsyncClient, pool: Pool) -> None:
    jobs = [MINIMAL] * 10_000
    began = time.perf_counter()
    response = await client.post(BATCH, content=lines(*jobs), headers=NDJSON)
    # The bench measures 15,000 jobs a second; this only notices a batch that is far too slow, even on a busy machine.
    assert time.perf_counter() - began < 10
    items = response.json()["items"]
    assert {item["status"] for item in items} == {201}
    assert len({item["job_id"] for item in items}) == 10_000
    for refused in (
        await client.post(BATCH, json=[*jobs, MINIMAL]),
        await client.post(BATCH, content=lines(*jobs, MINIMAL), headers=NDJSON),
    ):
        assert (refused.status_code, refused.json()["field"]) == (413, "body")
    assert await count(pool, "jobs") == 10_000


async def test_a_body_larger_than_the_setting_is_413_with_a_length_or_without(pool: Pool, database_url: str) -> None:
    settings = load_settings(database_url=database_url, open_api=True, batch_max_bytes=100_000)
    transport = httpx.ASGITransport(app=create_app(await StoreOperations.open(pool, settings)))

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield lines(*[MINIMAL] * 20)

    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for content in (lines(*[MINIMAL] * 4000), chunks()):
            assert (await client.post(BATCH, content=content, headers=NDJSON)).status_code == 413
    assert await count(pool, "jobs") == 0


BROKEN: list[tuple[bytes, int, str]] = [
    (b"", 422, "body"),
    (b"{}", 422, "body"),
    (b'[{"name": "a", "handler": "h"}', 422, "body"),
    (b"[" * 100_000, 422, "body"),
    (b'[{"name": "a", "handler": "h", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]", 422, "body"),
]
BROKEN_JOBS: list[tuple[bytes, str]] = [
    (b'{"name": "a", "handler": "h", "payload": NaN}', "payload"),
    (b'{"name": "a", "handler": "h", "payload": ' + b"9" * 5000 + b"}", "payload"),
    (b'{"name": "a", "handler": "h", "priority": 1e999}', "priority"),
    (b'{"name": "a", "handler": "h", "payload": ' + b"[" * 300 + b"]" * 300 + b"}", "payload"),
    (rb'{"name": "a", "handler": "h", "payload": "\u0000"}', "payload"),
    (rb'{"name": "\ud800", "handler": "h"}', "name"),
    (b'{"name": "a", "handler": {"type": "http", "url": "ftp://x/"}}', "handler.url"),
]


async def test_what_cannot_be_kept_is_refused_by_name_alone_or_with_all(client: httpx.AsyncClient) -> None:
    json_type = {"Content-Type": "application/json"}
    for body, status, field in BROKEN:
        response = await client.post(BATCH, content=body, headers=json_type)
        assert (response.status_code, response.json()["field"]) == (status, field), body[:60]
    for body, field in BROKEN_JOBS:
        for content, headers in ((b"[" + body + b"]", json_type), (body + b"\n", NDJSON)):
            items = (await client.post(BATCH, content=content, headers=headers)).json()["items"]
            assert [(item["status"], item["error"]["field"]) for item in items] == [(422, field)], body[:60]
    assert (await client.get(JOBS)).json()["items"] == []
    assert (await client.post(BATCH, json=[])).json() == {"items": []}
    for query in ("atomic=yes", "atomic=", "atmoic=true", "atomic=true&atomic=true"):
        assert (await client.post(f"{BATCH}?{query}", json=[MINIMAL])).status_code == 422, query
    keyed = await client.post(BATCH, json=[MINIMAL], headers={"Idempotency-Key": "x"})
    assert (keyed.status_code, keyed.json()["field"]) == (422, "Idempotency-Key")
    assert (await client.get(JOBS)).json()["items"] == []


async def test_an_unknown_handler_refuses_only_its_own_job(pool: Pool, database_url: str) -> None:
    store_operations = await StoreOperations.open(
        pool, load_settings(database_url=database_url, open_api=True), local_handlers=["send_report"]
    )
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        jobs = [MINIMAL, MINIMAL | {"handler": "send_reprot"}, MINIMAL]
        items = (await client.post(BATCH, json=jobs)).json()["items"]
        assert [item["status"] for item in items] == [201, 422, 201]
        assert items[1]["error"]["field"] == "handler"
        items = (await client.post(f"{BATCH}?allow_unknown_handler=true", json=jobs)).json()["items"]
        assert [item["status"] for item in items] == [201, 201, 201]


QUICK: list[dict[str, Any]] = [
    MINIMAL,
    MINIMAL | {"payload": [1, {"a": None}], "queue": "q", "priority": 0, "timezone": "Europe/Berlin"},
    MINIMAL | {"schedule": "every 1h", "max_runs": 3, "dedupe_key": "d", "payload_ref": "s3://x", "labels": {"a": "b"}},
    MINIMAL | {"max_retries": 0, "overlap": "queue", "retry_delay_seconds": 1.5, "timeout_seconds": 60.0},
    MINIMAL | {"max_retries": 3.0},
]
SLOW: list[dict[str, Any]] = [
    MINIMAL | {"max_runs": 3.0},
    MINIMAL | {"priority": True},
    MINIMAL | {"overlap": "SKIP"},
    MINIMAL | {"labels": {"a": 1}},
    MINIMAL | {"dedupe_key": None},
    MINIMAL | {"start_at": "2030-01-01T00:00:00Z"},
    MINIMAL | {"colour": "red"},
    {"name": "a"},
]


def test_the_quick_way_reads_a_job_as_the_models_do() -> None:
    def by_model(job: dict[str, Any]) -> JobRequest:
        body = read_job(job)
        return body.to_request(dedupe_key=body.dedupe_key)

    for job in QUICK:
        quick = batch._quickly(job)
        assert quick == by_model(job)
        assert quick is not None
        assert [type(value) for value in vars_of(quick)] == [type(value) for value in vars_of(by_model(job))]
    for job in SLOW:
        assert batch._quickly(job) is None, job


def vars_of(request: JobRequest) -> list[Any]:
    return [getattr(request.policy, name) for name in request.policy.__slots__] + [request.priority, request.max_runs]


async def test_twins_with_the_same_dedupe_key_at_the_same_moment_are_one_job_a_hundred_times(
    store_operations: StoreOperations, pool: Pool, serving: Any
) -> None:
    """One job of each pair is submitted alone, the other alone or in a batch, to two servers as behind a balancer."""
    other = await StoreOperations.open(pool, store_operations.settings)
    async with (
        serving(store_operations) as first,
        serving(other) as second,
        httpx.AsyncClient(base_url=first) as one,
        httpx.AsyncClient(base_url=second) as two,
    ):

        async def alone(client: httpx.AsyncClient, key: str) -> tuple[int, str]:
            response = await client.post(JOBS, json=MINIMAL, headers={"Idempotency-Key": key})
            return response.status_code, response.json()["job_id"]

        async def in_batch(client: httpx.AsyncClient, key: str) -> tuple[int, str]:
            item = (await client.post(BATCH, json=[MINIMAL | {"dedupe_key": key}])).json()["items"][0]
            return item["status"], item["job_id"]

        for start in range(0, 100, 10):
            keys = [f"pair-{number}" for number in range(start, start + 10)]
            calls = [
                call
                for number, key in enumerate(keys)
                for call in (alone(one, key), (in_batch if number % 2 else alone)(two, key))
            ]
            answers = await asyncio.gather(*calls)
            for left, right in zip(answers[::2], answers[1::2], strict=True):
                assert sorted((left[0], right[0])) == [200, 201]
                assert left[1] == right[1]
    assert await count(pool, "jobs") == 100
    assert await count(pool, "runs") == 100


async def test_others_are_answered_while_a_large_batch_is_read(store_operations: StoreOperations, serving: Any) -> None:
    body = lines(*[MINIMAL | {"payload": {"text": "x" * 300, "n": n}} for n in range(10_000)])
    async with serving(store_operations) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        sending = asyncio.create_task(client.post(BATCH, content=body, headers=NDJSON))
        answered = 0

        async def probed() -> bool:
            nonlocal answered
            answered += (await client.get("/healthz")).status_code == 200
            return sending.done()

        await eventually(probed, seconds=60)
        assert (await sending).status_code == 200
        assert answered >= 5


async def test_of_ten_thousand_wrong_jobs_few_fields_are_kept() -> None:
    """The errors of a batch stay in memory until it is answered, and each garbage collection walks over all of them
    while every other request waits."""
    job = {f"unknown_{number}": number for number in range(50)}
    requests, refused = await batch._to_requests([job] * 9_999)
    assert (len(requests), len(refused)) == (0, 9_999)
    assert sum(len(problem.errors) for problem in refused.values()) < 20_000
    assert {len(problem.errors) + problem.omitted for problem in refused.values()} == {52}


async def test_a_refusal_keeps_no_frames(operations: Operations, store_operations: StoreOperations) -> None:
    wrong = [JobRequest("send_report", schedule="every so often"), JobRequest("send_report", priority=99)]
    for error in await store_operations.for_tenant("default").submit_each(wrong, allow_unknown_handler=True):
        assert isinstance(error, InvalidInput)
        assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)
