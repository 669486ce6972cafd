"""Reads block no other requests: they are given up in time, one tenant's reads leave connections to other tenants, and
the size of a page is bounded in bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest

from duly.api.server import create_app
from duly.config import load_settings
from duly.operations import StoreOperations
from duly.operations.runs import RunOperations
from duly.store import jobs
from duly.store.pool import Pool
from harness.store import put_now
from harness.waiting import eventually

JOBS = "/api/v1/jobs"
LETTERS = "/api/v1/dead-letters"
JOB = {"name": "j", "handler": "noop", "schedule": "every 1h"}


@asynccontextmanager
async def two_tenants(database_url: str) -> AsyncIterator[tuple[StoreOperations, httpx.AsyncClient, httpx.AsyncClient]]:
    """One API with four connections, and a client each for the tenants a and b."""
    four = await Pool.connect(database_url, size=4)
    store_operations = await StoreOperations.open(
        four, load_settings(database_url=database_url), local_handlers=["noop"]
    )
    keys = {tenant: (await store_operations.keys.create(role="write", tenant=tenant)).text for tenant in ("a", "b")}
    transport = httpx.ASGITransport(app=create_app(store_operations))

    def client_of(tenant: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {keys[tenant]}"}
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers, timeout=60)

    try:
        async with client_of("a") as of_a, client_of("b") as of_b:
            yield store_operations, of_a, of_b
    finally:
        await four.close()


async def waiting(pool: Pool) -> int:
    rows = await pool.query(
        "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    return len(rows)


async def test_one_tenants_reads_leave_connections_to_others_and_are_given_up_in_time(
    pool: Pool, database_url: str
) -> None:
    stranger = await asyncpg.connect(database_url)
    async with two_tenants(database_url) as (store_operations, of_a, of_b):
        # A long limit, so that no read is given up before b was served.
        store_operations.bound_reads(60)
        await stranger.execute("begin")
        await stranger.execute("lock table duly.dead_letters in access exclusive mode")
        asked = [asyncio.create_task(of_a.get(LETTERS)) for _ in range(6)]

        async def two_wait() -> bool:
            return await waiting(pool) == 2

        await eventually(two_wait)
        made = await of_b.post(JOBS, json=JOB)
        listed = await of_b.get(JOBS)
        assert (made.status_code, len(listed.json()["items"])) == (201, 1)
        assert not any(task.done() for task in asked)
        assert await waiting(pool) == 2, "one tenant's reads take half of the connections, however many they are"
        await stranger.execute("commit")
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}

        store_operations.bound_reads(0.3)
        await stranger.execute("begin")
        await stranger.execute("lock table duly.dead_letters in access exclusive mode")
        async with asyncio.timeout(20):  # much less than other statements may take
            answer = await of_a.get(LETTERS)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "longer than 0.3 s and was given up" in answer.json()["detail"]
        assert await waiting(pool) == 0, "a read that was given up is cancelled in PostgreSQL"
        # A read whose turn does not come is refused.
        store_operations.bound_reads(60)
        store_operations.bound_waiting(0.3)
        held = [asyncio.create_task(of_a.get(LETTERS)) for _ in range(2)]
        await eventually(two_wait)
        answer = await of_a.get(LETTERS)
        assert answer.status_code == 503
        assert "no turn came within 0.3 s" in answer.json()["detail"]
        await stranger.execute("commit")
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
    await stranger.close()


async def test_a_write_is_not_given_up_as_a_read_is(pool: Pool, database_url: str) -> None:
    stranger = await asyncpg.connect(database_url)
    async with two_tenants(database_url) as (store_operations, of_a, _):
        store_operations.bound_reads(0.05)
        await stranger.execute("begin")
        await stranger.execute("lock table duly.jobs in access exclusive mode")
        submitting = asyncio.create_task(of_a.post(JOBS, json=JOB))

        async def waits() -> bool:
            return await waiting(pool) == 1

        await eventually(waits)
        assert (await of_a.get(JOBS)).status_code == 503
        assert not submitting.done()
        await stranger.execute("commit")
        assert (await submitting).status_code == 201
    await stranger.close()


async def test_one_tenants_slow_look_delays_no_others_page(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = asyncio.Event()
    look = RunOperations.recent
    looks = 0

    async def slow_for_a(self: RunOperations, **options: Any) -> Any:
        nonlocal looks
        if self._tenant == "a":
            looks += 1
            await held.wait()
        return await look(self, **options)

    monkeypatch.setattr(RunOperations, "recent", slow_for_a)
    async with two_tenants(database_url) as (_, of_a, of_b):
        asked = [asyncio.create_task(of_a.get("/live")) for _ in range(3)]

        async def looking() -> bool:
            return looks == 1

        await eventually(looking)
        assert (await of_b.get("/live")).status_code == 200
        assert not any(task.done() for task in asked)
        held.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert looks == 1, "all pages of a tenant share one look"


async def test_lists_have_payloads_only_where_asked_for_and_end_by_bytes(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE_BYTES", 100_000)
    async with two_tenants(database_url) as (_, of_a, _):
        made = await put_now(pool, 10, payload=json.dumps("x" * 30_000), tenant="a")
        page = (await of_a.get(JOBS, params={"limit": 1000})).json()
        assert (len(page["items"]), page["next_cursor"]) == (10, None)
        assert not any("payload" in item for item in page["items"])
        found, cursor = [], None
        while True:
            asked = {"limit": "1000", "payload": "true"} | ({} if cursor is None else {"cursor": cursor})
            answer = await of_a.get(JOBS, params=asked)
            assert len(answer.content) < 150_000
            found += [item["job_id"] for item in answer.json()["items"]]
            assert all(len(item["payload"]) == 30_000 for item in answer.json()["items"])
            if (cursor := answer.json()["next_cursor"]) is None:
                break
        assert sorted(found) == sorted(str(job.job_id) for job in made)
        single = (await of_a.get(f"{JOBS}/{found[0]}")).json()
        assert len(single["payload"]) == 30_000
