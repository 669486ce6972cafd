"""Nothing acknowledged is lost, and nothing refused happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..facts import SECOND, Facts, Job
from ..finding import Finding, moment
from ..records import Operation, key_of_run_id, micros
from ..stepping import same_times

NAME = "acknowledged"
# Operations are timed by the client, writes by the database: one clock, but a write's time is read before its commit.
_SLACK = SECOND // 10
_BODIES = ("body", "json", "changes", "document", "fields")
_COMPARED = ("name", "queue", "priority", "max_runs")
# A stored policy contains only the fields that differ from these.
_DEFAULTS = {"overlap": "skip", "missed_window": "RUN_ONCE", "max_retries": 3, "max_missed": 100, "max_queued": 100}


def check(facts: Facts) -> Iterator[Finding]:
    """Nothing acknowledged is lost: an operation that was acknowledged can be seen in the store from then on.

    A submitted job is stored. A change, pause, resume or cancel was in force at some moment between request and answer.
    A trigger or a redrive made its run. A recorded outcome is still in the history at the end. And an operation that
    was refused had no effect.
    """
    taken: dict[str, list[Operation]] = {}
    for operation in facts.records.operations:
        if operation.op in ("submit", "submit_batch"):
            for name in _submitted_names(operation):
                taken.setdefault(name, []).append(operation)
    for operation in facts.records.operations:
        if operation.outcome == "ok":
            yield from _ok(facts, operation)
        elif operation.outcome == "failed" and operation.op == "submit" and operation.job:
            yield from _refused(facts, operation, taken.get(operation.job, []))
    yield from _standing(facts)


def job_of(facts: Facts, operation: Operation) -> tuple[str | None, Job | None]:
    """The id of the operation's job, if known, and the job, if the store ever had it."""
    answer = operation.answer if isinstance(operation.answer, dict) else {}
    nested = answer.get("job")
    job_id = answer.get("job_id") or (nested.get("job_id") if isinstance(nested, dict) else None)
    job_id = job_id or operation.request.get("job_id") or operation.document.get("job_id")
    if job_id is None and operation.job in facts.by_key:
        job_id = facts.by_key[operation.job].job_id
    return job_id, facts.jobs.get(str(job_id)) if job_id else None


def body_of(operation: Operation) -> dict[str, Any]:
    for name in _BODIES:
        if isinstance(operation.request.get(name), dict):
            return dict(operation.request[name])
    return operation.request


def _ok(facts: Facts, operation: Operation) -> Iterator[Finding]:
    match operation.op:
        case "submit" | "submit_batch":
            yield from _submitted(facts, operation)
        case "pause":
            yield from _held(facts, operation, "paused", lambda row: row.get("status") == "paused")
        case "resume":
            yield from _held(facts, operation, "active", lambda row: row.get("status") in ("active", "ended"))
        case "cancel":
            yield from _held(facts, operation, "cancelled", lambda row: row.get("status") == "cancelled")
            _, job = job_of(facts, operation)
            was = job is not None and any(version.row.get("status") == "cancelled" for version in job.versions)
            if job is not None and was and job.row.get("status") != "cancelled":
                yield _lost(facts, operation, f"it is {job.row.get('status')} again at the end", [job.row])
        case "change":
            body = body_of(operation)
            yield from _held(facts, operation, f"changed to {body}", lambda row: _has(row, body))
        case "trigger" | "redrive" | "cancel_run":
            yield from _run(facts, operation)
        case _:
            pass


def _submitted(facts: Facts, operation: Operation) -> Iterator[Finding]:
    kept = {str(row["job_id"]) for row in facts.records.table("jobs")}
    for job_id in _ids(operation.answer):
        job = facts.jobs.get(job_id)
        if job is None:
            yield _lost(facts, operation, f"the store never had the job {job_id}", [], job_id)
        elif job.deleted is None and kept and job_id not in kept:
            yield _lost(facts, operation, f"the job {job_id} is not in the store at the end", [job.row], job_id)


def _held(facts: Facts, operation: Operation, state: str, holds: Callable[[dict[str, Any]], bool]) -> Iterator[Finding]:
    job_id, job = job_of(facts, operation)
    if job is None:
        if job_id is not None:
            yield _lost(facts, operation, f"the store never had the job {job_id}", [])
        return
    rows = job.during(operation.invoked - _SLACK, operation.returned + _SLACK)
    if not any(holds(row) for row in rows):
        yield _lost(facts, operation, f"it was never {state} between request and answer", rows[:5])


def _has(row: dict[str, Any], body: dict[str, Any]) -> bool:
    policy = row.get("policy") or {}
    for field, value in body.items():
        if field == "schedule" and isinstance(value, str):
            if not same_times(value, str(row.get("schedule"))):
                return False
        elif field in _COMPARED:
            if row.get(field, value) != value:
                return False
        elif field in _DEFAULTS and policy.get(field, _DEFAULTS[field]) != value:
            return False
    return True


def _run(facts: Facts, operation: Operation) -> Iterator[Finding]:
    answer = operation.answer if isinstance(operation.answer, dict) else {}
    run_id = answer.get("run_id") or operation.request.get("run_id")
    key = key_of_run_id(str(run_id)) if run_id else None
    if key is None:
        return
    moves = facts.moves.get(key, [])
    if not moves:
        yield _lost(facts, operation, f"the store never had its run {moment(key[1])}", [])
    elif operation.op == "redrive":
        until = operation.returned + _SLACK
        sent = [
            move
            for move in moves
            if move.before == "dead" and operation.invoked - _SLACK <= move.transaction.at <= until
        ]
        if not sent:
            yield _lost(facts, operation, f"its run {moment(key[1])} was not redriven between request and answer", [])


def _refused(facts: Facts, operation: Operation, others: list[Operation]) -> Iterator[Finding]:
    job = facts.by_key.get(operation.job)
    if job is None or any(other.outcome != "failed" for other in others):
        return
    yield Finding(
        NAME,
        f"{facts.job_called(job.job_id)}: its submit (operation {operation.id}) was refused at "
        f"{moment(operation.returned)} "
        f"(status {operation.document.get('status')}), but the job was made at {job.versions[0].row.get('created_at')}",
        [operation.document, job.row],
    )


def _standing(facts: Facts) -> Iterator[Finding]:
    """Outcomes that were recorded and not withdrawn are in the history at the end."""
    tables = facts.records.final.get("tables") or {}
    if "history" not in tables:
        return
    kept = {(str(row["job_id"]), micros(row["scheduled_at"])): row for row in facts.records.table("history")}
    for key, events in facts.outcomes.items():
        last = events[-1]
        if last.new is not None and key not in kept:
            yield Finding(
                NAME,
                f"{facts.called(key)}: recorded as {last.new['status']} at {moment(last.transaction.at)}, but the "
                "history does not "
                f"have it at {moment(facts.settled)}",
                [last.new],
            )


def _lost(
    facts: Facts, operation: Operation, what: str, rows: list[dict[str, Any]], about: str | None = None
) -> Finding:
    job_id, job = job_of(facts, operation)
    called = facts.job_called(str(job_id)) if job else f"job {operation.job} ({job_id})"
    return Finding(
        NAME,
        f"{called}: {operation.op} (operation {operation.id}) was requested at {moment(operation.invoked)} and "
        "acknowledged at "
        f"{moment(operation.returned)}, but {what}",
        [operation.document, *rows],
        at=operation.returned,
        job_id=about or job_id,
    )


def _ids(answer: Any) -> list[str]:
    """Every job id in an answer, at any depth."""
    if isinstance(answer, dict):
        found = [str(answer["job_id"])] if answer.get("job_id") else []
        return found + [one for name, value in answer.items() if name != "payload" for one in _ids(value)]
    return [one for value in answer for one in _ids(value)] if isinstance(answer, list) else []


def _submitted_names(operation: Operation) -> list[str]:
    names = [operation.job] if operation.job else []
    stack: list[Any] = [operation.request]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if isinstance(value.get("dedupe_key"), str):
                names.append(value["dedupe_key"])
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return names
