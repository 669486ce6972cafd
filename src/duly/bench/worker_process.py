"""A worker as users run it, with tasks that do nothing, wait a little, or record the time of their start.

`python -m duly.bench.worker_process`, started by the bench. With `--profile FILE` the run is written down by cProfile;
its figures are then worth nothing, its proportions a lot.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from duly.bench.child import DATABASE_URL, Parent, monotonic_us
from duly.bench.server import bench_settings
from duly.logs import let_handlers_log, set_up_logging
from duly.node import running_worker
from duly.process import run
from duly.store.pool import Pool
from duly.worker.handler.task import Task

log = logging.getLogger("bench.orders")
_NAP_SECONDS = 0.002


async def noop(n: int) -> None:
    """Does nothing, with one small argument to decode."""


async def chatter(n: int) -> None:
    """Logs ten lines."""
    for number in range(10):
        log.info("order %d: step %d of 10 has been done", n, number)


async def nap(n: int) -> None:
    """Waits, as many a handler does most of the time for an answer."""
    await asyncio.sleep(_NAP_SECONDS)


class Stamps:
    """The starts: the mark from the payload, and this machine's monotonic clock."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

    async def stamp(self, mark: int) -> None:
        self.taken.append((mark, monotonic_us()))


async def work(url: str, *, concurrency: int | None, held: bool, profile: Path | None, run_logs: str | None) -> None:
    """Work until the bench ends it. `held`: connect, but claim nothing before the order to begin."""
    settings = bench_settings(url)
    if run_logs is not None:
        settings = settings.model_copy(update={"run_logs": run_logs})
    parent = await Parent.connect()
    stamps = Stamps()
    tasks = {
        "noop": Task("noop", noop),
        "nap": Task("nap", nap),
        "chatter": Task("chatter", chatter),
        "stamp": Task("stamp", stamps.stamp),
    }
    pool = await Pool.connect(url, size=settings.pool_size)
    try:
        if held and not await parent.released():
            return
        with profiled(profile):
            async with running_worker(pool, tasks, settings, concurrency=concurrency) as worker:
                if not held:
                    parent.tell(ready=True)
                async with parent.counting(lambda: worker.completer.succeeded):
                    await parent.ended()
        parent.tell(stamps=stamps.taken)
    finally:
        await pool.close()


@contextlib.contextmanager
def profiled(target: Path | None) -> Iterator[None]:
    if target is None:
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        profile.dump_stats(target)


def make_spans(sampled: float) -> None:
    """Configure the SDK as applications do; spans are encoded, and sent nowhere."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            for span in spans:
                json.dumps([span.name, span.start_time, span.end_time, dict(span.attributes or {})])
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(sampled))
    provider.add_span_processor(BatchSpanProcessor(Exporter()))
    trace.set_tracer_provider(provider)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(database_url=os.environ[DATABASE_URL])
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--held", action="store_true")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--run-logs")
    parser.add_argument("--sampled", type=float, help="with OpenTelemetry's SDK, which samples this share")
    options = parser.parse_args()
    if options.sampled is not None:
        make_spans(options.sampled)
    if options.run_logs is not None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
        set_up_logging("INFO")
        let_handlers_log("INFO")
    run(
        lambda: work(
            options.database_url,
            concurrency=options.concurrency,
            held=options.held,
            profile=options.profile,
            run_logs=options.run_logs,
        )
    )


if __name__ == "__main__":
    main()
