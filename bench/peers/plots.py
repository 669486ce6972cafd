"""Bar charts as SVG, readable on light and dark pages. Pure: results in, text out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from peers.results import Results, Tool

_WIDTH = 760
_LABELS = 210  # to the left of the bars
_VALUES = 150  # to the right of the longest
_TOP = 46
_BAR = 15
_GAP = 11
_FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
# No background: the page's own shines through. Colours keep 3 : 1 to white and to black alike.
_STYLE = """
text { font: 12px FONT; fill: #57606a }
.title { font-size: 15px; font-weight: 600; fill: #24292f }
.ours { font-weight: 600; fill: #24292f }
.value { font-variant-numeric: tabular-nums }
.peer-1 { fill: #8b949e } .peer-2 { fill: #6e7781 }
.ours-1 { fill: #2f81f7 } .ours-2 { fill: #0a5fd8 }
.raw-1 { fill: #b08bd8 } .raw-2 { fill: #8b62bd }
@media (prefers-color-scheme: dark) {
  text { fill: #9da7b1 } .title, .ours { fill: #e6edf3 }
  .peer-1 { fill: #6e7681 } .peer-2 { fill: #8b949e } .ours-2 { fill: #58a6ff } .raw-2 { fill: #c8a8ea }
}
""".replace("FONT", _FONT).strip()


@dataclass(frozen=True, slots=True)
class Chart:
    file: str
    title: str
    unit: str
    bars: Sequence[tuple[str, str]]
    """Figures, and their names if there are two."""
    log: bool = False
    """A logarithmic scale, for delays between a millisecond and seconds."""


CHARTS = (
    Chart(
        "drain.svg",
        "Drain of no-op jobs (more is better)",
        "/s",
        (("drain_1", "1 process"), ("drain_2", "2 processes")),
    ),
    Chart("submit.svg", "Bulk submit (more is better)", "/s", (("submit", ""),)),
    Chart("hot-second.svg", "Due in the same second: jobs done per second (more is better)", "/s", (("hot_rate", ""),)),
    Chart(
        "lag.svg",
        "Due to start (less is better; logarithmic)",
        " ms",
        (("lag_p50", "p50"), ("lag_p99", "p99")),
        log=True,
    ),
    Chart(
        "latency.svg",
        "Submit to start (less is better; logarithmic)",
        " ms",
        (("latency_p50", "p50"), ("latency_p99", "p99")),
        log=True,
    ),
    Chart("idle.svg", "Transactions per second of an idle worker (less is better)", "/s", (("idle", ""),)),
)


def make_all(results: Results) -> dict[str, str]:
    return {chart.file: make(chart, results.ordered()) for chart in CHARTS}


def make(chart: Chart, tools: Sequence[Tool]) -> str:
    """One group of bars for each tool that has the figure."""
    rows = [(tool, values) for tool in tools if (values := _values(chart, tool))]
    longest = max((value for _, values in rows for _, _, value in values), default=1.0)
    ticks = _decades(rows) if chart.log else ()
    parts: list[str] = []
    y = _TOP
    for tool, values in rows:
        middle = y + len(values) * _BAR / 2 + 4
        ours = ' class="ours"' if tool.name == "duly" else ""
        parts.append(f'<text{ours} x="{_LABELS - 10}" y="{middle:.1f}" text-anchor="end">{escape(tool.title)}</text>')
        for number, name, value in values:
            length = (_WIDTH - _LABELS - _VALUES) * _part(value, longest, ticks)
            kind = {"duly": "ours", "raw": "raw", "copy": "raw"}.get(tool.name, "peer")
            label = f"{_shown(value)}{chart.unit}" + (f", {name}" if name else "")
            parts.append(
                f'<rect class="{kind}-{number}" x="{_LABELS}" y="{y}" width="{length:.1f}" height="{_BAR - 2}" rx="2"/>'
            )
            parts.append(f'<text class="value" x="{_LABELS + length + 6:.1f}" y="{y + 11}">{escape(label)}</text>')
            y += _BAR
        y += _GAP
    title = f'<text class="title" x="0" y="20">{escape(chart.title)}</text>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" role="img" '
        f'aria-label="{escape(chart.title)}">'
    )
    return "\n".join([head, f"<style>\n{_STYLE}\n</style>", title, *parts, "</svg>", ""])


def _values(chart: Chart, tool: Tool) -> list[tuple[int, str, float]]:
    """Number, name and value of each bar that the tool has."""
    bars = enumerate(chart.bars, start=1)
    return [(number, name, value) for number, (figure, name) in bars if (value := _value(figure, tool)) is not None]


def _value(figure: str, tool: Tool) -> float | None:
    if figure != "hot_rate":
        return tool.median(figure) if figure != "idle" or tool.server == "postgresql" else None
    # Slower tools get fewer jobs, so only their rates can be compared.
    seconds = tool.median("hot_second")
    return tool.jobs["hot-second"] / seconds if seconds else None


def _decades(rows: Sequence[tuple[Tool, list[tuple[int, str, float]]]]) -> tuple[int, int]:
    """The powers of ten between which all values lie."""
    values = [value for _, row in rows for _, _, value in row if value > 0] or [1.0]
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)


def _part(value: float, longest: float, ticks: Sequence[int]) -> float:
    """The length of a bar, from 0 to 1. Never 0, so that every bar is visible."""
    if ticks:
        low, high = ticks
        part = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
    else:
        part = value / longest if longest else 0.0
    return min(1.0, max(0.004, part))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
