"""The application of the cluster tests: every execution leaves a line in a file that no fault touches."""

from __future__ import annotations

import asyncio
import os

from duly import Context, Duly

app = Duly()
_sink = os.open(os.environ["SINK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task()
async def record(ctx: Context, seconds: float = 0) -> None:
    # One write with O_APPEND: lines of several processes do not mix.
    os.write(_sink, f"{ctx.run_id} {ctx.attempt} {ctx.fencing_token} {os.getpid()}\n".encode())
    await asyncio.sleep(seconds)
