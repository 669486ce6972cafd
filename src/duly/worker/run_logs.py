"""Keeps what handlers log and print with their runs: lines wait in memory for a moment, and are written in batches.

It is in no run's way: nobody waits for a line to be written, memory is bounded, and what does not fit is left out and
counted. Of each attempt the beginning and the end are kept. Under load only some runs are (`auto`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Literal

from duly.clock import Clock
from duly.errors import DataRefused
from duly.rates import TokenBucket
from duly.service import Service
from duly.store import run_logs
from duly.store.pool import Pool
from duly.store.run_logs import LAST_PART, Part
from duly.worker.handler.errors import clean, cut

if TYPE_CHECKING:
    from duly.worker.execution import Execution

log = logging.getLogger("duly.worker")

Mode = Literal["auto", "on", "off"]
# With `auto`, runs per second and worker process whose lines are kept.
SAMPLED_PER_SECOND = 100.0
# From the first new line to the write: what comes together is written together.
GATHER_SECONDS = 0.25
# Pause between two writes.
PAUSE_SECONDS = 1.0
# Bytes that wait to be written, or may still be dropped for later lines; of all runs of this process.
MAX_HELD_BYTES = 32 * 1024 * 1024
# Beyond this much, lines are written before the pause is over.
MANY_BYTES = 1024 * 1024
# A longer line is cut in the middle; a longer stretch without a line feed becomes several lines.
MAX_LINE_BYTES = 8 * 1024
# Parts and bytes per statement.
_MAX_PARTS = 1_000
_MAX_BYTES = 2 * 1024 * 1024
# A line's share of a run's limit besides its text, about what its number, time and source take.
_LINE_BYTES = 48
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})
_MAX_SOURCES = 1_000
# Pause between two log lines about the same.
_SAY_SECONDS = 60.0
# At the end of the process: time to write the last lines.
_LAST_SECONDS = 3.0

_quoted: Callable[[str], str] = json.encoder.encode_basestring


class _Log:
    """The lines of one attempt."""

    __slots__ = (
        "ended", "execution", "head", "head_last", "head_room", "head_size", "last_line", "part", "partial", "tail",
        "tail_changed", "tail_size",
    )  # fmt: skip

    def __init__(self, execution: Execution, head_room: int) -> None:
        self.execution = execution
        self.head_room = head_room
        # Lines are JSON at once: strings cost Python's garbage collector nothing, as tuples would.
        self.head: list[str] = []
        self.head_size = 0
        self.head_last = 0
        #: Number of parts of the head that have been written.
        self.part = 0
        self.tail: deque[str] | None = None
        self.tail_size = 0
        self.tail_changed = False
        self.last_line = 0
        #: By stream: what was printed since its last line feed.
        self.partial: dict[str, str] = {}
        self.ended = False


class RunLogs(Service):
    """The logs of all runs of this process. `logged`, `printed` and `over` may be called by any thread."""

    interval = 3600.0

    def __init__(self, pool: Pool, clock: Clock, *, mode: Mode, bytes_per_run: int) -> None:
        super().__init__()
        self._pool = pool
        self._clock = clock
        self._half = bytes_per_run // 2
        self._bucket = TokenBucket(SAMPLED_PER_SECOND) if mode == "auto" else None
        self._home = asyncio.get_running_loop()
        self._lock = threading.Lock()
        # Logs with lines, or an end, that have not been written.
        self._changed: dict[_Log, None] = {}
        # Parts whose write failed: they are sent again as they are, before any others.
        self._unwritten: deque[Part] = deque()
        # Bytes in `_changed`, in tails, and in `_unwritten`.
        self._held = 0
        # Bytes of new lines that nothing will replace.
        self._fresh = 0
        self._many = asyncio.Event()
        self._told_many = False
        self._written_at = float("-inf")
        # Names of loggers and streams, as JSON.
        self._sources: dict[str, str] = {}
        self._said_at: dict[str, float] = {}
        #: Number of lines that found no room in memory.
        self.dropped = 0

    # From handlers

    def logged(self, execution: Execution, level: str, source: str, text: str) -> None:
        with self._lock:
            found = execution.log
            if type(found) is not _Log or found.ended:
                found = self._log_of(execution)
            if found is not None:
                self._add(found, level, source, text)

    def printed(self, execution: Execution, stream: str, text: str) -> None:
        with self._lock:
            found = self._log_of(execution)
            if found is None:
                return
            pending = found.partial.get(stream, "")
            if "\n" not in text:
                pending += text
                while len(pending) > MAX_LINE_BYTES:
                    self._add(found, None, stream, pending[:MAX_LINE_BYTES])
                    pending = pending[MAX_LINE_BYTES:]
                found.partial[stream] = pending
                return
            if text == "\n":  # print() writes it by itself
                found.partial[stream] = ""
                self._add(found, None, stream, pending)
                return
            *lines, found.partial[stream] = (pending + text).split("\n")
            if found.tail is not None and len(text) > 2 * self._half:
                # Most of these would be dropped right away.
                kept = _last_lines(lines, self._half)
                found.last_line += len(lines) - len(kept)
                lines = kept
            for line in lines:
                self._add(found, None, stream, line.removesuffix("\r"))

    def over(self, execution: Execution) -> None:
        """The run has been reported; what its handler says from now on is not its own any more."""
        with self._lock:
            found = execution.log
            if not isinstance(found, _Log) or found.ended:
                return
            for stream, rest in found.partial.items():
                if rest:
                    self._add(found, None, stream, rest.removesuffix("\r"))
            found.ended = True
            self._touch(found)

    def _log_of(self, execution: Execution) -> _Log | None:
        found = execution.log
        if found is None:
            if self._bucket is not None and not self._bucket.take(1, time.monotonic_ns() // 1000):
                execution.log = False
                self._say(
                    "sampled",
                    "more than %d runs per second log: the lines of only so many are kept with their runs "
                    "(DULY_RUN_LOGS=on keeps all)",
                    SAMPLED_PER_SECOND,
                )
                return None
            found = execution.log = _Log(execution, self._half)
        return found if isinstance(found, _Log) and not found.ended else None

    def _add(self, found: _Log, level: str | None, source: str, text: str) -> None:
        mask = found.execution.mask
        if mask is not None:
            text = mask.text(text)
        if len(text) > MAX_LINE_BYTES:
            text = cut(text, MAX_LINE_BYTES)
        if "\x00" in text or not text.isascii():
            text = clean(text)
        found.last_line += 1
        told = "null" if level is None else f'"{level}"' if level in _LEVELS else _quoted(level)
        by = self._sources.get(source)
        if by is None:
            by = self._source(source)
        line = f"[{found.last_line},{self._clock.now_us()},{told},{by},{_quoted(text)}]"
        size = _size(line)
        if self._held + size > MAX_HELD_BYTES:
            self.dropped += 1
            self._say("dropped", "lines of runs are left out: those that wait to be written fill their memory")
            return
        self._held += size
        if found.tail is None and size <= found.head_room:
            found.head_room -= size
            found.head.append(line)
            found.head_size += size
            found.head_last = found.last_line
            self._fresh += size
        else:
            if found.tail is None:
                found.tail = deque()
            found.tail.append(line)
            found.tail_size += size
            while found.tail_size > self._half and len(found.tail) > 1:
                gone = _size(found.tail.popleft())
                found.tail_size -= gone
                self._held -= gone
            found.tail_changed = True
        if found not in self._changed or self._fresh > MANY_BYTES:
            self._touch(found)

    def _touch(self, found: _Log) -> None:
        first = not self._changed
        self._changed[found] = None
        if first and not self._home.is_closed():
            self._home.call_soon_threadsafe(self.wake)
        if self._fresh > MANY_BYTES and not self._told_many and not self._home.is_closed():
            self._told_many = True  # once: the loop may have its turn only after many more lines
            self._home.call_soon_threadsafe(self._many.set)

    def _source(self, source: str) -> str:
        if len(self._sources) >= _MAX_SOURCES:
            self._sources.clear()
        self._sources[source] = quoted = _quoted(clean(source[:200]))
        return quoted

    def _say(self, what: str, message: str, *arguments: object) -> None:
        """Says it in the process's log now and then, from the loop: the lock is held here."""
        now = time.monotonic()
        if now - self._said_at.get(what, float("-inf")) >= _SAY_SECONDS and not self._home.is_closed():
            self._said_at[what] = now
            # Not in the context of the run: it is about the process.
            self._home.call_soon_threadsafe(partial(log.warning, message, *arguments), context=Context())

    # Writing, on the loop

    async def run_once(self) -> float | None:
        if self._changed or self._unwritten:
            await self._gather()
            try:
                await self.write()
            finally:
                self._written_at = self._home.time()
        return None

    async def _gather(self) -> None:
        """Waits for more lines, and for the pause after the last write, unless there are many."""
        pause = max(GATHER_SECONDS, self._written_at + PAUSE_SECONDS - self._home.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._many.wait()

    async def stop(self) -> None:
        self._many.set()
        await super().stop()
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self.write()
        except Exception as error:  # noqa: BLE001 - the process ends all the same
            log.warning("the last lines of runs could not be kept: %s", str(error) or type(error).__name__)

    async def write(self) -> None:
        """Writes what there is. Raises what the store raises; nothing is lost then."""
        with self._lock:
            changed, self._changed = self._changed, {}
            self._fresh = 0
            self._told_many = False
            if not self.stopping:
                self._many.clear()
            for found in changed:
                self._unwritten.extend(self._parts_of(found))
        if not self._pool.has_step(run_logs.STEP):
            self._forget(list(self._unwritten))
            return
        while self._unwritten:
            batch = _batch(self._unwritten)
            try:
                await run_logs.write(self._pool, batch)
            except DataRefused as error:
                await self._write_each(batch, error)
            self._forget(batch)

    async def _write_each(self, batch: Sequence[Part], error: DataRefused) -> None:
        refused = 0
        for part in batch:
            try:
                await run_logs.write(self._pool, [part])
            except DataRefused as again:
                refused, error = refused + 1, again
        log.error("the lines of %d runs could not be stored: %s", refused, error)

    def _forget(self, written: Sequence[Part]) -> None:
        with self._lock:
            for part in written:
                self._unwritten.popleft()
                self._held -= len(part.lines)

    def _parts_of(self, found: _Log) -> Iterator[Part]:
        """What has not been written of a log. The lock is held."""
        tail = found.tail is not None and (found.tail_changed or found.ended)
        if found.head or (found.ended and not tail):
            head, found.head = found.head, []
            self._held -= found.head_size
            found.head_size = 0
            yield self._part(found, found.part, head, found.head_last, ended=found.ended and not tail)
            found.part += 1
        if tail and found.tail is not None:
            yield self._part(found, LAST_PART, found.tail, found.last_line, ended=found.ended)
            found.tail_changed = False
            if found.ended:
                self._held -= found.tail_size
                found.tail = None

    def _part(self, found: _Log, part: int, lines: Iterable[str], last_line: int, *, ended: bool) -> Part:
        run = found.execution.run
        text = f"[{','.join(lines)}]"
        self._held += len(text)
        return Part(run.job_id, run.scheduled_at, run.claim_id, part, run.attempt, last_line, ended, text)


def _last_lines(lines: Sequence[str], size: int) -> list[str]:
    """The last lines that come to this many characters."""
    kept: list[str] = []
    for line in reversed(lines):
        size -= len(line) + _LINE_BYTES
        if size < 0:
            break
        kept.append(line)
    return kept[::-1]


def _size(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode())


def _batch(waiting: deque[Part]) -> list[Part]:
    """The first parts that make up one statement. A part that is there twice goes into two statements."""
    batch: list[Part] = []
    keys = set()
    size = 0
    for part in waiting:
        key = part[:4]
        size += len(part.lines)
        if key in keys or len(batch) == _MAX_PARTS or (batch and size > _MAX_BYTES):
            break
        keys.add(key)
        batch.append(part)
    return batch
