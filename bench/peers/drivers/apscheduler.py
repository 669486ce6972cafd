# /// script
# dependencies = ["apscheduler==3.11.3", "sqlalchemy==2.1.8", "psycopg[binary]==3.3.8"]
# ///
"""APScheduler 3 with its SQLAlchemy store: one process, which sees jobs of other processes only when it wakes up."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from peers.drivers.line import TALLY, Driver, Job, serve

THREADS = 20

_lock = threading.Lock()


def ran(mark: int) -> None:
    """The handler, found by its name and called in threads."""
    with _lock:
        TALLY.ran(mark)


class APScheduler(Driver):
    title = "APScheduler"
    packages = ("apscheduler", "sqlalchemy", "psycopg")
    settings = (
        f"SQLAlchemy store on PostgreSQL (psycopg), {THREADS} threads, no misfire limit; one process, at most once"
    )
    processes = 1
    submits_in_worker = True

    async def prepare(self) -> None:
        await self.open()

    async def open(self) -> None:
        self._scheduler = BackgroundScheduler(
            jobstores={"default": SQLAlchemyJobStore(self.url.replace("postgresql://", "postgresql+psycopg://", 1))},
            executors={"default": ThreadPoolExecutor(THREADS)},
            job_defaults={"misfire_grace_time": None},
            timezone="UTC",
        )
        # A paused scheduler writes submitted jobs to its store, and runs none.
        self._scheduler.start(paused=True)

    async def submit(self, jobs: list[Job]) -> None:
        # APScheduler has no call for many jobs.
        for mark, due_us in jobs:
            due = None if due_us is None else datetime.fromtimestamp(due_us / 1e6, UTC)
            self._scheduler.add_job("peers.drivers.apscheduler:ran", "date", run_date=due, args=(mark,))

    async def connect_worker(self) -> None:
        await self.open()

    async def work(self, ended: asyncio.Event) -> None:
        self._scheduler.resume()
        await ended.wait()
        await asyncio.to_thread(self._scheduler.shutdown)

    async def left(self) -> int:
        return len(self._scheduler.get_jobs())


if __name__ == "__main__":
    serve(APScheduler)
