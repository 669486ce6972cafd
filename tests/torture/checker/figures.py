"""Counts and lateness of one run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from .facts import TRIGGERED, Facts
from .finding import Finding
from .stepping import grid_of

PERIODS = ("healthy", "faulted", "healed")
# The invariants whose findings the summary counts as lost, doubled and stale.
LOST, DOUBLED, STALE = ("owed", "acknowledged"), ("outcomes", "executions"), ("fencing",)


def figures(facts: Facts, findings: Sequence[Finding], apart: Sequence[Finding]) -> dict[str, Any]:
    records = facts.records
    states = Counter(birth.state for birth in facts.births)
    found = Counter(finding.invariant for finding in findings)
    operations: dict[str, Counter[str]] = defaultdict(Counter)
    for operation in records.operations:
        operations[operation.op][operation.outcome] += 1
    ends = Counter(events[-1].new["status"] for events in facts.outcomes.values() if events[-1].new)
    dropped = sum(
        int((birth.row.get("note") or {}).get("count") or 1) for birth in facts.births if birth.state == "missed"
    )
    begun = Counter(word.key for word in records.sink if word.word == "begin")
    effects = Counter(word.accepted for word in records.sink if word.word == "effect")
    return {
        "occurrences": len(facts.births) - states["missed"] + dropped,
        "runs": len(facts.births) - states["missed"] - states["skipped"],
        "skipped": states["skipped"],
        "missed": dropped,
        "triggered": sum(bool(birth.flags & TRIGGERED) for birth in facts.births),
        "jobs": len(facts.jobs),
        "outcomes": dict(sorted(ends.items())),
        "claims": len(facts.claims),
        "attempts": sum(len(holds) for holds in facts.holds.values()),
        "failed_attempts": sum(len(rows) for rows in facts.attempts.values()),
        "leases_lost": sum(
            (row.get("error") or {}).get("type") == "LeaseLost" for rows in facts.attempts.values() for _, row in rows
        ),
        "executions": sum(begun.values()),
        "second_executions": sum(count - 1 for count in begun.values()),
        "effects": effects[True] + effects[None],
        "effects_refused": effects[False],
        "effects_too_late": _too_late(facts),
        "epochs": sum(len(terms) for terms in facts.shards.values()),
        "operations": {op: dict(sorted(counts.items())) for op, counts in sorted(operations.items())},
        "operations_by_outcome": dict(sorted(Counter(one.outcome for one in records.operations).items())),
        "faults": dict(sorted(Counter(fault.kind for fault in records.faults).items())),
        "fault_count": len(records.faults),
        "lateness": _lateness(facts),
        "findings": dict(sorted(found.items())),
        "lost": sum(found[name] for name in LOST),
        "doubled": sum(found[name] for name in DOUBLED),
        "stale_accepted": sum(found[name] for name in STALE),
        "forgotten_changes": len(records.forgotten),
        "not_replicated": [finding.document() for finding in apart],
        "unchecked_schedules": _unchecked(facts),
        "audit_rows": len(records.audit),
        "sink_lines": len(records.sink),
    }


def starts(facts: Facts) -> list[tuple[int, int, str]]:
    """Returns (due, begun, period) of every scheduled run that overlap did not hold: a run held by overlap is to wait.

    A late run that the missed policy allowed counts: its lateness is what a user saw.
    """
    first_fault = min((fault.begun for fault in facts.records.faults), default=None)
    last_heal = max([facts.healed, *(fault.ended for fault in facts.records.faults)])
    lease = max(facts.records.setting("leader_lease", 5), facts.records.setting("worker_lease", 15))
    found = []
    for birth in facts.births:
        if birth.state != "queued" or birth.flags & TRIGGERED:
            continue
        begin = next((word for word in facts.words.get(birth.key, ()) if word.word == "begin"), None)
        if begin is None:
            continue
        due = birth.key[1]
        if first_fault is None or begin.at < first_fault:
            period = "healthy"
        elif due <= last_heal + lease:
            period = "faulted"
        else:
            period = "healed"
        found.append((due, begin.at, period))
    return found


def _too_late(facts: Facts) -> int:
    """Number of effects accepted after their token was over and before a newer token began.

    A downstream cannot know that it should refuse them, and a lease cannot prevent them: a process that was frozen
    beyond its lease goes on with its next instruction.
    """
    count = 0
    for key, words in facts.words.items():
        for word in words:
            hold = facts.hold_of.get((word.token, key))
            if word.word == "effect" and word.accepted and hold is not None and hold.ended is not None:
                count += hold.ended.at < word.at
    return count


def _lateness(facts: Facts) -> dict[str, Any]:
    late: dict[str, list[float]] = {period: [] for period in PERIODS}
    for due, begun, period in starts(facts):
        late[period].append((begun - due) / 1e6)
    return {period: _spread(sorted(values)) for period, values in late.items()}


def _spread(values: list[float]) -> dict[str, Any]:
    if not values:
        return {"count": 0, "p50": None, "p99": None, "max": None}

    def at(share: float) -> float:
        return round(values[min(len(values) - 1, int(share * len(values)))], 6)

    return {"count": len(values), "p50": at(0.5), "p99": at(0.99), "max": round(values[-1], 6)}


def _unchecked(facts: Facts) -> list[str]:
    """Schedules that the scan does not understand; the steps of their jobs were not checked."""
    return sorted(
        {
            str(version.row["schedule"])
            for job in facts.jobs.values()
            for version in job.versions
            if grid_of(version.row) is None
        }
    )
