# /// script
# dependencies = ["pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"]
# ///
"""pgqueuer: LISTEN/NOTIFY and batches on one asyncpg connection, as its own benchmark does it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job as PgqueuerJob

from peers.drivers.line import TALLY, Driver, Job, serve

BATCH = 250


async def ran(job: PgqueuerJob) -> None:
    TALLY.ran(int(job.payload or b"0"))


class Pgqueuer(Driver):
    title = "pgqueuer"
    packages = ("pgqueuer", "asyncpg", "uvloop")
    settings = f"asyncpg, uvloop; batch_size {BATCH}; enqueue with lists; keeps a log of every job"

    async def prepare(self) -> None:
        await self.open()
        await self._queries.install()

    async def open(self) -> None:
        self._queries = Queries(AsyncpgDriver(await asyncpg.connect(self.url)))

    async def submit(self, jobs: list[Job]) -> None:
        delays = [None if job.due_us is None else timedelta(seconds=job.due_in_seconds) for job in jobs]
        await self._queries.enqueue(
            ["ran"] * len(jobs), [b"%d" % job.mark for job in jobs], [0] * len(jobs), execute_after=delays
        )

    async def submit_one(self, job: Job) -> None:
        await self._queries.enqueue("ran", b"%d" % job.mark)

    async def connect_worker(self) -> None:
        self._worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))
        self._worker.entrypoint("ran")(ran)

    async def work(self, ended: asyncio.Event) -> None:
        running = asyncio.create_task(self._worker.run(batch_size=BATCH))
        stopping = asyncio.create_task(ended.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        self._worker.shutdown.set()
        await running

    async def left(self) -> int:
        return sum(size.count for size in await self._queries.queue_size())


if __name__ == "__main__":
    serve(Pgqueuer)
