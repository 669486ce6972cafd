# /// script
# dependencies = ["celery[redis]==5.7.0"]
# ///
"""Celery with Redis as its broker. Jobs that are due later are in the memory of the worker that fetched them."""

from __future__ import annotations

import asyncio
import os
import struct
from datetime import UTC, datetime
from typing import Any

import redis
from celery import Celery

from peers.drivers.line import TALLY, Driver, Job, monotonic_us, serve

PREFETCH = 1_000


# From the worker's children, in which handlers run, to the worker: each run's mark and time.
_FACTS = struct.Struct("qq")
_facts_out, _facts_in = os.pipe()


def ran(mark: int) -> None:
    os.write(_facts_in, _FACTS.pack(mark, monotonic_us()))


def _take_facts() -> None:
    # A multiple of a fact's size; a pipe does not split a small write.
    for mark, at_us in _FACTS.iter_unpack(os.read(_facts_out, 1024 * _FACTS.size)):
        TALLY.note(mark, at_us)


class CeleryWithRedis(Driver):
    title = "Celery + Redis"
    packages = ("celery", "kombu", "redis")
    settings = (
        f"prefork, a worker with one child for each process; prefetch {PREFETCH}; results ignored; no gossip, mingle, "
        "heartbeat, events; acknowledged before it runs"
    )
    server = "redis"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._redis = redis.Redis.from_url(url)
        self._app = Celery(broker=url.replace("unix://", "redis+socket://"), set_as_current=True)
        self._app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=PREFETCH,
            worker_enable_remote_control=False,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )
        self._task: Any = self._app.task(ran, name="ran")
        self._app.finalize()

    async def prepare(self) -> None:
        self._redis.flushall()

    async def submit(self, jobs: list[Job]) -> None:
        # Celery has no call for many jobs; one connection and producer for all is its fastest way.
        with self._app.producer_or_acquire() as producer:
            for mark, due_us in jobs:
                due = None if due_us is None else datetime.fromtimestamp(due_us / 1e6, UTC)
                self._task.apply_async((mark,), eta=due, producer=producer)

    async def work(self, ended: asyncio.Event) -> None:
        asyncio.get_running_loop().add_reader(_facts_out, _take_facts)
        # Not the solo pool: with it the worker's loop runs ten due tasks and then sleeps for up to a second.
        worker = self._app.WorkController(
            pool="prefork",
            concurrency=1,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            task_events=False,
        )
        running = asyncio.create_task(asyncio.to_thread(worker.start))
        stopping = asyncio.create_task(ended.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        worker.stop()
        await running

    async def left(self) -> int:
        waiting: Any = self._redis.llen("celery")
        fetched: Any = self._redis.hlen("unacked")
        return int(waiting) + int(fetched)


if __name__ == "__main__":
    serve(CeleryWithRedis)
