"""The API's documents as values of `duly.model`, and requests as JSON: the reverse of `duly.api.documents`.

A field that this version does not know is ignored: a newer server sent it. The API does not tell a job's shard, which
is None here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any, TypeVar, get_type_hints
from uuid import UUID

from duly.checks import check_moment
from duly.errors import InvalidInput
from duly.formats import time_text
from duly.model import (
    DEFAULT_POLICY,
    POLICY_FIELDS,
    Attempt,
    AuditEntry,
    Cluster,
    Counts,
    DeadLetter,
    ErrorInfo,
    Expected,
    Explanation,
    Forecast,
    Incident,
    Job,
    JobRequest,
    LogLine,
    LogPage,
    MaintenanceWindow,
    Monitor,
    MonitorDefinition,
    NodeStatus,
    Occurrence,
    Page,
    Ping,
    Policy,
    Preview,
    Progress,
    Run,
    ScheduleKind,
    ShardStatus,
    Unrunnable,
    Verdict,
    parse_run_id,
)
from duly.targets import check_target
from duly.timing.parse import read_schedule

Document = Mapping[str, Any]
Item = TypeVar("Item")


def read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def read_page(document: Document, read: Callable[[Document], Item]) -> Page[Item]:
    return Page([read(item) for item in document["items"]], document["next_cursor"])


def read_job(document: Document) -> Job:
    policy = Policy(**{name: document[name] for name in POLICY_FIELDS if name in document})
    # A server of 0.1.0 knows no pauses that end by themselves.
    times = {name: read_time(document[name]) for name in _JOB_TIMES if name in document or name != "paused_until"}
    given: dict[str, Any] = {name: document[name] for name in _JOB_FIELDS - {*_JOB_TIMES}} | times
    given |= {
        "job_id": UUID(document["job_id"]),
        "kind": _kind(document["schedule"], document["timezone"], _time(document["created_at"])),
        "policy": DEFAULT_POLICY if policy == DEFAULT_POLICY else policy,
        "labels": dict(document["labels"]),
    }
    return Job(shard=None, payload=document.get("payload"), **given)


_JOB_FIELDS = {field.name for field in fields(Job)} - {"shard", "payload", "kind", "policy", "unreadable"}
_JOB_TIMES = [name for name, hint in get_type_hints(Job).items() if hint in (datetime, datetime | None)]


def _kind(schedule: str, timezone: str, anchor: datetime) -> ScheduleKind:
    """The kind of a schedule, which its form shows."""
    try:
        return read_schedule(schedule, timezone, "shift", "first", anchor).kind
    except InvalidInput:
        # Only the server has this zone. The form of the schedule does not depend on it.
        return read_schedule(schedule, "UTC", "shift", "first", anchor).kind


def read_run(document: Document) -> Run:
    parsed = parse_run_id(document["run_id"])
    if parsed is None:
        raise ValueError("run_id")
    progress = document.get("progress")
    return Run(
        job_id=parsed[0],
        scheduled_at=parsed[1],
        status=document["status"],
        attempt=document["attempt"],
        missed=document["missed"],
        deduplicated=document.get("deduplicated", False),
        trace_id=document.get("trace_id"),
        run_at=read_time(document.get("next_attempt_at")),
        started_at=read_time(document["started_at"]),
        finished_at=read_time(document["finished_at"]),
        worker=document["worker"],
        idempotency_key=document["idempotency_key"],
        error=_error(document["error"]),
        result=document["result"],
        note=None if document.get("note") is None else dict(document["note"]),
        attempts=tuple(_attempt(attempt) for attempt in document["attempts"]),
        progress=None if progress is None else Progress(progress["fraction"], progress["note"], _time(progress["at"])),
    )


def read_audit_entry(document: Document) -> AuditEntry:
    job_id = document["job_id"]
    return AuditEntry(
        at=_time(document["at"]),
        job_id=None if job_id is None else UUID(job_id),
        **{field.name: document[field.name] for field in fields(AuditEntry) if field.name not in ("at", "job_id")},
    )


def read_incident(document: Document) -> Incident:
    job_id = document["job_id"]
    times = {name: read_time(document[name]) for name in ("scheduled_at", "closed_at", "acked_at")}
    texts = ("monitor", "name", "kind", "cause", "message", "closed_why", "acked_by")
    given: dict[str, Any] = {name: document[name] for name in texts} | times
    return Incident(
        incident_id=UUID(document["incident_id"]),
        tenant=document.get("tenant", ""),
        job_id=None if job_id is None else UUID(job_id),
        opened_at=_time(document["opened_at"]),
        **given,
    )


def read_window(document: Document) -> MaintenanceWindow:
    job_id = document["job_id"]
    return MaintenanceWindow(
        window_id=UUID(document["window_id"]),
        tenant=document.get("tenant", ""),
        job_id=None if job_id is None else UUID(job_id),
        starts_at=_time(document["starts_at"]),
        ends_at=_time(document["ends_at"]),
        reason=document["reason"],
        created_at=_time(document["created_at"]),
    )


def read_dead_letter(document: Document) -> DeadLetter:
    parsed = parse_run_id(document["run_id"])
    if parsed is None:
        raise ValueError("run_id")
    error = _error(document["error"])
    if error is None:
        raise ValueError("error")
    return DeadLetter(
        job_id=parsed[0],
        scheduled_at=parsed[1],
        buried_at=_time(document["buried_at"]),
        attempt=document["attempt"],
        tenant=document.get("tenant", ""),
        name=document["name"],
        queue=document["queue"],
        handler=document["handler"],
        payload=document.get("payload"),
        payload_ref=document["payload_ref"],
        secret_fields=tuple(document.get("secret_fields", ())),
        error=error,
        attempts=tuple(_attempt(attempt) for attempt in document["attempts"]),
    )


def read_monitor(document: Document) -> Monitor:
    return Monitor(
        slug=document["slug"],
        definition=MonitorDefinition(**{field.name: document[field.name] for field in fields(MonitorDefinition)}),
        state=document["state"],
        why=document["why"],
        expected_at=read_time(document["expected_at"]),
        down_at=read_time(document["down_at"]),
        last_start_at=read_time(document["last_start_at"]),
        last_success_at=read_time(document["last_success_at"]),
        last_failure_at=read_time(document["last_failure_at"]),
        running=document["running"],
        created_at=_time(document["created_at"]),
        updated_at=_time(document["updated_at"]),
        pings=tuple(
            Ping(_time(one["at"]), one["event"], one["rid"], one["exit_status"], one["note"], one["seconds"])
            for one in document["pings"]
        ),
        ping_path=document.get("ping_path"),
    )


def _error(document: Document | None) -> ErrorInfo | None:
    return None if document is None else ErrorInfo(document["type"], document["message"], document["traceback"])


def _attempt(document: Document) -> Attempt:
    return Attempt(
        document["attempt"],
        read_time(document["started_at"]),
        read_time(document["finished_at"]),
        document["worker"],
        _error(document["error"]),
    )


def read_preview(document: Document) -> Preview:
    return Preview(document["kind"], document["canonical"], [read_occurrence(one) for one in document["occurrences"]])


def read_occurrence(document: Document) -> Occurrence:
    return Occurrence(
        _time(document["scheduled_at"]), _time(document["local"]), document["note"], dropped=document["dropped"]
    )


def read_explanation(document: Document) -> Explanation:
    related = document.get("related")
    run = document.get("run")
    return Explanation(
        job_id=UUID(document["job_id"]),
        scheduled_at=_time(document["scheduled_at"]),
        local=datetime.fromisoformat(document["local"]),
        verdict=Verdict(document["verdict"]),
        sentence=document["sentence"],
        facts=dict(document["facts"]),
        note=document.get("note"),
        run=None if run is None else read_run(run),
        related=None if related is None else read_explanation(related),
    )


def read_log_page(document: Document) -> LogPage:
    items = [
        LogLine(**{field.name: one[field.name] for field in fields(LogLine)} | {"at": _time(one["at"])})
        for one in document["items"]
    ]
    return LogPage(items, document["next_cursor"], document["more"], document["complete"])


def read_forecast(document: Document) -> Forecast:
    items = [Expected(_time(one["minute"]), one["queue"], one["handler"], one["fires"]) for one in document["items"]]
    return Forecast(
        start=_time(document["start"]),
        until=_time(document["until"]),
        items=items,
        estimated=document["estimated"],
        cut=document["cut"],
        complete_until=_time(document["complete_until"]),
    )


def read_cluster(document: Document) -> Cluster:
    nodes = [_node(one, "scheduler") for one in document["nodes"]]
    nodes += [_node(one, "worker") for one in document["workers"]]
    return Cluster(
        nodes,
        [_shard(one) for one in document["shards"]],
        document["lag_seconds"],
        # A server of 0.1.0 does not look for such jobs.
        unrunnable=tuple(_unrunnable(one) for one in document.get("unrunnable", ())),
        surveyed_at=read_time(document.get("surveyed_at")),
    )


def _unrunnable(document: Document) -> Unrunnable:
    known = {field.name: document[field.name] for field in fields(Unrunnable)}
    return Unrunnable(**known | {"job_id": UUID(document["job_id"])})


def _node(document: Document, kind: str) -> NodeStatus:
    return NodeStatus(
        node_id=UUID(document["node_id"]),
        kind=kind,
        name=document["name"],
        version=document["version"],
        started_at=_time(document["started_at"]),
        lease_until=_time(document["lease_until"]),
        stopped_at=read_time(document["stopped_at"]),
        info={
            name: document[name]
            for name in ("coordinator", "queues", "tenants", "concurrency", "hanging_threads")
            if document.get(name) is not None
        },
        alive=document["alive"],
        shards=document.get("shards", 0),
        held=document.get("held", 0),
    )


def _shard(document: Document) -> ShardStatus:
    leader = document["leader"]
    return ShardStatus(
        shard=document["shard"],
        epoch=document["epoch"],
        node_id=None if leader is None else UUID(leader),
        since=_time(document["since"]),
        node=document["leader_name"],
        alive=document["alive"],
    )


def read_counts(document: Document) -> Counts:
    counts = {field.name: document[field.name] for field in fields(Counts)}
    read = {"oldest_overdue_at": read_time(document["oldest_overdue_at"]), "at_least": tuple(document["at_least"])}
    return Counts(**counts | read)


# Requests


def job_body(request: JobRequest) -> dict[str, Any]:
    """The fields that a request sets; the server applies the task's defaults, and its own, to the rest."""
    body = {
        field.name: value
        for field in fields(JobRequest)
        if field.name not in ("policy", "chosen", "handler", "name", "payload")
        and (value := getattr(request, field.name)) not in (None, _DEFAULTS[field.name])
    }
    chosen = request.chosen
    if chosen == POLICY_FIELDS:
        # The code of a task has set them all. A server of the version before refuses a field that it does not know, and
        # has no tasks' defaults, so what is general there need not be sent.
        chosen -= _NEW_FIELDS
    body |= {
        name: value
        for name in POLICY_FIELDS
        if (value := getattr(request.policy, name)) != getattr(DEFAULT_POLICY, name) or name in chosen
    }
    body["handler"] = request.handler if isinstance(request.handler, str) else dict(request.handler)
    # The API requires a name; the library derives one from the handler.
    body["name"] = request.name if request.name is not None else _default_name(request.handler)
    if request.payload != {}:
        body["payload"] = request.payload
    return plain(body)


def _default_name(handler: object) -> str:
    return check_target(handler)[2] if isinstance(handler, Mapping) else str(handler)


def plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with times as strings. A time without an offset is refused: it could mean any instant."""
    return {name: _plain(name, value) for name, value in body.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(check_moment(name, value) or value)
    return dict(value) if name == "labels" and isinstance(value, Mapping) else value


def encode(body: Any) -> bytes:
    """JSON bytes; `InvalidInput` naming the field that cannot be written as JSON."""
    try:
        return _encoder.encode(body).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        pass
    for document in body if isinstance(body, list) else [body]:
        for name, value in document.items():
            try:
                _encoder.encode(value).encode()
            except UnicodeEncodeError as error:
                raise InvalidInput(name, "must not contain lone surrogates: that is not valid Unicode") from error
            except RecursionError as error:
                raise InvalidInput(name, "is nested too deeply") from error
            except (TypeError, ValueError) as error:
                raise InvalidInput(name, f"must be JSON: {str(error)[:200]}") from error
    raise InvalidInput("body", "must be JSON")


# Fields of a policy that the version before does not know.
_NEW_FIELDS = frozenset({"start_within_seconds", "alerts"})
_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_DEFAULTS: dict[str, Any] = {
    field.name: field.default_factory() if field.default_factory is not MISSING else field.default
    for field in fields(JobRequest)
}
