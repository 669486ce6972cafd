"""Handlers: 500,000 runs per minute whose handlers wait for two milliseconds, for five minutes."""

from __future__ import annotations

from duly.bench.figures import Bar, Figure
from duly.bench.flow import Flow, pass_through
from duly.bench.lab import Lab
from duly.model import Policy

PER_SECOND = 8_333
PERIOD = 60
SECONDS = 300
PROCESSES = 2
CONCURRENCY = 4_000


async def measure(lab: Lab) -> list[Figure]:
    jobs, seconds = lab.scaled(PER_SECOND * PERIOD), lab.seconds or lab.scaled(SECONDS, least=5)
    flow = Flow(
        "handlers",
        jobs,
        "every 1m",
        PERIOD,
        "nap",
        processes=PROCESSES,
        concurrency=CONCURRENCY,
        policy=Policy(overlap="parallel").to_stored(),
    )
    passed = await pass_through(lab, flow, seconds)
    _, p50, p99, longest = passed.lags_ms
    # A run may wait for a second, so a queue no longer than one second's due jobs does not grow.
    grown = Figure("handlers", "grown meanwhile", "runs", goal=Bar(round(flow.per_second)))
    grown.duly = [max(0, passed.waiting_last - passed.waiting_first)]
    return [
        Figure("handlers", "due to start, 2 ms handlers, p50", "ms", duly=[p50]),
        Figure("handlers", "due to start, 2 ms handlers, p99", "ms", goal=Bar(1000), duly=[p99]),
        Figure("handlers", "due to start, 2 ms handlers, max", "ms", duly=[longest]),
        Figure(
            "handlers",
            f"run, of {passed.due / seconds:,.1f}/s due",
            "/s",
            duly=[passed.ended_in_time / seconds],
        ),
        Figure("handlers", f"lost of {passed.due:,} due in {seconds} s", "runs", goal=Bar(0), duly=[passed.lost]),
        Figure("handlers", "waiting when a tenth had passed", "runs", duly=[passed.waiting_first]),
        Figure("handlers", "waiting at the end", "runs", duly=[passed.waiting_last]),
        grown,
    ]
