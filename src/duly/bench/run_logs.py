"""Logs of runs: a drain of runs whose handlers log ten lines each, and of silent ones, with their lines kept and not.

Both sides log the same lines to the process's log; kept means all of them, whatever the load (DULY_RUN_LOGS=on).
"""

from __future__ import annotations

import statistics
from functools import partial

from duly.bench.drain import CONCURRENCY
from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab, application, submit_all, verify
from duly.bench.processes import as_arguments, running_all, timed
from duly.bench.server import Store

RUNS = 100_000
LINES = 10


async def measure(lab: Lab) -> list[Figure]:
    figures: list[Figure] = []
    for task, what, least in (("chatter", f"{LINES} lines a run", 0.8), ("noop", "silent runs", 0.99)):
        runs = lab.scaled(RUNS if task == "noop" else RUNS // 5)
        rates = {mode: Figure("run-logs", f"drain, {what}, run logs {mode}", "/s") for mode in ("off", "on")}
        costs = {mode: Figure("run-logs", f"CPU per run, {what}, run logs {mode}", "µs") for mode in ("off", "on")}
        async with lab.server.store() as queue:
            lab.say(f"run-logs: submitting {runs:,} jobs")
            async with application(queue) as app:
                await submit_all(app, (app.request(task, {"n": n}) for n in range(runs)))
            await queue.analyze()
            passes = {
                f"{what}, run logs {mode}": partial(_drain, lab, queue, runs, mode, rates[mode], costs[mode])
                for mode in ("off", "on")
            }
            await lab.in_rounds("run-logs", passes)
        ratio = Figure("run-logs", f"drain, {what}, on by off", "×", goal=Bar(least))
        ratio.duly = [on / off for on, off in zip(rates["on"].duly, rates["off"].duly, strict=True)]
        # Steadier on a busy machine: the worker's own CPU time, as the rate that it would allow.
        by_cost = Figure("run-logs", f"CPU, {what}, off by on", "×", goal=Bar(least))
        by_cost.duly = [statistics.median(costs["off"].duly) / statistics.median(costs["on"].duly)]
        figures += [*rates.values(), ratio, *costs.values(), by_cost]
    return figures


async def _drain(lab: Lab, queue: Store, runs: int, mode: str, rate: Figure, cost: Figure) -> None:
    async with lab.server.store(queue) as store:
        arguments = as_arguments(database_url=store.url, concurrency=CONCURRENCY, held=True, run_logs=mode)
        async with running_all([("worker_process", *arguments)], name="worker") as workers:
            await lab.server.settle()
            rate.duly.append(runs / await timed(workers, runs))
        await verify(store, runs, f"drain with run logs {mode}")
    cost.duly.append(workers[0].cpu_us / runs)
