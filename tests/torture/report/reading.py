"""The facts, findings and figures of one run, read from its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checker.facts import Facts
from ..checker.figures import PERIODS
from ..checker.figures import starts as find_starts
from ..checker.records import Fault, read

__all__ = ["PERIODS", "Report"]


@dataclass(frozen=True)
class Report:
    """`starts` are (due, begun, period) in microseconds since 1970."""

    folder: Path
    run: dict[str, Any]
    findings: list[dict[str, Any]]
    figures: dict[str, Any]
    faults: list[Fault]
    starts: list[tuple[int, int, str]]

    @classmethod
    def read(cls, folder: Path, *, starts: bool = True) -> Report:
        findings = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
        figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
        if not starts:
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            return cls(folder, run, findings, figures, [], [])
        records = read(folder)
        return cls(folder, records.run, findings, figures, records.faults, find_starts(Facts(records)))

    @property
    def title(self) -> str:
        mutant = f", mutant {self.run['mutant']}" if self.run.get("mutant") else ""
        return f"Torture, seed {self.run.get('seed')}{mutant}"

    @property
    def verdict(self) -> str:
        count = len(self.findings)
        return "Nothing found." if count == 0 else "One finding." if count == 1 else f"{count} findings."

    @property
    def coordinator(self) -> str:
        return str(self.run.get("coordinator") or (self.run.get("settings") or {}).get("coordinator") or "postgres")

    @property
    def seconds(self) -> float:
        return float(self.run.get("ended") or 0) - float(self.run.get("started") or 0)

    def facts(self) -> list[tuple[str, str]]:
        """The set-up of the run, as rows of a table."""
        run = self.run
        rows = [
            ("seed", str(run.get("seed"))),
            ("coordinator", self.coordinator),
            ("standby", str(run.get("standby"))),
            ("mutant", str(run.get("mutant") or "none")),
            ("length", f"{self.seconds:.0f} s"),
        ]
        rows += [(f"setting {name}", str(value)) for name, value in (run.get("settings") or {}).items()]
        return rows + [(f"version of {name}", str(value)) for name, value in (run.get("versions") or {}).items()]

    def counts(self) -> list[tuple[str, str]]:
        figures = self.figures
        named = {
            "faults": "fault_count", "occurrences": "occurrences", "runs": "runs", "skipped for overlap": "skipped",
            "missed by the policy": "missed", "claims of runs": "attempts", "attempts that failed": "failed_attempts",
            "leases lost": "leases_lost", "executions": "executions", "second executions, each with its cause":
            "second_executions", "effects accepted": "effects", "effects of zombies refused": "effects_refused",
            "effects of zombies before anybody could refuse them": "effects_too_late",
            "changes in the audit": "audit_rows", "words of the sink": "sink_lines",
        }  # fmt: skip
        return [(label, f"{figures.get(name, 0):,}") for label, name in named.items()]

    def broken(self) -> list[tuple[str, int]]:
        return [
            ("lost", int(self.figures.get("lost", 0))),
            ("doubled", int(self.figures.get("doubled", 0))),
            ("stale accepted", int(self.figures.get("stale_accepted", 0))),
        ]

    def lateness(self) -> list[tuple[str, int, str, str, str]]:
        found = []
        for period in PERIODS:
            values = (self.figures.get("lateness") or {}).get(period) or {}
            p50, p99, most = (spell(values.get(name)) for name in ("p50", "p99", "max"))
            found.append((period, int(values.get("count") or 0), p50, p99, most))
        return found


def spell(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
