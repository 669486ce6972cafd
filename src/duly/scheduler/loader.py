"""Reads the near future of this node's shards from the store: at the start of a term, and again every minute.

Notifications keep it current in between. One that is lost costs at most until the next re-read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from duly.model import from_micros, to_micros
from duly.scheduler.near_future import NearFuture
from duly.service import Service
from duly.store import fires
from duly.store.pool import Pool

log = logging.getLogger("duly.scheduler")

PAGE = 10_000


class Loader(Service):
    def __init__(self, pool: Pool, future: NearFuture, *, interval: float, changed: Callable[[], None]) -> None:
        super().__init__()
        self._pool = pool
        self._future = future
        self._changed = changed
        self._shards: set[int] = set()
        self._fresh: set[int] = set()
        self.interval = interval

    def lead(self, shard: int) -> None:
        """A term began: its shard is loaded at once."""
        self._shards.add(shard)
        self._fresh.add(shard)
        self._future.lead(shard)
        self.wake()

    def drop(self, shard: int) -> None:
        self._shards.discard(shard)
        self._fresh.discard(shard)
        self._future.drop(shard)

    def heard(self, payload: str | None) -> None:
        """A notification: `shard:job_id:due_us`, several of them, or `*` for more than could be named."""
        if payload is None or payload == "*":
            self._fresh |= self._shards
            self.wake()
            return
        for entry in payload.split(","):
            try:
                shard, job_id, due_us = entry.split(":")
                self._future.add(int(shard), UUID(job_id), int(due_us))
            except ValueError:
                log.warning("a notification could not be read: %r", entry[:100])
                self._fresh |= self._shards
                self.wake()
        self._changed()

    async def run_once(self) -> float | None:
        # Woken for new shards: those alone. At the interval: all of them.
        shards, self._fresh = (self._fresh or set(self._shards)), set()
        for shard in sorted(shards):
            if shard in self._shards:
                try:
                    await self._load(shard)
                except BaseException:
                    self._fresh |= shards & self._shards
                    raise
        if shards:
            await self._pool.measure_clock()
        self._changed()
        return 0.0 if self._fresh else None

    async def _load(self, shard: int) -> None:
        self._future.begin_load(shard)
        horizon = from_micros(self._future.horizon_end_us)
        entries: list[tuple[UUID, int]] = []
        last = None
        while True:
            page = await fires.load(self._pool, shard=shard, horizon=horizon, after=last, page=PAGE)
            entries.extend((job_id, to_micros(due)) for job_id, due in page)
            if len(page) < PAGE:
                break
            last = (page[-1][1], page[-1][0])
        self._future.end_load(shard, entries)
