"""Lag: the time from when a job is due to the start of its handler; scheduler and worker are separate processes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from duly.app import Duly
from duly.bench.child import monotonic_us
from duly.bench.figures import Bar, Figure, Spread
from duly.bench.lab import Lab, application, database_clock, submit_all, verify
from duly.bench.processes import BenchFailed, Process, as_arguments, running, until_counted
from duly.bench.server import Store
from duly.clock import DatabaseClock
from duly.model import JobRequest, from_micros, to_micros

JOBS = 2_000
JOBS_PER_SECOND = 100
# Time between submit and the first due time, for the processes to start and read the due jobs.
LEAD = timedelta(seconds=6)
# Precision of the comparison of client and server clocks; a start earlier than this counts as too early.
_TOLERANCE_US = 2_000


async def measure(lab: Lab) -> list[Figure]:
    jobs = lab.scaled(JOBS, least=20)
    spread = Spread("lag", "due to start,", goal=Bar(10))
    await lab.in_rounds("lag", {"Duly": partial(_duly, lab, jobs, spread), "raw SQL": partial(_raw, lab, jobs, spread)})
    return spread.figures


async def _duly(lab: Lab, jobs: int, spread: Spread) -> None:
    async with lab.server.store() as store:
        clock = await _submit(store, jobs)
        await lab.server.settle()
        at_store = as_arguments(database_url=store.url)
        async with (
            running("worker_process", *at_store, name="worker") as worker,
            running("scheduler_process", *at_store, *as_arguments(jobs=jobs), name="scheduler") as scheduler,
        ):
            spread.add_duly(await _follow(worker, scheduler, jobs, clock))
        await verify(store, jobs, "lag of Duly")


async def _raw(lab: Lab, jobs: int, spread: Spread) -> None:
    async with lab.server.store() as store:
        clock = await _submit(store, jobs)
        await lab.server.settle()
        at_store = as_arguments(database_url=store.url)
        async with (
            running("raw_process", "follow", *at_store, "--stamping", name="raw worker") as worker,
            running("raw_process", "fire", *at_store, name="raw scheduler") as scheduler,
        ):
            spread.add_raw(await _follow(worker, scheduler, jobs, clock))
        await verify(store, jobs, "lag of raw SQL")


async def _submit(store: Store, jobs: int) -> DatabaseClock:
    clock = await database_clock(store)
    async with application(store) as app:
        await submit_all(app, _requests(app, jobs, to_micros(clock.now() + LEAD)))
    return clock


def _requests(app: Duly, jobs: int, first_us: int) -> Iterator[JobRequest]:
    for number in range(jobs):
        # Whole milliseconds, so that the due time is exact as text; each job has its own.
        due_us = (first_us + number * 1_000_000 // JOBS_PER_SECOND) // 1000 * 1000
        yield app.request("stamp", {"mark": due_us}, run_at=from_micros(due_us))


async def _follow(worker: Process, scheduler: Process, jobs: int, clock: DatabaseClock) -> list[int]:
    """Wait for all starts; returns their delays after the due time, in microseconds."""
    await until_counted([worker], jobs)
    await scheduler.end()
    await worker.end()
    offset_us = clock.now_us() - monotonic_us()
    lags = [at_us + offset_us - due_us for due_us, at_us in worker.stamps]
    if min(lags) < -_TOLERANCE_US:
        raise BenchFailed(f"a run started {-min(lags) / 1000:.1f} ms before it was due")
    return lags
