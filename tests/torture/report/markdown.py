"""The report as Markdown, and the table over many runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from .reading import PERIODS, Report, spell

_EVIDENCE = 5
_FINDINGS = 100


def whole(report: Report) -> str:
    figures = report.figures
    parts = [
        f"# {text(report.title)}",
        "",
        f"**{report.verdict}** " + ", ".join(f"{n} {name}" for name, n in report.broken()),
    ]
    parts += ["", "## Lateness", "", "From when a run was due until its handler began, without runs that overlap held."]
    parts += table(("", "runs", "p50", "p99", "most"), report.lateness())
    parts += ["", "## What happened", *table(("", ""), report.counts())]
    parts += ["", "## Faults", *table(("kind", "times"), (figures.get("faults") or {}).items())]
    parts += ["", "## Operations", *table(("operation", "ok", "failed", "unknown"), operations(report))]
    parts += ["", "## Findings", ""]
    for finding in report.findings[:_FINDINGS]:
        parts += [f"### {text(finding['invariant'])}", "", text(finding["message"]), *_evidence(finding), ""]
    if not report.findings:
        parts += ["None."]
    if len(report.findings) > _FINDINGS:
        parts += [f"And {len(report.findings) - _FINDINGS} more in `findings.json`."]
    apart = figures.get("not_replicated") or []
    if apart:
        parts += ["", "## Not replicated by PostgreSQL", "", what_apart_means(len(apart)), ""]
        parts += [f"- {text(finding['invariant'])}: {text(finding['message'])}" for finding in apart]
    if unchecked := figures.get("unchecked_schedules"):
        parts += [
            "",
            "Schedules that the scan does not understand: " + ", ".join(f"`{text(one)}`" for one in unchecked),
        ]
    parts += ["", "## Set-up", *table(("", ""), report.facts())]
    return "\n".join(parts) + "\n"


def what_apart_means(count: int) -> str:
    return (
        f"{count} caused by changes that a primary had committed and its asynchronous standby had not received when "
        "it was promoted. Asynchronous replication allows that; they are not among the findings."
    )


def operations(report: Report) -> list[tuple[str, int, int, int]]:
    found = report.figures.get("operations") or {}
    return [
        (op, counts.get("ok", 0), counts.get("failed", 0), counts.get("unknown", 0)) for op, counts in found.items()
    ]


def table_of(reports: Sequence[Report]) -> str:
    """A Markdown table sorted by seed; its last row has the sums and the worst lateness."""
    heads = (
        "seed", "coordinator", "standby", "faults", "occurrences", "lost", "doubled", "stale accepted",
        "not replicated", "findings", *(f"{period} p50 / p99 / max" for period in PERIODS),
    )  # fmt: skip
    rows: list[tuple[object, ...]] = []
    sums = [0] * 7
    worst: dict[str, dict[str, float]] = {period: {} for period in PERIODS}
    for report in sorted(reports, key=lambda one: (str(type(one.run.get("seed"))), one.run.get("seed"))):
        figures = report.figures
        numbers = [
            int(figures.get("fault_count", 0)), int(figures.get("occurrences", 0)),
            *(count for _, count in report.broken()), len(figures.get("not_replicated") or []), len(report.findings),
        ]  # fmt: skip
        sums = [total + number for total, number in zip(sums, numbers, strict=True)]
        late = figures.get("lateness") or {}
        for period in PERIODS:
            for name in ("p50", "p99", "max"):
                value = (late.get(period) or {}).get(name)
                if value is not None:
                    worst[period][name] = max(value, worst[period].get(name, value))
        cells = [_three(late.get(period) or {}) for period in PERIODS]
        rows.append((report.run.get("seed"), report.coordinator, report.run.get("standby"), *numbers, *cells))
    rows.append(
        (
            f"**{len(reports)} runs**",
            "",
            "",
            *(f"**{total}**" for total in sums),
            *(_three(worst[one]) for one in PERIODS),
        )
    )
    return "\n".join(table(heads, rows)[1:]) + "\n"


def _three(values: dict[str, float]) -> str:
    return " / ".join(spell(values.get(name)) for name in ("p50", "p99", "max"))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return lines + ["| " + " | ".join(text(str(cell)) for cell in row) + " |" for row in rows]


def text(value: str) -> str:
    """The value on one line, with the characters escaped that Markdown or HTML would interpret."""
    flat = " ".join(str(value).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")


def _evidence(finding: dict[str, object]) -> list[str]:
    evidence = finding.get("evidence")
    if not isinstance(evidence, list) or not evidence:
        return []
    # Backquotes in a value cannot end this fence.
    return ["", "~~~~json", *(json.dumps(one, ensure_ascii=False) for one in evidence[:_EVIDENCE]), "~~~~"]
