"""Starts and ends the sink. Handlers find its address in TORTURE_SINK."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

TESTS = Path(__file__).parents[2]
RECORD = "sink.jsonl"


@asynccontextmanager
async def running_sink(folder: Path, listen: str) -> AsyncIterator[str]:
    """Yields the address that handlers call."""
    with (folder / "sink.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "torture.workload.sink", "--record", str(folder / RECORD), "--listen", listen,
            env={**os.environ, "PYTHONPATH": str(TESTS)}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            said = (await process.stdout.readline()).decode().strip()
        if not said:
            raise RuntimeError(f"the sink does not start; see {folder / 'sink.log'}")
        yield said
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
