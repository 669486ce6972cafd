"""The description promises only what the API accepts, and its examples work as they stand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from duly.api.routes.batch import _PerTenant
from duly.api.schemas import MOMENT_RULES
from duly.api.server import create_app
from duly.config import Settings
from duly.operations import StoreOperations
from duly.store.pool import Pool
from harness.waiting import eventually

JOBS = "/api/v1/jobs"


@pytest.fixture
async def client(pool: Pool, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a store that knows one task, so that all others are unknown."""
    store_operations = await StoreOperations.open(pool, settings, local_handlers=["known"])
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def parameters(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                yield path, parameter


async def test_what_is_refused_is_not_promised(client: httpx.AsyncClient) -> None:
    description = (await client.get("/api/v1/openapi.json")).json()
    made = await client.post(JOBS, json={"name": "n", "handler": "known", "schedule": "every 1h"})
    job_id = made.json()["job_id"]
    cursors = moments = 0
    for path, parameter in parameters(description):
        schema, name = parameter["schema"], parameter["name"]
        address = path.replace("{job_id}", job_id)
        if name == "cursor":
            cursors += 1
            assert schema["minLength"] == 1
            query = "from=2026-01-01T00:00:00Z&cursor=" if address.endswith("explain") else "cursor="
            assert (await client.get(f"{address}?{query}")).status_code == 422, path
        elif schema.get("format") == "date-time":
            moments += 1
            assert schema["pattern"] == MOMENT_RULES["pattern"]
            for year in ("1899", "0001", "9999"):
                refused = await client.request("GET", address, params={name: f"{year}-06-01T00:00:00Z"})
                # A filter may accept a time that is later than any job can have.
                assert refused.status_code == 422 or year == "9999", (path, name, year)
    assert cursors >= 4
    assert moments >= 5
    fields = description["components"]["schemas"]["JobBody"]["properties"]
    assert fields["idempotency_key_template"]["minLength"] == 1
    for field, value in (
        ("idempotency_key_template", ""),
        ("start_at", "1899-12-31T00:00:00Z"),
        ("end_at", "9999-01-01T00:00:00Z"),
    ):
        body = {"name": "n", "handler": "known", "schedule": "every 1h", field: value}
        assert (await client.post(JOBS, json=body)).json()["field"] == field
    both = await client.get(f"{JOBS}/{job_id}/explain?at=2026-01-01T00:00:00Z&from=2026-01-01T00:00:00Z")
    assert (both.status_code, both.json()["field"]) == (422, "at")
    explain = description["paths"][f"{JOBS}/{{job_id}}/explain"]["get"]["parameters"]
    assert "not with `from`" in next(one["description"] for one in explain if one["name"] == "at")


@pytest.mark.parametrize(("year", "fits"), [(1899, False), (1900, True), (2026, True), (9998, True), (9999, False)])
def test_the_years_are_told_as_they_are_taken(year: int, fits: bool) -> None:
    assert bool(re.search(MOMENT_RULES["pattern"], f"{year}-01-01T00:00:00Z")) == fits


async def test_the_examples_are_taken_as_they_stand(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/api/v1/openapi.json")).json()["paths"]
    single = paths[JOBS]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert (await client.post(JOBS, json=single)).status_code == 201
    content = paths[f"{JOBS}/batch"]["post"]["requestBody"]["content"]
    batch = await client.post(f"{JOBS}/batch", json=content["application/json"]["example"])
    assert [item["status"] for item in batch.json()["items"]] == [201]
    lines = content["application/x-ndjson"]["example"].encode()
    batch = await client.post(f"{JOBS}/batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert [item["status"] for item in batch.json()["items"]] == [201]


async def test_ten_thousand_jobs_with_fifty_wrong_fields_each_have_a_short_answer(client: httpx.AsyncClient) -> None:
    job = {f"unknown_{number}": number for number in range(50)}
    answer = await client.post(f"{JOBS}/batch", json=[job] * 9_999)
    items = answer.json()["items"]
    assert len(items) == 9_999
    assert {item["status"] for item in items} == {422}
    assert "and 51 more" in items[-1]["error"]["detail"]
    assert len(items[0]["error"]["errors"]) == 3
    assert len(answer.content) < 4_000_000
    whole = await client.post(f"{JOBS}/batch?atomic=true", json=[job] * 9_999)
    assert whole.status_code == 422
    assert len(whole.content) < 20_000
    assert "more)" in whole.json()["detail"]


async def test_a_job_of_too_many_labels_or_fields_is_answered_in_short(client: httpx.AsyncClient) -> None:
    body = {"name": "n", "handler": "known", "labels": dict.fromkeys(map(str, range(20_000)), 1)}
    answer = await client.post(JOBS, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "labels")
    assert len(answer.content) < 1000
    answer = await client.post(JOBS, json=dict.fromkeys(map(str, range(20_000)), 1))
    assert "(and 20001 more)" in answer.json()["detail"]
    assert len(answer.content) < 10_000


async def test_a_tenant_has_only_so_many_batches_at_once_and_nobody_waits_for_anothers() -> None:
    limit, go_on = _PerTenant(2), asyncio.Event()
    inside: list[str] = []

    async def work(tenant: str) -> None:
        async with limit.one_for(tenant):
            inside.append(tenant)
            await go_on.wait()

    tasks = [asyncio.create_task(work(tenant)) for tenant in "aaaaab"]
    await eventually(lambda: "b" in inside)
    assert sorted(inside) == ["a", "a", "b"]
    go_on.set()
    await asyncio.gather(*tasks)
    assert sorted(inside) == sorted("aaaaab")
    assert not limit._semaphores
