"""`GET /audit`, and whom a request names as the one who acts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from duly.api.server import create_app
from duly.client import AsyncClient
from duly.errors import InvalidInput
from duly.local_keys import LocalKey, obtain_key
from duly.model import AuditFilter, Buried, DeadLetterFilter, JobRequest, make_run_id, os_user
from duly.operations import StoreOperations
from duly.store import runs
from duly.store.pool import Pool
from harness.store import take

JOB = {"name": "report", "handler": {"type": "http", "url": "https://example.org/"}, "schedule": "every 1h"}


class Callers:
    """Clients of one API, each with a key of its own."""

    def __init__(self, operations: StoreOperations, stack: AsyncExitStack) -> None:
        self._operations = operations
        self._stack = stack
        self._app = create_app(operations)

    async def __call__(self, role: Any, *, tenant: str = "acme", name: str | None = None) -> httpx.AsyncClient:
        key = await self._operations.keys.create(tenant=tenant, role=role, name=name)
        transport = httpx.ASGITransport(app=self._app, client=("192.0.2.7", 5))
        client = httpx.AsyncClient(
            transport=transport,
            base_url="http://localhost/api/v1",
            headers={"Authorization": f"Bearer {key.text}"},
        )
        client.key_id = key.key.key_id  # type: ignore[attr-defined]
        return await self._stack.enter_async_context(client)


@pytest.fixture
async def caller(store_operations: StoreOperations) -> AsyncIterator[Callers]:
    async with AsyncExitStack() as stack:
        yield Callers(store_operations, stack)


async def entries(client: httpx.AsyncClient, **query: str) -> list[dict[str, Any]]:
    """The entries about jobs and runs, oldest first."""
    answer = await client.get("/audit", params=query)
    assert answer.status_code == 200, answer.text
    return [one for one in answer.json()["items"][::-1] if one["kind"] in ("job", "run")]


async def test_every_change_over_the_api_has_the_key_and_its_reason(caller: Callers) -> None:
    ci, admin = await caller("write", name="ci"), await caller("admin")
    job_id = (await ci.post("/jobs", json=JOB)).json()["job_id"]
    await ci.patch(f"/jobs/{job_id}", params={"reason": "first"}, json={"priority": 7})
    await ci.post(f"/jobs/{job_id}/pause", json={"reason": "second"})
    await ci.post(f"/jobs/{job_id}/resume", params={"reason": "third"})
    run_id = (await ci.post(f"/jobs/{job_id}/trigger", params={"reason": "fourth"})).json()["run_id"]
    await ci.post(f"/runs/{run_id}/cancel", params={"reason": "fifth"})
    await ci.delete(f"/jobs/{job_id}", params={"reason": "sixth"}, headers={"X-Request-Id": "r-7"})
    found = await entries(admin, job_id=job_id)
    assert [(one["action"], one["kind"], one["reason"]) for one in found] == [
        ("submit", "job", None), ("change", "job", "first"), ("pause", "job", "second"), ("resume", "job", "third"),
        ("trigger", "job", "fourth"), ("cancel", "run", "fifth"), ("cancel", "job", "sixth"),
    ]  # fmt: skip
    assert {(one["via"], one["actor"], one["key"], one["address"]) for one in found} == {
        ("api", "ci", ci.key_id, "192.0.2.7")  # type: ignore[attr-defined]
    }
    assert [one["request"] for one in found] == [None] * 6 + ["r-7"]
    batch = await ci.post("/jobs/batch", json=[JOB, JOB])
    assert batch.status_code in (200, 207), batch.text
    assert (await entries(admin, action="submit"))[-1]["after"]["jobs"] == 2


async def test_who_may_read_what(caller: Callers) -> None:
    writer = await caller("write")
    await writer.post("/jobs", json=JOB)
    assert [one["address"] for one in await entries(await caller("read"))] == [None]
    assert [one["address"] for one in await entries(await caller("admin"))] == ["192.0.2.7"]
    assert await entries(await caller("admin", tenant="other")) == []
    assert (await (await caller("monitor", tenant=None)).get("/audit")).status_code == 403  # type: ignore[arg-type]


async def test_a_front_end_names_the_person_only_with_a_key_that_may(caller: Callers) -> None:
    named = {"X-Duly-Actor": "ada@example.org"}
    front_end = await caller("operator", name="portal")
    await front_end.post("/jobs", json=JOB, headers=named)
    entry = (await entries(front_end))[0]
    assert (entry["actor"], entry["key"]) == ("ada@example.org", front_end.key_id)  # type: ignore[attr-defined]
    writer = await caller("write")
    refused = await writer.post("/jobs", json=JOB, headers=named)
    assert (refused.status_code, "X-Duly-Actor" in refused.json()["detail"]) == (403, True)
    for wrong in ("", " ada", "a" * 201, "a\tb"):
        assert (await front_end.post("/jobs", json=JOB, headers={"X-Duly-Actor": wrong})).status_code == 422
    twice = [("X-Duly-Actor", "ada"), ("X-Duly-Actor", "bob")]
    assert (await front_end.post("/jobs", json=JOB, headers=twice)).status_code == 422
    assert len(await entries(front_end)) == 1


async def test_the_local_key_stands_for_the_user_of_the_server(
    store_operations: StoreOperations, tmp_path: Any
) -> None:
    path = tmp_path / "key"
    obtain_key(path)
    app = create_app(store_operations, local_key=LocalKey(path))
    transport = httpx.ASGITransport(app=app)
    headers = {"Authorization": f"Bearer {path.read_text().strip()}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", headers=headers) as client:
        assert (await client.post("/jobs", json=JOB)).status_code == 201
        entry = (await entries(client))[0]
    assert (entry["via"], entry["actor"], entry["key"]) == ("api", os_user(), None)


async def test_an_open_server_names_nobody(store_operations: StoreOperations) -> None:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
        assert (await client.post("/jobs", json=JOB)).status_code == 201
        assert (await client.get("/audit", headers={"X-Duly-Actor": "ada"})).status_code == 403
        entry = (await entries(client))[0]
    assert (entry["via"], entry["actor"], entry["key"]) == ("api", "anybody", None)


async def test_the_client_reads_it_page_by_page(store_operations: StoreOperations, serving: Any) -> None:
    async with serving(store_operations) as url, AsyncClient(url) as client:
        job = await client.submit("report", schedule="every 1h", allow_unknown_handler=True)
        await client.change(job.job_id, priority=7, reason="urgent")
        await client.cancel(job.job_id, reason="gone")
        found = [entry async for entry in client.audit(AuditFilter(job_id=str(job.job_id)))]
        page = await client.audit_page(limit=2)
    assert [(one.action, one.reason) for one in found] == [("cancel", "gone"), ("change", "urgent"), ("submit", None)]
    assert page.items == found[:2]
    assert page.next_cursor is not None
    assert found[0].job_id == job.job_id


async def test_a_pause_over_the_api_ends_when_it_says(store_operations: StoreOperations, serving: Any) -> None:
    until = datetime(2999, 12, 1, 9, tzinfo=UTC)
    async with serving(store_operations) as url, AsyncClient(url) as client:
        job = await client.submit("report", schedule="every 1h", allow_unknown_handler=True)
        paused = await client.pause(job.job_id, reason="holidays", until=until)
        assert (paused.status, paused.status_reason, paused.paused_until) == ("paused", "holidays", until)
        assert (await client.get_job(job.job_id)).paused_until == until
        with pytest.raises(InvalidInput, match="until"):
            await client.pause(job.job_id, until=datetime(2001, 1, 1, tzinfo=UTC))
        async with httpx.AsyncClient(base_url=url) as plain:
            refused = await plain.post(f"/api/v1/jobs/{job.job_id}/pause", json={"until": "soon"})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "until")
        assert (await client.resume(job.job_id, reason="back")).paused_until is None


async def test_dead_letters_over_the_api_have_reasons(
    pool: Pool, store_operations: StoreOperations, serving: Any
) -> None:
    operations = store_operations.for_tenant("default")
    for _ in range(4):
        await operations.submit(JobRequest("report"), allow_unknown_handler=True)
    claimed = (await take(pool)).runs
    error = '{"type": "Boom", "message": "it broke", "traceback": ""}'
    await runs.bury(pool, [Buried(run, 1, 2, error) for run in claimed])
    run_ids = [make_run_id(run.job_id, run.scheduled_at) for run in claimed]
    async with serving(store_operations) as url, AsyncClient(url) as client:
        await client.redrive(run_ids[0], reason="fixed")
        await client.purge(run_ids[1], reason="useless")
        await client.redrive_all(DeadLetterFilter(handler="report"), reason="fixed too")
        await client.purge_all(DeadLetterFilter(handler="report"), reason="nothing is left")
        found = [entry async for entry in client.audit()]
    assert [(one.action, one.object, one.reason) for one in found[::-1]] == [
        ("redrive", run_ids[0], "fixed"), ("purge", run_ids[1], "useless"), ("redrive", None, "fixed too"),
    ]  # fmt: skip
    assert found[0].before is not None
    assert found[0].before["filter"]["handler"] == "report"
