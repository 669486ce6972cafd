"""The documents of the API's answers, made from jobs, runs, previews and explanations: sections 2 and 9 of the
specification. `schemas` describes them."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, get_type_hints

from duly.formats import time_text
from duly.masking import shown_payload, shown_ping_url
from duly.model import (
    POLICY_RULES,
    Attempt,
    AuditEntry,
    ClusterStatus,
    Counts,
    DeadLetter,
    ErrorInfo,
    Explanation,
    Forecast,
    Incident,
    Job,
    LogLine,
    LogPage,
    MaintenanceWindow,
    Monitor,
    NodeStatus,
    Occurrence,
    Preview,
    Run,
    make_run_id,
)
from duly.targets import shown_target


def without_payload(document: dict[str, Any]) -> dict[str, Any]:
    """The document for a list without payloads: the field is absent instead of null."""
    del document["payload"]
    return document


def job_document(job: Job) -> dict[str, Any]:
    """Every field of the job that readers may see, and every field of its policy. `JobDocument` describes it."""
    policy = job.policy
    document = {name: getattr(job, name) for name in _SHOWN_FIELDS}
    document |= {name: getattr(policy, name) for name in POLICY_RULES}
    document |= {name: time_text(document[name]) for name in _TIME_FIELDS}
    document["job_id"] = str(job.job_id)
    document["secret_fields"] = list(policy.secret_fields)
    document["ping_url"] = shown_ping_url(policy.ping_url)
    if not isinstance(job.handler, str):
        document["handler"] = shown_target(job.handler)
    if policy.secret_fields:
        document["payload"] = shown_payload(job.payload, policy.secret_fields)
    return document


_SHOWN_FIELDS = tuple(
    field.name for field in fields(Job) if field.name not in ("shard", "kind", "policy", "unreadable")
)
_TIME_FIELDS = tuple(name for name, hint in get_type_hints(Job).items() if hint in (datetime, datetime | None))


def run_document(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "job_id": str(run.job_id),
        "scheduled_at": time_text(run.scheduled_at),
        "status": run.status,
        "attempt": run.attempt,
        "started_at": time_text(run.started_at),
        "finished_at": time_text(run.finished_at),
        "next_attempt_at": time_text(run.next_attempt_at),
        "worker": run.worker,
        "idempotency_key": run.idempotency_key,
        "missed": run.missed,
        "deduplicated": run.deduplicated,
        "trace_id": run.trace_id,
        "progress": None
        if run.progress is None
        else {"fraction": run.progress.fraction, "note": run.progress.note, "at": time_text(run.progress.at)},
        "error": _error_document(run.error),
        "result": run.result,
        "note": _note_document(run),
        "attempts": [_attempt_document(attempt) for attempt in run.attempts],
    }


def log_document(page: LogPage) -> dict[str, Any]:
    return {
        "items": [log_line_document(line) for line in page.items],
        "next_cursor": page.cursor,
        "more": page.more,
        "complete": page.complete,
    }


def log_line_document(line: LogLine) -> dict[str, Any]:
    return {
        "attempt": line.attempt,
        "number": line.number,
        "at": time_text(line.at),
        "level": line.level,
        "source": line.source,
        "text": line.text,
        "left_out": line.left_out,
    }


def dead_letter_document(letter: DeadLetter) -> dict[str, Any]:
    return {
        "run_id": letter.run_id,
        "job_id": str(letter.job_id),
        "name": letter.name,
        "queue": letter.queue,
        "handler": letter.handler if isinstance(letter.handler, str) else shown_target(letter.handler),
        "scheduled_at": time_text(letter.scheduled_at),
        "buried_at": time_text(letter.buried_at),
        "attempt": letter.attempt,
        "payload": shown_payload(letter.payload, letter.secret_fields),
        "payload_ref": letter.payload_ref,
        "secret_fields": list(letter.secret_fields),
        "error": _error_document(letter.error),
        "attempts": [_attempt_document(attempt) for attempt in letter.attempts],
    }


def incident_document(incident: Incident) -> dict[str, Any]:
    document = {name: getattr(incident, name) for name in _INCIDENT_FIELDS}
    document |= {name: time_text(document[name]) for name in ("scheduled_at", "opened_at", "closed_at", "acked_at")}
    document["job_id"] = None if incident.job_id is None else str(incident.job_id)
    return document | {"incident_id": str(incident.incident_id)}


_INCIDENT_FIELDS = tuple(field.name for field in fields(Incident) if field.name != "tenant")


def window_document(window: MaintenanceWindow) -> dict[str, Any]:
    return {
        "window_id": str(window.window_id),
        "job_id": None if window.job_id is None else str(window.job_id),
        "starts_at": time_text(window.starts_at),
        "ends_at": time_text(window.ends_at),
        "reason": window.reason,
        "created_at": time_text(window.created_at),
    }


def audit_document(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": time_text(entry.at),
        "via": entry.via,
        "actor": entry.actor,
        "key": entry.key,
        "request": entry.request,
        "address": entry.address,
        "action": entry.action,
        "kind": entry.kind,
        "object": entry.object,
        "job_id": None if entry.job_id is None else str(entry.job_id),
        "before": entry.before,
        "after": entry.after,
        "reason": entry.reason,
    }


def preview_document(preview: Preview) -> dict[str, Any]:
    """The preview, including occurrences that DST drops, each with a note."""
    return {
        "kind": preview.kind,
        "canonical": preview.canonical,
        "occurrences": [occurrence_document(one) for one in preview.occurrences],
    }


def occurrence_document(one: Occurrence) -> dict[str, Any]:
    return {
        "scheduled_at": time_text(one.scheduled_at),
        "local": one.local.isoformat(),
        "note": one.note,
        "dropped": one.dropped,
    }


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    return {
        "job_id": str(explanation.job_id),
        "scheduled_at": time_text(explanation.scheduled_at),
        "local": explanation.local.isoformat(),
        "verdict": str(explanation.verdict),
        "sentence": explanation.sentence,
        "note": explanation.note,
        "facts": {
            name: time_text(value) if isinstance(value, datetime) else value
            for name, value in explanation.facts.items()
        },
        "run": None if explanation.run is None else run_document(explanation.run),
        "related": None if explanation.related is None else explanation_document(explanation.related),
    }


def forecast_document(forecast: Forecast) -> dict[str, Any]:
    return {
        "start": time_text(forecast.start),
        "until": time_text(forecast.until),
        "total": forecast.total,
        "items": [
            {"minute": time_text(item.minute), "queue": item.queue, "handler": item.handler, "fires": item.fires}
            for item in forecast.items
        ],
        "estimated": forecast.estimated,
        "cut": forecast.cut,
        "complete_until": time_text(forecast.complete_until),
    }


def monitor_document(monitor: Monitor) -> dict[str, Any]:
    return {
        "slug": monitor.slug,
        **asdict(monitor.definition),
        "state": monitor.state,
        "why": monitor.why,
        **{name: time_text(getattr(monitor, name)) for name in _MONITOR_TIMES},
        "running": monitor.running,
        "pings": [{**asdict(ping), "at": time_text(ping.at)} for ping in monitor.pings],
        "ping_path": monitor.ping_path,
    }


_MONITOR_TIMES = (
    "expected_at", "down_at", "last_start_at", "last_success_at", "last_failure_at", "created_at", "updated_at",
)  # fmt: skip

# Entries of a list of jobs that no live worker can run.
MAX_UNRUNNABLE = 100


def cluster_document(status: ClusterStatus, *, tenant: str | None = None, jobs_of: str | None = None) -> dict[str, Any]:
    """`tenant`: of the tenants that workers serve, only this one is named; None: all. `jobs_of`: the tenant whose jobs
    are named: an admin's key does not reach the jobs of others either."""
    return {
        "nodes": [
            {**_node_document(node), "shards": node.shards, "coordinator": node.info.get("coordinator")}
            for node in status.nodes
            if node.kind == "scheduler"
        ],
        "shards": [
            {
                "shard": shard.shard,
                "epoch": shard.epoch,
                "leader": None if shard.node_id is None else str(shard.node_id),
                "leader_name": shard.node,
                "alive": shard.alive,
                "since": time_text(shard.since),
            }
            for shard in status.shards
        ],
        "workers": [
            {
                **_node_document(node),
                "held": node.held,
                "queues": node.info.get("queues", []),
                "tenants": _served(node, tenant),
                "concurrency": node.info.get("concurrency"),
                "hanging_threads": node.info.get("hanging_threads", 0),
            }
            for node in status.nodes
            if node.kind == "worker"
        ],
        "lag_seconds": status.lag_seconds,
        "unrunnable": [
            {**asdict(one), "job_id": str(one.job_id)} for one in status.unrunnable if one.tenant == jobs_of
        ][:MAX_UNRUNNABLE],
        "surveyed_at": time_text(status.surveyed_at),
    }


def _served(node: NodeStatus, tenant: str | None) -> list[str] | None:
    served: list[str] | None = node.info.get("tenants")
    return served if served is None or tenant is None else [one for one in served if one == tenant]


def _node_document(node: NodeStatus) -> dict[str, Any]:
    return {
        "node_id": str(node.node_id),
        "name": node.name,
        "version": node.version,
        "started_at": time_text(node.started_at),
        "lease_until": time_text(node.lease_until),
        "stopped_at": time_text(node.stopped_at),
        "alive": node.alive,
    }


def stats_document(counts: Counts, tenant: str | None, *, scope: str | None) -> dict[str, Any]:
    """`scope` is the tenant that was counted; None: the whole store."""
    return {
        "scope": "store" if scope is None else "tenant",
        "tenant": tenant,
        "jobs": counts.jobs,
        "jobs_estimated": counts.jobs_estimated,
        "queued": counts.queued,
        "retrying": counts.retrying,
        "waiting": counts.waiting,
        "running": counts.running,
        "dead_letters": counts.dead_letters,
        "overdue": counts.overdue,
        "oldest_overdue_at": time_text(counts.oldest_overdue_at),
        "at_least": list(counts.at_least),
    }


def _attempt_document(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "started_at": time_text(attempt.started_at),
        "finished_at": time_text(attempt.finished_at),
        "worker": attempt.worker,
        "error": _error_document(attempt.error),
    }


def _note_document(run: Run) -> dict[str, Any] | None:
    """The reason why a run was skipped, missed or cancelled, always with the same keys."""
    if run.note is None:
        return None
    unfinished = run.note.get("unfinished")
    earlier = None if unfinished is None else datetime.fromisoformat(unfinished)
    return {
        "reason": run.note.get("reason"),
        "count": run.note.get("count"),
        **{
            name: None if run.note.get(name) is None else time_text(datetime.fromisoformat(run.note[name]))
            for name in ("first", "last")
        },
        "overlap": run.note.get("overlap"),
        "unfinished": time_text(earlier),
        "unfinished_run_id": None if earlier is None else make_run_id(run.job_id, earlier),
    }


def _error_document(error: ErrorInfo | None) -> dict[str, Any] | None:
    return None if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}
