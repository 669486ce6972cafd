"""The figures that a process counts while it works, for `/metrics`: the one home of their names, meanings and buckets.

Recording is nearly free: plain numbers, changed for a whole batch of runs at once, by the one thread that works.
Whoever asks reads them from another thread as a `Snapshot`, a value that can also be sent to another process and added
up. Only `exposition.py` knows Prometheus' format.

No label has values that users can make: there would be as many time series as a user has ideas.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["counter", "gauge", "histogram"]

# The SLOs have bounds among these: a start within 0.25 s as a rule and 30 s at the worst.
LAG_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
DURATION_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """What a figure is called, what it means, and the kinds of processes that have it."""

    name: str
    kind: Kind
    help: str
    of: tuple[str, ...]
    label: str | None = None
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()
    #: How a gauge of several processes is combined.
    averaged: bool = False


_BOTH = ("scheduler", "worker")
FIGURES: Mapping[str, Figure] = {
    one.name: one
    for one in (
        Figure(
            "duly_schedule_lag_seconds",
            "histogram",
            "Time from the scheduled moment of a run to the start of its first attempt, counted when that has ended",
            ("worker",),
            buckets=LAG_BUCKETS,
        ),
        Figure(
            "duly_fire_lag_seconds",
            "histogram",
            "Time from the scheduled moment of an occurrence to its run in the queue; 0 if it was there before",
            ("scheduler",),
            buckets=LAG_BUCKETS,
        ),
        Figure(
            "duly_run_duration_seconds",
            "histogram",
            "Time from the start to the end of an attempt",
            ("worker",),
            buckets=DURATION_BUCKETS,
        ),
        Figure(
            "duly_runs_total",
            "counter",
            "Runs that this process recorded as ended, by their last status",
            _BOTH,
            label="status",
            values=("succeeded", "dead", "cancelled", "missed", "skipped"),
        ),
        Figure("duly_retries_total", "counter", "Failed attempts that are tried again", ("worker",)),
        Figure(
            "duly_claim_conflicts_total",
            "counter",
            "Claims answered too late to be used, and jobs that somebody else changed or held while they were fired",
            _BOTH,
        ),
        Figure(
            "duly_lease_lost_total", "counter", "Runs that were no longer this worker's when they ended", ("worker",)
        ),
        Figure("duly_rescued_total", "counter", "Runs taken back from workers that were lost", _BOTH),
        Figure("duly_missed_total", "counter", "Occurrences that were recorded as missed and will not run", _BOTH),
        Figure(
            "duly_guardian_repairs_total", "counter", "States repaired that should never have occurred", ("scheduler",)
        ),
        Figure(
            "duly_worker_utilization",
            "gauge",
            "Runs that a worker process holds, as a part of those that it may hold (0 to 1)",
            ("worker",),
            averaged=True,
        ),
        Figure("duly_shards_owned", "gauge", "Shards that this scheduler leads", ("scheduler",)),
    )
}


#: Of the API. Its labels are routes, methods and classes of status: all of Duly's making.
REQUEST = Figure(
    "duly_api_request_duration_seconds",
    "histogram",
    "Time from a request to the end of its answer",
    ("api",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
REQUEST_LABELS = ("route", "method", "status")


class Histogram:
    """Counts of times between bounds. Times are whole microseconds, as everywhere inside Duly."""

    __slots__ = ("_bounds", "counts", "sum_us")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._bounds = [round(bound * 1e6) for bound in buckets]
        #: Per bucket, not cumulative; the last is of times above all bounds.
        self.counts = [0] * (len(buckets) + 1)
        self.sum_us = 0.0

    def observe(self, times_us: list[float]) -> None:
        """Counts a batch, which it may put in order. The times of a batch are mostly alike: then it costs no search."""
        if not times_us:
            return
        low, high = min(times_us), max(times_us)
        first, last = bisect_left(self._bounds, low), bisect_left(self._bounds, high)
        if low < 0:
            times_us = [max(0, time_us) for time_us in times_us]
        self.sum_us += sum(times_us)
        if first == last:
            self.counts[first] += len(times_us)
            return
        times_us.sort()
        position = 0
        for bucket in range(first, last):
            # `le`: a time that is exactly the bound belongs to the bucket below it.
            after = _end_of(times_us, self._bounds[bucket], position)
            self.counts[bucket] += after - position
            position = after
        self.counts[last] += len(times_us) - position

    def observe_alike(self, low: float, high: float, count: int, sum_us: float) -> bool:
        """Counts times of which only the bounds and a sum are known, if they lie in one bucket. Else returns False."""
        bucket = bisect_left(self._bounds, low)
        if low < 0 or bucket != bisect_left(self._bounds, high):
            return False
        self.counts[bucket] += count
        self.sum_us += sum_us
        return True


def _end_of(ordered: Sequence[float], bound: float, start: int) -> int:
    return bisect_left(ordered, bound + 1, start)


@dataclass(slots=True)
class Snapshot:
    """The figures of one process, or of several, at one moment: by name, and by the value of the label."""

    numbers: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Counts per bucket, and the sum in seconds.
    histograms: dict[str, tuple[list[int], float]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Snapshot:
        """From another process, perhaps of another version: what is not known here is left out."""
        found = cls()
        for name, numbers in dict(document["numbers"]).items():
            figure = FIGURES.get(name)
            if figure is not None and figure.kind != "histogram":
                found.numbers[name] = {value: float(numbers.get(value, 0)) for value in figure.values}
        for name, (counts, total) in dict(document["histograms"]).items():
            figure = FIGURES.get(name)
            if figure is not None and len(counts) == len(figure.buckets) + 1:
                found.histograms[name] = [int(count) for count in counts], float(total)
        return found


class Figures:
    """What one process counts. `kind`: `scheduler` or `worker`; it has the figures of that kind, from 0 on."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.schedule_lag = Histogram(LAG_BUCKETS)
        self.fire_lag = Histogram(LAG_BUCKETS)
        self.run_duration = Histogram(DURATION_BUCKETS)
        self.runs = dict.fromkeys(FIGURES["duly_runs_total"].values, 0)
        self.retries = 0
        self.claim_conflicts = 0
        self.lease_lost = 0
        self.rescued = 0
        self.missed = 0
        self.guardian_repairs = 0
        # A part of the process that can tell sets these.
        self.utilization: Callable[[], float] = lambda: 0.0
        self.shards_owned: Callable[[], int] = lambda: 0

    def snapshot(self) -> Snapshot:
        """Called from any thread."""
        numbers: dict[str, dict[str, float]] = {
            "duly_runs_total": dict(self.runs),
            "duly_retries_total": {"": self.retries},
            "duly_claim_conflicts_total": {"": self.claim_conflicts},
            "duly_lease_lost_total": {"": self.lease_lost},
            "duly_rescued_total": {"": self.rescued},
            "duly_missed_total": {"": self.missed},
            "duly_guardian_repairs_total": {"": self.guardian_repairs},
            "duly_worker_utilization": {"": self.utilization()},
            "duly_shards_owned": {"": self.shards_owned()},
        }
        histograms = {
            "duly_schedule_lag_seconds": self.schedule_lag,
            "duly_fire_lag_seconds": self.fire_lag,
            "duly_run_duration_seconds": self.run_duration,
        }
        own = {name for name, figure in FIGURES.items() if self.kind in figure.of}
        return Snapshot(
            {name: of_label for name, of_label in numbers.items() if name in own},
            {name: (list(one.counts), one.sum_us / 1e6) for name, one in histograms.items() if name in own},
        )


def added(snapshots: Iterable[Snapshot], *, gauges: bool = True) -> Snapshot:
    """The figures of several processes together. Without `gauges`: of processes that have ended."""
    total, of_each = Snapshot(), dict[str, int]()
    for one in snapshots:
        for name, numbers in one.numbers.items():
            if FIGURES[name].kind == "gauge" and not gauges:
                continue
            of_each[name] = of_each.get(name, 0) + 1
            sums = total.numbers.setdefault(name, {})
            for value, number in numbers.items():
                sums[value] = sums.get(value, 0) + number
        for name, (counts, seconds) in one.histograms.items():
            before, sum_before = total.histograms.get(name, ([0] * len(counts), 0.0))
            summed = [a + b for a, b in zip(before, counts, strict=True)]
            total.histograms[name] = summed, sum_before + seconds
    for name, count in of_each.items():
        if FIGURES[name].averaged:
            total.numbers[name] = {value: number / count for value, number in total.numbers[name].items()}
    return total
