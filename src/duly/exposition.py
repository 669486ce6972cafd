"""Figures in Prometheus' text format. The only module, beside the API's own metrics, that knows `prometheus_client`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from duly.errors import MissingExtra
from duly.figures import FIGURES, Figure, Snapshot
from duly.version import VERSION

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Media type of the text format, which every Prometheus version accepts.
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def families(snapshots: Mapping[str, Snapshot], *, leaving_out: Sequence[str] = ()) -> Iterable[Metric]:
    """The figures of a process, by the kinds of work that it does, such as `worker`; those of the same name add up."""
    from prometheus_client.core import GaugeMetricFamily

    from duly.figures import added

    build = GaugeMetricFamily("duly_build_info", "The version of Duly, and what runs here", labels=["version", "kind"])
    for kind in snapshots:
        build.add_metric([VERSION, kind], 1)
    yield build
    total = added(snapshots.values())
    for name, figure in FIGURES.items():
        if name in leaving_out:
            continue
        if name in total.histograms:
            yield histogram(figure, {(): total.histograms[name]})
        elif name in total.numbers:
            yield _numbers(figure, total.numbers[name])


def text_of(snapshots: Callable[[], Mapping[str, Snapshot]]) -> Callable[[], bytes]:
    """What renders the figures of this process, and those of Python and the process itself.

    Raises `MissingExtra` where `prometheus_client` is not installed.
    """
    try:
        from prometheus_client import (
            CollectorRegistry,
            GCCollector,
            PlatformCollector,
            ProcessCollector,
            generate_latest,
        )
        from prometheus_client.registry import Collector
    except ModuleNotFoundError as missing:
        raise MissingExtra("/metrics", "metrics") from missing

    class Ours(Collector):
        def collect(self) -> Iterable[Metric]:
            return families(snapshots())

    registry = CollectorRegistry()
    registry.register(Ours())
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return lambda: generate_latest(registry)


def _numbers(figure: Figure, numbers: Mapping[str, float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = [] if figure.label is None else [figure.label]
    make = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    family = make(figure.name, figure.help, labels=labels)
    for value, number in numbers.items():
        family.add_metric([] if figure.label is None else [value], number)
    return family


def histogram(
    figure: Figure, of_labels: Mapping[tuple[str, ...], tuple[Sequence[int], float]], *, labels: Sequence[str] = ()
) -> Metric:
    """A histogram with counts per bucket and a sum in seconds for each tuple of values of its labels."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(figure.name, figure.help, labels=labels)
    for values, (counts, seconds) in of_labels.items():
        buckets, so_far = [], 0
        for bound, count in zip((*figure.buckets, None), counts, strict=True):
            so_far += count
            buckets.append(("+Inf" if bound is None else str(bound), so_far))
        family.add_metric(values, buckets, seconds)
    return family
