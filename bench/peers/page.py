"""The page for people: a table of medians, settings and machine. Pure: results in, Markdown out."""

from __future__ import annotations

from collections.abc import Sequence

from peers.plots import CHARTS
from peers.results import Results, Tool

BEGIN = "<!-- made by `make bench-peers`: every run rewrites the text between these marks -->"
END = "<!-- end of the part that `make bench-peers` makes -->"
EMPTY = f"# Benchmarks\n\n{BEGIN}\n{END}\n"

_COLUMNS = (
    ("bulk submit /s", ("submit",)),
    ("drain /s, 1 process", ("drain_1",)),
    ("2 processes", ("drain_2",)),
    ("submit to start, p50 / p99 ms", ("latency_p50", "latency_p99")),
    ("due to start, p50 / p99 ms", ("lag_p50", "lag_p99")),
    ("hot second", ("hot_second",)),
    ("idle tx/s", ("idle",)),
)


def updated(page: str, results: Results) -> str:
    """The page with its generated part replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has lost one of its marks: {BEGIN!r}, {END!r}")
    return f"{before}{BEGIN}\n{generated(results)}\n{END}{after}"


def generated(results: Results) -> str:
    tools = results.ordered()
    notes: list[str] = []
    rows = [_row(tool, notes) for tool in tools]
    head = ["tool", *(title for title, _ in _COLUMNS)]
    kind = "A quick run with small sizes: it shows that all works, not how fast it is." if results.quick else ""
    medians = "One round." if results.rounds == 1 else f"Medians of {results.rounds} rounds."
    parts = [
        " ".join(part for part in (medians, kind, f"Taken {results.facts.get('taken', 'some time')}.") if part),
        "\n".join([_line(head), _line(["---", *["---:"] * len(_COLUMNS)]), *(_line(row) for row in rows)]),
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
        "\n".join(f"![{chart.title}]({chart.file})" for chart in CHARTS),
        "### Versions and settings\n",
        "\n".join(
            [_line(["tool", "versions", "set up"]), _line(["---"] * 3), *(_line(_about(tool)) for tool in tools)]
        ),
        "### Machine\n",
        "\n".join([_line(["what", ""]), _line(["---"] * 2), *(_line(fact) for fact in results.facts.items())]),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part)


def _row(tool: Tool, notes: list[str]) -> list[str]:
    version = tool.versions.get(tool.name) or next(iter(tool.versions.values()), "")
    return [
        " ".join(part for part in (tool.title, version) if part),
        *(_cell(tool, figures, notes) for _, figures in _COLUMNS),
    ]


def _cell(tool: Tool, figures: Sequence[str], notes: list[str]) -> str:
    """The medians of one cell. A failed measurement gets the number of a note with the reason."""
    medians = [median for figure in figures if (median := tool.median(figure)) is not None]
    if not medians:
        reason = tool.failure_of(figures[0])
        if reason is None:
            return "–"
        note = f"{tool.title}: {reason}"
        if note not in notes:
            notes.append(note)
        return f"failed ({notes.index(note) + 1})"
    if figures[0] == "hot_second":
        return f"{tool.jobs.get('hot-second', 0):,}: {shown(medians[0])} s"
    shown_medians = " / ".join(shown(median) for median in medians)
    return f"{shown_medians} (Redis commands)" if figures[0] == "idle" and tool.server == "redis" else shown_medians


def shown(value: float) -> str:
    """Three digits of a large number, one decimal of a small one."""
    if abs(value) < 100:
        return f"{value:.1f}"
    step = 10 ** max(0, len(str(int(abs(value)))) - 3)
    return f"{round(value / step) * step:,}"


def _about(tool: Tool) -> tuple[str, str, str]:
    return tool.title, ", ".join(f"{name} {version}" for name, version in tool.versions.items()), tool.settings


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
