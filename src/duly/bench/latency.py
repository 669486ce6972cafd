"""Latency: the time from a client's submit to the start of the handler in another process, at a low rate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from duly.bench.child import monotonic_us
from duly.bench.figures import Bar, Figure, Spread
from duly.bench.lab import Lab, application, database_clock, verify
from duly.bench.processes import as_arguments, running, until_counted
from duly.bench.server import connect
from duly.model import DEFAULT_PRIORITY, DEFAULT_QUEUE, DEFAULT_TENANT
from duly.store.ids import new_job_ids, shard_of
from duly.store.jobs import NewJob, submit_columns
from duly.store.migrate import DEFAULT_SHARDS
from duly.store.statements import statement

PER_SECOND = 20
SECONDS = 15
# Submits that are sent first and not counted: they open connections and prepare statements.
WARM_UP = 10


async def measure(lab: Lab) -> list[Figure]:
    jobs = lab.scaled(PER_SECOND * SECONDS, least=PER_SECOND)
    spread = Spread("latency", "submit to start,", bar=Bar(20), goal=Bar(8))
    await lab.in_rounds(
        "latency", {"Duly": partial(_duly, lab, jobs, spread), "raw SQL": partial(_raw, lab, jobs, spread)}
    )
    return spread.figures


async def _duly(lab: Lab, jobs: int, spread: Spread) -> None:
    async with lab.server.store() as store:
        await lab.server.settle()
        async with (
            running("worker_process", *as_arguments(database_url=store.url), name="worker") as worker,
            application(store) as app,
        ):
            for number in range(WARM_UP + jobs):
                await asyncio.sleep(_pause(number))
                await app.submit("stamp", {"mark": monotonic_us()})
            await until_counted([worker], WARM_UP + jobs)
            await worker.end()
        await verify(store, WARM_UP + jobs, "latency of Duly")
    spread.add_duly(_delays(worker.stamps))


async def _raw(lab: Lab, jobs: int, spread: Spread) -> None:
    async with lab.server.store() as store:
        clock = await database_clock(store)
        await lab.server.settle()
        arguments = as_arguments(database_url=store.url, stamping=True)
        async with running("raw_process", "follow", *arguments, name="raw loop") as loop:
            connection = await connect(store.url)
            try:
                for number in range(WARM_UP + jobs):
                    await asyncio.sleep(_pause(number))
                    (job_id,) = new_job_ids(1, clock.now_us())
                    await connection.fetch(statement("jobs/submit"), *_columns(job_id, monotonic_us()), clock.now())
                await until_counted([loop], WARM_UP + jobs)
            finally:
                await connection.close()
            await loop.end()
        await verify(store, WARM_UP + jobs, "latency of raw SQL")
    spread.add_raw(_delays(loop.stamps))


def _pause(number: int) -> float:
    """The time until the next submit. Slightly irregular, so that submits do not stay in phase with any interval."""
    return (0.75 + 0.5 * (number * 0.618 % 1)) / PER_SECOND


def _delays(stamps: list[tuple[int, int]]) -> list[int]:
    return [started - sent for sent, started in sorted(stamps)[WARM_UP:]]


def _columns(job_id: UUID, mark: int) -> list[Sequence[object]]:
    """One row for `jobs/submit.sql`."""
    job = NewJob(
        job_id, shard_of(job_id, DEFAULT_SHARDS), "stamp", f'{{"mark":{mark}}}', None, None, None, None, "now",
        DEFAULT_TENANT, "stamp", None, "once", "UTC", None, None, None, DEFAULT_QUEUE, DEFAULT_PRIORITY, None,
        None, True,
    )  # fmt: skip
    return submit_columns([job])
