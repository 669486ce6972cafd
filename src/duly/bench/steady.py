"""Steady: ten million hourly jobs, 2,800 of them due every second, for ten minutes."""

from __future__ import annotations

from duly.bench.figures import Bar, Figure
from duly.bench.flow import Flow, pass_through
from duly.bench.lab import Lab

JOBS = 10_000_000
SECONDS = 600
CONCURRENCY = 4_000


async def measure(lab: Lab) -> list[Figure]:
    jobs, seconds = lab.jobs or lab.scaled(JOBS), lab.seconds or lab.scaled(SECONDS, least=5)
    flow = Flow("steady", jobs, "every 1h", 3600.0, "noop", processes=1, concurrency=CONCURRENCY)
    passed = await pass_through(lab, flow, seconds)
    _, p50, p99, longest = passed.lags_ms
    return [
        Figure("steady", f"due to start with {jobs:,} jobs, p50", "ms", duly=[p50]),
        Figure("steady", f"due to start with {jobs:,} jobs, p99", "ms", goal=Bar(250), duly=[p99]),
        Figure("steady", f"due to start with {jobs:,} jobs, max", "ms", duly=[longest]),
        Figure(
            "steady",
            f"fired, of {passed.due / seconds:,.1f}/s due",
            "/s",
            duly=[passed.fired_in_time / seconds],
        ),
        Figure("steady", f"lost of {passed.due:,} due in {seconds} s", "runs", goal=Bar(0), duly=[passed.lost]),
        Figure("steady", "waiting at the end", "runs", duly=[passed.waiting_last]),
        Figure("steady", f"scheduler's memory, {jobs:,} jobs", "MB", goal=Bar(400), duly=[passed.memory / 1e6]),
    ]
