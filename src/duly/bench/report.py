"""The table for people and the document for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from duly.bench.figures import Bar, Figure
from duly.visible import visible

_MARKS = {"goal": "[green]yes[/]", "bar": "[yellow]bar only[/]", "below": "[red]no[/]", "": ""}
_SUFFIX = {"/s": "/s", "µs": " µs", "ms": " ms", "s": " s", "×": " ×", "MB": " MB", "runs": " runs"}


def shown(value: float | None, unit: str) -> str:
    """A value with a sensible number of digits."""
    if value is None:
        return "–"
    digits = 0 if unit in ("/s", "runs") or abs(value) >= 100 else 2
    return f"{value:,.{digits}f}{_SUFFIX[unit]}"


def shown_bar(figure: Figure, bar: Bar) -> str:
    sign = "≥" if figure.more_is_better else "≤"
    parts = [] if bar.value is None else [f"{sign} {bar.value:,.10g}{_SUFFIX[figure.unit]}"]
    if bar.ratio is not None:
        parts.append(f"≥ {bar.ratio:g} of raw")
    return ", ".join(parts)


def make_table(figures: Sequence[Figure]) -> Table:
    table = Table(title="duly bench: medians", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("what", no_wrap=True)
    for name in ("Duly", "raw SQL", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("bar")
    table.add_column("goal")
    table.add_column("ok?")
    bench = None
    for figure in figures:
        if bench not in (None, figure.bench):
            table.add_section()
        bench = figure.bench
        table.add_row(
            figure.what,
            shown(figure.duly_median, figure.unit),
            shown(figure.raw_median, figure.unit),
            "–" if figure.ratio is None else f"{figure.ratio:.2f}",
            shown_bar(figure, figure.bar),
            shown_bar(figure, figure.goal),
            _MARKS[figure.verdict],
        )
    return table


def make_facts_table(facts: Mapping[str, str]) -> Table:
    table = Table(title="measured on", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        table.add_row(name, Text(visible(value)))
    return table


def make_document(
    figures: Sequence[Figure],
    facts: Mapping[str, str],
    *,
    rounds: int,
    scale: float,
    failures: Sequence[str],
) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "scale": scale,
        "verified": not failures,
        "failures": list(failures),
        "facts": dict(facts),
        "figures": [figure.to_json() for figure in figures],
    }
