"""The memory of the API's process while several clients ask for more than it could hold at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx

from duly.config import Settings
from duly.operations import StoreOperations
from duly.store.pool import Pool
from harness.commands import Process

# 255 MiB of payloads. A list of them all once took 1.25 GB, three at once 1.7.
JOBS = 1_020
CLIENTS = 4
PAGES = 3
MOST_MEGABYTES = 400

_FILL = """
insert into duly.jobs (job_id, created_at, updated_at, last_run_at, shard, priority, status, kind, tenant, name, queue,
    handler, schedule, timezone, payload)
select duly.new_job_id(now()), now(), now(), now(), 0, 5, 'ended', 'once', 'default', 'large', 'default', 'noop', 'now',
    'UTC', to_jsonb(repeat('x', 262000))
from generate_series(1, $1::int)
"""


async def test_lists_of_large_payloads_leave_the_process_small(
    start: Callable[..., Process], pool: Pool, settings: Settings
) -> None:
    await pool.query(_FILL, JOBS)
    store_operations = await StoreOperations.open(pool, settings)
    key = (await store_operations.keys.create(role="read", tenant="default")).text
    process = start("api", "--port", "0")
    url = process.wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]

    async def walk(client: httpx.AsyncClient) -> None:
        cursor: dict[str, str] = {}
        for _ in range(PAGES):
            answer = await client.get("/api/v1/jobs", params={"limit": "1000", "payload": "true", **cursor})
            assert answer.status_code == 200, answer.text[:500]
            assert 4_000_000 < len(answer.content) < 5_000_000
            cursor = {"cursor": answer.json()["next_cursor"]}

    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        await asyncio.gather(*(walk(client) for _ in range(CLIENTS)))
    said = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in said.splitlines() if line.startswith("VmHWM:")) / 1024
    assert peak < MOST_MEGABYTES, f"{peak:.0f} MB"
