"""An open transaction of one tenant: the API tells that tenant to retry, and the other tenants notice nothing."""

from __future__ import annotations

import asyncio

import asyncpg
import httpx
import pytest

from duly.api import server
from duly.api.server import create_app
from duly.config import load_settings
from duly.operations import StoreOperations, submits
from duly.store import tenants
from duly.store.pool import Pool
from harness.waiting import eventually

JOBS = "/api/v1/jobs"
JOB = {"name": "j", "handler": "noop", "schedule": "every 1h"}


async def test_a_tenant_whose_transaction_stays_open_holds_up_nobody_else(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    four = await Pool.connect(database_url, size=4)
    stranger = await asyncpg.connect(database_url)
    store_operations = await StoreOperations.open(
        four, load_settings(database_url=database_url), local_handlers=["noop"]
    )
    await store_operations.tenants.set("a", max_jobs=100)
    keys = {tenant: (await store_operations.keys.create(role="write", tenant=tenant)).text for tenant in ("a", "b")}
    transport = httpx.ASGITransport(app=create_app(store_operations))

    def client_of(tenant: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {keys[tenant]}"}
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers, timeout=60)

    async def waits() -> bool:
        rows = await pool.query(
            "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        return len(rows) > 0

    try:
        async with client_of("a") as of_a, client_of("b") as of_b:
            # No wait times out here: a request that waits for a's lock is not answered before the transaction ends.
            monkeypatch.setattr(tenants, "LOCKED_SECONDS", 60.0)
            monkeypatch.setattr(submits, "LOCK_SECONDS", 60.0)
            await stranger.execute("begin")
            await stranger.execute("select duly.submit('noop', tenant => 'a')")
            waiting = [asyncio.create_task(of_a.post(JOBS, json=JOB)) for _ in range(6)]
            await eventually(waits)
            made = await of_b.post(JOBS, json=JOB)
            assert made.status_code == 201, made.text
            listed = await of_b.get(JOBS)
            assert len(listed.json()["items"]) == 1
            assert not any(task.done() for task in waiting)
            await stranger.execute("commit")
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {201}

            # A request that waits too long for the lock is refused, and so is a request whose turn does not come: it
            # never had a connection.
            monkeypatch.setattr(tenants, "LOCKED_SECONDS", 0.5)
            monkeypatch.setattr(submits, "LOCK_SECONDS", 0.6)
            await stranger.execute("begin")
            await stranger.execute("select duly.submit('noop', tenant => 'a')")
            async with asyncio.timeout(30):
                answers = await asyncio.gather(*(of_a.post(JOBS, json=JOB) for _ in range(6)))
            assert {answer.status_code for answer in answers} == {503}
            assert all(answer.headers["retry-after"] for answer in answers)
            assert all("still open" in answer.json()["detail"] for answer in answers)
            await stranger.execute("commit")
            again = await of_a.post(JOBS, json=JOB)
            assert again.status_code == 201
    finally:
        await stranger.close()
        await four.close()


async def test_only_the_tenants_lock_is_waited_for_so_briefly(pool: Pool) -> None:
    """Later statements of the same transaction wait for locks without a limit."""
    async with pool.transaction() as within:
        await tenants.free_slots(within, tenant="a", wanted=1, default_max=5)
        assert await within.connection.fetchval("select current_setting('lock_timeout')") == "0"


async def test_a_request_that_finds_no_free_connection_is_told_so(pool: Pool, database_url: str) -> None:
    one = await Pool.connect(database_url, size=1)
    store_operations = await StoreOperations.open(one, load_settings(database_url=database_url, open_api=True))
    transport = httpx.ASGITransport(app=create_app(store_operations))
    assert one.acquire_seconds == server.CONNECTION_SECONDS
    store_operations.bound_waiting(0.2)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client, one.transaction():
            async with asyncio.timeout(4):
                answer = await client.get(JOBS)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
    finally:
        await one.close()
