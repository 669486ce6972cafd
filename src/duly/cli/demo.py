"""The tasks and jobs of `duly up --demo`: an ordinary application, to read and to try things on.

Every job is known by a dedupe key, so starting the demo again brings the same jobs back and makes no new ones.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from duly.app import Duly
from duly.errors import Permanent
from duly.worker.handler.context import Context

if TYPE_CHECKING:
    from duly.model import JobRequest
    from duly.operations import Operations

app = Duly()


@app.task()
async def hello(name: str = "world") -> str:
    """The smallest task: its arguments are the payload's keys, its result is kept with the run."""
    return f"hello, {name}"


@app.task()
def heartbeat() -> None:
    """A task without `async` runs in a thread."""


@app.task()
async def new_york_minute(ctx: Context) -> str:
    """`ctx` knows the occurrence."""
    return f"the occurrence of {ctx.scheduled_at:%H:%M} UTC"


@app.task()
def report(kind: str) -> str:
    """Takes a moment, as real work does."""
    time.sleep(0.3)
    return f"{kind} report written"


# Short delays, so that a viewer sees the retries; the default is 30 s.
@app.task(max_retries=3, retry_backoff="linear", retry_delay_seconds=1)
async def flaky(ctx: Context) -> str:
    """Fails twice and then succeeds, for every occurrence."""
    await asyncio.sleep(0.05)
    if ctx.attempt < 3:
        raise ConnectionError(f"the other side is not there (attempt {ctx.attempt})")
    return "third time lucky"


@app.task(max_retries=2, retry_backoff="linear", retry_delay_seconds=2)
async def doomed(ctx: Context) -> None:
    """Never succeeds: after its last retry the run goes to the dead letters."""
    if ctx.attempt > 2:
        raise Permanent("there is no hope for this one: it goes to the dead letters")
    raise ValueError("this can never work")


async def register_jobs(operations: Operations) -> list[str]:
    """Declare the demo's jobs. The one-offs are planned anew at every start, so that every demo shows them."""
    now = operations.now()
    requests: dict[str, JobRequest] = {
        "hello": app.request(hello, {"name": "Duly"}, run_at=now + timedelta(seconds=0.5), dedupe_key="demo:hello"),
        "heartbeat": app.request(heartbeat, schedule="every 10s", dedupe_key="demo:heartbeat"),
        "flaky": app.request(flaky, schedule="every 20s", dedupe_key="demo:flaky"),
        "doomed": app.request(doomed, run_at=now + timedelta(seconds=3), dedupe_key="demo:doomed"),
        "report": app.request(
            report, {"kind": "weekly"}, run_at=now + timedelta(seconds=15), dedupe_key="demo:report", priority=8
        ),
        "new-york-minute": app.request(
            new_york_minute, schedule="* * * * *", timezone="America/New_York", dedupe_key="demo:new-york-minute"
        ),
    }
    for request in requests.values():
        await operations.declare(request)
    return list(requests)
