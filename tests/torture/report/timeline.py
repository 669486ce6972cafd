"""Draws faults as bars and below them the lateness of each run, over one time axis: inline SVG, styled by the page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from .reading import Report, spell

WIDTH, LEFT, RIGHT = 1100, 150, 14
_ROW, _PLOT, _AXIS = 18, 230, 34
# At most about this many dots are drawn; the latest runs are always among them.
_DOTS = 4000
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_DECADES = (0.001, 0.01, 0.1, 1, 10, 100, 1000)
_FAMILIES = ("scheduler", "worker", "api", "primary", "standby")


def draw(report: Report) -> str:
    start, end = _span(report)
    kinds = sorted({fault.kind for fault in report.faults})
    top = 22
    plot = top + _ROW * max(1, len(kinds)) + 30
    height = plot + _PLOT + _AXIS

    def x(micros: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (micros / 1e6 - start) / (end - start)

    said = "Faults over time, and how late each run began"
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{said}">']
    for at, label in _ticks(start, end):
        parts.append(f'<line class="grid" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top}" y2="{plot + _PLOT}"/>')
        parts.append(f'<text x="{x(at):.1f}" y="{plot + _PLOT + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 4}" text-anchor="end">since the start</text>')
    for number, kind in enumerate(kinds):
        y = top + number * _ROW
        parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(kind)}</text>')
        for fault in report.faults:
            if fault.kind == kind:
                width = max(2.0, x(fault.ended) - x(fault.begun))
                what = f"{kind}: {fault.target}, {spell((fault.ended - fault.begun) / 1e6)}"
                place = f'x="{x(fault.begun):.1f}" y="{y + 3}" width="{width:.1f}"'
                parts.append(
                    f'<rect class="fault {_family(fault.target)}" {place} '
                    f'height="{_ROW - 6}" rx="2"><title>{escape(what)}</title></rect>'
                )
    if not kinds:
        parts.append(f'<text x="{LEFT}" y="{top + 12}">no faults</text>')
    for moment, label in _marks(report):
        parts.append(
            f'<line class="mark" x1="{x(moment):.1f}" x2="{x(moment):.1f}" y1="{top - 4}" y2="{plot + _PLOT}"/>'
        )
        anchor = "end" if x(moment) > WIDTH - RIGHT - 30 else "middle"
        parts.append(f'<text x="{x(moment):.1f}" y="{top - 8}" text-anchor="{anchor}">{label}</text>')
    parts += _dots(report, plot, x)
    return "".join([*parts, "</svg>"])


def _span(report: Report) -> tuple[float, float]:
    """The start and the end of the time axis."""
    moments = [fault.begun / 1e6 for fault in report.faults] + [begun / 1e6 for _, begun, _ in report.starts]
    start = (
        min([float(report.run.get("started") or 0), *moments]) if report.run.get("started") else min(moments, default=0)
    )
    end = max([float(report.run.get("settled") or report.run.get("ended") or start), *moments])
    return start, max(end, start + 1)


def _ticks(start: float, end: float) -> Iterator[tuple[float, str]]:
    step = next((one for one in _STEPS if (end - start) / one <= 14), _STEPS[-1])
    for number in range(int((end - start) / step) + 1):
        seconds = number * step
        yield (start + seconds) * 1e6, f"{seconds // 60}:{seconds % 60:02d}"


def _marks(report: Report) -> Iterator[tuple[float, str]]:
    for name in ("healed", "settled"):
        if report.run.get(name) and report.faults:
            yield float(report.run[name]) * 1e6, name


def _family(target: str) -> str:
    lowered = target.lower()
    return next((name for name in _FAMILIES if name in lowered), "postgres" if "postgres" in lowered else "other")


def _dots(report: Report, top: int, x: object) -> Iterator[str]:
    assert callable(x)
    late = [(begun, max(0.001, (begun - due) / 1e6), period) for due, begun, period in report.starts]
    most = max((seconds for _, seconds, _ in late), default=1.0)
    high = next((decade for decade in _DECADES if decade >= most), _DECADES[-1])
    high = max(high, 1)
    low = _DECADES[0]

    def y(seconds: float) -> float:
        share = (math.log10(min(seconds, high)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return top + _PLOT - share * _PLOT

    for decade in _DECADES:
        if decade <= high:
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(decade):.1f}" y2="{y(decade):.1f}"/>'
            label = f"{decade * 1000:g} ms" if decade < 1 else f"{decade:g} s"
            yield f'<text x="{LEFT - 8}" y="{y(decade) + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{LEFT}" y="{top - 8}">how late each run began</text>'
    # All of the latest runs, and every n-th of the others.
    late.sort(key=lambda one: -one[1])
    rest = late[_DOTS // 2 :]
    kept = late[: _DOTS // 2] + rest[:: max(1, math.ceil(len(rest) / (_DOTS // 2)))]
    for begun, seconds, period in kept:
        yield f'<circle class="{period}" cx="{x(begun):.1f}" cy="{y(seconds):.1f}" r="1.8"/>'
