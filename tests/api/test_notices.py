"""Jobs that no live worker can run, and declared jobs that rest, as the API and the live page show them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from uuid import uuid4

import httpx
import pytest

from api.conftest import Serving
from duly import AsyncClient, Client
from duly.api import live as live_page
from duly.api import metrics
from duly.api.server import create_app
from duly.maintenance.orphans import Orphans
from duly.model import Cluster, Declarer, JobRequest
from duly.operations import StoreOperations
from duly.operations.rights import Role
from duly.store import cluster
from duly.store.pool import Pool
from harness.store import due_job, put, put_now


async def client_of(store_operations: StoreOperations, tenant: str, role: Role) -> httpx.AsyncClient:
    key = (await store_operations.keys.create(tenant=tenant, role=role)).text
    transport = httpx.ASGITransport(app=create_app(store_operations))
    return httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"Authorization": f"Bearer {key}"}
    )


async def work(pool: Pool, **info: object) -> None:
    said = {"queues": ["default"], "tasks": ["noop"], **info}
    await cluster.join(
        pool, node_id=uuid4(), kind="worker", name="w", version="0", lease_seconds=60, info=said
    )  # fmt: skip


async def put_stuck(pool: Pool) -> None:
    later = pool.clock.now() + timedelta(days=1)
    await put(
        pool,
        due_job(pool, later, tenant="ours", handler="our_task", name="our-job"),
        due_job(pool, later, tenant="theirs", handler="their_task", name="their-job"),
        due_job(pool, later, tenant="theirs"),
    )


@pytest.mark.parametrize("role", ["read", "admin"])
async def test_a_tenant_sees_its_own_jobs_that_nobody_can_run_and_nothing_of_others(
    pool: Pool, store_operations: StoreOperations, role: Role
) -> None:
    await put_stuck(pool)
    await work(pool, tenants=["ours", "their-friend"])
    async with await client_of(store_operations, "ours", role) as client:
        shown, whole = await client.get("/live"), await client.get("/api/v1/cluster")
    (notice,) = shown.json()["notices"]
    assert (notice["kind"], notice["wrong"]) == ("unrunnable", True)
    assert "'our-job'" in notice["message"]
    assert "no live worker has the task 'our_task'" in notice["message"]
    assert "duly worker" in notice["next_step"]
    (one,) = whole.json()["unrunnable"]
    assert (one["handler"], one["jobs"], one["message"]) == ("our_task", 1, notice["message"])
    assert "their" not in shown.text
    # Only an admin sees which tenants workers serve.
    assert ("their" in json.dumps(whole.json()["workers"])) is (role == "admin")
    assert "their" not in json.dumps(whole.json()["unrunnable"])


async def test_both_clients_read_them(pool: Pool, store_operations: StoreOperations, serving: Serving) -> None:
    await put_stuck(pool)
    await work(pool)
    expected = [one for one in (await store_operations.cluster.status()).unrunnable if one.tenant == "ours"]
    key = (await store_operations.keys.create(tenant="ours", role="read")).text

    def blocking(url: str) -> Cluster:
        with Client(url, key) as client:
            return client.cluster()

    async with serving(store_operations) as url, AsyncClient(url, key) as client:
        for found in (await client.cluster(), await asyncio.to_thread(blocking, url)):
            assert list(found.unrunnable) == expected
            assert found.surveyed_at is None


async def test_the_page_shows_a_bounded_number_of_notices(
    pool: Pool, store_operations: StoreOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "MAX_NOTICES", 2)
    later = pool.clock.now() + timedelta(days=1)
    await put(pool, *(due_job(pool, later, tenant="ours", handler=f"task-{number}") for number in range(5)))
    async with await client_of(store_operations, "ours", "read") as client:
        shown = (await client.get("/live")).json()
    assert (len(shown["notices"]), shown["more_notices"]) == (2, 3)


async def test_a_cancelled_declared_job_and_one_no_longer_declared_are_on_the_page(
    pool: Pool, store_operations: StoreOperations
) -> None:
    operations = store_operations.for_tenant("ours")

    def deploy(number: int, *names: str) -> Declarer:
        return Declarer("shop", str(number), f"0{number}", frozenset(f"declared:{name}" for name in names))

    def declared(name: str) -> JobRequest:
        return JobRequest(name, schedule="0 9 * * *", dedupe_key=f"declared:{name}")

    first = deploy(1, "removed", "kept")
    removed, kept = await operations.declare_all([declared("removed"), declared("kept")], first)
    second = deploy(2, "kept")
    await operations.declare_all([declared("kept")], second)
    await work(pool, tasks=["kept"], app=second.info("ours"))
    await operations.jobs.cancel(str(kept.job_id))
    upkeep = Orphans(pool)
    upkeep.lead(True)
    await upkeep.run_once()
    async with await client_of(store_operations, "ours", "read") as client:
        notices = (await client.get("/live")).json()["notices"]
    assert notices == [
        {
            "kind": "cancelled",
            "job_id": str(kept.job_id),
            "message": "job 'kept' is declared by the code but cancelled, so it does not run",
            "next_step": f"to bring it back: duly job resume {kept.job_id}",
            "wrong": True,
        },
        {
            "kind": "undeclared",
            "job_id": str(removed.job_id),
            "message": "job 'removed' is paused: no longer declared since deploy 2",
            "next_step": f"to end it: duly job cancel {removed.job_id}; to keep it: duly job resume {removed.job_id}",
            "wrong": False,
        },
    ]
    async with await client_of(store_operations, "theirs", "admin") as client:
        assert (await client.get("/live")).json()["notices"] == []


async def test_a_job_that_an_operator_has_paused_is_no_notice(pool: Pool, store_operations: StoreOperations) -> None:
    operations = store_operations.for_tenant("ours")
    by = Declarer("shop", "1", "01", frozenset({"declared:a"}))
    (one,) = await operations.declare_all([JobRequest("a", schedule="0 9 * * *", dedupe_key="declared:a")], by)
    await operations.jobs.pause(str(one.job_id), reason="mine")
    newer = Declarer("shop", "2", "02", frozenset({"declared:b"}))
    await operations.declare_all([JobRequest("b", schedule="0 9 * * *", dedupe_key="declared:b")], newer)
    await work(pool, tasks=["b"], app=newer.info("ours"))
    upkeep = Orphans(pool)
    upkeep.lead(True)
    await upkeep.run_once()
    async with await client_of(store_operations, "ours", "read") as client:
        assert (await client.get("/live")).json()["notices"] == []


async def test_metrics_count_them_by_kind_and_name_nobody(
    pool: Pool, store_operations: StoreOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_FRESH_SECONDS", 0.0)
    await put_stuck(pool)
    await put_now(pool, 3, handler="fresh")
    await put(
        pool, due_job(pool, pool.clock.now(), handler="http", target='{"type": "http", "url": "https://a.example"}')
    )
    await work(pool)
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        text = (await client.get("/metrics")).text
    assert 'duly_unrunnable_jobs{kind="task"} 2.0' in text
    assert 'duly_unrunnable_jobs{kind="http"} 1.0' in text
    assert 'duly_unrunnable_jobs{kind="command"} 0.0' in text
    assert 'duly_unrunnable_runs{kind="task"} 3.0' in text
    for name in ("fresh", "our_task", "their", "a.example"):
        assert name not in text
