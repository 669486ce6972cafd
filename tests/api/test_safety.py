"""Access, the headers of every answer, the probes, the live page, and the server around them."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import httpx
import pytest

from duly.api.server import create_app, serve
from duly.config import load_settings
from duly.errors import ConfigError, StoreMismatch
from duly.operations import Operations, StoreOperations
from duly.operations.cluster import ClusterOperations
from duly.operations.jobs import JobOperations
from duly.operations.runs import RunOperations
from duly.store.pool import Pool

JOBS = "/api/v1/jobs"
MINIMAL: dict[str, Any] = {"name": "Weekly report", "handler": "send_report"}
ATTACK = "<img src=x onerror=alert(1)> javascript:alert(2)"


@pytest.fixture
async def client(store_operations: StoreOperations) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        yield client


# Every answer


PATHS = ["/", "/healthz", "/readyz", "/live", "/static/page.js", JOBS, "/nope", f"{JOBS}?x=1"]


async def test_every_answer_carries_the_security_headers(client: httpx.AsyncClient) -> None:
    for path in PATHS:
        response = await client.get(path)
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} <= set(policy.split("; "))
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in response.headers


FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "192.168.0.7",
    "0.0.0.0",
    "evil@localhost",
    "localhost:8080/",
    "[::2]",
    "[fe80::1]:80",
    "notlocalhost",
    "",
    "localhost evil.example",
]


async def test_a_host_that_is_not_loopback_is_refused(client: httpx.AsyncClient) -> None:
    for host in FOREIGN_HOSTS:
        for response in (
            await client.get(JOBS, headers={"Host": host}),
            await client.post(JOBS, json=MINIMAL, headers={"Host": host, "Origin": f"http://{host}"}),
        ):
            assert response.status_code == 421, host
            assert response.headers["content-type"] == "application/problem+json"
            assert "content-security-policy" in response.headers
        assert (await client.get(JOBS)).json()["items"] == []


LOOPBACK_HOSTS = [
    "localhost",
    "LOCALHOST:1",
    "localhost.",
    "duly.localhost:8080",
    "127.0.0.1:8080",
    "127.9.9.9",
    "[::1]:80",
]


async def test_loopback_hosts_are_served(client: httpx.AsyncClient) -> None:
    for host in LOOPBACK_HOSTS:
        assert (await client.get("/healthz", headers={"Host": host})).status_code == 200, host


FOREIGN_SITES: list[dict[str, str]] = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "https://localhost:8080"},
    {"Origin": "http://localhost:8080.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


async def test_a_change_asked_for_by_another_site_is_refused(client: httpx.AsyncClient) -> None:
    for headers in FOREIGN_SITES:
        response = await client.post(JOBS, json=MINIMAL, headers=headers)
        assert response.status_code == 403, headers
        assert response.headers["content-type"] == "application/problem+json"
        assert (await client.get(JOBS, headers=headers)).json()["items"] == []


async def test_a_change_asked_for_by_the_page_itself_or_a_program_is_served(client: httpx.AsyncClient) -> None:
    for headers in ({"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}, {}):
        assert (await client.post(JOBS, json=MINIMAL, headers=headers)).status_code == 201


# Probes


async def test_healthz_answers_while_the_store_is_away_and_readyz_says_that_it_is(
    client: httpx.AsyncClient, pool: Pool
) -> None:
    assert (await client.get("/readyz")).status_code == 200
    await pool.close()
    health = await client.get("/healthz")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert (await client.head("/healthz")).status_code == 200
    for path in ("/readyz", "/live", JOBS):
        response = await client.get(path)
        assert response.status_code == 503, path
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["retry-after"]
        assert "postgres" not in response.text.lower()
    assert (await client.post(JOBS, json=MINIMAL)).status_code == 503


async def test_readyz_is_503_when_the_store_answers_but_is_not_ours(
    client: httpx.AsyncClient, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mismatch(self: Operations) -> bool:
        raise StoreMismatch("the store is newer")

    monkeypatch.setattr(ClusterOperations, "ready", mismatch)
    assert (await client.get("/readyz")).status_code == 503


async def test_a_failure_on_our_side_is_a_500_that_tells_no_internals(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for failure in (RuntimeError("secret detail"), StoreMismatch("secret detail")):

        async def fail(self: Operations, *_: object, failure: Exception = failure, **__: object) -> None:
            raise failure

        monkeypatch.setattr(JobOperations, "page", fail)
        with caplog.at_level(logging.ERROR):
            response = await client.get(JOBS)
        assert response.status_code == 500
        assert response.headers["content-type"] == "application/problem+json"
        assert "secret" not in response.text
        assert "content-security-policy" in response.headers
        assert "secret detail" in caplog.text


async def test_what_is_secret_in_a_handler_is_taken_and_never_shown(
    client: httpx.AsyncClient, store_operations: StoreOperations
) -> None:
    client.headers["Authorization"] = f"Bearer {(await store_operations.keys.create(role='admin')).text}"
    secret = "sEcReT-0123456789"
    handler = {
        "type": "http",
        "url": "https://example.org/hook",
        "headers": {"Cookie": secret, "X-Team": "ops"},
        "secret_headers": {"X-Key": secret},
    }
    command = {"type": "command", "argv": ["backup"], "secret_env": {"KEY": secret}}
    for body in (handler, command):
        created = await client.post(JOBS, json={"name": "n", "handler": body, "schedule": "every 1h"})
        assert created.status_code == 201, created.text
        job_id = created.json()["job_id"]
        for response in (created, await client.get(f"{JOBS}/{job_id}"), await client.get(JOBS)):
            assert '"***"' in response.text
            assert secret not in response.text
    assert secret not in (await client.get("/live")).text


# The page


async def test_markup_in_a_name_is_inert(client: httpx.AsyncClient) -> None:
    body = {"name": ATTACK, "handler": "h", "schedule": "every 1h", "payload": ATTACK, "labels": {"x": ATTACK}}
    created = await client.post(JOBS, json=body)
    for response in (created, await client.get(JOBS), await client.get("/live")):
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert ATTACK in response.text
    # A refusal repeats the text that it refuses, and must be as inert.
    refused = await client.get(f"{JOBS}/{ATTACK}")
    assert (refused.status_code, refused.headers["content-type"]) == (404, "application/problem+json")


def test_the_page_writes_values_as_text_only() -> None:
    script = (files("duly.api") / "static" / "page.js").read_text()
    assert "textContent" in script
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|createContextualFragment|setHTML"
    assert re.search(sinks, script) is None
    assert re.search(r"\beval\s*\(|new Function|javascript:|import\s*\(|\.on[a-z]+\s*=", script) is None
    # The only address made from a value is under our own API, and the value is quoted.
    assert re.findall(r"\.href\s*=\s*(\w+)", script) == ["address"]
    assert "const address = `/api/v1/jobs/${encodeURIComponent(jobId)}${suffix}`;" in script


async def test_the_page_needs_nothing_but_this_server_and_no_inline_code(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {address for address in linked if address.startswith("/static/")} == {
        "/static/icon.svg",
        "/static/page.css",
        "/static/page.js",
    }
    assert all(address.startswith(("/", "#")) for address in linked)
    assert re.search(r"<style|style=|<script(?![^>]*src=)|\son[a-z]+=", page.text) is None
    for address, kind in (("page.js", "text/javascript"), ("page.css", "text/css"), ("icon.svg", "image/svg+xml")):
        response = await client.get(f"/static/{address}")
        assert response.headers["content-type"].startswith(kind)
        assert "url(" not in response.text
        assert "@import" not in response.text
        again = await client.get(f"/static/{address}", headers={"If-None-Match": response.headers["etag"]})
        assert again.status_code == 304


async def test_many_pages_cost_the_store_one_look(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = RunOperations.recent

    async def counted(self: RunOperations, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return await look(self, **options)

    monkeypatch.setattr(RunOperations, "recent", counted)
    responses = await asyncio.gather(*(client.get("/live") for _ in range(20)))
    assert {response.status_code for response in responses} == {200}
    assert looks <= 2


# The server


@asynccontextmanager
async def serving(store_operations: StoreOperations, host: str = "127.0.0.1") -> AsyncIterator[str]:
    stop = asyncio.Event()
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve(create_app(store_operations), host=host, port=0, started=started.set_result, stop=stop)
    )
    server.add_done_callback(lambda ended: None if started.done() else started.cancel())
    try:
        yield await started
    finally:
        stop.set()
        await asyncio.wait_for(server, 10)


async def test_a_real_server_serves_on_a_free_port_and_ends_when_told(store_operations: StoreOperations) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving(store_operations) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        async with httpx.AsyncClient(base_url=url) as client:
            created = await client.post(JOBS, json=MINIMAL)
            assert created.status_code == 201
            assert (await client.get(created.headers["location"])).json() == created.json()
            assert "server" not in created.headers
            assert (await client.get("/")).status_code == 200
            assert (await client.get("/healthz", headers={"Host": "evil.example"})).status_code == 421
    async with httpx.AsyncClient(base_url=url) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/healthz")


async def test_a_client_that_sends_too_much_still_gets_to_read_the_answer(store_operations: StoreOperations) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b"x" * 65_536

    headers = {"Content-Type": "application/json"}
    async with serving(store_operations) as url, httpx.AsyncClient(base_url=url) as client:
        for content in (b"x" * 10_485_760, chunks()):
            response = await client.post(JOBS, content=content, headers=headers)
            assert response.status_code == 413
        assert (await client.get("/healthz")).status_code == 200


async def test_a_head_without_an_end_is_refused_before_it_fills_the_memory(store_operations: StoreOperations) -> None:
    async with serving(store_operations) as url:
        address = httpx.URL(url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        try:
            while sent < 20_000_000 and not reader.at_eof():
                writer.write(b"X-Filler: " + b"x" * 8000 + b"\r\n")
                sent += 8000
                await writer.drain()
                await asyncio.sleep(0)
            answer = await asyncio.wait_for(reader.read(), 30)
            assert answer.startswith(b"HTTP/1.1 4")
        except ConnectionError:
            pass  # the server closed the connection without waiting for the end
        finally:
            writer.close()
        assert sent < 5_000_000
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/healthz", headers={"X-Filler": "x" * 30_000})).status_code == 200


async def test_a_port_that_is_taken_is_said_clearly(store_operations: StoreOperations) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is taken"):
            await serve(create_app(store_operations), host="127.0.0.1", port=port, stop=asyncio.Event())


REACHABLE_HOSTS = ["0.0.0.0", "::", "", "192.0.2.1", "::ffff:192.0.2.1", "8.8.8.8"]


async def test_a_bind_beyond_loopback_is_refused(store_operations: StoreOperations) -> None:
    for host in REACHABLE_HOSTS:
        with pytest.raises(ConfigError, match="without API keys Duly serves loopback only"):
            await serve(create_app(store_operations), host=host, port=0, stop=asyncio.Event())


async def test_localhost_is_a_loopback_bind(store_operations: StoreOperations) -> None:
    async with serving(store_operations, "localhost") as url:
        assert httpx.URL(url).host in ("127.0.0.1", "::1")


async def test_a_port_that_is_none_is_said_clearly(store_operations: StoreOperations) -> None:
    with pytest.raises(ConfigError, match="port must be 0 to 65535"):
        await serve(create_app(store_operations), host="127.0.0.1", port=70_000, stop=asyncio.Event())


def test_without_fastapi_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['fastapi'] = None; import duly.api.server"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "MissingExtra: the HTTP API needs an extra: pip install 'duly[api]'" in ended.stderr


async def test_a_larger_payload_setting_makes_room_for_larger_bodies(pool: Pool, database_url: str) -> None:
    settings = load_settings(database_url=database_url, open_api=True, payload_max_bytes=1_000_000)
    app = create_app(await StoreOperations.open(pool, settings))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://[::1]") as client:
        response = await client.post(JOBS, json=MINIMAL | {"payload": "x" * 900_000})
        assert response.status_code == 201
