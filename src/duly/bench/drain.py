"""Drain: no-op runs wait in the queue; measured until all are in history."""

from __future__ import annotations

from functools import partial

from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab, application, submit_all, verify
from duly.bench.processes import as_arguments, running_all, timed
from duly.bench.raw import CONNECTIONS
from duly.bench.server import Store

RUNS = 200_000
# More than one claim's worth, so that the next claim is under way while the last one is executed and recorded.
CONCURRENCY = 4_000


async def measure(lab: Lab) -> list[Figure]:
    runs = lab.scaled(RUNS)
    one = Figure("drain", "drain, 1 process", "/s", goal=Bar(36_600, 0.35))
    two = Figure("drain", "drain, 2 processes", "/s", bar=Bar(30_000), goal=Bar(52_600, 0.35))
    gain = Figure("drain", "drain, 2 processes by 1", "×", goal=Bar(1.5))
    # The CPU time of a run in the worker's process, without the database's. Steadier than a rate on a busy machine.
    cost = Figure("drain", "CPU of the process, per run", "µs", goal=Bar(20))
    async with lab.server.store() as queue:
        lab.say(f"drain: submitting {runs:,} jobs")
        async with application(queue) as app:
            await submit_all(app, (app.request("noop", {"n": n}) for n in range(runs)))
        await queue.analyze()
        passes = {
            "Duly with 1 process": partial(_duly, lab, queue, runs, 1, one, cost),
            "raw SQL in 1 process": partial(_raw, lab, queue, runs, 1, one, cost),
            "Duly with 2 processes": partial(_duly, lab, queue, runs, 2, two, None),
            "raw SQL in 2 processes": partial(_raw, lab, queue, runs, 2, two, None),
        }
        await lab.in_rounds("drain", passes)
        if lab.profile is not None:
            lab.say("drain: once more with 1 process under cProfile")
            await _duly(lab, queue, runs, 1, Figure("drain", "under cProfile", "/s"), None, profile=str(lab.profile))
    gain.duly = [both / alone for both, alone in zip(two.duly, one.duly, strict=True)]
    gain.raw = [both / alone for both, alone in zip(two.raw, one.raw, strict=True)]
    return [one, two, gain, cost]


async def _duly(
    lab: Lab, queue: Store, runs: int, processes: int, rate: Figure, cost: Figure | None, *, profile: str | None = None
) -> None:
    async with lab.server.store(queue) as store:
        arguments = as_arguments(database_url=store.url, concurrency=CONCURRENCY, held=True, profile=profile)
        async with running_all([("worker_process", *arguments)] * processes, name="worker") as workers:
            await lab.server.settle()
            rate.duly.append(runs / await timed(workers, runs))
        await verify(store, runs, "drain by Duly")
    if cost is not None:
        cost.duly.append(workers[0].cpu_us / runs)


async def _raw(lab: Lab, queue: Store, runs: int, processes: int, rate: Figure, cost: Figure | None) -> None:
    """Two connections in total: both in one process, or one in each of two."""
    async with lab.server.store(queue) as store:
        arguments = as_arguments(database_url=store.url, connections=CONNECTIONS // processes)
        async with running_all([("raw_process", "drain", *arguments)] * processes, name="raw loop") as loops:
            await lab.server.settle()
            rate.raw.append(runs / await timed(loops, runs))
        await verify(store, runs, "drain by raw SQL")
    if cost is not None:
        cost.raw.append(loops[0].cpu_us / runs)
