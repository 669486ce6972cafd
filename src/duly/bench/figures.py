"""Figures and their targets. Pure: numbers in, numbers out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["/s", "µs", "ms", "s", "×", "MB", "runs"]
Verdict = Literal["goal", "bar", "below", ""]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


@dataclass(frozen=True, slots=True)
class Bar:
    """A target: a minimum for rates, a maximum for times; `ratio` is the minimum fraction of the raw loop."""

    value: float | None = None
    ratio: float | None = None

    def __bool__(self) -> bool:
        return self.value is not None or self.ratio is not None


@dataclass(slots=True)
class Figure:
    """One measured quantity: a value for Duly and one for the raw loop from every round."""

    bench: str
    what: str
    unit: Unit
    bar: Bar = field(default_factory=Bar)
    """The minimum for every version."""
    goal: Bar = field(default_factory=Bar)
    """The target of the specification, section 13."""
    duly: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)

    @property
    def more_is_better(self) -> bool:
        return self.unit in ("/s", "×")

    @property
    def duly_median(self) -> float | None:
        return statistics.median(self.duly) if self.duly else None

    @property
    def raw_median(self) -> float | None:
        return statistics.median(self.raw) if self.raw else None

    @property
    def ratio(self) -> float | None:
        """Duly's value divided by the raw loop's: the median over rounds, in which both are measured consecutively."""
        ratios = [duly / raw for duly, raw in zip(self.duly, self.raw, strict=False) if raw]
        return statistics.median(ratios) if ratios else None

    @property
    def verdict(self) -> Verdict:
        """`goal` if the goal is met (or there is only a bar, and it is met); empty if there is no target."""
        if self.duly_median is None or not (self.bar or self.goal):
            return ""
        if self._meets(self.goal) and self._meets(self.bar):
            return "goal"
        return "bar" if self.bar and self._meets(self.bar) else "below"

    def _meets(self, bar: Bar) -> bool:
        median, ratio = self.duly_median, self.ratio
        if bar.value is not None and median is not None:
            if self.more_is_better and median < bar.value:
                return False
            if not self.more_is_better and median > bar.value:
                return False
        return bar.ratio is None or ratio is None or ratio >= bar.ratio

    def to_json(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "what": self.what,
            "unit": self.unit,
            "duly": self.duly_median,
            "raw": self.raw_median,
            "ratio": self.ratio,
            "bar": {"value": self.bar.value, "ratio": self.bar.ratio},
            "goal": {"value": self.goal.value, "ratio": self.goal.ratio},
            "verdict": self.verdict,
            "rounds": {"duly": self.duly, "raw": self.raw},
        }


class Spread:
    """p50, p99 and max of delays, in milliseconds, as three figures."""

    def __init__(self, bench: str, what: str, *, bar: Bar | None = None, goal: Bar | None = None) -> None:
        self.p50 = Figure(bench, f"{what} p50", "ms")
        self.p99 = Figure(bench, f"{what} p99", "ms", bar or Bar(), goal or Bar())
        self.longest = Figure(bench, f"{what} max", "ms")

    def add_duly(self, delays_us: Sequence[int]) -> None:
        for figure, value in zip(self.figures, _in_ms(delays_us), strict=True):
            figure.duly.append(value)

    def add_raw(self, delays_us: Sequence[int]) -> None:
        for figure, value in zip(self.figures, _in_ms(delays_us), strict=True):
            figure.raw.append(value)

    @property
    def figures(self) -> list[Figure]:
        return [self.p50, self.p99, self.longest]


def _in_ms(delays_us: Sequence[int]) -> tuple[float, float, float]:
    return percentile(delays_us, 50) / 1000, percentile(delays_us, 99) / 1000, max(delays_us) / 1000
