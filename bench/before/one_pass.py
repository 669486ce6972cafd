"""Runs passes of the bench with the version of Duly that is on the path.

Each line of the input names a pass, and each line of the output holds its figures. The module imports only the parts of
`duly.bench` that an earlier version has as well.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

from duly.bench import drain, lag, submit
from duly.bench.figures import Figure, Spread
from duly.bench.lab import Lab, application, submit_all
from duly.bench.server import running_server

Figures = dict[str, float]


async def main(url: str, scale: float) -> None:
    async with running_server(url, None) as server:
        lab = Lab(server=server, rounds=1, scale=scale, say=lambda _: None)
        passes: dict[str, Callable[[Lab], Awaitable[Figures]]] = {
            "drain": lambda lab: _drain(lab, 1),
            "drain2": lambda lab: _drain(lab, 2),
            "submit": _submit,
            "lag": _lag,
        }
        while line := await asyncio.to_thread(sys.stdin.readline):
            figures = await passes[line.strip()](lab)
            print(json.dumps(figures), flush=True)


async def _drain(lab: Lab, processes: int) -> Figures:
    runs = lab.scaled(drain.RUNS)
    rate, cost = Figure("drain", "rate", "/s"), Figure("drain", "cost", "µs")
    async with lab.server.store() as queue:
        async with application(queue) as app:
            await submit_all(app, (app.request("noop", {"n": n}) for n in range(runs)))
        await queue.analyze()
        await drain._duly(lab, queue, runs, processes, rate, cost)
    return {"runs/s": rate.duly[0], "1/CPU of the process": 1 / cost.duly[0]}


async def _submit(lab: Lab) -> Figures:
    rate = Figure("submit", "rate", "/s")
    await submit._duly(lab, lab.scaled(submit.JOBS), [rate])
    return {"jobs/s": rate.duly[0]}


async def _lag(lab: Lab) -> Figures:
    spread = Spread("lag", "due to start,")
    await lag._duly(lab, lab.scaled(lag.JOBS), spread)
    return {"1/p50": 1 / spread.p50.duly[0], "1/p99": 1 / spread.p99.duly[0]}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
