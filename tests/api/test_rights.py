"""The commands that a role may use, and the view of the role that only watches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from duly.api.server import create_app
from duly.errors import InvalidInput
from duly.model import JobRequest
from duly.operations import Operations, StoreOperations
from duly.store import cluster
from duly.store.pool import Pool

JOBS = "/api/v1/jobs"
COMMAND: dict[str, Any] = {"name": "backup", "handler": {"type": "command", "argv": ["id"]}, "schedule": "every 1h"}
Client = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def client_of(store_operations: StoreOperations) -> AsyncIterator[Client]:
    app = create_app(store_operations)
    async with AsyncExitStack() as stack:

        async def make(role: Any, tenant: str | None = "acme") -> httpx.AsyncClient:
            key = await store_operations.keys.create(tenant=tenant, role=role)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app),
                base_url="http://localhost",
                headers={"Authorization": f"Bearer {key.text}"},
            )
            return await stack.enter_async_context(client)

        yield make


def _is_refused(response: httpx.Response, doing: str) -> None:
    document = response.json()
    assert response.status_code == 403, response.text
    assert document["detail"] == f"handler: {doing} a command needs the role operator"
    assert document["field"] == "handler"


async def test_a_writer_submits_no_command_alone_or_in_a_batch(
    client_of: Client, operations: Operations, store_operations: StoreOperations
) -> None:
    writer = await client_of("write")
    _is_refused(await writer.post(JOBS, json=COMMAND), "submitting")
    both = [{"name": "fine", "handler": "h"}, COMMAND]
    items = (await writer.post(f"{JOBS}/batch", json=both)).json()["items"]
    assert [item["status"] for item in items] == [201, 403]
    assert items[1]["error"]["field"] == "handler"
    atomic = await writer.post(f"{JOBS}/batch?atomic=true", json=both)
    assert (atomic.status_code, atomic.json()["field"]) == (403, "jobs[1].handler")
    assert [job.name for job in (await store_operations.for_tenant("acme").jobs.page()).items] == ["fine"]
    # A call to an HTTP endpoint is not a command.
    hook = {"name": "hook", "handler": {"type": "http", "url": "https://example.org/"}, "schedule": "every 1h"}
    assert (await writer.post(JOBS, json=hook)).status_code == 201


async def test_a_writer_with_a_limited_tenant_submits_no_command_either(
    client_of: Client, store_operations: StoreOperations
) -> None:
    await store_operations.tenants.set("acme", max_jobs=10)
    _is_refused(await (await client_of("write")).post(JOBS, json=COMMAND), "submitting")


async def test_a_writer_makes_no_job_a_command_and_no_submit_of_an_operators_again(
    client_of: Client, operations: Operations, store_operations: StoreOperations
) -> None:
    operator, writer = await client_of("operator"), await client_of("write")
    hook = {"name": "hook", "handler": {"type": "http", "url": "https://example.org/"}, "schedule": "every 1h"}
    path = f"{JOBS}/{(await writer.post(JOBS, json=hook)).json()['job_id']}"
    _is_refused(await writer.patch(path, json={"handler": COMMAND["handler"]}), "submitting")
    assert (await writer.get(path)).json()["handler"]["type"] == "http"
    assert (await operator.patch(path, json={"handler": COMMAND["handler"]})).status_code == 200
    _is_refused(await writer.patch(path, json={"handler": hook["handler"]}), "changing")
    keyed = {**COMMAND, "dedupe_key": "nightly"}
    assert [(await operator.post(JOBS, json=keyed)).status_code for _ in range(2)] == [201, 200]
    _is_refused(await writer.post(JOBS, json=keyed), "submitting")
    _is_refused(await writer.post(JOBS, json=COMMAND, headers={"Idempotency-Key": "nightly"}), "submitting")
    items = (await writer.post(f"{JOBS}/batch", json=[keyed])).json()["items"]
    assert [item["status"] for item in items] == [403]


@pytest.mark.parametrize("role", ["operator", "admin"])
async def test_an_operator_submits_and_changes_commands(client_of: Client, role: str) -> None:
    operator = await client_of(role)
    job = (await operator.post(JOBS, json=COMMAND)).json()
    changed = await operator.patch(f"{JOBS}/{job['job_id']}", json={"payload": {"x": 1}})
    assert (changed.status_code, changed.json()["payload"]) == (200, {"x": 1})
    items = (await operator.post(f"{JOBS}/batch", json=[COMMAND])).json()["items"]
    assert items[0]["status"] == 201


async def test_what_an_operator_vetted_a_writer_may_run_and_stop_but_not_change(client_of: Client) -> None:
    operator, writer = await client_of("operator"), await client_of("write")
    job = (await operator.post(JOBS, json=COMMAND)).json()
    path = f"{JOBS}/{job['job_id']}"
    for change in ({"payload": {"x": 1}}, {"queue": "other"}, {"idempotency_key_template": "x"}, {"name": "x"}):
        _is_refused(await writer.patch(path, json=change), "changing")
    assert (await writer.get(path)).json()["version"] == job["version"]
    assert (await writer.post(f"{path}/trigger")).status_code == 201
    assert (await writer.post(f"{path}/pause")).status_code == 200
    assert (await writer.post(f"{path}/resume")).status_code == 200
    assert (await writer.delete(path)).status_code == 200


async def test_a_monitor_reads_the_whole_stores_figures_and_is_of_no_tenant(
    client_of: Client, operations: Operations, store_operations: StoreOperations
) -> None:
    await store_operations.for_tenant("theirs").submit(JobRequest("h", name="zebra"))
    with pytest.raises(InvalidInput, match="tenant: cannot be given for the role monitor"):
        await store_operations.keys.create(tenant="acme", role="monitor")
    monitor = await client_of("monitor", None)
    figures = (await monitor.get("/api/v1/stats")).json()
    assert (figures["scope"], figures["tenant"], figures["queued"]) == ("store", None, 1)
    assert (await monitor.get("/metrics")).status_code == 200
    for path in ("/live", JOBS, "/api/v1/cluster", "/api/v1/forecast", "/api/v1/dead-letters"):
        refused = await monitor.get(path)
        assert (refused.status_code, "zebra" in refused.text) == (403, False), path


async def test_only_an_admin_is_told_which_tasks_there_are(client_of: Client, pool: Pool) -> None:
    await cluster.offer_handlers(pool, ["zebra_task"])
    misspelt = {"name": "x", "handler": "zebra_tsk"}
    for role in ("write", "operator"):
        client = await client_of(role)
        alone = await client.post(JOBS, json=misspelt)
        assert (alone.status_code, alone.json()["field"]) == (422, "handler")
        assert alone.json()["detail"].startswith("handler: no worker has a task 'zebra_tsk'; start a worker")
        batch = await client.post(f"{JOBS}/batch", json=[misspelt])
        atomic = await client.post(f"{JOBS}/batch?atomic=true", json=[misspelt, {"name": "y", "handler": "zebra"}])
        assert (batch.json()["items"][0]["status"], atomic.status_code) == (422, 422)
        job = (
            await client.post(f"{JOBS}?allow_unknown_handler=true", json={**misspelt, "schedule": "every 1h"})
        ).json()
        changed = await client.patch(f"{JOBS}/{job['job_id']}", json={"handler": "zebra"})
        cluster_seen = await client.get("/api/v1/cluster")
        for answer in (alone, batch, atomic, changed, cluster_seen):
            assert "zebra_task" not in answer.text
    assert "(known: zebra_task)" in (await (await client_of("admin")).post(JOBS, json=misspelt)).json()["detail"]
    with pytest.raises(Exception, match="no worker has a task") as refused:
        await pool.query("select duly.submit('zebra_tsk')")
    assert "zebra_task" not in str(refused.value)
