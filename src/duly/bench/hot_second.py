"""Hot second: many recurring jobs due in the same second, until all are fired and until all are recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

from duly.app import Duly
from duly.bench.child import monotonic_us
from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab, application, database_clock, submit_all, verify
from duly.bench.processes import BenchFailed, Process, as_arguments, running, until_counted
from duly.bench.raw import CONNECTIONS
from duly.bench.server import Store
from duly.model import JobRequest, to_micros

JOBS = 50_000
CONCURRENCY = 4_000
_PROBE = 5_000


async def measure(lab: Lab) -> list[Figure]:
    jobs = lab.scaled(JOBS)
    large = jobs > JOBS
    fired = Figure("hot-second", f"{jobs:,} in one second, fired", "s", goal=Bar(12 if large else None))
    recorded = Figure("hot-second", f"{jobs:,} in one second, recorded", "s", goal=Bar(20 if large else 2))
    passes = {
        "Duly": partial(_duly, lab, jobs, fired, recorded),
        "raw SQL": partial(_raw, lab, jobs, fired, recorded),
    }
    await lab.in_rounds("hot-second", passes)
    return [fired, recorded]


async def _duly(lab: Lab, jobs: int, fired: Figure, recorded: Figure) -> None:
    async with lab.server.store() as store:
        due_us = await _submit(lab, store, jobs)
        at_store = as_arguments(database_url=store.url)
        async with (
            running("worker_process", *at_store, *as_arguments(concurrency=CONCURRENCY), name="worker") as worker,
            running("scheduler_process", *at_store, *as_arguments(jobs=jobs), name="scheduler") as scheduler,
        ):
            fired_after, recorded_after = await _follow(worker, scheduler, jobs, due_us)
        await verify(store, jobs, "hot second of Duly")
    fired.duly.append(fired_after)
    recorded.duly.append(recorded_after)


async def _raw(lab: Lab, jobs: int, fired: Figure, recorded: Figure) -> None:
    async with lab.server.store() as store:
        due_us = await _submit(lab, store, jobs)
        at_store = as_arguments(database_url=store.url)
        async with (
            running("raw_process", "follow", *at_store, *as_arguments(connections=CONNECTIONS), name="raw") as worker,
            running("raw_process", "fire", *at_store, "--daily", name="raw scheduler") as scheduler,
        ):
            fired_after, recorded_after = await _follow(worker, scheduler, jobs, due_us)
        await verify(store, jobs, "hot second of raw SQL")
    fired.raw.append(fired_after)
    recorded.raw.append(recorded_after)


async def _submit(lab: Lab, store: Store, jobs: int) -> int:
    """Register the jobs. Returns the time at which all are due, on this machine's monotonic clock in microseconds."""
    clock = await database_clock(store)
    async with application(store) as app:
        lead = await _lead(app, jobs, clock.now())
        due = (clock.now() + lead).replace(microsecond=0)
        lab.say(f"hot-second: {jobs:,} jobs due in {lead.total_seconds():.0f} s")
        await submit_all(app, _daily(app, jobs, due))
    await store.analyze()
    await lab.server.settle()
    return to_micros(due) - (clock.now_us() - monotonic_us())


async def _lead(app: Duly, jobs: int, now: datetime) -> timedelta:
    """The lead that the second needs for all to be ready by then, estimated by submitting a few that never fire."""
    probe = min(jobs, _PROBE)
    began = time.perf_counter()
    await submit_all(app, _daily(app, probe, (now - timedelta(hours=2)).replace(microsecond=0)))
    seconds = (time.perf_counter() - began) / probe * jobs
    return timedelta(seconds=8 + 2 * seconds + jobs / 25_000)


def _daily(app: Duly, jobs: int, due: datetime) -> Iterator[JobRequest]:
    schedule = f"{due.second} {due.minute} {due.hour} * * *"
    return (app.request("noop", {"n": n}, schedule=schedule) for n in range(jobs))


async def _follow(worker: Process, scheduler: Process, jobs: int, due_us: int) -> tuple[float, float]:
    """Seconds from the due second until all were fired, and until all were recorded."""
    if monotonic_us() > due_us:
        raise BenchFailed("the jobs were due before everything was ready; this machine was too busy")
    await asyncio.sleep((due_us - monotonic_us()) / 1e6)
    recorded_us = await until_counted([worker], jobs)
    fired_us = await until_counted([scheduler], jobs)
    await scheduler.end()
    await worker.end()
    return (fired_us - due_us) / 1e6, (recorded_us - due_us) / 1e6
