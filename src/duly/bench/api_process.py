"""The API as users serve it, or a bare endpoint that does one insert: the same server around both.

`python -m duly.bench.api_process duly|bare --port …`, started by the bench.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
from fastapi import FastAPI
from pydantic import BaseModel

from duly.api.server import create_app, serve
from duly.bench.child import DATABASE_URL, Parent
from duly.bench.server import bench_settings
from duly.bench.statements import bench_statement
from duly.bench.worker_process import profiled
from duly.local_keys import LocalKey
from duly.operations import StoreOperations
from duly.process import run
from duly.store.pool import Pool, connection_options


class Item(BaseModel):
    """The body of a request to the bare endpoint."""

    name: str
    payload: dict[str, Any]


@asynccontextmanager
async def bare(url: str, connections: int) -> AsyncIterator[FastAPI]:
    """The ten lines that anyone would write."""
    pool = await asyncpg.create_pool(url, min_size=connections, max_size=connections, **connection_options(url))
    insert = bench_statement("api_insert")
    app = FastAPI(openapi_url=None)

    @app.post("/items", status_code=201)
    async def create(item: Item) -> dict[str, str]:
        item_id = uuid4()
        await pool.execute(insert, item_id, item.name, json.dumps(item.payload))
        return {"id": str(item_id)}

    try:
        yield app
    finally:
        await pool.close()


@asynccontextmanager
async def ours(url: str, connections: int, key_file: Path) -> AsyncIterator[FastAPI]:
    """The API as `duly up` serves it, with the local key."""
    pool = await Pool.connect(url, size=connections)
    try:
        operations = await StoreOperations.open(pool, bench_settings(url), local_handlers=["noop"])
        yield create_app(operations, local_key=LocalKey(key_file))
    finally:
        await pool.close()


async def answer(kind: str, url: str, port: int, connections: int, key_file: Path, profile: Path | None) -> None:
    parent = await Parent.connect()
    stop = asyncio.Event()
    async with ours(url, connections, key_file) if kind == "duly" else bare(url, connections) as app:
        serving = asyncio.create_task(
            serve(app, host="127.0.0.1", port=port, started=lambda _: parent.tell(ready=True), stop=stop)
        )
        with profiled(profile):
            ended = asyncio.create_task(parent.ended())
            await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        ended.cancel()
        with suppress(asyncio.CancelledError):
            await ended
        await serving


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("duly", "bare"))
    parser.set_defaults(database_url=os.environ[DATABASE_URL])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=bench_settings("").pool_size)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    run(lambda: answer(given.kind, given.database_url, given.port, given.connections, given.key_file, given.profile))


if __name__ == "__main__":
    main()
