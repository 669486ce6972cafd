"""Raw-SQL loops: the store's own statements, with as little Python around them as possible.

No task per run, no decoding, no policies, no planning: what is left is what PostgreSQL and the driver cost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg

from duly.bench.child import monotonic_us
from duly.bench.server import connect
from duly.clock import Clock
from duly.model import DEFAULT_QUEUE, from_micros, to_micros
from duly.store import cluster, fires, stores
from duly.store.pool import LARGE, Pool
from duly.store.statements import statement

CLAIM = 1_000
FIRE = 2_000
CONNECTIONS = 2
_LEASE_SECONDS = 15.0
_PRIORITIES = list(range(9, -1, -1))
_LANES = [DEFAULT_QUEUE] * len(_PRIORITIES), _PRIORITIES
_HORIZON = timedelta(hours=1)


async def fetch_as_store(
    connection: asyncpg.Connection[asyncpg.Record], elements: int, sql: str, *arguments: object
) -> list[asyncpg.Record]:
    """Send a statement as the store does: only a large batch is planned for its own arguments."""
    if elements < LARGE:
        return await connection.fetch(sql, *arguments)
    prepared = await connection.prepare(sql)
    return await prepared.fetch(*arguments)


class Bell:
    """Wakes up when there may be work, and at intervals."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    async def listen(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        await connection.add_listener("duly_work", lambda *_: self._rung.set())

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(0.5):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()


class RawWorker:
    """Claims a batch, records it, claims the next. With a bell it waits for more, else it ends when none is left."""

    def __init__(self, clock: Clock, *, bell: Bell | None = None, stamping: bool = False) -> None:
        self._clock = clock
        self._bell = bell
        self._stamping = stamping
        self.recorded = 0
        self.stamps: list[tuple[int, int]] = []

    async def work(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        worker_id = uuid4()
        claim = await connection.prepare(statement("runs/claim"))
        complete = await connection.prepare(statement("runs/complete"))
        while True:
            rows = await claim.fetch(worker_id, _LEASE_SECONDS, CLAIM, *_LANES, [None] * len(_LANES[0]))
            claim_id, count = rows[0]["claim_id"], len(rows) - 1
            if claim_id is None:
                if self._bell is None:
                    return
                await self._bell.wait()
                continue
            if self._stamping:
                now_us = monotonic_us()
                self.stamps += [(json.loads(row["payload"])["mark"], now_us) for row in rows[:-1]]
            times, zeros = [self._clock.now_us()] * count, [0] * count
            done = await complete.fetchrow(
                [claim_id], [1] * count, range(1, count + 1), times, times, [None] * count, zeros, [claim_id]
            )
            assert done is not None
            self.recorded += done["accepted"]


class RawFirer:
    """Holds all due times in one list, and fires each job at its time."""

    def __init__(self, url: str, pool: Pool, *, period: timedelta | None) -> None:
        self._url = url
        self._pool = pool
        self._period = period
        self._epochs: dict[int, int] = {}
        self._entries: list[tuple[datetime, int, UUID]] = []
        self.fired = 0

    async def load(self) -> None:
        """Lead every shard and read every job. Not measured."""
        node_id = uuid4()
        shards = range(await stores.shard_count(self._pool))
        await cluster.join(
            self._pool, node_id=node_id, kind="scheduler", name="raw", version="0", lease_seconds=3600, info={}
        )
        self._epochs = await cluster.acquire(self._pool, node_id=node_id, shards=shards, epochs=[0] * len(shards))
        horizon = self._pool.clock.now() + _HORIZON
        slices = [fires.Slice(shard, fires.LONG_AGO, horizon) for shard in shards]
        for page in await fires.load(self._pool, slices=slices, page=10_000_000):
            for place, due_us in enumerate(page.dues_us):
                job_id = UUID(bytes=page.job_ids[16 * place : 16 * place + 16])
                self._entries.append((from_micros(due_us), page.shard, job_id))
        self._entries.sort()

    async def fire(self) -> None:
        connections = [await connect(self._url) for _ in range(CONNECTIONS)]
        try:
            start = 0
            while start < len(self._entries):
                await self._sleep_until(self._entries[start][0])
                now = max(self._pool.clock.now(), self._entries[start][0])
                end = start
                while end < len(self._entries) and self._entries[end][0] <= now:
                    end += 1
                batches = self._batches(self._entries[start:end])
                await asyncio.gather(*(self._fire_batches(connection, batches) for connection in connections))
                start = end
        finally:
            for connection in connections:
                await connection.close()

    async def _sleep_until(self, due: datetime) -> None:
        wait_us = to_micros(due) - self._pool.clock.now_us()
        if wait_us > 0:
            await asyncio.sleep(wait_us / 1e6)

    def _batches(self, entries: Sequence[tuple[datetime, int, UUID]]) -> list[tuple[int, list[UUID], list[datetime]]]:
        by_shard: dict[int, tuple[list[UUID], list[datetime]]] = {}
        for due, shard, job_id in entries:
            job_ids, dues = by_shard.setdefault(shard, ([], []))
            job_ids.append(job_id)
            dues.append(due)
        return [
            (shard, job_ids[start : start + FIRE], dues[start : start + FIRE])
            for shard, (job_ids, dues) in by_shard.items()
            for start in range(0, len(job_ids), FIRE)
        ]

    async def _fire_batches(
        self, connection: asyncpg.Connection[asyncpg.Record], batches: list[tuple[int, list[UUID], list[datetime]]]
    ) -> None:
        look, fire = statement("fires/due"), statement("fires/on_time")
        while batches:
            shard, job_ids, dues = batches.pop()
            seen = {row["job_id"]: row for row in await connection.fetch(look, job_ids)}
            ctids, versions = zip(*((seen[one]["ctid"], seen[one]["version"]) for one in job_ids), strict=True)
            nexts = [None if self._period is None else due + self._period for due in dues]
            n, epoch = len(job_ids), self._epochs[shard]
            rows = await connection.fetch(
                fire, [shard], [epoch], ctids, versions, job_ids, dues, nexts, [0] * n, [shard] * n, [epoch] * n
            )
            self.fired += len(rows[0]["moved"])
