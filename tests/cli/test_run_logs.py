"""`duly run logs`, on the store and through the API, the stream of events, and the clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from duly.client import AsyncClient, Client
from duly.local_keys import key_for
from duly.model import JobRequest, Policy
from duly.operations import Operations
from harness.commands import Ended, Process
from harness.waiting import eventually

TASKS = """
import asyncio
from pathlib import Path

from duly import Duly

app = Duly()


@app.task()
async def talk(ctx) -> None:
    print("first \\x1b[31mred")
    ctx.log.info("second %d", ctx.attempt)
    while ctx.attempt == 1 and not Path("go_on").exists():
        await asyncio.sleep(0.05)
    print("third")
    if ctx.attempt == 1:
        raise ValueError
"""


def of(lines: list[str]) -> list[str]:
    """Lines as `duly run logs` prints them, without their times."""
    return [line if line.startswith("---") else line[13:] for line in lines]


EXPECTED = [
    "stdout  first \\x1b[31mred", "INFO    duly.run: second 1", "stdout  third", "--- attempt 2",
    "stdout  first \\x1b[31mred", "INFO    duly.run: second 2", "stdout  third",
]  # fmt: skip


async def test_followers_read_along_and_end_with_the_run(
    start: Callable[..., Process], duly: Callable[..., Ended], project: Path, operations: Operations
) -> None:
    (project / "talking.py").write_text(TASKS)
    request = JobRequest("talk", policy=Policy(max_retries=1, retry_delay_seconds=0))
    job = (await operations.submit(request, allow_unknown_handler=True)).job_id
    api = start("api", "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    start("worker", "--app", "talking:app", "--quiet")

    async def two_lines() -> bool:
        page = (await operations.runs.page(str(job))).items
        return bool(page) and len((await operations.runs.logs(page[0].run_id)).items) == 2

    await eventually(two_lines, seconds=30)
    run_id = (await operations.runs.page(str(job))).items[0].run_id
    here = start("run", "logs", run_id, "--follow")
    there = start("--url", api, "run", "logs", run_id, "--follow")
    for follower in (here, there):
        follower.wait_for("second 1")
    found = key_for(api)
    assert found is not None
    headers = {"Authorization": f"Bearer {found[1]}", "Accept": "text/event-stream"}
    events: list[str] = []
    async with httpx.AsyncClient(headers=headers, timeout=30) as client:
        address = f"{api}/api/v1/runs/{run_id}/logs"
        async with client.stream("GET", address) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                events.append(line)
                if len(events) == 1:
                    (project / "go_on").touch()
        cursor = next(line.removeprefix("id: ") for line in events if line.startswith("id: "))
        rest = await client.get(address, headers={"Last-Event-ID": cursor})
        unknown = await client.get(address.replace(run_id[:4], "0000"))
    assert unknown.status_code == 404
    data = [json.loads(line.removeprefix("data: ")) for line in events if line.startswith("data: ")]
    assert [one.get("text") for one in data] == [
        "first \x1b[31mred", "second 1", "third", "first \x1b[31mred", "second 2", "third", None,
    ]  # fmt: skip
    assert events[-2:] == ["data: {}", ""] or events[-3:] == ["event: end", "data: {}", ""]
    assert rest.text.count("event: line") == 4
    for follower in (here, there):
        assert follower.end() == 0
        assert of(follower.output) == EXPECTED

    def told_by(*arguments: str) -> Awaitable[Ended]:
        return asyncio.to_thread(duly, *arguments)

    for address_of in ((), ("--url", api)):
        told = await told_by(*address_of, "run", "logs", run_id)
        assert told.code == 0
        assert of(told.out.splitlines()) == EXPECTED
    ended = await told_by("run", "logs", run_id, "--tail", "2", "--json")
    assert [(line["attempt"], line["text"]) for line in ended.lines] == [(2, "second 2"), (2, "third")]
    assert of((await told_by("run", "logs", run_id, "--attempt", "1")).out.splitlines()) == EXPECTED[:3]
    assert (await told_by("run", "logs", "nonsense")).code == 4

    def blocking() -> tuple[list[str], list[str]]:
        with Client(api) as client:
            followed = [line.text for line in client.follow_run_logs(run_id, tail=1)]
            return [line.text for line in client.run_logs(run_id)], followed

    assert await asyncio.to_thread(blocking) == ([one["text"] for one in data[:-1]], ["third"])
    async with AsyncClient(api) as awaited:
        page = await awaited.run_logs_page(run_id, limit=2)
        assert (page.more, page.complete) == (True, False)
        assert [line.number async for line in awaited.follow_run_logs(run_id, attempt=2)] == [1, 2, 3]
