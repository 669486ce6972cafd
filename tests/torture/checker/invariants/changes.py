"""Changes are respected once they are acknowledged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..facts import SECOND, TRIGGERED, Birth, Facts, Job
from ..finding import Finding, moment
from ..records import INFINITY, Operation, micros, micros_or_none
from ..stepping import make_grid
from .acknowledged import body_of, job_of

NAME = "changes"
# A write's time is read before its commit, and a fire under way may have waited for a lock meanwhile.
_SLACK = SECOND // 10
# After this time an operation without an answer either has taken effect or never will.
_LONGEST_UNKNOWN = 300 * SECOND


def check(facts: Facts) -> Iterator[Finding]:
    """Nothing fires between an acknowledged pause and the resume, or after a cancel; after a change, only occurrences
    of the new schedule fire.

    Judged by the answers that clients got, not by the store. Operations that overlap in time may have taken effect in
    either order, and those without an answer may have taken effect or not: neither makes a finding.
    """
    asked: dict[str, list[Operation]] = defaultdict(list)
    for operation in facts.records.operations:
        if operation.outcome != "failed" and operation.op in ("pause", "resume", "cancel", "change"):
            job_id, _ = job_of(facts, operation)
            if job_id is not None:
                asked[str(job_id)].append(operation)
    for job_id, operations in asked.items():
        job = facts.jobs.get(job_id)
        if job is None or not job.versions:
            continue
        births = [birth for birth in facts.births_of[job_id] if not birth.flags & TRIGGERED and birth.state != "missed"]
        for operation in operations:
            if operation.outcome != "ok":
                continue
            if operation.op in ("pause", "cancel"):
                yield from _quiet(facts, operation, operations, births)
            elif operation.op == "change" and body_of(operation).get("schedule"):
                yield from _follows(facts, job, operation, operations, births)


def _quiet(facts: Facts, operation: Operation, others: list[Operation], births: list[Birth]) -> Iterator[Finding]:
    until = INFINITY
    if operation.op == "pause":
        undoing = [other for other in others if other.op == "resume"]
        if any(_may_follow(other, operation) for other in undoing):
            return
        until = min((other.invoked for other in undoing if other.invoked > operation.returned), default=INFINITY)
    for birth in births:
        # A run that was fired ahead, for a time after the answer, must not have been claimed.
        since, at, due = operation.returned + _SLACK, birth.transaction.at, birth.key[1]
        if since < at < until or (at <= since < due < until and facts.holds.get(birth.key)):
            yield Finding(
                NAME,
                f"{facts.called(birth.key)}: fired at {moment(birth.transaction.at)}, although the {operation.op} of "
                "the job was "
                f"acknowledged at {moment(operation.returned)} (operation {operation.id}; next resume: "
                f"{moment(None if until == INFINITY else until)})",
                [operation.document, birth.row],
                at=operation.returned,
                job_id=birth.key[0],
            )


def _follows(
    facts: Facts, job: Job, operation: Operation, others: list[Operation], births: list[Birth]
) -> Iterator[Finding]:
    rivals = [
        other for other in others if other.op == "change" and other is not operation and body_of(other).get("schedule")
    ]
    if any(_may_follow(other, operation) for other in rivals):
        return
    until = min((other.invoked for other in rivals if other.invoked > operation.returned), default=INFINITY)
    schedule = str(body_of(operation)["schedule"])
    row = job.row
    grid = make_grid(
        schedule, micros_or_none(row.get("start_at")), micros_or_none(row.get("end_at")), micros(row["created_at"])
    )
    if grid is None or grid.once:
        return
    for birth in births:
        due = birth.key[1]
        # An occurrence that was due before the answer may still fire by the old schedule: its fire was under way.
        started = birth.transaction.at > operation.returned + _SLACK or facts.holds.get(birth.key)
        if operation.returned + _SLACK < due < until and started and not grid.holds(due):
            yield Finding(
                NAME,
                f"{facts.called(birth.key)}: fired at {moment(birth.transaction.at)}, but since the change "
                "acknowledged at "
                f"{moment(operation.returned)} (operation {operation.id}) the schedule is {schedule}, which has no "
                "occurrence then",
                [operation.document, birth.row],
                at=operation.returned,
                job_id=birth.key[0],
            )


def _may_follow(other: Operation, operation: Operation) -> bool:
    """Whether `other`, which was requested before `operation` was answered, may have taken effect after it."""
    if other.invoked > operation.returned:
        return False
    if other.returned == INFINITY:
        return other.invoked + _LONGEST_UNKNOWN > operation.invoked
    return other.returned > operation.invoked
