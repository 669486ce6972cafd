"""Keys, roles, tenants and rates: who may do what, on every route there is."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.routing import Route

from duly.api.access import Access
from duly.api.server import create_app, serve
from duly.config import Settings, load_settings
from duly.errors import ConfigError, Permanent
from duly.model import DEFAULT_TENANT, DeadLetterFilter, JobRequest, MonitorDefinition, parse_run_id
from duly.node import running_worker
from duly.operations import Operations, StoreOperations
from duly.store.incidents import Opening, open_many
from duly.store.pool import Pool
from duly.worker.handler.task import Task
from harness.waiting import eventually

JOBS = "/api/v1/jobs"
MINIMAL: dict[str, Any] = {"name": "Weekly report", "handler": "send_report"}
Client = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def app(store_operations: StoreOperations) -> Any:
    return create_app(store_operations)


@pytest.fixture
async def client_of(store_operations: StoreOperations, app: Any) -> AsyncIterator[Client]:
    """Makes a client with a key of its own, or without a key if no tenant is given."""
    async with AsyncExitStack() as stack:

        async def make(tenant: str | None = None, role: Any = "write") -> httpx.AsyncClient:
            headers = {}
            if tenant is not None:
                key = await store_operations.keys.create(tenant=tenant, role=role)
                headers["Authorization"] = f"Bearer {key.text}"
            transport = httpx.ASGITransport(app=app)
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)
            return await stack.enter_async_context(client)

        yield make


def routes_of(app: Any) -> list[tuple[str, str]]:
    """Every method and path that the app itself says it serves."""
    found = []
    stack = list(app.router.routes)
    while stack:
        route = stack.pop()
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        if inner:
            stack.extend(inner)
        elif isinstance(route, Route) or hasattr(route, "path"):
            found += [(method, route.path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return sorted(found)


PUBLIC = {"/", "/docs", "/healthz", "/livez", "/readyz", "/startupz", "/api/v1/openapi.json"}


async def test_with_keys_every_route_that_is_not_meant_for_all_is_401_without_one(
    app: Any, client_of: Client, store_operations: StoreOperations
) -> None:
    await store_operations.keys.create(role="read")
    nobody = await client_of()
    seen = 0
    for method, path in routes_of(app):
        if path in PUBLIC or path.startswith("/static/"):
            assert (await nobody.request(method, path)).status_code == 200, path
            continue
        if path.startswith("/ping/"):
            # The address of a monitor is its own key, and can do nothing but ping it.
            address = path.replace("{outcome}", "start")
            assert (await nobody.request(method, address)).status_code == 404, path
            continue
        seen += 1
        for headers in ({}, {"Authorization": "Bearer duly_nonsense"}, {"Authorization": "Basic eDp5"}):
            response = await nobody.request(method, path, headers=headers)
            assert response.status_code == 401, f"{method} {path}"
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert response.headers["content-type"] == "application/problem+json"
    assert seen >= 24


async def test_with_keys_the_page_has_no_data_and_asks_for_a_key(
    client_of: Client, operations: Operations, store_operations: StoreOperations
) -> None:
    await operations.submit(JobRequest("h", name="secret-report", schedule="every 1h"))
    await store_operations.keys.create(role="read")
    nobody = await client_of()
    assert (await nobody.get("/live")).status_code == 401
    page, script = (await nobody.get("/")).text, (await nobody.get("/static/page.js")).text
    assert "secret-report" not in page
    form = page[page.index('<form id="key-form" hidden>') : page.index("</form>")]
    assert 'type="password"' in form
    assert "duly key create --role read" in form
    # The page keeps the key for this tab only, and sends it in a header only, to its own server only.
    assert re.findall(r"fetch\((.*?),", script) == ['"/live"']
    assert "Authorization: `Bearer ${key}`" in script
    assert "response.status === 401" in script
    assert "localStorage" not in script
    assert "document.cookie" not in script


async def test_a_key_in_the_address_is_no_key(client_of: Client, store_operations: StoreOperations) -> None:
    key = (await store_operations.keys.create(role="admin")).text
    nobody = await client_of()
    for name in ("api_key", "key", "access_token", "authorization"):
        assert (await nobody.get(JOBS, params={name: key})).status_code == 401


async def test_two_keys_at_once_or_a_key_with_more_around_it_are_401(
    client_of: Client, store_operations: StoreOperations
) -> None:
    key = (await store_operations.keys.create(role="admin")).text
    nobody = await client_of()
    assert (await nobody.get(JOBS, headers={"Authorization": f"bearer {key}"})).status_code == 200
    for headers in (
        [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")],
        [("Authorization", f"Bearer {key}x")],
        [("Authorization", f"Bearer {key}, Bearer {key}")],
        [("Authorization", key)],
        [("Authorization", "Bearer " + "x" * 100_000)],
        [("Authorization", "Bearer \u00e9")],
    ):
        raw = [(name.encode(), value.encode()) for name, value in headers]
        assert (await nobody.get(JOBS, headers=httpx.Headers(raw))).status_code == 401, headers[0][1][:60]


READABLE_BY_POST = {"/api/v1/schedules/preview"}


async def test_a_reader_may_look_and_change_nothing(
    app: Any, client_of: Client, operations: Operations, store_operations: StoreOperations
) -> None:
    reader = await client_of("acme", "read")
    job = await store_operations.for_tenant("acme").submit(JobRequest("h", schedule="every 1h"))
    run_id = (await store_operations.for_tenant("acme").jobs.trigger(str(job.job_id))).run_id
    before = await store_operations.for_tenant("acme").jobs.get(str(job.job_id))
    await store_operations.for_tenant("acme").monitors.set("backup", MonitorDefinition("@daily"))
    for method, path in routes_of(app):
        if not path.startswith("/api/") or path in READABLE_BY_POST:
            continue
        address = path.replace("{job_id}", str(job.job_id)).replace("{run_id}", run_id).replace("{slug}", "backup")
        response = await reader.request(method, address, json=None if method in ("GET", "DELETE") else {})
        if method == "GET":
            # No dead letter has this id; every other read is allowed.
            assert response.status_code == (404 if "dead-letters/{" in path else 200), f"{method} {path}"
        else:
            assert response.status_code == 403, f"{method} {path}"
            assert "needs the role write" in response.json()["detail"]
    assert (await reader.post("/api/v1/schedules/preview", json={"schedule": "@daily"})).status_code == 200
    assert await store_operations.for_tenant("acme").jobs.get(str(job.job_id)) == before
    assert (await store_operations.for_tenant("acme").runs.get(run_id)).status == "queued"


async def test_a_404_says_nothing_about_the_tenant_that_has_it(
    client_of: Client, store_operations: StoreOperations
) -> None:
    """The command line names that tenant, but only to those who open the store themselves."""
    submitted = await store_operations.for_tenant("zebra").submit(JobRequest("h", name="striped"))
    job_id = str(submitted.job_id)
    run_id = f"{job_id}-{1 << 62:016x}"
    for role in ("read", "admin"):
        client = await client_of("acme", role)
        for path in (f"jobs/{job_id}", f"jobs/{job_id}/runs", f"runs/{run_id}", f"dead-letters/{run_id}"):
            response = await client.get(f"/api/v1/{path}")
            assert (response.status_code, "zebra" in response.text) == (404, False), path
        listed = await client.get(f"/api/v1/jobs?find={job_id}")
        assert "zebra" not in listed.text


async def test_the_servers_own_user_is_of_the_tenant_of_its_settings(pool: Pool, settings: Settings) -> None:
    store_operations = await StoreOperations.open(pool, settings.changed(tenant="acme"))
    await store_operations.for_tenant("acme").submit(JobRequest("h", name="theirs"))
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        listed = (await client.get(JOBS)).json()["items"]
    assert [job["name"] for job in listed] == ["theirs"]


async def test_another_tenants_ids_are_404_on_every_route_that_takes_one(
    app: Any,
    client_of: Client,
    operations: Operations,
    store_operations: StoreOperations,
    pool: Pool,
    settings: Settings,
) -> None:
    ours = await client_of("ours", "admin")
    theirs = await store_operations.for_tenant("theirs").submit(JobRequest("h", name="theirs", schedule="every 1h"))
    job_id = str(theirs.job_id)
    run_id = (await store_operations.for_tenant("theirs").jobs.trigger(job_id)).run_id
    dead_id = await _dead_letter(pool, store_operations, settings, "theirs")
    before = await store_operations.for_tenant("theirs").jobs.get(job_id)
    await store_operations.for_tenant("theirs").monitors.set("backup", MonitorDefinition("@daily"))
    await open_many(pool, [Opening("theirs", "theirs", "late", "late", "late", job_id=theirs.job_id)])
    [incident] = (await store_operations.for_tenant("theirs").incidents.page()).items
    window = await store_operations.for_tenant("theirs").windows.add(ends_at=datetime(2999, 1, 1, tzinfo=UTC))
    names = {
        "{job_id}": job_id, "{slug}": "backup", "{outcome}": "start", "{incident_id}": str(incident.incident_id),
        "{window_id}": str(window.window_id),
    }  # fmt: skip
    seen = 0
    for method, path in routes_of(app):
        # A PUT makes a monitor of one's own; a ping address names no tenant.
        if "{" not in path or method == "PUT" or path.startswith("/ping/"):
            continue
        for run in (run_id, dead_id):
            address = path.replace("{run_id}", run)
            for name, value in names.items():
                address = address.replace(name, value)
            response = await ours.request(method, address, json=None if method in ("GET", "DELETE") else {})
            assert response.status_code == 404, f"{method} {path}: {response.text}"
            assert "theirs" not in response.text
            seen += 1
    assert seen >= 26
    # Filters, cursors and lists do not show the other tenant's data either.
    filtered = await ours.get("/api/v1/dead-letters", params={"job_id": dead_id[:36]})
    assert filtered.json() == {"items": [], "next_cursor": None}
    swept = await ours.post("/api/v1/dead-letters/redrive", json={"job_id": dead_id[:36]})
    assert swept.json() == {"redriven": 0, "refused": 0, "more": False}
    assert (await ours.post("/api/v1/dead-letters/redrive", json={"all": True})).json()["redriven"] == 0
    for query in ({"job_id": dead_id[:36]}, {"all": "true"}):
        assert (await ours.delete("/api/v1/dead-letters", params=query)).json() == {"purged": 0, "more": False}
    assert (await ours.get(JOBS, params={"cursor": "ffffffff-ffff-ffff-ffff-ffffffffffff"})).json()["items"] == []
    for path in ("/api/v1/forecast", "/live", JOBS, "/api/v1/dead-letters"):
        assert "theirs" not in (await ours.get(path)).text
    # The other tenant's data is unchanged.
    assert await store_operations.for_tenant("theirs").jobs.get(job_id) == before
    assert (await store_operations.for_tenant("theirs").monitors.get("backup")).pings == ()
    assert (await store_operations.for_tenant("theirs").incidents.page()).items == [incident]
    assert await store_operations.for_tenant("theirs").windows.list() == [window]
    assert (await store_operations.for_tenant("theirs").runs.get(run_id)).status == "queued"
    assert await store_operations.for_tenant("theirs").dead_letters.count(DeadLetterFilter()) == 1


async def _dead_letter(pool: Pool, store_operations: StoreOperations, settings: Settings, tenant: str) -> str:
    def fail(ctx: Any) -> None:
        raise Permanent("no")

    await store_operations.for_tenant(tenant).submit(JobRequest("fail", queue="graves"), allow_unknown_handler=True)
    async with running_worker(pool, {"fail": Task("fail", fail)}, settings, queues={"graves": 1}):

        async def is_dead() -> bool:
            return await store_operations.for_tenant(tenant).dead_letters.count() == 1

        await eventually(is_dead)
    run_id = (await store_operations.for_tenant(tenant).dead_letters.page()).items[0].run_id
    assert parse_run_id(run_id) is not None
    return run_id


async def test_inside_a_batch_another_tenants_key_is_just_a_key(client_of: Client, operations: Operations) -> None:
    body = [MINIMAL | {"dedupe_key": "same", "schedule": "every 1h"}]
    ours, theirs = await client_of("ours"), await client_of("theirs")
    first = (await theirs.post(f"{JOBS}/batch", json=body)).json()["items"][0]
    second = (await ours.post(f"{JOBS}/batch", json=body)).json()["items"][0]
    assert (first["status"], second["status"]) == (201, 201)
    assert first["job_id"] != second["job_id"]
    other = [MINIMAL | {"dedupe_key": "same", "schedule": "every 2h"}]
    conflict = (await ours.post(f"{JOBS}/batch", json=other)).json()["items"][0]
    assert conflict["status"] == 409
    assert first["job_id"] not in str(conflict)


async def test_a_tenant_cannot_be_chosen_by_a_request(client_of: Client, operations: Operations) -> None:
    ours = await client_of("ours", "admin")
    job_id = (await ours.post(JOBS, json=MINIMAL | {"schedule": "every 1h"})).json()["job_id"]
    assert (await ours.get(f"{JOBS}/{job_id}")).json()["tenant"] == "ours"
    for response in (
        await ours.post(JOBS, json=MINIMAL | {"tenant": "theirs"}),
        await ours.patch(f"{JOBS}/{job_id}", json={"tenant": "theirs"}),
        await ours.get(JOBS, params={"tenant": "theirs"}),
        await ours.post("/api/v1/dead-letters/redrive", json={"tenant": "theirs"}),
    ):
        assert (response.status_code, response.json()["field"]) == (422, "tenant")
    items = (await ours.post(f"{JOBS}/batch", json=[MINIMAL | {"tenant": "theirs"}])).json()["items"]
    assert (items[0]["status"], items[0]["error"]["field"]) == (422, "tenant")


async def test_only_an_admin_sees_figures_of_the_whole_store(
    client_of: Client, operations: Operations, store_operations: StoreOperations
) -> None:
    for tenant in ("ours", "theirs", "theirs"):
        await store_operations.for_tenant(tenant).submit(JobRequest("h"))
    admin, writer = await client_of("ours", "admin"), await client_of("ours", "write")
    whole, own = (await admin.get("/api/v1/stats")).json(), (await writer.get("/api/v1/stats")).json()
    assert (whole["scope"], whole["queued"]) == ("store", 3)
    assert (own["scope"], own["tenant"], own["queued"], own["jobs"]) == ("tenant", "ours", 1, 1)
    assert (whole["jobs"], whole["jobs_estimated"], whole["at_least"]) == (3, False, [])
    assert (await writer.get("/live")).json()["status"]["counts"]["queued"] == 1
    assert (await admin.get("/live")).json()["status"]["counts"]["queued"] == 3


async def test_past_its_rate_a_key_is_429_and_others_are_not(pool: Pool, database_url: str) -> None:
    settings = load_settings(database_url=database_url, requests_per_second=0.5)
    store_operations = await StoreOperations.open(pool, settings)
    operations = store_operations.for_tenant(DEFAULT_TENANT)
    transport = httpx.ASGITransport(app=create_app(store_operations))
    keys = [(await store_operations.keys.create(role="write")).text for _ in range(2)]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for key in keys:
            headers = {"Authorization": f"Bearer {key}"}
            assert (await client.post(JOBS, json=MINIMAL, headers=headers)).status_code == 201
            refused = await client.post(JOBS, json=MINIMAL, headers=headers)
            assert refused.status_code == 429
            assert refused.json()["type"] == "urn:duly:problem:too-many-requests"
            assert 1 <= int(refused.headers["retry-after"]) <= 2
    assert len((await operations.jobs.page()).items) == 2


async def test_past_a_tenants_limit_nothing_of_a_submit_or_batch_is_stored(pool: Pool, database_url: str) -> None:
    store_operations = await StoreOperations.open(
        pool, load_settings(database_url=database_url, open_api=True, tenant_max_jobs=3)
    )
    transport = httpx.ASGITransport(app=create_app(store_operations))
    job = MINIMAL | {"schedule": "every 1h"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.post(f"{JOBS}/batch", json=[job, job])).status_code == 200
        for query in ("", "?atomic=true"):
            refused = await client.post(f"{JOBS}/batch{query}", json=[job, job])
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:duly:problem:limit-reached")
        assert len((await client.get(JOBS)).json()["items"]) == 2
        assert (await client.post(JOBS, json=job)).status_code == 201
        refused = await client.post(JOBS, json=job)
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:duly:problem:limit-reached")
        assert len((await client.get(JOBS)).json()["items"]) == 3


async def test_the_first_key_closes_a_server_that_runs_and_revoking_the_last_opens_nothing(
    store_operations: StoreOperations, pool: Pool, settings: Settings
) -> None:
    other = await StoreOperations.open(pool, settings)  # stands for another process, which makes the key
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(JOBS)).status_code == 200
        key = await other.keys.create(role="admin")

        async def is_closed() -> bool:
            return (await client.get(JOBS)).status_code == 401

        await eventually(is_closed)
        headers = {"Authorization": f"Bearer {key.text}"}
        assert (await client.get(JOBS, headers=headers)).status_code == 200
        await other.keys.revoke(key.key.key_id)

        async def is_refused() -> bool:
            return (await client.get(JOBS, headers=headers)).status_code == 401

        await eventually(is_refused)
        assert (await client.get(JOBS)).status_code == 401
    fresh = httpx.ASGITransport(app=create_app(await StoreOperations.open(pool, settings)))
    async with httpx.AsyncClient(transport=fresh, base_url="http://localhost") as client:
        assert (await client.get(JOBS)).status_code == 401


async def test_keys_can_be_required_before_there_are_any(pool: Pool, database_url: str) -> None:
    store_operations = await StoreOperations.open(pool, load_settings(database_url=database_url, require_keys=True))
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(JOBS)).status_code == 401
        assert (await client.get("/healthz")).status_code == 200


async def test_a_bind_beyond_loopback_needs_keys_and_then_serves_any_name(
    store_operations: StoreOperations, serving: Any
) -> None:
    with pytest.raises(ConfigError, match="duly key create"):
        await serve(create_app(store_operations), host="0.0.0.0", port=0, stop=asyncio.Event())
    key = (await store_operations.keys.create(role="read")).text
    async with serving(store_operations, "0.0.0.0") as url:
        port = httpx.URL(url).port
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            named = {"Host": "duly.example.org", "Authorization": f"Bearer {key}"}
            assert (await client.get(JOBS, headers=named)).status_code == 200
            assert (await client.get("/healthz", headers={"Host": socket.gethostname()})).status_code == 200
            assert (await client.get(JOBS, headers={"Host": "duly.example.org"})).status_code == 401


async def test_names_can_be_narrowed_by_setting(pool: Pool, database_url: str) -> None:
    settings = load_settings(
        database_url=database_url, require_keys=True, api_hosts="duly.example.org, api.example.org"
    )
    store_operations = await StoreOperations.open(pool, settings)
    key = (await store_operations.keys.create(role="read")).text
    transport = httpx.ASGITransport(app=create_app(store_operations))
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        for host in ("duly.example.org", "API.example.org:443", "127.0.0.1:8080"):
            assert (await client.get(JOBS, headers={"Host": host})).status_code == 200, host
        for host in ("evil.example", "duly.example.org.evil.example", ""):
            assert (await client.get(JOBS, headers={"Host": host})).status_code == 421, host


async def test_while_the_store_is_away_a_key_is_503_and_not_401(client_of: Client, pool: Pool) -> None:
    ours = await client_of("ours")
    assert (await ours.get(JOBS)).status_code == 200
    stranger = await client_of("theirs")
    await pool.close()
    assert (await stranger.get(JOBS)).status_code == 503
    assert (await stranger.get("/healthz")).status_code == 200


async def test_a_server_without_keys_asks_the_store_about_them_once_a_second_at_most(
    store_operations: StoreOperations,
) -> None:
    asked = 0
    ask = store_operations.keys.exist

    async def counted() -> bool:
        nonlocal asked
        asked += 1
        return await ask()

    store_operations.keys.exist = counted  # type: ignore[method-assign]
    access = Access(store_operations, open_to_all=True)
    for _ in range(200):
        assert (await access.admit(Headers()))[0].anybody
    assert asked <= 2
