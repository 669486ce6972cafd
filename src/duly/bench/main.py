"""`duly bench`: the list of measurements, which are run one after the other."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from duly.bench import (
    api,
    backlog,
    drain,
    handlers,
    hot_second,
    lag,
    latency,
    planning,
    registered,
    run_logs,
    steady,
    submit,
    traced,
)
from duly.bench.figures import Figure
from duly.bench.lab import Lab, Measure
from duly.bench.processes import BenchFailed
from duly.bench.report import make_document, make_facts_table, make_table
from duly.bench.server import running_server
from duly.errors import DulyError, InvalidInput
from duly.process import run
from duly.visible import visible, visible_lines

MEASURES: Mapping[str, Measure] = {
    "drain": drain.measure,
    "submit": submit.measure,
    "latency": latency.measure,
    "lag": lag.measure,
    "hot-second": hot_second.measure,
    "planning": planning.measure,
    "api": api.measure,
    "registered": registered.measure,
}
# These take minutes to an hour, and gigabytes, or need what users may lack, and are measured only when named.
LONG: Mapping[str, Measure] = {
    "steady": steady.measure,
    "run-logs": run_logs.measure,
    "handlers": handlers.measure,
    "backlog": backlog.measure,
    "traced": traced.measure,
}
NAMES = (*MEASURES, *LONG)
DEFAULT_JSON = "bench-results.json"
_WIDTH = 140
_INTERRUPTED = 130  # the exit code that shells give for Ctrl-C
Result = TypeVar("Result")


def run_bench(
    *,
    only: Sequence[str] | None,
    rounds: int,
    scale: float,
    json_path: Path | None,
    database_url: str | None,
    home: Path | None,
    quiet: bool = False,
    profile: Path | None = None,
    jobs: int | None = None,
    seconds: int | None = None,
) -> int:
    """Measure, print a table, write JSON. Returns 0 if every count was right, else 1; slowness is no failure."""
    names = _chosen(only)
    if rounds < 1:
        raise InvalidInput("rounds", "must be at least 1")
    if not 0 < scale <= 1000:
        raise InvalidInput("scale", "must be more than 0 and at most 1000")
    if jobs is not None and not 1 <= jobs <= 1_000_000_000:
        raise InvalidInput("jobs", "must be between 1 and 1,000,000,000")
    if seconds is not None and not 1 <= seconds <= 86_400:
        raise InvalidInput("seconds", "must be between 1 and 86,400")
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise InvalidInput("json", f"cannot be written: there is no folder {json_path.parent}")
    progress = Console(stderr=True, quiet=quiet)

    async def bench() -> tuple[list[Figure], dict[str, str], list[str]]:
        figures: list[Figure] = []
        failures: list[str] = []
        async with running_server(database_url, home) as server:
            facts = await server.facts()
            lab = Lab(
                server,
                rounds,
                scale,
                lambda text: progress.print(Text(visible(text)), style="dim"),
                profile,
                jobs=jobs,
                seconds=seconds,
            )
            for name in names:
                try:
                    figures += await {**MEASURES, **LONG}[name](lab)
                except (BenchFailed, DulyError) as failure:
                    failures.append(f"{name}: {failure}")
                    progress.print(Text(visible_lines(f"FAILED: {failures[-1]}")), style="bold red")
        return figures, facts, failures

    done = run(lambda: _ended_by_signals(bench()))
    if done is None:
        progress.print("interrupted: nothing was written", style="bold red")
        return _INTERRUPTED
    figures, facts, failures = done
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)  # into a file or a log, where lines may be as long as the table
    console.print(make_facts_table(facts))
    console.print(make_table(figures))
    for failure in failures:
        console.print(Text(visible_lines(f"NOT VERIFIED: {failure}")), style="bold red")
    if json_path is not None:
        document = make_document(figures, facts, rounds=rounds, scale=scale, failures=failures)
        json_path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        progress.print(Text(visible(f"written to {json_path}")), style="dim")
    return 1 if failures else 0


def _chosen(only: Sequence[str] | None) -> list[str]:
    if only is None:
        return list(MEASURES)
    for name in only:
        if name not in NAMES:
            raise InvalidInput("only", f"{name!r} is not measured; choose from {', '.join(NAMES)}")
    return [name for name in NAMES if name in only]


async def _ended_by_signals(bench: Coroutine[Any, Any, Result]) -> Result | None:
    """Let SIGTERM, like Ctrl-C, cancel the bench, so that it removes its processes and files."""
    task = asyncio.ensure_future(bench)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
