"""`/metrics`: figures of the store and of this process in Prometheus' text format.

The gauges come from one bounded statement; the process's own figures are added. However many clients ask, the store is
asked once per second. The values of labels are bounded: the deepest queues (and one value for the others), live
schedulers and shards, and the kinds of handlers (not their names, which are users').

The figures and the names of queues are of the whole store: where there are keys, the role `monitor` is needed, as for
the whole store's figures of `GET /stats`. A key of that role can do nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.api.access import needs
from duly.api.declared import declared_page
from duly.api.requests import Requests
from duly.exposition import MEDIA_TYPE, families
from duly.figures import Snapshot
from duly.operations import StoreOperations
from duly.store.stores import MAX_COUNTED, Figures

# Maximum number of queues that have a line of their own.
MAX_QUEUES = 100
OTHER_QUEUES = "(other queues)"
_FRESH_SECONDS = 1.0


#: The figures of other processes, by what they do.
Beside = Callable[[], Mapping[str, Snapshot]]


def make_routes(operations: StoreOperations, requests: Requests, beside: Beside = dict) -> list[Route]:
    metrics = Metrics(operations, requests, beside)

    @needs("monitor")
    async def show_metrics(_: Request) -> Response:
        return Response(await metrics.text(), headers={"Content-Type": MEDIA_TYPE})

    return [declared_page("/metrics", show_metrics)]


class Metrics(Collector):
    """The figures of the store, shared by all clients that ask within the same second."""

    def __init__(self, operations: StoreOperations, requests: Requests | None = None, beside: Beside = dict) -> None:
        self._operations = operations
        self._requests = requests or Requests()
        self._beside = beside
        self._looking = asyncio.Lock()
        self._fresh_until = 0.0
        self._figures = Figures()
        self._text = b""
        # A queue that was seen once stays, at 0: a missing line does not mean an empty queue.
        self._queues: dict[str, int] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    async def text(self) -> bytes:
        async with self._looking:
            if time.monotonic() >= self._fresh_until:
                self._figures = await self._operations.cluster.figures()
                self._note_queues(self._figures.queue_depth)
                self._text = generate_latest(self._registry)
                self._fresh_until = time.monotonic() + _FRESH_SECONDS
            return self._text

    def _note_queues(self, depth: dict[str, int]) -> None:
        known = dict.fromkeys(self._queues, 0) | depth
        deepest = sorted(known, key=lambda queue: (-known[queue], queue))
        self._queues = {queue: known[queue] for queue in deepest[:MAX_QUEUES]}
        if rest := deepest[MAX_QUEUES:]:
            others = self._queues.get(OTHER_QUEUES, 0) + sum(known[queue] for queue in rest)
            self._queues[OTHER_QUEUES] = others

    def collect(self) -> Iterable[Metric]:
        # Shards are told by node below, for all schedulers and not only for the one beside this process.
        yield from families({"api": Snapshot(), **self._beside()}, leaving_out=("duly_shards_owned",))
        yield from self._requests.families()
        figures = self._figures
        yield _gauge(
            "duly_queue_depth",
            f"Runs that may start and wait for a worker; at most {MAX_COUNTED} are counted",
            "queue",
            self._queues,
        )
        letters = f"Runs in the dead letters; at most {MAX_COUNTED} are counted"
        yield GaugeMetricFamily("duly_dead_letters", letters, value=figures.dead_letters)
        yield _gauge("duly_due_jobs", "Jobs whose time has come and that have not fired", "shard", figures.due_jobs)
        yield _gauge("duly_shards_owned", "Shards that a live scheduler leads", "node", figures.shards_owned)
        yield GaugeMetricFamily(
            "duly_shards_unowned", "Shards that no live scheduler leads", value=figures.shards_unowned
        )
        yield _gauge("duly_live_nodes", "Nodes whose lease stands", "kind", figures.live_nodes)
        yield GaugeMetricFamily(
            "duly_oldest_waiting_seconds",
            "Time for which the oldest run that may start has waited for a worker; 0: none waits",
            value=figures.oldest_waiting_us / 1e6,
        )
        yield GaugeMetricFamily(
            "duly_oldest_due_seconds",
            "How late the oldest job is whose time has come and that has not fired; 0: none is",
            value=figures.oldest_due_us / 1e6,
        )
        yield _gauge(
            "duly_unrunnable_jobs",
            "Active jobs that no live worker can run, as far as they have been looked at",
            "kind",
            figures.unrunnable_jobs,
        )
        yield _gauge(
            "duly_unrunnable_runs",
            "Waiting runs that no live worker can run, among the first of each queue",
            "kind",
            figures.unrunnable_runs,
        )


def _gauge(name: str, help_text: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
