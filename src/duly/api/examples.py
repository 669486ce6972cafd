"""One example per call, for the API's description. Tests check the examples against the schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from duly.api.problems import FieldError, Problem
from duly.api.schemas import JobBody

_JOB_ID = "019a7c1e-5b5e-7c3a-9d3f-2f6a1d0c4b7e"
_RUN_ID = f"{_JOB_ID}-4006432a6d5a2000"
_NODE_ID = "5f0f3c1e-8a57-4f0e-9d0c-6f3f7d1f2a10"
# An endpoint, so that the example works as it stands: a task is refused if no worker has it.
_HANDLER = {"type": "http", "url": "https://example.org/hooks/weekly-report"}
_REQUEST = {
    "name": "Weekly report",
    "handler": _HANDLER,
    "payload": {"report_type": "weekly"},
    "schedule": "0 9 * * MON",
    "timezone": "America/New_York",
    "labels": {"team": "data"},
}
_JOB: dict[str, Any] = {
    **JobBody.model_validate(_REQUEST).model_dump(),
    "job_id": _JOB_ID,
    "tenant": "default",
    "status": "active",
    "status_reason": None,
    "paused_until": None,
    "next_run_at": "2026-03-09T13:00:00Z",
    "last_run_at": None,
    "run_count": 0,
    "created_at": "2026-03-06T10:15:00Z",
    "updated_at": "2026-03-06T10:15:00Z",
    "version": 1,
}
_RUN: dict[str, Any] = {
    "run_id": _RUN_ID,
    "job_id": _JOB_ID,
    "scheduled_at": "2026-03-09T13:00:00Z",
    "status": "succeeded",
    "attempt": 1,
    "started_at": "2026-03-09T13:00:00.004000Z",
    "finished_at": "2026-03-09T13:00:02.510000Z",
    "next_attempt_at": None,
    "worker": "worker-1",
    "idempotency_key": f"{_JOB_ID}:1773061200",
    "missed": False,
    "deduplicated": False,
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
    "progress": None,
    "error": None,
    "result": {"sent": 12},
    "note": None,
    "attempts": [
        {
            "attempt": 1,
            "started_at": "2026-03-09T13:00:00.004000Z",
            "finished_at": "2026-03-09T13:00:02.510000Z",
            "worker": "worker-1",
            "error": None,
        }
    ],
}
_QUEUED = {
    **_RUN, "status": "queued", "attempt": 0, "started_at": None, "finished_at": None, "worker": None, "result": None,
    "next_attempt_at": "2026-03-09T13:00:00Z", "attempts": [],
}  # fmt: skip
_ERROR = {"type": "TimeoutError", "message": "no answer within 300 s", "traceback": None}
_LETTER: dict[str, Any] = {
    "run_id": _RUN_ID,
    "job_id": _JOB_ID,
    "name": "Weekly report",
    "queue": "default",
    "handler": _HANDLER,
    "scheduled_at": "2026-03-09T13:00:00Z",
    "buried_at": "2026-03-09T13:21:07Z",
    "attempt": 4,
    "payload": {"report_type": "weekly"},
    "payload_ref": None,
    "secret_fields": [],
    "error": _ERROR,
    "attempts": [
        {
            "attempt": 4,
            "started_at": "2026-03-09T13:16:07Z",
            "finished_at": "2026-03-09T13:21:07Z",
            "worker": "worker-1",
            "error": _ERROR,
        }
    ],
}
_MONITOR_REQUEST: dict[str, Any] = {
    "schedule": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "grace_seconds": 900,
    "max_runtime_seconds": 3600,
    "description": "pg_dump on db1",
}
_MONITOR: dict[str, Any] = {
    "slug": "nightly-backup",
    **_MONITOR_REQUEST,
    "state": "up",
    "why": None,
    "expected_at": "2026-03-07T02:00:00Z",
    "down_at": "2026-03-07T02:15:00Z",
    "last_start_at": "2026-03-06T02:00:00.512000Z",
    "last_success_at": "2026-03-06T02:14:09Z",
    "last_failure_at": None,
    "created_at": "2026-03-01T09:00:00Z",
    "updated_at": "2026-03-01T09:00:00Z",
    "running": 0,
    "pings": [
        {
            "at": "2026-03-06T02:14:09Z",
            "event": "success",
            "rid": "7c1f0f5e",
            "exit_status": 0,
            "note": "12 GB",
            "seconds": 848.5,
        }
    ],
    "ping_path": None,
}
_INCIDENT: dict[str, Any] = {
    "incident_id": "8a9f4c53-6c5e-4ab4-9d0f-64a1c7a9f1f2",
    "job_id": _JOB_ID,
    "monitor": None,
    "name": "Weekly report",
    "kind": "late",
    "cause": "late: queue default",
    "message": "the occurrence of 2026-03-09T13:00:00Z waits in queue default since 301 s",
    "scheduled_at": "2026-03-09T13:00:00Z",
    "opened_at": "2026-03-09T13:05:01Z",
    "closed_at": None,
    "closed_why": None,
    "acked_at": None,
    "acked_by": None,
}
_WINDOW: dict[str, Any] = {
    "window_id": "3c1f0c6e-58f5-4b7c-9a41-0a4c4de2f1aa",
    "job_id": None,
    "starts_at": "2026-03-09T14:00:00Z",
    "ends_at": "2036-03-09T16:00:00Z",
    "reason": "new disks",
    "created_at": "2026-03-09T13:10:00Z",
}
_OCCURRENCES = [
    {"scheduled_at": "2026-03-09T13:00:00Z", "local": "2026-03-09T09:00:00-04:00", "note": None, "dropped": False},
    {"scheduled_at": "2026-03-16T13:00:00Z", "local": "2026-03-16T09:00:00-04:00", "note": None, "dropped": False},
]
_NODE = {
    "node_id": _NODE_ID,
    "name": "node-1",
    "version": "0.1.0",
    "started_at": "2026-03-06T08:00:00Z",
    "lease_until": "2026-03-06T10:15:05Z",
    "stopped_at": None,
    "alive": True,
}


@dataclass(frozen=True, slots=True)
class Example:
    response: Any = None
    request: Any = None
    lines: str | None = None


def _page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": None}


EXAMPLES: dict[str, Example] = {
    "submit_job": Example(_JOB, _REQUEST),
    "submit_jobs": Example(
        {"items": [{"status": 201, "job_id": _JOB_ID}]},
        [_REQUEST],
        lines=json.dumps(_REQUEST) + "\n",
    ),
    "list_jobs": Example(_page(_JOB)),
    "get_job": Example(_JOB),
    "change_job": Example({**_JOB, "schedule": "0 8 * * MON"}, {"schedule": "0 8 * * MON"}),
    "cancel_job": Example({**_JOB, "status": "cancelled", "next_run_at": None}),
    "pause_job": Example(
        {
            **_JOB,
            "status": "paused",
            "status_reason": "holidays",
            "paused_until": "2027-01-04T08:00:00Z",
            "next_run_at": None,
        },
        {"reason": "holidays"},
    ),
    "resume_job": Example(_JOB),
    "trigger_job": Example(_QUEUED),
    "list_job_runs": Example(_page(_RUN)),
    "list_upcoming": Example(_page(*_OCCURRENCES)),
    "explain_occurrence": Example(
        {
            "job_id": _JOB_ID,
            "scheduled_at": "2026-03-09T13:00:00Z",
            "local": "2026-03-09T09:00:00-04:00",
            "verdict": "fired",
            "sentence": "It fired on time, and its run succeeded.",
            "note": None,
            "facts": {},
            "run": _RUN,
            "related": None,
        }
    ),
    "get_run": Example(_RUN),
    "cancel_run": Example({**_QUEUED, "status": "cancelled", "finished_at": "2026-03-09T13:00:01Z"}),
    "read_run_logs": Example(
        {
            "items": [
                {
                    "attempt": 1,
                    "number": 1,
                    "at": "2026-03-09T13:00:00.021000Z",
                    "level": "INFO",
                    "source": "reports.weekly",
                    "text": "reading 12 tables",
                    "left_out": 0,
                }
            ],
            "next_cursor": f"{_NODE_ID}.1",
            "more": False,
            "complete": True,
        }
    ),
    "list_dead_letters": Example(_page(_LETTER)),
    "count_dead_letters": Example({"count": 12}),
    "get_dead_letter": Example(_LETTER),
    "redrive_dead_letters": Example({"redriven": 12, "refused": 0, "more": False}, {"queue": "default"}),
    "redrive_dead_letter": Example(_QUEUED),
    "purge_dead_letters": Example({"purged": 12, "more": False}),
    "purge_dead_letter": Example(),
    "list_audit": Example(
        _page(
            {
                "at": "2026-03-06T10:20:00Z",
                "via": "api",
                "actor": "ada",
                "key": "k3v9x0c2m7qa",
                "request": None,
                "address": None,
                "action": "pause",
                "kind": "job",
                "object": _JOB_ID,
                "job_id": _JOB_ID,
                "before": {"status": "active", "next_run_at": "2026-03-09T13:00:00+00:00"},
                "after": {"status": "paused"},
                "reason": "holidays",
            }
        )
    ),
    "list_monitors": Example(_page({**_MONITOR, "pings": []})),
    "set_monitor": Example({**_MONITOR, "state": "new", "pings": []}, _MONITOR_REQUEST),
    "get_monitor": Example(_MONITOR),
    "remove_monitor": Example(),
    "ping_monitor": Example(None, "12 GB in 14 minutes"),
    "ping_monitor_outcome": Example(None, "pg_dump: error: connection to server failed"),
    "list_incidents": Example(_page(_INCIDENT)),
    "ack_incident": Example({**_INCIDENT, "acked_at": "2026-03-09T13:07:00Z", "acked_by": "ada"}),
    "list_maintenance_windows": Example({"items": [_WINDOW]}),
    "add_maintenance_window": Example(_WINDOW, {"ends_at": "2036-03-09T16:00:00Z", "reason": "new disks"}),
    "remove_maintenance_window": Example(),
    "preview_schedule": Example(
        {"kind": "cron", "canonical": "0 9 * * 1", "occurrences": _OCCURRENCES},
        {
            "schedule": "0 9 * * MON",
            "timezone": "America/New_York",
            "dst_gap": "shift",
            "dst_fold": "first",
            "start_at": None,
            "after": "2026-03-06T00:00:00Z",
            "count": 2,
        },
    ),
    "forecast": Example(
        {
            "start": "2026-03-06T10:15:00Z",
            "until": "2026-03-06T11:15:00Z",
            "total": 1200,
            "items": [{"minute": "2026-03-06T11:00:00Z", "queue": "default", "handler": "send_report", "fires": 1200}],
            "estimated": False,
            "cut": False,
            "complete_until": "2026-03-06T11:15:00Z",
        }
    ),
    "get_cluster": Example(
        {
            "nodes": [{**_NODE, "shards": 64, "coordinator": "postgres"}],
            "shards": [
                {
                    "shard": 0,
                    "epoch": 3,
                    "leader": _NODE_ID,
                    "leader_name": "node-1",
                    "alive": True,
                    "since": "2026-03-06T08:00:00Z",
                }
            ],
            "workers": [
                {**_NODE, "held": 7, "queues": ["default"], "tenants": None, "concurrency": 100, "hanging_threads": 0}
            ],
            "lag_seconds": 0.0,
            "unrunnable": [
                {
                    "tenant": "default",
                    "queue": "default",
                    "kind": "task",
                    "handler": "send_report",
                    "jobs": 12,
                    "runs": 3,
                    "at_least": False,
                    "job_id": _JOB_ID,
                    "job_name": "weekly report",
                    "message": "12 active jobs and 3 waiting runs of queue 'default' (such as 'weekly report', "
                    f"{_JOB_ID}) cannot run: no live worker has the task 'send_report'",
                    "next_step": "start one whose app has it: duly worker --app module:app",
                }
            ],
            "surveyed_at": "2026-03-06T10:14:00Z",
        }
    ),
    "get_stats": Example(
        {
            "scope": "store",
            "tenant": "default",
            "jobs": 120000,
            "jobs_estimated": True,
            "queued": 3,
            "retrying": 1,
            "waiting": 0,
            "running": 7,
            "dead_letters": 0,
            "overdue": 0,
            "oldest_overdue_at": None,
            "at_least": [],
        }
    ),
}

PARAMETERS: dict[str, Any] = {
    "job_id": _JOB_ID,
    "run_id": _RUN_ID,
    "slug": "nightly-backup",
    "outcome": "start",
    "rid": "7c1f0f5e",
    "incident_id": _INCIDENT["incident_id"],
    "window_id": _WINDOW["window_id"],
    "at": "2026-03-09T13:00:00Z",
    "label": ["team=data"],
    "If-Match": '"3"',
    "Idempotency-Key": "report-2026-w11",
}

_PROBLEMS = {
    401: Problem(401, "this API key is unknown or revoked"),
    403: Problem(403, "this API key has the role read; this call needs the role write"),
    404: Problem(404, f"there is no job {_JOB_ID}"),
    409: Problem(409, f"job {_JOB_ID} cannot be changed: it is cancelled"),
    412: Problem(412, f"job {_JOB_ID} was changed since: its ETag is now 4"),
    413: Problem(413, "the body must be at most 327680 bytes"),
    415: Problem(415, "the body must be JSON in UTF-8: Content-Type: application/json"),
    421: Problem(421, "only loopback names are served here, such as localhost or 127.0.0.1"),
    422: Problem.invalid([FieldError("schedule", "minute 77 is not in 0-59")]),
    429: Problem(429, "this API key may send 50 requests per second; try again in 0.3 s"),
    503: Problem(503, "the store cannot be reached at the moment; try again"),
}


def problem(status: int) -> dict[str, Any]:
    return _PROBLEMS[status].document()
