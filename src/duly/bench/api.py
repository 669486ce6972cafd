"""The HTTP API: single submits beside a bare endpoint with one insert, and bulk submits.

The client is as thin as possible, because it shares the cores: requests are prepared bytes, and of a response only the
length and the status are read.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab
from duly.bench.processes import BenchFailed, Process, as_arguments, running
from duly.bench.server import connect
from duly.bench.statements import bench_statement
from duly.local_keys import key_file, obtain_key

REQUESTS = 6_000
BATCHES = 6
BATCH_JOBS = 10_000
CLIENTS = 16

_BODY = {"name": "Weekly report", "handler": "noop", "payload": {"report_type": "weekly", "n": 12345}}
_BARE_BODY = {"name": "Weekly report", "payload": {"report_type": "weekly", "n": 12345}}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


async def measure(lab: Lab) -> list[Figure]:
    requests, batches = lab.scaled(REQUESTS, least=CLIENTS), lab.scaled(BATCHES)
    single = Figure("api", "submit over HTTP (raw: bare endpoint, one insert)", "/s", goal=Bar(ratio=0.5))
    bulk = Figure("api", f"bulk submit over HTTP, {BATCH_JOBS:,} a request", "/s", goal=Bar(15_000))
    passes = {
        "Duly": partial(_single, lab, "duly", requests, single),
        "a bare endpoint": partial(_single, lab, "bare", requests, single),
        "bulk": partial(_bulk, lab, batches, bulk),
    }
    await lab.in_rounds("api", passes)
    return [single, bulk]


async def _single(lab: Lab, kind: str, requests: int, figure: Figure) -> None:
    async with lab.server.store() as store:
        connection = await connect(store.url)
        try:
            await connection.execute(bench_statement("api_table"))
            port = _free_port()
            profile = lab.profile if kind == "duly" else None
            async with _serving(kind, store.url, port, profile) as (server, key):
                path, body = ("/api/v1/jobs", _BODY) if kind == "duly" else ("/items", _BARE_BODY)
                request = _request(path, body, key)
                await _send(port, request, CLIENTS * 5)  # connections are made, statements prepared
                await lab.server.settle()
                began = time.perf_counter()
                await _send(port, request, requests)
                (figure.duly if kind == "duly" else figure.raw).append(requests / (time.perf_counter() - began))
                await server.end()
            if kind == "duly":
                stored = (await store.outcome()).jobs
            else:
                stored = await connection.fetchval(bench_statement("api_count"))
            if stored != requests + CLIENTS * 5:
                raise BenchFailed(f"{requests + CLIENTS * 5:,} rows should be there ({kind}); there are {stored:,}")
        finally:
            await connection.close()


async def _bulk(lab: Lab, batches: int, figure: Figure) -> None:
    async with lab.server.store() as store:
        port = _free_port()
        async with _serving("duly", store.url, port) as (server, key):
            jobs = [{**_BODY, "payload": {"report_type": "weekly", "n": n}} for n in range(BATCH_JOBS)]
            request = _request("/api/v1/jobs/batch", jobs, key)
            await _send(port, _request("/api/v1/jobs/batch", jobs[:1000], key), 1, clients=1)
            await lab.server.settle()
            began = time.perf_counter()
            await _send(port, request, batches, clients=2)
            figure.duly.append(batches * BATCH_JOBS / (time.perf_counter() - began))
            await server.end()
        stored = (await store.outcome()).jobs
        if stored != batches * BATCH_JOBS + 1000:
            raise BenchFailed(f"{batches * BATCH_JOBS + 1000:,} jobs should be there; there are {stored:,}")


@asynccontextmanager
async def _serving(kind: str, url: str, port: int, profile: Path | None = None) -> AsyncIterator[tuple[Process, str]]:
    """The API process, and the key for its callers; the bare endpoint ignores the key."""
    with TemporaryDirectory(prefix="duly-bench-") as folder:
        file = key_file(Path(folder))
        key = obtain_key(file)
        arguments = as_arguments(database_url=url, port=port, key_file=file, profile=profile)
        async with running("api_process", kind, *arguments, name=f"API ({kind})") as server:
            yield server, key


def _request(path: str, body: object, key: str) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}"
    )
    return head.encode() + b"\r\n\r\n" + content


async def _send(port: int, request: bytes, count: int, *, clients: int = CLIENTS) -> None:
    """Send the same request `count` times, over a few connections that wait for each response."""
    left = count

    async def client() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=8 * 1024 * 1024)
        try:
            while left > 0:
                left -= 1
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if head[9:10] != b"2":
                    raise BenchFailed(f"the API answered {head[9:12].decode()}: {body[:200].decode(errors='replace')}")
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(min(clients, count))))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
