"""The report as one HTML file with a light and a dark theme; it loads no other file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from . import timeline
from .markdown import operations, what_apart_means
from .reading import Report

_FINDINGS = 300
_STYLE = """
:root { color-scheme: light dark; --ink: #1b2330; --soft: #5b6675; --page: #f7f8fa; --card: #fff; --line: #dde2e9;
  --good: #17753c; --bad: #b3261e; --healthy: #1f9d55; --faulted: #d9822b; --healed: #2f6fdb;
  --scheduler: #7a4fd0; --worker: #d9822b; --api: #1f9d55; --primary: #b3261e; --standby: #cc5fa5; --other: #5b6675; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b5; --page: #12161c; --card: #1a2029;
  --line: #2d3642; --good: #58c98a; --bad: #ff8a80; --healthy: #4cc38a; --faulted: #f0a552; --healed: #78a9ff;
  --scheduler: #b59af0; --worker: #f0a552; --api: #4cc38a; --primary: #ff8a80; --standby: #eb9bd0; --other: #9aa6b5;
  } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 34px 0 10px; }
.verdict { font-size: 18px; font-weight: 600; margin: 4px 0 18px; } .good { color: var(--good); }
  .bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 10px 14px; } .tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span, .note { color: var(--soft); font-size: 13px; } .card { padding: 12px; overflow-x: auto; }
.tables { columns: 330px; column-gap: 24px; } .tables section { break-inside: avoid; padding-bottom: 20px; }
.tables { margin-top: 34px; } .tables h2 { margin-top: 0; }
table { border-collapse: collapse; width: 100%; } td, th { padding: 3px 10px 3px 0; text-align: left;
  vertical-align: top;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
th { font-weight: 600; color: var(--soft); } td.number, th.number { text-align: right; white-space: nowrap; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 8px 0;
  padding: 8px 12px; }
summary { cursor: pointer; overflow-wrap: anywhere; } summary b { color: var(--bad); }
pre { margin: 8px 0 0; font-size: 12px; white-space: pre-wrap; overflow-wrap: anywhere; color: var(--soft); }
svg { width: 100%; min-width: 720px; height: auto; display: block; } svg text { fill: var(--soft);
  font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); } .mark { stroke: var(--soft); stroke-dasharray: 3 3; } .fault { opacity: .85; }
.scheduler { fill: var(--scheduler); } .worker { fill: var(--worker); } .api { fill: var(--api); }
  .other { fill: var(--other); }
.primary, .postgres { fill: var(--primary); } .standby { fill: var(--standby); } circle { fill-opacity: .55; }
.healthy { fill: var(--healthy); } .faulted { fill: var(--faulted); } .healed { fill: var(--healed); }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--soft); font-size: 12px; margin-top: 6px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
.key .dot { border-radius: 50%; }
"""


def whole(report: Report) -> str:
    figures = report.figures
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="verdict {"bad" if report.findings else "good"}">{escape(report.verdict)}</p>',
        _tiles(report),
        "<h2>Faults and lateness</h2>",
        f'<div class="card">{timeline.draw(report)}{_key()}</div>',
        f"<h2>Findings</h2>{_findings(report.findings)}",
        *_more(figures),
        '<div class="tables">',
        _section("Lateness", ("", "runs", "p50", "p99", "most"), report.lateness()),
        _section("Faults", ("kind", "times"), sorted((figures.get("faults") or {}).items())),
        _section("What happened", ("", ""), report.counts()),
        _section("Operations", ("", "ok", "failed", "unknown"), operations(report)),
        _section("Outcomes", ("", ""), sorted((figures.get("outcomes") or {}).items())),
        _section("Set-up", ("", ""), report.facts(), numbers=False),
        "</div>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _more(figures: dict[str, Any]) -> Iterator[str]:
    if apart := figures.get("not_replicated"):
        note = f'<p class="note">{escape(what_apart_means(len(apart)))}</p>'
        yield f"<h2>Not replicated by PostgreSQL</h2>{note}{_findings(apart)}"
    if unchecked := figures.get("unchecked_schedules"):
        yield f'<p class="note">Schedules that the scan does not understand: {escape(", ".join(unchecked))}</p>'


def _tiles(report: Report) -> str:
    figures = report.figures
    tiles = [
        ("faults", f"{figures.get('fault_count', 0):,}", ""),
        ("occurrences", f"{figures.get('occurrences', 0):,}", ""),
        *((name, f"{count:,}", "bad" if count else "good") for name, count in report.broken()),
        *((f"p99 late, {period}", p99, "") for period, _, _, p99, _ in report.lateness()),
    ]
    shown = "".join(
        f'<div class="tile"><b class="{css}">{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value, css in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _key() -> str:
    targets = ("scheduler", "worker", "api", "primary", "standby", "other")
    bars = "".join(f'<span><i style="background:var(--{name})"></i>{name}</span>' for name in targets)
    periods = ("healthy", "faulted", "healed")
    dots = "".join(f'<span><i class="dot" style="background:var(--{name})"></i>{name}</span>' for name in periods)
    return (
        f'<div class="key"><span>bars: faults of a</span>{bars}</div>'
        f'<div class="key"><span>dots: runs due while</span>{dots}</div>'
    )


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = True) -> str:
    css = ' class="number"' if numbers else ""
    head = "".join(f"<th{css if place else ''}>{escape(name)}</th>" for place, name in enumerate(heads))
    lines = [
        "<tr>"
        + "".join(f"<td{css if place else ''}>{escape(str(cell))}</td>" for place, cell in enumerate(row))
        + "</tr>"
        for row in rows
    ]
    body = "".join(lines) or "<tr><td>none</td></tr>"
    first = f"<tr>{head}</tr>" if any(heads) else ""
    return f"<section><h2>{escape(title)}</h2><table>{first}{body}</table></section>"


def _findings(findings: Sequence[dict[str, object]]) -> str:
    if not findings:
        return '<p class="note">None.</p>'
    parts = []
    for finding in findings[:_FINDINGS]:
        evidence = json.dumps(finding.get("evidence") or [], indent=1, ensure_ascii=False)
        parts.append(
            f"<details><summary><b>{escape(str(finding['invariant']))}</b> {escape(str(finding['message']))}</summary>"
            f"<pre>{escape(evidence)}</pre></details>"
        )
    if len(findings) > _FINDINGS:
        parts.append(f'<p class="note">And {len(findings) - _FINDINGS} more in findings.json.</p>')
    return "".join(parts)
