"""What one tenant's open transaction does to the API: that tenant is told to come again, the others notice nothing."""

from __future__ import annotations

import asyncio

import asyncpg
import httpx

from duly.api import server
from duly.api.server import create_app
from duly.config import load_settings
from duly.operations import Operations
from duly.store.pool import Pool

JOBS = "/api/v1/jobs"
JOB = {"name": "j", "handler": "noop", "schedule": "every 1h"}


async def test_a_tenant_whose_transaction_stays_open_holds_up_nobody_else(pool: Pool, database_url: str) -> None:
    four = await Pool.connect(database_url, size=4)
    stranger = await asyncpg.connect(database_url)
    operations = await Operations.open(four, load_settings(database_url=database_url), local_handlers=["noop"])
    await operations.set_tenant("a", max_jobs=100)
    keys = {tenant: (await operations.create_key(role="write", tenant=tenant)).text for tenant in ("a", "b")}
    transport = httpx.ASGITransport(app=create_app(operations))

    def client_of(tenant: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {keys[tenant]}"}
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers, timeout=60)

    try:
        await stranger.execute("begin")
        await stranger.execute("select duly.submit('noop', tenant => 'a')")
        async with client_of("a") as of_a, client_of("b") as of_b:
            waiting = [asyncio.create_task(of_a.post(JOBS, json=JOB)) for _ in range(6)]
            await asyncio.sleep(0.5)
            loop = asyncio.get_running_loop()
            began = loop.time()
            made = await of_b.post(JOBS, json=JOB)
            listed = await of_b.get(JOBS)
            assert loop.time() - began < 1.5
            assert (made.status_code, len(listed.json()["items"])) == (201, 1)
            # Whose turn does not come is told so as well, without ever having held a connection.
            answers = await asyncio.gather(*waiting)
            assert {answer.status_code for answer in answers} == {503}
            assert all(answer.headers["retry-after"] for answer in answers)
            assert "still open" in answers[0].json()["detail"]
            await stranger.execute("commit")
            again = await of_a.post(JOBS, json=JOB)
            assert again.status_code == 201
            # Patience is for that lock alone.
            rows = await four.query("select current_setting('lock_timeout') as patience")
            assert rows[0]["patience"] == "0"
    finally:
        await stranger.close()
        await four.close()


async def test_a_request_that_finds_no_free_connection_is_told_so(pool: Pool, database_url: str) -> None:
    one = await Pool.connect(database_url, size=1)
    operations = await Operations.open(one, load_settings(database_url=database_url))
    transport = httpx.ASGITransport(app=create_app(operations))
    assert one.acquire_seconds == server.CONNECTION_SECONDS
    operations.bound_waiting(0.2)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client, one.transaction():
            answer = await client.get(JOBS)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
    finally:
        await one.close()
