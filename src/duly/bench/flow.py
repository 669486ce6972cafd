"""A flow: recurring jobs, spread evenly over their period, pass through a scheduler and workers for some time.

Registering millions of jobs takes an unknown time. So they are due a day ahead, and once all are registered the store's
clock is moved to just before that, as tests do: nothing is due too early, and nothing has to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta

from duly.bench.lab import Lab, database_clock
from duly.bench.processes import STALLED_SECONDS, BenchFailed, Process, as_arguments, running, running_all
from duly.bench.registered import register
from duly.bench.server import Store, connect
from duly.bench.statements import bench_statement
from duly.clock import DatabaseClock

_FAR = timedelta(days=1)
# Time between the moment when all processes are ready and the start of the measurement.
_CALM = timedelta(seconds=1)
# A low estimate of the jobs that a scheduler reads per second, and the time that processes need to start.
_READ_PER_SECOND = 500_000
_START_SECONDS = 2.0
# A scheduler is ready when it holds this part of the jobs due in its first minutes. Not all: due times are random.
_READ_AHEAD_SECONDS = 300.0
_MOST = 0.8
# A start that is early by this much counts as too early. A smaller difference can be one inexact comparison of clocks
# among millions of starts.
_TOLERANCE_MS = 50.0


@dataclass(frozen=True, slots=True)
class Flow:
    bench: str
    jobs: int
    schedule: str
    period: float
    """Period of the schedule in seconds."""
    handler: str
    processes: int
    concurrency: int
    policy: str | None = None

    @property
    def per_second(self) -> float:
        return self.jobs / self.period


@dataclass(frozen=True, slots=True)
class Passed:
    """The outcomes of the occurrences that were due in the window."""

    due: int
    lost: int
    succeeded: int
    fired_in_time: int
    ended_in_time: int
    lags_ms: Sequence[float]
    """From the due time to the start: min, p50, p99, max."""
    waiting_first: int
    """Startable runs: after a tenth of the window, and at its end."""
    waiting_last: int
    memory: int
    """Peak memory of the scheduler in bytes."""


async def pass_through(lab: Lab, flow: Flow, seconds: int) -> Passed:
    """Measured once, whatever the number of rounds: these windows are long enough."""
    async with lab.server.store() as store:
        first = (await database_clock(store)).now() + _FAR
        await register(
            lab,
            store,
            flow.jobs,
            first,
            flow.period,
            handler=flow.handler,
            schedule=flow.schedule,
            policy=flow.policy,
            bench=flow.bench,
        )
        await lab.server.settle()
        lead = timedelta(seconds=_START_SECONDS + flow.jobs / _READ_PER_SECOND)
        await _move_clock(store, first - lead)
        clock = await database_clock(store)
        at_store = as_arguments(database_url=store.url)
        worker = ("worker_process", *at_store, *as_arguments(concurrency=flow.concurrency))
        soon = int(_MOST * flow.per_second * min(flow.period, _READ_AHEAD_SECONDS))
        async with AsyncExitStack() as stack:
            workers = await stack.enter_async_context(running_all([worker] * flow.processes, name="worker"))
            scheduler = await stack.enter_async_context(
                running("scheduler_process", *at_store, *as_arguments(jobs=soon), name="scheduler")
            )
            begin = max(first, clock.now() + _CALM)
            end = begin + timedelta(seconds=seconds)
            lab.say(f"{flow.bench}: {flow.per_second:,.1f} due per second, for {seconds} s")
            await _until(clock, begin + (end - begin) / 10, [scheduler, *workers])
            waiting_first, _ = await _depth(store)
            await _until(clock, end, [scheduler, *workers])
            waiting_last, _ = await _depth(store)
            await scheduler.end()
            await _until_finished(store, workers)
            for process in workers:
                await process.end()
        passed = await _became_of(store, flow, begin, end, (waiting_first, waiting_last), scheduler.memory)
    _check(flow, passed)
    return passed


async def _move_clock(store: Store, now: datetime) -> None:
    connection = await connect(store.url)
    try:
        await connection.execute(bench_statement("move_clock"), now)
    finally:
        await connection.close()


async def _until(clock: DatabaseClock, moment: datetime, processes: Sequence[Process]) -> None:
    while (rest := (moment - clock.now()).total_seconds()) > 0:
        await asyncio.sleep(min(rest, 1.0))
        for process in processes:
            process.check_alive()


async def _depth(store: Store) -> tuple[int, int]:
    connection = await connect(store.url)
    try:
        row = await connection.fetchrow(bench_statement("depth"), timeout=600)
    finally:
        await connection.close()
    assert row is not None
    return row["startable"], row["unfinished"]


async def _until_finished(store: Store, workers: Sequence[Process]) -> None:
    """Wait until all fired runs have ended; nothing more is fired."""
    last_progress, last = time.monotonic(), -1
    while left := (await _depth(store))[1]:
        if left != last:
            last_progress, last = time.monotonic(), left
        if time.monotonic() - last_progress > STALLED_SECONDS:
            raise BenchFailed(f"stalled with {left:,} unfinished runs")
        for worker in workers:
            worker.check_alive()
        await asyncio.sleep(0.1)


async def _became_of(
    store: Store, flow: Flow, begin: datetime, end: datetime, waiting: tuple[int, int], memory: int
) -> Passed:
    connection = await connect(store.url)
    try:
        await connection.execute(bench_statement("scan_freely"))
        row = await connection.fetchrow(bench_statement("became_of"), begin, end, flow.period, timeout=1800)
    finally:
        await connection.close()
    assert row is not None
    return Passed(
        **{**row, "lags_ms": row["lags_ms"] or ()}, waiting_first=waiting[0], waiting_last=waiting[1], memory=memory
    )


def _check(flow: Flow, passed: Passed) -> None:
    """Check that no occurrence was lost, was not run, or ran too early: else no figure is valid."""
    if not passed.due:
        raise BenchFailed("nothing was due in the window; take more --jobs or more --seconds")
    if passed.succeeded != passed.due:
        raise BenchFailed(f"{flow.bench}: all {passed.due:,} occurrences should have succeeded; the store has {passed}")
    if passed.lags_ms[0] < -_TOLERANCE_MS:
        raise BenchFailed(f"{flow.bench}: a run started {-passed.lags_ms[0]:.1f} ms before it was due")
