"""A measured process's end of the line to the bench: orders come in on stdin, facts go out on stdout, one JSON a line.

When the bench ends, however it ends, stdin ends with it, and so does the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

#: Where a measured process finds the address of its store.
DATABASE_URL = "DULY_DATABASE_URL"
# How exactly the moment of the last count is known.
_LOOK_SECONDS = 0.005


def monotonic_us() -> int:
    """Comparable between the processes of one machine."""
    return time.monotonic_ns() // 1000


def _memory() -> int:
    """Bytes that this process holds in memory, at its most."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


class Parent:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def connect(cls) -> Parent:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    def tell(self, **facts: Any) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    async def released(self) -> bool:
        """Wait for the word to begin; False if the end came instead."""
        self.tell(ready=True)
        return bool(await self._reader.readline())

    async def ended(self) -> None:
        """Wait for the end."""
        while await self._reader.readline():
            pass

    @asynccontextmanager
    async def counting(self, count: Callable[[], int]) -> AsyncIterator[None]:
        """Tell how far the work is whenever that has changed, and at the end what it cost of this process's time."""
        before_ns = time.process_time_ns()
        teller = asyncio.create_task(self._tell_counts(count))
        try:
            yield
        finally:
            teller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await teller
            self.tell(cpu_us=(time.process_time_ns() - before_ns) // 1000, memory=_memory())

    async def _tell_counts(self, count: Callable[[], int]) -> None:
        last = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if (now := count()) != last:
                last = now
                self.tell(count=now, at_us=monotonic_us())
