"""Every caller on every route of the API's own description: no caller can do more than the role allows or see anything
of another tenant, and a route that does not declare its roles cannot exist."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.api import guard
from duly.api.access import needs
from duly.api.declared import ROLES_FIELD, DeclaredRoute, declared_page
from duly.api.server import create_app
from duly.config import Settings
from duly.errors import Permanent
from duly.model import JobRequest, MonitorDefinition
from duly.node import running_worker
from duly.operations import Operations, StoreOperations
from duly.operations.rights import ROLES
from duly.store.pool import Pool
from duly.worker.handler.task import Task
from harness.waiting import eventually

# Part of every text of tenant b: an answer that contains it shows b's data.
MARKER = "zebra"
LOOKING = ["read", "write", "operator", "admin"]
CHANGING = ["write", "operator", "admin"]
WATCHING = ["admin", "monitor"]
#: Roles of the calls that differ from the others: every other GET is for LOOKING, and all other calls change data.
#: The roles are repeated here so that a wrong declaration of a route is noticed.
READS = {
    ("GET", "/live"): LOOKING,
    ("GET", "/metrics"): WATCHING,
    ("GET", "/api/v1/stats"): [*LOOKING, "monitor"],
    ("POST", "/api/v1/schedules/preview"): LOOKING,
}


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    roles: list[str]
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()

    def expected_roles(self) -> list[str]:
        return READS.get((self.method, self.path), LOOKING if self.method == "GET" else CHANGING)


def calls_of(app: Any) -> list[Call]:
    """The calls in the description, and the two pages that are not in it."""
    calls = []
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {}).get("example")
            query: tuple[tuple[str, str], ...] = ()
            if operation["operationId"] == "redrive_dead_letters":
                body = {"all": True}
            elif operation["operationId"] == "purge_dead_letters":
                query = (("all", "true"),)
            calls.append(Call(method.upper(), path, operation[ROLES_FIELD], body, query))
    return [*calls, Call("GET", "/live", LOOKING), Call("GET", "/metrics", WATCHING)]


@dataclass(frozen=True)
class Theirs:
    """The ids of tenant b's data."""

    job_id: str
    run_id: str
    dead_id: str
    slug: str = "theirs"


@pytest.fixture
async def theirs(store_operations: StoreOperations, pool: Pool, settings: Settings) -> Theirs:
    def fail(ctx: Any) -> None:
        raise Permanent(f"{MARKER} error")

    labels = {MARKER: MARKER}
    operations = store_operations.for_tenant("b")
    job = await operations.submit(
        JobRequest("h", name=f"{MARKER} job", payload={"m": MARKER}, schedule="every 1h", labels=labels)
    )
    run_id = (await operations.jobs.trigger(str(job.job_id))).run_id
    lost = JobRequest("fail", name=f"{MARKER} lost", payload=MARKER, queue="graves")
    await operations.submit(lost, allow_unknown_handler=True)
    tasks = {name: Task(name, fail) for name in ("fail", "send_report")}  # `send_report` is the handler of the examples
    async with running_worker(pool, tasks, settings, queues={"graves": 1}):

        async def is_dead() -> bool:
            return await operations.dead_letters.count() == 1

        await eventually(is_dead)
    dead_id = (await operations.dead_letters.page()).items[0].run_id
    await operations.monitors.set(Theirs.slug, MonitorDefinition("@yearly", description=MARKER))
    return Theirs(str(job.job_id), run_id, dead_id)


async def _state_of_b(store_operations: StoreOperations) -> list[Any]:
    operations = store_operations.for_tenant("b")
    jobs = await operations.jobs.page()
    runs = [await operations.runs.page(str(job.job_id)) for job in jobs.items]
    return [jobs, runs, await operations.dead_letters.page(), await operations.monitors.get(Theirs.slug)]


@pytest.fixture
async def callers(
    store_operations: StoreOperations, pool: Pool
) -> AsyncIterator[dict[str, tuple[str | None, httpx.AsyncClient]]]:
    """Callers by name: the role, or None without a valid key, and the client."""
    app = create_app(store_operations)
    keys: dict[str, tuple[str | None, str | None]] = {"nobody": (None, None), "nonsense": (None, "duly_nonsense")}
    for role in ROLES:
        tenant = None if role == "monitor" else "a"
        keys[f"a {role}"] = role, (await store_operations.keys.create(tenant=tenant, role=role)).text
        revoked = await store_operations.keys.create(tenant=tenant, role=role)
        await store_operations.keys.revoke(revoked.key.key_id)
        keys[f"revoked {role}"] = None, revoked.text
        expired = await store_operations.keys.create(tenant=tenant, role=role, expires_in=timedelta(days=1))
        late = "update duly.api_keys set expires_at = created_at - interval '1 second' where key_id = $1"
        await pool.query(late, expired.key.key_id)
        keys[f"expired {role}"] = None, expired.text
        if role != "monitor":
            keys[f"b {role}"] = role, (await store_operations.keys.create(tenant="b", role=role)).text
    async with AsyncExitStack() as stack:
        made = {}
        for name, (role_held, text) in keys.items():
            headers = {} if text is None else {"Authorization": f"Bearer {text}"}
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app), base_url="http://localhost", headers=headers
            )
            made[name] = role_held, await stack.enter_async_context(client)
        yield made


async def _answer(client: httpx.AsyncClient, call: Call, theirs: Theirs, *, run_id: str) -> httpx.Response:
    path = call.path.replace("{job_id}", theirs.job_id).replace("{run_id}", run_id).replace("{outcome}", "start")
    path = path.replace("{slug}", "own" if call.method == "PUT" else theirs.slug)
    content = None if call.body is None else json.dumps(call.body).encode()
    headers = {} if content is None else {"Content-Type": "application/json"}
    return await client.request(call.method, path, params=call.query, content=content, headers=headers)


async def test_every_caller_on_every_route_gets_what_the_role_allows_and_nothing_of_others(
    operations: Operations,
    store_operations: StoreOperations,
    theirs: Theirs,
    callers: dict[str, tuple[str | None, httpx.AsyncClient]],
) -> None:
    app = create_app(store_operations)
    before = await _state_of_b(store_operations)
    seen = 0
    for call in calls_of(app):
        assert call.roles == call.expected_roles(), f"{call.method} {call.path} is declared for {call.roles}"
        ids = (theirs.run_id, theirs.dead_id) if "{run_id}" in call.path else ("",)
        for name, (role, client) in callers.items():
            if name.startswith("b ") and role in call.roles:
                continue  # b's own data
            for run_id in ids:
                response = await _answer(client, call, theirs, run_id=run_id)
                told = f"{name}: {call.method} {call.path}: {response.status_code} {response.text[:300]}"
                seen += 1
                if role is None:
                    assert response.status_code == 401, told
                elif role not in call.roles:
                    assert response.status_code == 403, told
                elif "{" in call.path and call.method != "PUT":  # which makes a's own
                    assert response.status_code == 404, told
                else:
                    assert response.status_code in (200, 201, 204), told
                assert MARKER not in response.text, told
    assert seen >= 500
    assert await _state_of_b(store_operations) == before
    # The ids were right: with them b finds its own data.
    for call in calls_of(app):
        for name, (role, client) in callers.items():
            if name.startswith("b ") and role in call.roles and call.method == "GET":
                run_id = theirs.dead_id if "dead-letters" in call.path else theirs.run_id
                response = await _answer(client, call, theirs, run_id=run_id)
                assert response.status_code == 200, f"{name}: {call.path}"


def _all_routes(app: Any) -> list[Any]:
    found, stack = [], list(app.router.routes)
    while stack:
        route = stack.pop()
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        if inner:
            stack.extend(inner)
        else:
            found.append(route)
    return found


async def test_a_route_that_does_not_say_whom_it_is_for_cannot_be_added() -> None:
    async def undeclared(request: Request) -> Response:
        return Response("for whom?")

    with pytest.raises(TypeError, match="undeclared does not declare its roles"):
        APIRouter(route_class=DeclaredRoute).add_api_route("/x", undeclared)
    with pytest.raises(TypeError, match="undeclared does not declare its roles"):
        declared_page("/x", undeclared)
    needs("read")(undeclared)
    assert isinstance(declared_page("/x", undeclared), Route)


async def test_every_route_is_declared_or_is_the_description_and_the_guard_knows_the_same_public_ones(
    store_operations: StoreOperations,
) -> None:
    """Finds a route that was added without a declaration, and a public path that needs a role."""
    app = create_app(store_operations)
    in_matrix = {(call.method, call.path) for call in calls_of(app)}
    for route in _all_routes(app):
        public = route.path in guard._PUBLIC or route.path.startswith(guard._PUBLIC_FOLDERS)
        if not public:
            assert {(method, route.path) for method in route.methods if method != "HEAD"} <= in_matrix, route.path
        if isinstance(route, DeclaredRoute):
            assert not public, route.path
        elif route.path == "/api/v1/openapi.json":
            assert public
        else:
            assert (route.endpoint.__name__ == "call_allowed") == (not public), route.path
