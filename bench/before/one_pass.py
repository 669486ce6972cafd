"""Runs passes of the bench with the version of Duly that is on the path.

Each line of the input names a pass, and each line of the output holds its figures. The module imports only the parts of
`duly.bench` that an earlier version has as well.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from duly.bench import drain, lag, submit
from duly.bench.figures import Figure, Spread
from duly.bench.lab import Lab, application, submit_all
from duly.bench.server import Store, running_server

Figures = dict[str, float]


async def main(url: str, scale: float) -> None:
    async with running_server(url, None) as server:
        lab = Lab(server=server, rounds=1, scale=scale, say=lambda _: None)
        async with _queue(lab) as queue:
            passes: dict[str, Callable[[Lab], Awaitable[Figures]]] = {
                "drain": lambda lab: _drain(lab, queue, 1),
                "drain2": lambda lab: _drain(lab, queue, 2),
                "submit": _submit,
                "lag": _lag,
            }
            print("ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                figures = await passes[line.strip()](lab)
                print(json.dumps(figures), flush=True)


@asynccontextmanager
async def _queue(lab: Lab) -> AsyncIterator[Store]:
    """The runs that every drain finds. Made once, so that the passes of a pair follow each other without a pause: the
    speed of a machine changes within the seconds that a submit takes."""
    async with lab.server.store() as queue:
        async with application(queue) as app:
            await submit_all(app, (app.request("noop", {"n": n}) for n in range(lab.scaled(drain.RUNS))))
        await queue.analyze()
        yield queue


async def _drain(lab: Lab, queue: Store, processes: int) -> Figures:
    rate, cost = Figure("drain", "rate", "/s"), Figure("drain", "cost", "µs")
    await drain._duly(lab, queue, lab.scaled(drain.RUNS), processes, rate, cost)
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
