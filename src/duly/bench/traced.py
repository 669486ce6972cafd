"""Traced: drains with OpenTelemetry's SDK, which samples 1 %, beside the same drains without it.

A one-off is sampled if its submit was, an occurrence of a recurring job if the worker's sampler says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec

from duly.bench.drain import CONCURRENCY, RUNS
from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab, Pass, application, submit_all, verify
from duly.bench.processes import as_arguments, running_all, timed
from duly.bench.server import Store, connect
from duly.bench.statements import bench_statement
from duly.errors import ConfigError

SAMPLED = 0.01
_KINDS = ("one-offs", "occurrences")


async def measure(lab: Lab) -> list[Figure]:
    if find_spec("opentelemetry.sdk.trace") is None:
        raise ConfigError("traced needs OpenTelemetry's SDK: pip install opentelemetry-sdk")
    runs = lab.scaled(RUNS)
    figures, passes = [], dict[str, Pass]()
    async with AsyncExitStack() as stack:
        for kind in _KINDS:
            queue = await stack.enter_async_context(_queue(lab, runs, recurring=kind == "occurrences"))
            # Both by plain drain, which takes the place of the raw loop: the ratio is Duly's own.
            rate = Figure("traced", f"drain of {kind}, 1 % sampled (raw: no SDK)", "/s", goal=Bar(ratio=0.93))
            cost = Figure("traced", f"CPU per run of {kind} (raw: no SDK)", "µs")
            figures += [rate, cost]
            passes[f"{kind} with the SDK"] = partial(_drain, lab, queue, runs, rate.duly, cost.duly, SAMPLED)
            passes[f"{kind} without"] = partial(_drain, lab, queue, runs, rate.raw, cost.raw, None)
        await lab.in_rounds("traced", passes)
    return figures


@asynccontextmanager
async def _queue(lab: Lab, runs: int, *, recurring: bool) -> AsyncIterator[Store]:
    async with lab.server.store() as queue:
        lab.say(f"traced: submitting {runs:,} jobs")
        async with application(queue) as app:
            await submit_all(app, (app.request("noop", {"n": n}) for n in range(runs)))
        connection = await connect(queue.url)
        try:
            if recurring:
                await connection.execute(bench_statement("make_recurring"), timeout=600)
            else:
                await connection.execute(bench_statement("trace_some"), SAMPLED, timeout=600)
            await connection.execute(bench_statement("vacuum_jobs"), timeout=600)
        finally:
            await connection.close()
        await queue.analyze()
        yield queue


async def _drain(
    lab: Lab, queue: Store, runs: int, rates: list[float], costs: list[float], sampled: float | None
) -> None:
    async with lab.server.store(queue) as store:
        arguments = as_arguments(database_url=store.url, concurrency=CONCURRENCY, held=True, sampled=sampled)
        async with running_all([("worker_process", *arguments)], name="worker") as workers:
            await lab.server.settle()
            rates.append(runs / await timed(workers, runs))
        await verify(store, runs, "traced drain")
    costs.append(workers[0].cpu_us / runs)
