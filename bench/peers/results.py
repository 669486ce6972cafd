"""Results: the values of every round, their medians, and the reason for each missing value. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Every measurement and its figures.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "submit": ("submit",),
    "drain": ("drain_1", "drain_2"),
    "latency": ("latency_p50", "latency_p99"),
    "lag": ("lag_p50", "lag_p99"),
    "hot-second": ("hot_second",),
    "idle": ("idle",),
}


@dataclass(slots=True)
class Tool:
    """One row: Duly, the raw loop, or a peer."""

    name: str
    title: str
    versions: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    server: str = "postgresql"
    values: dict[str, list[float]] = field(default_factory=dict)
    """The values of all rounds, by figure."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Number of jobs, by measurement."""
    failures: dict[str, str] = field(default_factory=dict)
    """Reason of each failure, by measurement; `set up`: no measurement was possible."""

    def add(self, figures: Mapping[str, float]) -> None:
        for figure, value in figures.items():
            self.values.setdefault(figure, []).append(value)

    def median(self, figure: str) -> float | None:
        values = self.values.get(figure)
        return statistics.median(values) if values else None

    def failure_of(self, figure: str) -> str | None:
        """The reason for a missing figure, if something failed."""
        if self.values.get(figure):
            return None
        measure = next(name for name, figures in MEASURES.items() if figure in figures)
        return self.failures.get("set up") or self.failures.get(measure)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "versions": self.versions,
            "settings": self.settings,
            "server": self.server,
            "figures": {
                figure: {"median": self.median(figure), "rounds": values} for figure, values in self.values.items()
            },
            "jobs": self.jobs,
            "failures": self.failures,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Tool:
        values = {figure: list(one["rounds"]) for figure, one in document["figures"].items()}
        return cls(
            document["name"], document["title"], document["versions"], document["settings"], document["server"],
            values, document["jobs"], document["failures"],
        )  # fmt: skip


@dataclass(slots=True)
class Results:
    tools: list[Tool]
    facts: dict[str, str]
    rounds: int
    quick: bool

    def ordered(self) -> list[Tool]:
        """Duly and the raw loops first, then peers by their drain; at the end peers without a figure."""
        ours = [tool for tool in self.tools if tool.name in OURS]
        peers = [tool for tool in self.tools if tool.name not in OURS]
        return ours + sorted(peers, key=lambda tool: -(tool.median("drain_2") or tool.median("drain_1") or 0))

    def to_json(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "rounds": self.rounds,
            "quick": self.quick,
            "tools": [tool.to_json() for tool in self.ordered()],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Results:
        tools = [Tool.from_json(tool) for tool in document["tools"]]
        return cls(tools, document["facts"], document["rounds"], document["quick"])


OURS = ("duly", "raw", "copy")
