"""The measured process's end of its channel to the bench: orders come on stdin, facts go out on stdout, as JSON lines.

However the bench ends, its end of stdin is closed, and the process ends too.
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

#: Environment variable with the address of a measured process's store.
DATABASE_URL = "DULY_DATABASE_URL"
# Interval of counting: the precision of the time of the last count.
_LOOK_SECONDS = 0.005


def monotonic_us() -> int:
    """Monotonic time in µs, comparable between the processes of one machine."""
    return time.monotonic_ns() // 1000


def _memory() -> int:
    """The peak memory of this process in bytes."""
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
        """Wait for the order to begin; False if stdin was closed instead."""
        self.tell(ready=True)
        return bool(await self._reader.readline())

    async def ended(self) -> None:
        """Wait until stdin is closed."""
        while await self._reader.readline():
            pass

    @asynccontextmanager
    async def counting(self, count: Callable[[], int]) -> AsyncIterator[None]:
        """Report the count whenever it has changed, and at the end the CPU time of this process."""
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
