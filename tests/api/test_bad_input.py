"""Any invalid request is answered with a problem document that names what is wrong, and never with a 500."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from duly.api.server import BODY_HEADROOM, create_app
from duly.checks import MAX_DEPTH
from duly.config import Settings
from duly.operations import StoreOperations
from duly.store.pool import Pool

JOBS = "/api/v1/jobs"
JSON = {"Content-Type": "application/json"}
MINIMAL: dict[str, Any] = {"name": "Weekly report", "handler": "send_report"}


@pytest.fixture
async def client(store_operations: StoreOperations) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {(await store_operations.keys.create(role='admin')).text}"}
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


def assert_problem(response: httpx.Response, status: int, field: str, *, case: str = "") -> dict[str, Any]:
    assert response.status_code == status, f"{case}: {response.text[:500]}"
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem.keys() == {"type", "title", "status", "detail", "field", "errors"}
    assert problem["status"] == status
    assert problem["field"] == field, case
    assert problem["errors"][0]["field"] == field
    assert all(error.keys() == {"field", "message"} for error in problem["errors"])
    return problem


async def assert_nothing_stored(client: httpx.AsyncClient) -> None:
    assert (await client.get(JOBS)).json() == {"items": [], "next_cursor": None}


BROKEN_BODIES = {
    "empty": (b"", "body"),
    "cut off": (b'{"name": "a", "handler"', "body"),
    "not an object": (b"[]", "body"),
    "a bare text": (b'"name"', "body"),
    "two documents": (b"{}{}", "body"),
    "UTF-16": ('{"name": "a", "handler": "h"}'.encode("utf-16"), "body"),
    "Latin-1": ('{"name": "é", "handler": "h"}'.encode("latin-1"), "body"),
    "a byte-order mark": (b'\xef\xbb\xbf{"name": "a", "handler": "h"}', "body"),
    "NaN in the payload": (b'{"name": "a", "handler": "h", "payload": {"x": [NaN]}}', "payload"),
    "-Infinity as a number": (b'{"name": "a", "handler": "h", "timeout_seconds": -Infinity}', "timeout_seconds"),
    "1e999 in the payload": (b'{"name": "a", "handler": "h", "payload": 1e999}', "payload"),
    "5,000 digits in the payload": (b'{"name": "a", "handler": "h", "payload": [' + b"9" * 5000 + b"]}", "payload"),
    "5,000 digits as priority": (b'{"name": "a", "handler": "h", "priority": -' + b"9" * 5000 + b"}", "priority"),
    "NUL in the payload": (rb'{"name": "a", "handler": "h", "payload": {"x": "\u0000"}}', "payload"),
    "NUL in a payload's key": (rb'{"name": "a", "handler": "h", "payload": {"x\u0000": 1}}', "payload"),
    "a lone surrogate in the payload": (rb'{"name": "a", "handler": "h", "payload": ["\ud800"]}', "payload"),
    "a lone surrogate in the name": (rb'{"name": "\udfff", "handler": "h"}', "name"),
    "a lone surrogate in a label": (rb'{"name": "a", "handler": "h", "labels": {"\ud800": "x"}}', "labels"),
    "a lone surrogate as a field": (rb'{"name": "a", "handler": "h", "\ud800": 1}', "\ud800"),
    "a lone surrogate as schedule": (rb'{"name": "a", "handler": "h", "schedule": "\ud800"}', "schedule"),
    "100,000 lists deep": (
        b'{"name": "a", "handler": "h", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "payload",
    ),
    "60,000 objects deep": (b'{"payload":' + b'{"a":' * 60_000, "payload"),
    "brackets without end": (b"[" * 300_000, "body"),
    "one level too deep": (
        b'{"name": "a", "handler": "h", "payload": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        "payload",
    ),
}


# One test for a whole table of cases: a store of its own for each would take a minute.
async def test_a_body_that_cannot_be_kept_is_422_and_names_where(client: httpx.AsyncClient) -> None:
    for case, (body, field) in BROKEN_BODIES.items():
        assert_problem(await client.post(JOBS, content=body, headers=JSON), 422, field, case=case)
    await assert_nothing_stored(client)


WRONG_FIELDS: list[tuple[str, Any]] = [
    ("name", ""),
    ("name", "x" * 201),
    ("name", "line\nbreak"),
    ("name", None),
    ("name", 1),
    ("handler", ""),
    ("handler", 7),
    ("handler", ["h"]),
    ("handler.type", {"type": "carrier pigeon"}),
    ("handler.url", {"type": "http", "url": "ftp://example.org/"}),
    ("handler.headers.Host", {"type": "http", "url": "https://example.org/", "headers": {"Host": "evil"}}),
    ("handler.argv", {"type": "command", "argv": "backup --all"}),
    ("payload", {"large": "x" * (256 * 1024)}),
    ("payload_ref", {}),
    ("payload_ref", ""),
    ("schedule", 5),
    ("schedule", ""),
    ("schedule", "61 * * * *"),
    ("schedule", "0 0 30 2 *"),
    ("schedule", "every \u0000m"),
    ("schedule", "*/5 " * 50_000),
    ("timezone", "Europe/Atlantis"),
    ("timezone", "../../etc/passwd"),
    ("timezone", None),
    ("start_at", 1700000000),
    ("start_at", "tomorrow"),
    ("start_at", "2030-01-01T00:00:00"),
    ("start_at", "0001-01-01T00:00:00Z"),
    ("start_at", "9999-12-31T23:59:59.999999Z"),
    ("end_at", "9998-12-31T23:59:59-24:00"),
    ("max_runs", 0),
    ("max_runs", 10**4000),
    ("max_runs", 1.5),
    ("max_runs", "3"),
    ("queue", "q" * 101),
    ("queue", "a\u0000"),
    ("priority", 10),
    ("priority", True),
    ("priority", "5"),
    ("missed_window", "RUN_TWICE"),
    ("missed_window", []),
    ("catch_up_window_seconds", -1),
    ("max_missed", 10**30),
    ("overlap", "SKIP"),
    ("max_queued", None),
    ("max_retries", [3]),
    ("max_retries", 3.5),
    ("max_retries", True),
    ("retry_backoff", "patient"),
    ("retry_delay_seconds", "30"),
    ("retry_max_delay_seconds", 10**4000),
    ("timeout_seconds", 0),
    ("timeout_seconds", True),
    ("timeout_seconds", 1e300),
    ("jitter_seconds", 0.5),
    ("dst_gap", "leap"),
    ("dst_fold", None),
    ("idempotency_key_template", "{{unknown}}"),
    ("idempotency_key_template", {}),
    ("dedupe_key", ""),
    ("dedupe_key", 1),
    ("labels", []),
    ("labels", {str(number): "x" for number in range(100)}),
    ("labels.team", {"team": 1}),
    ("labels.team", {"team": "\u0007"}),
    ("tenant", "another"),
    ("tenant", "default"),
    ("job_id", "01900000-0000-7000-8000-000000000000"),
    ("status", "paused"),
    ("next_run_at", None),
    ("shedule", "every 5m"),
    ("policy", {"max_retries": 3}),
]


async def test_a_wrong_field_is_422_and_named(client: httpx.AsyncClient) -> None:
    for field, value in WRONG_FIELDS:
        body = json.dumps(MINIMAL | {"schedule": "every 1h"} | {field.partition(".")[0]: value}).encode()
        response = await client.post(JOBS, content=body, headers=JSON)
        assert_problem(response, 422, field, case=f"{field} {str(value)[:40]!r}")
    await assert_nothing_stored(client)


async def test_all_fields_of_a_wrong_type_are_named_at_once(client: httpx.AsyncClient) -> None:
    response = await client.post(JOBS, json={"priority": "high", "colour": "red", "tenant": "x", "labels": {"a": 1}})
    problem = assert_problem(response, 422, "colour")
    named = {error["field"]: error["message"] for error in problem["errors"]}
    assert named == {
        "colour": "is not a field of a job",
        "tenant": "cannot be chosen by a request",
        "name": "is required",
        "handler": "is required",
        "priority": "must be a whole number",
        "labels.a": "must be a string",
    }


async def test_an_answer_to_ten_thousand_wrong_fields_stays_small(client: httpx.AsyncClient) -> None:
    response = await client.post(JOBS, json={f"{number}-{'x' * 20}": 1 for number in range(10_000)})
    assert response.status_code == 422
    assert len(response.content) < 10_000


async def test_a_payload_as_deep_as_allowed_is_stored_and_read_back(client: httpx.AsyncClient) -> None:
    payload: list[Any] = []
    for _ in range(MAX_DEPTH - 2):
        payload = [payload]
    response = await client.post(JOBS, json=MINIMAL | {"payload": payload})
    assert response.status_code == 201
    assert response.json()["payload"] == payload


WRONG_FILTERS = [
    "limit=0",
    "limit=1001",
    "limit=-1",
    "limit=ten",
    "limit=" + "9" * 5000,
    "limit=",
    "cursor=",
    "cursor=nonsense",
    "status=asleep",
    "status=",
    "queue=%00",
    "name=%0a",
    "label=team",
    "label=team:data",
    "label==x",
    "label=a=b&label=a=c",
    "limit=1&limit=2",
    "statsu=active",
]


async def test_a_wrong_filter_is_422_and_named(client: httpx.AsyncClient) -> None:
    for query in WRONG_FILTERS:
        assert_problem(await client.get(f"{JOBS}?{query}"), 422, query.partition("=")[0], case=query[:40])


WRONG_RUN_FILTERS = [
    "limit=0",
    "limit=1e3",
    "cursor=nonsense",
    "cursor=2026-01-01T00:00:00",
    "cursor=9999-12-31T23:59:59-23:59",
    "cursor=0001-01-01T00:00:00%2B23:59",
    "status=dead",
]


async def test_a_wrong_filter_of_runs_is_422_and_named(client: httpx.AsyncClient) -> None:
    job_id = (await client.post(JOBS, json=MINIMAL)).json()["job_id"]
    for query in WRONG_RUN_FILTERS:
        assert_problem(await client.get(f"{JOBS}/{job_id}/runs?{query}"), 422, query.partition("=")[0], case=query)


async def _chunks(size: int) -> AsyncIterator[bytes]:
    yield b'{"name": "'
    for _ in range(size // 65_536):
        yield b"x" * 65_536
        await asyncio.sleep(0)
    yield b'", "handler": "h"}'


async def test_ten_megabytes_are_413_with_a_length_or_without(client: httpx.AsyncClient) -> None:
    whole = b"".join([chunk async for chunk in _chunks(10_000_000)])
    assert_problem(await client.post(JOBS, content=whole, headers=JSON), 413, "body")
    assert_problem(await client.post(JOBS, content=_chunks(10_000_000), headers=JSON), 413, "body")
    waiting = JSON | {"Expect": "100-continue", "Content-Length": "10000000"}
    assert_problem(await client.post(JOBS, content=b"", headers=waiting), 413, "body")
    await assert_nothing_stored(client)


async def test_a_gzip_bomb_is_413_and_an_honest_gzip_is_read(client: httpx.AsyncClient) -> None:
    headers = JSON | {"Content-Encoding": "gzip"}
    bomb = gzip.compress(b" " * 50_000_000)
    assert_problem(await client.post(JOBS, content=bomb, headers=headers), 413, "body")
    good = gzip.compress(json.dumps(MINIMAL).encode())
    for broken in (good[:-5], good + b"x", b"not gzip", b""):
        assert_problem(await client.post(JOBS, content=broken, headers=headers), 422, "body")
    await assert_nothing_stored(client)
    assert (await client.post(JOBS, content=good, headers=headers)).status_code == 201


async def test_the_largest_payload_fits_into_a_body(client: httpx.AsyncClient, settings: Settings) -> None:
    payload = "x" * (settings.payload_max_bytes - 2)
    assert (await client.post(JOBS, json=MINIMAL | {"payload": payload})).status_code == 201
    assert_problem(await client.post(JOBS, json=MINIMAL | {"payload": payload + "x"}), 422, "payload")
    spaces = b" " * (settings.payload_max_bytes + BODY_HEADROOM)
    assert_problem(await client.post(JOBS, content=spaces + b"{}", headers=JSON), 413, "body")


NOT_JSON: list[dict[str, str]] = [
    {},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/json; charset=utf-16"},
    JSON | {"Content-Encoding": "br"},
]


async def test_what_is_not_json_is_415(client: httpx.AsyncClient) -> None:
    for headers in NOT_JSON:
        response = await client.post(JOBS, content=json.dumps(MINIMAL), headers=headers)
        assert response.status_code == 415, headers
        assert response.headers["content-type"] == "application/problem+json"
    await assert_nothing_stored(client)


async def test_json_with_its_charset_named_is_json(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": 'Application/JSON; charset="UTF-8"'}
    assert (await client.post(JOBS, content=json.dumps(MINIMAL), headers=headers)).status_code == 201


async def test_a_method_that_does_not_exist_is_405_and_says_which_do(client: httpx.AsyncClient) -> None:
    response = await client.put(JOBS, json=MINIMAL)
    assert response.status_code == 405
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["allow"] == "GET, HEAD, POST"
    assert (await client.put(f"{JOBS}/x")).headers["allow"] == "DELETE, GET, HEAD, PATCH"
    assert (await client.put(f"{JOBS}/batch")).headers["allow"] == "POST"
    assert (await client.post("/healthz")).headers["allow"] == "GET, HEAD"


async def test_what_can_be_read_can_be_asked_for_without_its_body(client: httpx.AsyncClient) -> None:
    job_id = (await client.post(JOBS, json=MINIMAL)).json()["job_id"]
    for path in (JOBS, f"{JOBS}/{job_id}", f"{JOBS}/x", f"{JOBS}?x=1", "/healthz", "/metrics", "/", "/nope"):
        read, head = await client.get(path), await client.head(path)
        assert head.status_code == read.status_code, path
        assert head.content == b"", path
        assert head.headers["content-type"] == read.headers["content-type"], path
        assert head.headers.get("etag") == read.headers.get("etag"), path
    assert (await client.head(f"{JOBS}/{job_id}/trigger")).status_code == 405
    assert len((await client.get(f"{JOBS}/{job_id}/runs")).json()["items"]) == 1


async def test_a_slash_too_many_an_empty_body_and_an_unquoted_plus_are_told_for_what_they_are(
    client: httpx.AsyncClient,
) -> None:
    slash = await client.get(f"{JOBS}/")
    assert slash.status_code == 404
    assert "leave out the slash" in slash.json()["detail"]
    assert "slash" not in (await client.get("/nope/")).json()["detail"]
    empty = await client.post(JOBS, headers={"Content-Type": "application/json"})
    assert_problem(empty, 422, "body")
    assert "is empty" in empty.json()["detail"]
    since = await client.get("/api/v1/dead-letters?since=2026-01-01T00:00:00+01:00")
    assert_problem(since, 422, "since")
    assert "%2B" in since.json()["detail"]


async def test_an_unknown_handler_is_422_once_some_are_known(pool: Pool, settings: Settings) -> None:
    store_operations = await StoreOperations.open(pool, settings, local_handlers=["send_report"])
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        unknown = MINIMAL | {"handler": "send_reprot"}
        assert_problem(await client.post(JOBS, json=unknown), 422, "handler")
        assert (await client.post(JOBS, json=MINIMAL)).status_code == 201
        allowing = f"{JOBS}?allow_unknown_handler"
        assert_problem(await client.post(f"{allowing}=false", json=unknown), 422, "handler")
        assert_problem(await client.post(f"{allowing}=yes", json=unknown), 422, "allow_unknown_handler")
        assert_problem(
            await client.post(f"{JOBS}?alow_unknown_handler=true", json=unknown), 422, "alow_unknown_handler"
        )
        assert (await client.post(f"{allowing}=true", json=unknown)).status_code == 201


async def test_every_wrong_field_is_named_at_once(client: httpx.AsyncClient) -> None:
    wrong = {
        "handler": "pr", "priority": 99, "timezone": "X/Y", "overlap": "z", "max_retries": -1, "schedule": "77 * * * *",
        "queue": "", "labels": {"": "x"}, "end_at": "2000-01-01T00:00:00Z", "start_at": "2000-01-02T00:00:00Z",
    }  # fmt: skip
    named = {"name", "overlap", "priority", "timezone", "max_retries", "schedule", "queue", "labels", "end_at"}
    answer = await client.post(JOBS, json=wrong)
    assert {error["field"] for error in answer.json()["errors"]} == named
    # Wrong values are all named at once too, if every type is right.
    answer = await client.post(JOBS, json={**wrong, "name": "n", "overlap": "skip"})
    assert answer.status_code == 422
    assert {error["field"] for error in answer.json()["errors"]} == named - {"name", "overlap"}
    # One wrong field is one error.
    answer = await client.post(JOBS, json={**MINIMAL, "priority": 99})
    assert [error["field"] for error in answer.json()["errors"]] == ["priority"]
