"""`duly api` serves the API alone."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import urllib.request
from collections.abc import Callable

from duly import AsyncClient, Client
from duly.local_keys import key_for
from duly.store.pool import Pool
from harness.commands import Process
from harness.waiting import eventually

Start = Callable[..., Process]


def test_the_api_is_served_until_a_signal_and_nothing_else_is(start: Start) -> None:
    process = start("api", "--port", "0")
    url = process.wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    with urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
        assert answer.status == 200
    found = key_for(url)
    assert found is not None
    asked = urllib.request.Request(f"{url}/api/v1/cluster", headers={"Authorization": f"Bearer {found[1]}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        cluster = json.load(answer)
    assert (cluster["nodes"], cluster["workers"]) == ([], [])
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.said


def test_beyond_loopback_it_wants_keys_and_a_taken_port_is_said_to_be_so(start: Start) -> None:
    open_to_all = start("api", "--host", "0.0.0.0", "--port", "0")
    assert open_to_all.end() == 2
    assert "key" in open_to_all.said
    assert "Traceback" not in open_to_all.said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("api", "--port", str(taken.getsockname()[1]))
        assert process.end() == 2
        assert "is taken" in process.said


async def test_clients_outlast_restarts_of_the_api_and_submit_each_job_once(start: Start, pool: Pool) -> None:
    """A deploy stops the API, and a crash kills it; the next one is there seconds later."""
    api = start("api", "--port", "0")
    url = api.wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    port = url.rpartition(":")[2]
    enough = asyncio.Event()
    submitted: list[str] = []

    def blocking() -> None:
        with Client(url) as client:
            number = 0
            while not enough.is_set():
                number += 1
                name = f"blocking-{number}"
                client.submit("later", name=name, schedule="2999-01-01T00:00:00Z", allow_unknown_handler=True)
                submitted.append(name)

    async def awaited() -> None:
        async with AsyncClient(url) as client:
            number = 0
            while not enough.is_set():
                number += 1
                names = [f"awaited-{number}-{part}" for part in range(3)]
                jobs = [{"handler": "later", "name": name, "schedule": "2999-01-01T00:00:00Z"} for name in names]
                await client.submit_many(jobs, allow_unknown_handler=True)
                submitted.extend(names)

    callers = [asyncio.create_task(asyncio.to_thread(blocking)), asyncio.create_task(awaited())]

    async def more() -> None:
        """Waits until both have submitted more."""
        for kind in ("blocking", "awaited"):
            before = sum(name.startswith(kind) for name in submitted)
            await eventually(lambda: sum(name.startswith(kind) for name in submitted) > before + 5, seconds=60)  # noqa: B023

    for number in (signal.SIGKILL, signal.SIGTERM):
        await more()
        api.signal(number)
        await asyncio.to_thread(api.end)
        api = start("api", "--port", port)
    await more()
    enough.set()
    await asyncio.gather(*callers)
    rows = await pool.query("select name from duly.jobs")
    assert sorted(row["name"] for row in rows) == sorted(submitted)
