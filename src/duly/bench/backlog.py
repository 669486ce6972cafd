"""Backlog: the drain rate with few waiting runs, and with millions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from duly.bench.child import monotonic_us
from duly.bench.drain import CONCURRENCY
from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab, Pass
from duly.bench.processes import BenchFailed, as_arguments, running_all, until_counted
from duly.bench.server import Store, connect
from duly.bench.statements import bench_statement
from duly.errors import InvalidInput

FEW = 10_000
MANY = 5_000_000
# Runs that are drained of a large backlog: few enough that it stays large.
DRAINED = 200_000
_AT_ONCE = 250_000


@dataclass(slots=True)
class _Depth:
    """The measurements at one depth with one number of processes."""

    runs: int
    processes: int
    rate: Figure
    first: list[float] = field(default_factory=list)
    """The rate over as many runs as the small backlog has, so that the cost of a start weighs the same in both."""


async def measure(lab: Lab) -> list[Figure]:
    few, many = lab.scaled(FEW), lab.jobs or lab.scaled(MANY)
    if few >= many:
        raise InvalidInput("jobs", f"must be more than the {few:,} that they are compared with")
    depths = {
        (runs, processes): _Depth(
            runs, processes, Figure("backlog", f"drain, {runs:,} waiting, {_shown(processes)}", "/s")
        )
        for processes in (1, 2)
        for runs in (few, many)
    }
    async with AsyncExitStack() as stack:
        queues = {}
        for runs in (few, many):
            queues[runs] = await stack.enter_async_context(lab.server.store())
            await _fill(lab, queues[runs], runs)
        passes: dict[str, Pass] = {
            f"{depth.runs:,} waiting, {_shown(depth.processes)}": partial(
                _round, lab, queues[depth.runs], depth, few, lab.scaled(DRAINED)
            )
            for depth in depths.values()
        }
        await lab.in_rounds("backlog", passes)
    figures = [depth.rate for depth in depths.values()]
    for processes in (1, 2):
        small, large = depths[few, processes], depths[many, processes]
        whole = Figure("backlog", f"{many:,} by {few:,} waiting, {_shown(processes)}", "×", goal=Bar(0.8))
        whole.duly = [deep / shallow for deep, shallow in zip(large.rate.duly, small.rate.duly, strict=True)]
        first = Figure("backlog", f"their first {few:,} only, {_shown(processes)}", "×", goal=Bar(0.8))
        first.duly = [deep / shallow for deep, shallow in zip(large.first, small.first, strict=True)]
        figures += [whole, first]
    return figures


def _shown(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


async def _fill(lab: Lab, store: Store, runs: int) -> None:
    connection = await connect(store.url)
    try:
        for start in range(0, runs, _AT_ONCE):
            lab.say(f"backlog: {start:,} of {runs:,} runs")
            await connection.execute(bench_statement("fill_queue"), min(_AT_ONCE, runs - start), timeout=600)
        # Autovacuum would do this after that many inserts, during the measurement.
        for table in ("vacuum_jobs", "vacuum_runs"):
            await connection.execute(bench_statement(table), timeout=1800)
    finally:
        await connection.close()


async def _round(lab: Lab, queue: Store, depth: _Depth, few: int, drained: int) -> None:
    async with lab.server.store(queue) as store:
        arguments = as_arguments(database_url=store.url, concurrency=CONCURRENCY)
        commands = [("worker_process", *arguments)] * depth.processes
        await lab.server.settle()
        async with AsyncExitStack() as stack:
            # Ten thousand runs take less time than the start of a worker, so that must be over before the first claim.
            async with _nothing_claimed(store):
                workers = await stack.enter_async_context(running_all(commands, name="worker"))
                released_us = monotonic_us()
            for total, rates in ((few, depth.first), (min(depth.runs, max(few, drained)), depth.rate.duly)):
                last_us = await until_counted(workers, total)
                # More may have been counted by then than was waited for.
                rates.append(sum(worker.count for worker in workers) / ((last_us - released_us) / 1e6))
            for worker in workers:
                await worker.end()
        await _verify(store, depth.runs)


@asynccontextmanager
async def _nothing_claimed(store: Store) -> AsyncIterator[None]:
    """Lock the queue while workers start. Not for long, because a claim that is answered too late is given up."""
    connection = await connect(store.url)
    try:
        async with connection.transaction():
            await connection.execute(bench_statement("lock_runs"))
            yield
    finally:
        await connection.close()


async def _verify(store: Store, runs: int) -> None:
    """Check that every run is recorded or still queued, none twice, none retried, and none held by an ended worker."""
    outcome = await store.outcome()
    if (outcome.succeeded, outcome.succeeded + outcome.queued, outcome.claims) != (outcome.recorded, runs, 0):
        raise BenchFailed(f"backlog: {runs:,} runs should be recorded or waiting; the store has {outcome}")
