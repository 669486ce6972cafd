"""`/metrics`: true figures in the text format, only for callers who may see them, and at little cost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from duly.api import metrics
from duly.api.server import create_app
from duly.config import Settings
from duly.errors import Permanent
from duly.node import running_worker
from duly.operations import StoreOperations
from duly.operations.cluster import ClusterOperations
from duly.store.pool import Pool
from duly.worker.handler.task import Task
from harness.store import count, due_job, lead, put, put_now
from harness.waiting import eventually

Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
async def client(
    store_operations: StoreOperations, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(metrics, "_FRESH_SECONDS", 0.0)
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def read(client: httpx.AsyncClient, **headers: str) -> Figures:
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def labelled(figures: Figures, name: str) -> dict[str, float]:
    return {labels[0][1]: value for (found, labels), value in figures.items() if found == name}


async def test_queues_dead_letters_due_jobs_and_shards_are_as_they_are(
    client: httpx.AsyncClient, pool: Pool, settings: Settings
) -> None:
    empty = await read(client)
    assert labelled(empty, "duly_queue_depth") == {}
    assert empty["duly_dead_letters", ()] == 0
    assert empty["duly_shards_unowned", ()] == 64
    assert len(labelled(empty, "duly_due_jobs")) == 64
    assert set(labelled(empty, "duly_due_jobs").values()) == {0}

    await put_now(pool, 3, queue="reports")
    await put_now(pool, 2, queue="reports", priority=9)
    await put_now(pool, 1, queue='odd "name"\\ <b>')
    late = due_job(pool, pool.clock.now() - timedelta(minutes=1))
    await put(pool, late, due_job(pool, pool.clock.now() + timedelta(hours=1)))
    # These runs do not count yet: they cannot start for an hour.
    await put_now(pool, 2, queue="later")
    await pool.query("update duly.runs set run_at = run_at + interval '1 hour' where queue = 'later'")
    await lead(pool, 7)
    figures = await read(client)
    assert labelled(figures, "duly_queue_depth") == {"reports": 5, 'odd "name"\\ <b>': 1, "later": 0}
    due = labelled(figures, "duly_due_jobs")
    assert {shard: jobs for shard, jobs in due.items() if jobs} == {str(late.shard): 1}
    assert labelled(figures, "duly_shards_owned") == {"test": 1}
    assert figures["duly_shards_unowned", ()] == 63
    assert figures["process_resident_memory_bytes", ()] > 1_000_000

    async def fail() -> None:
        raise Permanent("no")

    async with running_worker(pool, {"noop": Task("noop", fail)}, settings, queues={"reports": 1}):
        await eventually(lambda: _is(pool, "dead_letters", 5))
    figures = await read(client)
    assert figures["duly_dead_letters", ()] == 5
    # An empty queue is reported as 0 and not left out.
    assert labelled(figures, "duly_queue_depth")["reports"] == 0


async def _is(pool: Pool, table: str, number: int) -> bool:
    return await count(pool, table) == number


async def test_many_queues_are_told_as_the_deepest_and_the_rest(
    client: httpx.AsyncClient, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_QUEUES", 3)
    for number in range(8):
        await put_now(pool, number + 1, queue=f"queue-{number}")
    for _ in range(2):
        assert labelled(await read(client), "duly_queue_depth") == {
            "queue-7": 8, "queue-6": 7, "queue-5": 6, metrics.OTHER_QUEUES: 1 + 2 + 3 + 4 + 5,
        }  # fmt: skip


async def test_every_name_is_of_the_spec_and_has_a_type_and_a_help(client: httpx.AsyncClient, pool: Pool) -> None:
    await put_now(pool, 1)
    await lead(pool, 1)
    text = (await client.get("/metrics")).text
    ours = {family.name: family for family in text_string_to_metric_families(text) if family.name.startswith("duly_")}
    requests = ours.pop("duly_api_request_duration_seconds")
    assert (requests.type, bool(requests.documentation)) == ("histogram", True)
    assert set(ours) == {
        "duly_queue_depth", "duly_dead_letters", "duly_due_jobs", "duly_shards_owned", "duly_shards_unowned",
        "duly_unrunnable_jobs", "duly_unrunnable_runs", "duly_live_nodes", "duly_oldest_waiting_seconds",
        "duly_oldest_due_seconds", "duly_build_info",
    }  # fmt: skip
    for family in ours.values():
        assert (family.type, bool(family.documentation)) == ("gauge", True)
    assert re.findall(r"[^\x20-\x7e\n]", text) == []


async def test_requests_are_counted_by_route_and_not_by_path(client: httpx.AsyncClient) -> None:
    for path in ("/api/v1/jobs/nothing-1", "/api/v1/jobs/nothing-2", "/nowhere/1", "/nowhere/2", "/livez", "/startupz"):
        await client.get(path)
    await client.request("FETCH", "/api/v1/jobs")
    text = (await client.get("/metrics")).text
    counted = {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "duly_api_request_duration_seconds_count"
    }
    assert counted == {
        ("/api/v1/jobs/{job_id}", "GET", "4xx"): 2,
        ("(none)", "GET", "4xx"): 2,
        ("/livez", "GET", "2xx"): 1,
        ("/startupz", "GET", "2xx"): 1,
        ("/api/v1/jobs", "(none)", "4xx"): 1,
    }


async def test_ages_and_live_nodes(client: httpx.AsyncClient, pool: Pool) -> None:
    idle = await read(client)
    assert (idle["duly_oldest_waiting_seconds", ()], idle["duly_oldest_due_seconds", ()]) == (0, 0)
    assert labelled(idle, "duly_live_nodes") == {"scheduler": 0, "worker": 0}
    await put_now(pool, 2)
    await put_now(pool, 1, queue="other", priority=9)
    await pool.query("update duly.runs set run_at = run_at - interval '1 minute' where queue = 'other'")
    await put(pool, due_job(pool, pool.clock.now() - timedelta(minutes=2)), due_job(pool, pool.clock.now()))
    await lead(pool, 1)
    figures = await read(client)
    assert 60 <= figures["duly_oldest_waiting_seconds", ()] < 90
    assert 120 <= figures["duly_oldest_due_seconds", ()] < 150
    assert labelled(figures, "duly_live_nodes") == {"scheduler": 1, "worker": 0}


async def test_with_keys_only_an_admin_sees_figures_that_are_of_all_tenants(
    client: httpx.AsyncClient, store_operations: StoreOperations, pool: Pool
) -> None:
    await put_now(pool, 1, queue="of-another", tenant="theirs")
    keys = {
        role: (await store_operations.keys.create(tenant="ours", role=role)).text for role in ("read", "write", "admin")
    }

    async def is_closed() -> bool:
        return (await client.get("/metrics")).status_code == 401

    await eventually(is_closed)
    for role in ("read", "write"):
        refused = await client.get("/metrics", headers={"Authorization": f"Bearer {keys[role]}"})
        assert (refused.status_code, "needs the role monitor" in refused.json()["detail"]) == (403, True)
        assert "of-another" not in refused.text
    shown = await read(client, Authorization=f"Bearer {keys['admin']}")
    assert labelled(shown, "duly_queue_depth") == {"of-another": 1}


async def test_many_scrapes_cost_the_store_one_look(
    store_operations: StoreOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = ClusterOperations.figures

    async def counted(self: ClusterOperations) -> Any:
        nonlocal looks
        looks += 1
        return await look(self)

    monkeypatch.setattr(ClusterOperations, "figures", counted)
    monkeypatch.setattr(metrics, "_FRESH_SECONDS", 60.0)
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        responses = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
    assert {response.status_code for response in responses} == {200}
    assert looks == 1


async def test_a_store_that_is_away_is_503(client: httpx.AsyncClient, pool: Pool) -> None:
    await pool.close()
    response = await client.get("/metrics")
    assert (response.status_code, response.headers["content-type"]) == (503, "application/problem+json")
