"""The local key: it gives access to its own server, and the SDK's clients send it nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from duly import AsyncClient, Client, local_keys
from duly.api.access import Access
from duly.api.problems import Problem
from duly.api.server import create_app, serve
from duly.config import Settings, load_settings
from duly.errors import ConfigError, Unauthorized
from duly.local_keys import LocalKey, announced, key_file, obtain_key
from duly.operations import StoreOperations
from duly.store.pool import Pool

JOBS = "/api/v1/jobs"
COMMAND: dict[str, Any] = {"name": "x", "handler": {"type": "command", "argv": ["id"]}, "schedule": "every 1h"}


@pytest.fixture
async def closed(pool: Pool, settings: Settings) -> StoreOperations:
    """A store without keys, whose API is not open."""
    return await StoreOperations.open(pool, settings.changed(open_api=False))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(local_keys, "user_home", lambda: tmp_path / "users")
    obtain_key(path := key_file(tmp_path))
    return path


@pytest.fixture
async def client(closed: StoreOperations, file: Path) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(closed, local_key=LocalKey(file)))
    headers = {"Authorization": f"Bearer {obtain_key(file)}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080", headers=headers) as client:
        yield client


async def test_whoever_has_the_local_key_is_admin_of_the_default_tenant(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/v1/stats")).json()["scope"] == "store"
    made = await client.post(JOBS, json=COMMAND)
    assert (made.status_code, made.json()["tenant"]) == (201, "default")
    assert (await client.get("/metrics")).status_code == 200


async def test_without_it_nothing_is_told_but_how_to_get_one(client: httpx.AsyncClient, file: Path) -> None:
    del client.headers["Authorization"]
    for path in (JOBS, "/live", "/metrics", "/api/v1/stats"):
        refused = await client.get(path)
        assert refused.status_code == 401, path
        assert refused.headers["www-authenticate"] == 'Bearer realm="duly"'
        assert "DULY_API_KEY" in refused.json()["detail"]
        assert "the user who started" in refused.json()["detail"]
        assert str(file) not in refused.text
    assert (await client.post(JOBS, json=COMMAND)).status_code == 401
    for path in ("/", "/docs", "/healthz", "/livez", "/readyz", "/startupz", "/api/v1/openapi.json"):
        assert (await client.get(path)).status_code == 200, path
    assert (await client.get("/api/v1/openapi.json")).json()["security"] == [{"apiKey": []}]
    for given in (f"Bearer {obtain_key(file)} x", f"Basic {obtain_key(file)}", f"Bearer {obtain_key(file).upper()}"):
        assert (await client.get(JOBS, headers={"Authorization": given})).status_code == 401
    assert (await client.get(JOBS, params={"key": obtain_key(file)})).status_code == 401


async def test_with_it_foreign_names_and_sites_are_still_refused_until_the_store_has_keys(
    client: httpx.AsyncClient, closed: StoreOperations
) -> None:
    for host in ("evil.example", "127.0.0.1.nip.io", ""):
        for path in ("/", "/healthz", JOBS):
            assert (await client.get(path, headers={"Host": host})).status_code == 421, host
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await client.post(JOBS, json=COMMAND, headers=headers)).status_code == 403
    assert (await client.get(JOBS)).json()["items"] == []


async def test_it_needs_no_word_of_the_store(client: httpx.AsyncClient, closed: StoreOperations, file: Path) -> None:
    async def never(*_: object) -> Any:
        raise AssertionError("the store was asked")

    closed.keys.exist = never  # type: ignore[method-assign]
    closed.keys.authenticate = never  # type: ignore[method-assign, assignment]
    access = Access(closed, local_key=LocalKey(file))
    good = Headers({"authorization": f"Bearer {obtain_key(file)}"})
    assert (await access.admit(good))[0].key_id == "local"
    with pytest.raises(Problem):
        await access.admit(Headers())


async def test_keys_of_the_store_can_be_made_the_only_ones(pool: Pool, database_url: str, file: Path) -> None:
    store_operations = await StoreOperations.open(pool, load_settings(database_url=database_url, require_keys=True))
    transport = httpx.ASGITransport(app=create_app(store_operations, local_key=LocalKey(file)))
    headers = {"Authorization": f"Bearer {obtain_key(file)}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        refused = await client.get(JOBS)
        assert refused.status_code == 401
    with pytest.raises(ConfigError, match="contradict"):
        load_settings(require_keys=True, open_api=True)
    with pytest.raises(ConfigError, match="do not go together"):
        load_settings(allow_commands=True, open_api=True)


@asynccontextmanager
async def _serving(store_operations: StoreOperations, file: Path, host: str = "127.0.0.1") -> AsyncIterator[str]:
    stop = asyncio.Event()
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = create_app(store_operations, local_key=LocalKey(file))
    server = asyncio.create_task(serve(app, host=host, port=0, started=started.set_result, stop=stop))
    server.add_done_callback(lambda _: None if started.done() else started.set_result(""))
    try:
        address = await started
        if not address:
            await server
        yield address
    finally:
        stop.set()
        await asyncio.wait([server])


async def test_beyond_loopback_the_local_key_is_none(closed: StoreOperations, file: Path) -> None:
    with pytest.raises(ConfigError, match="without API keys Duly serves loopback only"):
        async with _serving(closed, file, "0.0.0.0"):
            pass
    key = (await closed.keys.create(role="read")).text
    async with _serving(closed, file, "0.0.0.0") as url, httpx.AsyncClient() as client:
        here = url.replace("0.0.0.0", "127.0.0.1") + JOBS
        assert (await client.get(here, headers={"Authorization": f"Bearer {obtain_key(file)}"})).status_code == 401
        assert (await client.get(here, headers={"Authorization": f"Bearer {key}"})).status_code == 200


class Stranger:
    """Another program that listens on this machine and records what it is sent."""

    def __init__(self) -> None:
        self.heard = b""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()).strip():
            self.heard += line
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        writer.close()


@pytest.fixture
async def stranger() -> AsyncIterator[tuple[Stranger, str]]:
    one = Stranger()
    async with await asyncio.start_server(one.answer, "127.0.0.1", 0) as listening:
        yield one, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_both_clients_find_it_and_show_it_to_no_proxy_and_no_stranger(
    closed: StoreOperations, file: Path, stranger: tuple[Stranger, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    him, his = stranger
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, his)
    for name in ("NO_PROXY", "no_proxy", "DULY_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def ask(url: str) -> Any:
        with Client(url, retries=0) as client:
            return client.stats()

    async with _serving(closed, file) as url:
        with pytest.raises(Unauthorized, match="the user who started"):
            await asyncio.to_thread(ask, url)
        with announced(url, file):
            assert (await asyncio.to_thread(ask, url.replace("127.0.0.1", "localhost"))).jobs == 0
            async with AsyncClient(url) as client:
                assert (await client.stats()).jobs == 0
                file.chmod(0o644)
                with pytest.raises(ConfigError, match="could be read by others"):
                    await client.stats()
                file.chmod(0o600)
            # A server on another port of this machine does not get the key.
            with pytest.raises(Exception, match="not from Duly's API"):
                await asyncio.to_thread(ask, his)
    assert him.heard.startswith(b"GET /api/v1/stats")
    assert b"duly_local_" not in him.heard
    assert him.heard.count(b"GET ") == 1, "the proxies of the environment must not be used"


async def test_a_client_that_lives_on_does_not_show_it_to_who_takes_the_port_next(
    closed: StoreOperations, file: Path, stranger: tuple[Stranger, str]
) -> None:
    him, his = stranger
    async with AsyncClient(his, retries=0) as client:
        with announced(his, file):
            with pytest.raises(Exception, match="not from Duly's API"):
                await client.stats()
            assert b"duly_local_" in him.heard  # while the note is locked, the port belongs to its writer
        him.heard = b""
        with pytest.raises(Exception, match="not from Duly's API"):
            await client.stats()
        assert him.heard
        assert b"duly_local_" not in him.heard
