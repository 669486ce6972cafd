"""Monitors over HTTP: their definitions, pings with a key, and the address that needs none."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.conftest import Serving
from duly.api.server import create_app
from duly.client import AsyncClient
from duly.errors import NotFound, StoreBusy
from duly.operations import Operations, StoreOperations
from duly.operations.monitors import PingDoor
from duly.store.pool import Pool
from harness.worker import Workbench

MONITORS = "/api/v1/monitors"
NIGHTLY = {"schedule": "0 3 * * *", "timezone": "Europe/Berlin", "grace_seconds": 900, "max_runtime_seconds": 3600}


@pytest.fixture
async def client(store_operations: StoreOperations) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def made(client: httpx.AsyncClient, slug: str = "nightly", **fields: Any) -> dict[str, Any]:
    response = await client.put(f"{MONITORS}/{slug}", json=NIGHTLY | fields)
    assert response.status_code == 201, response.text
    return dict(response.json())


async def events(client: httpx.AsyncClient, slug: str = "nightly") -> list[tuple[str, int | None, str | None]]:
    """The pings of a monitor, oldest first."""
    pings = (await client.get(f"{MONITORS}/{slug}")).json()["pings"]
    return [(one["event"], one["exit_status"], one["note"]) for one in reversed(pings)]


async def test_a_monitor_is_made_changed_listed_shown_and_removed(client: httpx.AsyncClient) -> None:
    new = await made(client, description="pg_dump on db1")
    assert {name: new[name] for name in (*NIGHTLY, "description", "state", "pings", "why")} == {
        **NIGHTLY, "description": "pg_dump on db1", "state": "new", "pings": [], "why": None,
    }  # fmt: skip
    assert new["ping_path"].startswith("/ping/")
    changed = await client.put(f"{MONITORS}/nightly", json={"schedule": "every 15m"})
    assert changed.status_code == 200
    shown = changed.json()
    assert (shown["schedule"], shown["timezone"], shown["grace_seconds"], shown["description"]) == (
        "every 15m", "UTC", 300, None,
    )  # fmt: skip
    # An address is shown when it is made and never again.
    assert shown["ping_path"] is None
    assert (await client.get(f"{MONITORS}/nightly")).json()["ping_path"] is None
    for slug in ("a", "b"):
        await made(client, slug)
    first = (await client.get(MONITORS, params={"limit": 2})).json()
    assert ([one["slug"] for one in first["items"]], first["next_cursor"]) == (["a", "b"], "b")
    rest = (await client.get(MONITORS, params={"cursor": "b"})).json()
    assert ([one["slug"] for one in rest["items"]], rest["next_cursor"]) == (["nightly"], None)
    assert (await client.delete(f"{MONITORS}/nightly")).status_code == 204
    for method in ("GET", "DELETE"):
        assert (await client.request(method, f"{MONITORS}/nightly")).status_code == 404
    assert (await client.post(f"{MONITORS}/nightly/ping")).status_code == 404


async def test_every_wrong_field_is_named_at_once(client: httpx.AsyncClient) -> None:
    wrong = {"schedule": "61 * * * *", "timezone": "UTC", "grace_seconds": -1, "max_runtime_seconds": 0}
    refused = await client.put(f"{MONITORS}/Nightly!", json=wrong)
    assert refused.status_code == 422
    assert {one["field"] for one in refused.json()["errors"]} == {
        "slug", "schedule", "grace_seconds", "max_runtime_seconds",
    }  # fmt: skip
    for schedule in ("now", "2031-01-01T00:00:00Z", ""):
        refused = await client.put(f"{MONITORS}/nightly", json={"schedule": schedule})
        assert (refused.status_code, refused.json()["field"]) == (422, "schedule")
    for body in ({}, {"schedule": 7}, {"schedule": "@daily", "tenant": "acme"}, {"schedule": "@daily", "token": "x"}):
        assert (await client.put(f"{MONITORS}/nightly", json=body)).status_code == 422
    await made(client)
    for path in ("/ping/256", "/ping/-1", "/ping/stop", "/ping?rid=a%20b", "/ping?note=x"):
        assert (await client.post(f"{MONITORS}/nightly{path}")).status_code == 422
    assert await events(client) == []


async def test_pings_with_a_key_have_all_forms(client: httpx.AsyncClient) -> None:
    await made(client)
    for path, body in (("", b"12 GB\n"), ("/start", b""), ("/fail", b"\xff broke \x00"), ("/0", b""), ("/3", b"")):
        response = await client.post(f"{MONITORS}/nightly/ping{path}", content=body)
        assert (response.status_code, response.content) == (204, b"")
    assert await events(client) == [
        ("success", None, "12 GB"), ("start", None, None), ("failure", None, "\ufffd broke \ufffd"),
        ("success", 0, None), ("failure", 3, None),
    ]  # fmt: skip
    assert (await client.get(f"{MONITORS}/nightly")).json()["state"] == "down"
    # With a key's authority a GET changes nothing: a page of another site may cause one.
    assert (await client.get(f"{MONITORS}/nightly/ping")).status_code == 405
    large = await client.post(f"{MONITORS}/nightly/ping", content=b"x" * 100_000)
    assert large.status_code == 413


async def test_the_ping_address_needs_no_key_and_can_do_nothing_else(
    client: httpx.AsyncClient, store_operations: StoreOperations
) -> None:
    path = (await made(client))["ping_path"]
    await store_operations.keys.create(role="read")  # from now on everything else needs a key
    for method, end in (("GET", ""), ("POST", "/start"), ("HEAD", ""), ("GET", "/fail"), ("POST", "/7")):
        response = await client.request(method, path + end, params={"rid": "r-1"})
        assert response.status_code == 200, response.text
        assert response.text == ("" if method == "HEAD" else "OK\n")
    pings = (await store_operations.for_tenant("default").monitors.get("nightly")).pings
    assert [ping.event for ping in reversed(pings)] == ["success", "start", "success", "failure", "failure"]
    for wrong in ("/ping/nightly", "/ping/" + "x" * 32, path[:-1], path + "x"):
        assert (await client.get(wrong)).status_code == 404
    for wrong in (path + "/stop", path + "/256", path + "?note=x"):
        assert (await client.get(wrong)).status_code == 422
    for method in ("PUT", "DELETE"):
        assert (await client.request(method, path)).status_code == 405


async def test_a_ping_address_is_not_in_the_log_of_a_failure(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = (await made(client))["ping_path"]

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(PingDoor, "ping", fail)
    assert (await client.get(path)).status_code == 500
    assert "GET /ping/*** failed" in caplog.text
    assert path.rpartition("/")[2] not in caplog.text


async def test_a_new_token_replaces_the_old_one(client: httpx.AsyncClient) -> None:
    old = (await made(client))["ping_path"]
    changed = (await client.put(f"{MONITORS}/nightly", json=NIGHTLY | {"new_token": True})).json()
    assert changed["ping_path"] not in (None, old)
    assert (await client.get(old)).status_code == 404
    assert (await client.get(changed["ping_path"])).status_code == 200


async def test_monitors_of_another_tenant_do_not_exist(
    client: httpx.AsyncClient, store_operations: StoreOperations
) -> None:
    await made(client)
    acme = store_operations.for_tenant("acme").monitors
    assert (await acme.page()).items == []
    for attempt in (acme.get("nightly"), acme.ping("nightly"), acme.remove("nightly")):
        with pytest.raises(NotFound):
            await attempt
    assert await events(client) == []


async def test_guessing_is_slow_and_a_flood_of_one_address_does_not_reach_the_store(
    pool: Pool, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.model import MonitorDefinition

    monitor, _ = await operations.monitors.set("nightly", MonitorDefinition("@daily"))
    assert monitor.ping_path is not None
    token = monitor.ping_path.rpartition("/")[2]
    now = [0]
    door = PingDoor(pool, lambda: now[0])
    nothing: dict[str, Any] = {"rid": None, "exit_status": None, "note": None}
    await door.ping(token, "success", **nothing)
    for number in range(50):
        with pytest.raises(NotFound):
            await door.ping(f"{number:032}", "success", **nothing)
    with pytest.raises(StoreBusy, match="too many pings"):
        await door.ping("y" * 32, "success", **nothing)
    # A known address is not held up by the guesses of others.
    for _ in range(10):
        await door.ping(token, "success", **nothing)
    with pytest.raises(StoreBusy):
        await door.ping(token, "success", **nothing)
    now[0] += 1_000_000
    await door.ping(token, "success", **nothing)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_a_line_of_a_crontab_pings(
    store_operations: StoreOperations, operations: Operations, serving: Serving
) -> None:
    async with serving(store_operations) as url, AsyncClient(url) as client:
        monitor = await client.set_monitor("nightly", "0 3 * * *", max_runtime_seconds=60)
        address = f"{url}{monitor.ping_path}"
        script = f"curl -fsS -m 10 -o /dev/null {address}/start; (echo gone; exit 3) >out 2>&1; "
        script += f"curl -fsS -m 10 -o /dev/null --data-binary @out {address}/$?; rm out; curl -fsS {address}"
        started = time.monotonic()
        shell = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE)
        out, _ = await shell.communicate()
        assert (shell.returncode, out) == (0, b"OK\n"), time.monotonic() - started
        found = await client.get_monitor("nightly")
        assert [(one.event, one.exit_status, one.note) for one in reversed(found.pings)] == [
            ("start", None, None), ("failure", 3, "gone"), ("success", None, None),
        ]  # fmt: skip
        await client.ping_monitor_outcome("nightly", 4, note="it broke", rid="x")
        await client.ping_monitor("nightly", rid="x")
        assert [one.slug async for one in client.monitors()] == ["nightly"]
        assert (await client.get_monitor("nightly")).state == "up"
        await client.remove_monitor("nightly")
        with pytest.raises(NotFound):
            await client.get_monitor("nightly")


async def test_the_runs_of_a_job_ping_a_monitor_of_another_duly(
    store_operations: StoreOperations, operations: Operations, serving: Serving, bench: Workbench
) -> None:
    """`ping_url` speaks the form that the ping addresses of monitors understand, with notes about retries."""
    bench.settings = bench.settings.model_copy(update={"egress_allow": "127.0.0.1"})
    failed: list[int] = []

    @bench.app.task(max_retries=1, retry_backoff="immediate")
    async def shaky() -> None:
        if not failed:
            failed.append(1)
            raise ValueError

    async with serving(store_operations) as url, AsyncClient(url) as client:
        monitor = await client.set_monitor("shaky", "@daily", max_runtime_seconds=60)
        async with bench.working() as worker:
            await bench.succeeded(await bench.submit(shaky, ping_url=f"{url}{monitor.ping_path}"))
        assert worker._pings is not None
        assert (worker._pings.sent, worker._pings.failed) == (4, 0)
        found = await client.get_monitor("shaky")
        assert [one.event for one in reversed(found.pings)] == ["start", "note", "start", "success"]
        assert (found.state, found.running, len({one.rid for one in found.pings})) == ("up", 0, 1)
