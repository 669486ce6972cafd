"""Registered: the cost of millions of jobs that are not due, for those that are.

Two stores, one with a hundred thousand jobs and one with many more. On each a scheduler is started: how long until it
fires, how long it takes for as many jobs due in one second, and what it holds in memory meanwhile. Nobody executes the
runs, so that only firing is measured. The other jobs are hourly: a sixth of them lies within the horizon.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial

from duly.bench.child import monotonic_us
from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab, Pass, database_clock
from duly.bench.processes import BenchFailed, Process, as_arguments, running, until_counted
from duly.bench.server import Store, connect
from duly.bench.statements import bench_statement
from duly.model import to_micros

FEW = 100_000
MANY = 1_000_000
DUE = 50_000
_AT_ONCE = 500_000
_FIRST = 100
_HOUR = 3600.0
_ROUND = timedelta(seconds=30)
_PROBE = 5_000


async def measure(lab: Lab) -> list[Figure]:
    few, many, due = lab.scaled(FEW), lab.jobs or lab.scaled(MANY), lab.scaled(DUE)
    figures: list[Figure] = []
    costs: list[Figure] = []
    passes: dict[str, Pass] = {}
    async with AsyncExitStack() as stack:
        for jobs in dict.fromkeys((many, few)):
            first = Figure("registered", f"start to first fire, {jobs:,} jobs", "s", goal=Bar(10))
            rate = Figure("registered", f"fired of {due:,} due at once, {jobs:,} jobs", "/s")
            # CPU time of the scheduler and of its server processes: steadier than a rate on a busy machine.
            cost = Figure("registered", f"CPU of a fire, {jobs:,} jobs", "µs")
            memory = Figure("registered", f"scheduler's memory, {jobs:,} jobs", "MB", goal=Bar(400))
            store = await stack.enter_async_context(lab.server.store())
            await _register(lab, store, jobs)
            passes[f"{jobs:,} jobs"] = partial(_round, lab, store, _lead(jobs), due, first, rate, cost, memory)
            figures += [first, rate, cost, memory]
            costs.append(cost)
        await lab.in_rounds("registered", passes)
    # The specification allows 1.3 times the cost.
    flat = Figure("registered", f"CPU of a fire, {few:,} by {many:,} jobs", "×", goal=Bar(round(1 / 1.3, 2)))
    flat.duly = [small / large for large, small in zip(costs[0].duly, costs[-1].duly, strict=True) if large]
    return [*figures, flat]


def _lead(jobs: int) -> timedelta:
    """Time from the start of the scheduler to the hot second: it must read the near future of that many jobs."""
    return timedelta(seconds=8 + jobs / 1e6)


async def _register(lab: Lab, store: Store, jobs: int) -> None:
    """Register jobs that fall due in the hour after the measurement, whose duration is estimated by the first ones."""
    clock = await database_clock(store)
    began = time.perf_counter()
    await _insert(store, min(jobs, _PROBE), clock.now() + timedelta(days=1), _HOUR)
    seconds = (time.perf_counter() - began) / min(jobs, _PROBE) * jobs
    base = clock.now() + timedelta(seconds=1.5 * seconds + 30) + lab.rounds * 2 * _ROUND
    await register(lab, store, jobs, base, _HOUR)


async def register(
    lab: Lab,
    store: Store,
    jobs: int,
    first: datetime,
    seconds: float,
    *,
    handler: str = "noop",
    schedule: str = "every 1h",
    policy: str | None = None,
    bench: str = "registered",
) -> None:
    """Register recurring jobs, the first due at `first`, the last one `seconds` later."""
    for start in range(0, jobs, _AT_ONCE):
        lab.say(f"{bench}: {start:,} of {jobs:,} jobs")
        await _insert(store, min(_AT_ONCE, jobs - start), first, seconds, handler, schedule, policy)
    # Autovacuum would do this after that many inserts, during the measurement.
    connection = await connect(store.url)
    try:
        await connection.execute(bench_statement("vacuum_jobs"), timeout=1800)
    finally:
        await connection.close()


async def _insert(
    store: Store,
    jobs: int,
    first: datetime,
    seconds: float,
    handler: str = "noop",
    schedule: str = "every 1h",
    policy: str | None = None,
) -> None:
    connection = await connect(store.url)
    try:
        arguments = (jobs, first, seconds, handler, schedule, policy)
        await connection.execute(bench_statement("register"), *arguments, timeout=600)
    finally:
        await connection.close()


async def _round(
    lab: Lab, store: Store, lead: timedelta, due: int, first: Figure, rate: Figure, cost: Figure, memory: Figure
) -> None:
    await lab.server.settle()
    clock = await database_clock(store)
    hot = (clock.now() + lead).replace(microsecond=0)
    await _insert(store, due, hot, 0)
    await _insert(store, _FIRST, clock.now(), 0)
    hot_us = to_micros(hot) - (clock.now_us() - monotonic_us())
    started_us = monotonic_us()
    # Not ahead of time: the measurement is about how fast it fires, not how early.
    arguments = as_arguments(database_url=store.url, jobs=0, ahead=0)
    async with running("scheduler_process", *arguments, name="scheduler") as scheduler:
        fired_us = await until_counted([scheduler], _FIRST)
        first.duly.append((fired_us - started_us) / 1e6)
        if monotonic_us() > hot_us:
            raise BenchFailed("the first fire came after the second that is measured; this machine was too busy")
        await asyncio.sleep((hot_us - monotonic_us()) / 1e6)
        before = await _cpu_seconds(store, scheduler)
        done_us = await until_counted([scheduler], _FIRST + due)
        after = await _cpu_seconds(store, scheduler)
        await scheduler.end()
    if after:
        cost.duly.append(sum(used - before.get(pid, 0.0) for pid, used in after.items()) * 1e6 / due)
    rate.duly.append(due / ((done_us - hot_us) / 1e6))
    memory.duly.append(scheduler.memory / 1e6)


async def _cpu_seconds(store: Store, scheduler: Process) -> dict[int, float]:
    """The CPU time that each process involved has used so far; empty if the server is on another machine."""
    connection = await connect(store.url)
    try:
        pids = [row["pid"] for row in await connection.fetch(bench_statement("backends"))]
    finally:
        await connection.close()
    used = {}
    for pid in (scheduler.pid, *pids):
        try:
            used[pid] = time.clock_gettime(_cpu_clock(pid))
        except OSError:
            return {}
    return used


def _cpu_clock(pid: int) -> int:
    """Linux's CPU clock of a process: /proc counts hundredths of a second, too coarse for a small fire."""
    return ~pid << 3 | 2
