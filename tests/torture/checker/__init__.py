"""Reads a folder of records and says which promise was broken. Shares no code with the product.

`records` reads, `facts` replays the audit, `stepping` scans schedules, `invariants/` has one module a promise,
`figures` counts. `check` runs all of it and writes `findings.json` and `figures.json` beside the records.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from .facts import Facts
from .figures import figures
from .finding import Finding
from .invariants import (
    acknowledged,
    attempts,
    changes,
    ending,
    epochs,
    executions,
    fencing,
    grid,
    leases,
    moves,
    outcomes,
    overlap,
    owed,
)
from .records import BadRecords, read

__all__ = ["INVARIANTS", "BadRecords", "Finding", "check", "judge"]

INVARIANTS: dict[str, Callable[[Facts], Iterable[Finding]]] = {
    module.NAME: module.check
    for module in (
        owed, outcomes, fencing, acknowledged, executions, overlap, grid, epochs, moves, attempts, changes, leases,
        ending,
    )
}  # fmt: skip


def judge(facts: Facts) -> tuple[list[Finding], list[Finding]]:
    """What was broken; and apart from it, what is gone only because PostgreSQL had not replicated it."""
    findings: list[Finding] = []
    apart: list[Finding] = []
    for invariant in INVARIANTS.values():
        for finding in invariant(facts):
            (apart if facts.not_replicated(finding) else findings).append(finding)
    return findings, apart


def check(folder: Path) -> list[Finding]:
    collecting = gc.isenabled()
    # A hundred thousand documents that all live to the end: looking through them again and again is in vain.
    gc.disable()
    try:
        facts = Facts(read(folder))
        findings, apart = judge(facts)
        _write(folder / "findings.json", [finding.document() for finding in findings])
        _write(folder / "figures.json", figures(facts, findings, apart))
    finally:
        if collecting:
            gc.enable()
    return findings


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
