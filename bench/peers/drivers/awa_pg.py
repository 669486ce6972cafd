# /// script
# dependencies = ["awa-pg==0.6.9"]
# ///
"""awa: a Rust core that claims and records, and handlers on Python's event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

import awa

from peers.drivers.line import TALLY, Driver, Job, serve

WORKERS = 1024
CLAIMERS = 2
CLAIM_BATCH = 512
# Number of single inserts at the same time, for jobs with due times of their own.
INSERTS = 8


@dataclass
class Ran:
    mark: int


async def ran(job: awa.Job[Ran]) -> None:
    TALLY.ran(job.args.mark)


class Awa(Driver):
    title = "awa-pg"
    packages = ("awa-pg",)
    settings = (
        f"queue storage; {WORKERS} workers, claimers {CLAIMERS}, claim_batch_size {CLAIM_BATCH}; enqueue_many_copy; "
        "fenced, keeps finished jobs"
    )

    def __init__(self, url: str) -> None:
        # awa's driver requires a host before the slash, and still uses the one in the query.
        super().__init__(url.replace("@/", "@localhost/", 1))

    async def prepare(self) -> None:
        async with awa.AsyncClient(self.url) as client:
            await client.migrate()
            await client.install_queue_storage()

    async def open(self) -> None:
        self._client = awa.AsyncClient(self.url)

    async def submit(self, jobs: list[Job]) -> None:
        batches = [(due_us, list(together)) for due_us, together in groupby(jobs, key=lambda job: job.due_us)]
        for start in range(0, len(batches), INSERTS):
            await asyncio.gather(*(self._enqueue(*batch) for batch in batches[start : start + INSERTS]))

    async def _enqueue(self, due_us: int | None, jobs: list[Job]) -> None:
        due = None if due_us is None else datetime.fromtimestamp(due_us / 1e6, UTC)
        await self._client.enqueue_many_copy([Ran(job.mark) for job in jobs], run_at=due)

    async def submit_one(self, job: Job) -> None:
        await self._client.insert(Ran(job.mark))

    async def connect_worker(self) -> None:
        self._client = awa.AsyncClient(self.url, max_connections=20)
        self._client.task(Ran, queue="default")(ran)

    async def work(self, ended: asyncio.Event) -> None:
        queue = {"name": "default", "max_workers": WORKERS, "claimers": CLAIMERS, "claim_batch_size": CLAIM_BATCH}
        await self._client.start([queue])
        await ended.wait()
        await self._client.shutdown(timeout_ms=5000)

    async def left(self) -> int:
        return sum(
            queue.scheduled + queue.available + queue.running + queue.retryable + queue.failed
            for queue in await self._client.queue_stats()
        )


if __name__ == "__main__":
    serve(Awa)
