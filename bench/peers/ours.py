"""Duly and the raw-SQL loop of its own statements, by the measurements of `duly bench`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from duly.bench import drain, hot_second, lag, latency, submit
from duly.bench.figures import Figure
from duly.bench.lab import Lab
from duly.bench.processes import as_arguments, running
from duly.bench.server import Server
from duly.node import duly_version
from peers.measures import Sizes, transactions_per_second
from peers.results import Tool
from peers.setting_up import Say

_FIGURES: Mapping[str, tuple[Callable[[Lab], Awaitable[list[Figure]]], Mapping[str, str]]] = {
    # The name of each figure in `duly bench`, and here.
    "drain": (drain.measure, {"drain, 1 process": "drain_1", "drain, 2 processes": "drain_2"}),
    "latency": (latency.measure, {"submit to start, p50": "latency_p50", "submit to start, p99": "latency_p99"}),
    "lag": (lag.measure, {"due to start, p50": "lag_p50", "due to start, p99": "lag_p99"}),
    "hot-second": (hot_second.measure, {", recorded": "hot_second"}),
}
_JOBS = {
    "submit": submit.JOBS,
    "drain": drain.RUNS,
    "latency": latency.PER_SECOND * latency.SECONDS,
    "lag": lag.JOBS,
    "hot-second": hot_second.JOBS,
}


def tools() -> dict[str, Tool]:
    version = {"duly": duly_version()}
    return {
        "duly": Tool(
            "duly",
            "Duly",
            version,
            f"defaults, but concurrency {drain.CONCURRENCY:,} for drain and hot second; submit_many; fenced, history",
        ),
        "raw": Tool("raw", "raw SQL, Duly's statements", version, "two connections, no handlers: the limit for Duly"),
        "copy": Tool("copy", "raw COPY of Duly's rows", version, "one connection"),
    }


async def measure(name: str, server: Server, sizes: Sizes, ours: Mapping[str, Tool], say: Say) -> None:
    """One round of one measurement, added to the rows."""
    if name == "idle":
        ours["duly"].add({"idle": await _idle(server, sizes.idle_seconds)})
        return
    lab = Lab(server, rounds=1, scale=sizes.scale[name], say=say)
    if name == "submit":
        by_copy, by_statement = await submit.measure(lab)
        ours["duly"].add({"submit": by_copy.duly[0]})
        ours["raw"].add({"submit": by_statement.raw[0]})
        ours["copy"].add({"submit": by_copy.raw[0]})
    else:
        taken, names = _FIGURES[name]
        for figure in await taken(lab):
            for ending, here in names.items():
                if figure.what.endswith(ending):
                    ours["duly"].add({here: figure.duly[0]})
                    ours["raw"].add({here: figure.raw[0]})
    for row in ("duly", "raw"):
        ours[row].jobs[name] = lab.scaled(_JOBS[name])


async def _idle(server: Server, seconds: float) -> float:
    """Measures a worker and a scheduler, which together serve both kinds of jobs."""
    async with server.store() as store:
        at_store = as_arguments(database_url=store.url)
        async with (
            running("worker_process", *at_store, name="worker") as worker,
            running("scheduler_process", *at_store, *as_arguments(jobs=0), name="scheduler") as scheduler,
        ):
            rate = await transactions_per_second(store.url, seconds)
            await scheduler.end()
            await worker.end()
    return rate
