"""Reads a folder of records and reports which promises were broken. Shares no code with the product.

`records` reads the files, `facts` replays the audit, `stepping` scans schedules, `invariants/` has one module per
promise, `figures` counts. `check` does all of this and writes `findings.json` and `figures.json` beside the records.
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
    deploys,
    ending,
    epochs,
    executions,
    expiry,
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
        expiry, deploys, ending,
    )
}  # fmt: skip


def judge(facts: Facts) -> tuple[list[Finding], list[Finding]]:
    """Returns the findings and, apart from them, those that follow only from changes PostgreSQL had not replicated."""
    findings: list[Finding] = []
    apart: list[Finding] = []
    for invariant in INVARIANTS.values():
        for finding in invariant(facts):
            (apart if facts.not_replicated(finding) else findings).append(finding)
    return findings, apart


def check(folder: Path) -> list[Finding]:
    collecting = gc.isenabled()
    # All of the hundred thousand documents live until the end, so the garbage collector would search them in vain.
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
