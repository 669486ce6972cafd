# /// script
# dependencies = ["procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"]
# ///
"""Procrastinate: many jobs of one worker at once, on a pool of psycopg connections."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from itertools import groupby

from procrastinate import App, PsycopgConnector

from peers.drivers.line import TALLY, Driver, Job, serve

CONCURRENCY = 20


async def ran(mark: int) -> None:
    TALLY.ran(mark)


class Procrastinate(Driver):
    title = "Procrastinate"
    packages = ("procrastinate", "psycopg", "uvloop")
    settings = f"psycopg (binary), uvloop; concurrency {CONCURRENCY}, pool of as many; batch_defer; keeps finished jobs"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # Procrastinate's statements name no schema; psycopg's pool opens a connection per job that runs.
        self._app = App(connector=PsycopgConnector(conninfo=url, min_size=2, max_size=CONCURRENCY))

        self._task = self._app.task(name="ran")(ran)

    async def prepare(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self._app.open_async()

    async def submit(self, jobs: list[Job]) -> None:
        for due_us, together in groupby(jobs, key=lambda job: job.due_us):
            due = None if due_us is None else datetime.fromtimestamp(due_us / 1e6, UTC)
            await self._task.configure(schedule_at=due).batch_defer_async(*({"mark": job.mark} for job in together))

    async def submit_one(self, job: Job) -> None:
        await self._task.defer_async(mark=job.mark)

    async def connect_worker(self) -> None:
        await self._app.open_async()

    async def work(self, ended: asyncio.Event) -> None:
        running = asyncio.create_task(
            self._app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
        )
        stopping = asyncio.create_task(ended.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()  # Procrastinate's own way to stop: running jobs are finished first
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def left(self) -> int:
        queues = await self._app.job_manager.list_queues_async()
        return sum(queue["todo"] + queue["doing"] + queue["failed"] for queue in queues)


if __name__ == "__main__":
    serve(Procrastinate)
