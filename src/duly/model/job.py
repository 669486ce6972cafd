"""A job as a client asks for it (`JobRequest`) and as it is stored (`Job`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from duly.errors import InvalidInput
from duly.model.policy import DEFAULT_POLICY, Policy

ScheduleKind = Literal["once", "cron", "interval", "rrule"]
JobStatus = Literal["active", "paused", "completed", "cancelled"]

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a client asks for when it submits a job: section 2 of the spec, before anything is checked."""

    handler: str | Mapping[str, Any]
    name: str | None = None
    payload: Any = field(default_factory=dict)
    payload_ref: str | None = None
    schedule: str | datetime | None = None
    timezone: str = "UTC"
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    policy: Policy = DEFAULT_POLICY
    dedupe_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str = DEFAULT_TENANT


def each_request(
    given: Iterable[JobRequest | Mapping[str, Any]], make: Callable[[Any, dict[str, Any]], JobRequest]
) -> list[JobRequest]:
    """Requests, of which some may be mappings of fields: those are made by `make`, from the handler and the rest."""
    requests = []
    for index, one in enumerate(given):
        if not isinstance(one, JobRequest):
            if not isinstance(one, Mapping):
                raise InvalidInput(
                    f"jobs[{index}]", f"must be a request or a mapping of fields, not {type(one).__name__}"
                )
            fields = {str(name): value for name, value in one.items()}
            if "handler" not in fields:
                raise InvalidInput(f"jobs[{index}].handler", "is required")
            try:
                one = make(fields.pop("handler"), fields)
            except InvalidInput as error:
                raise InvalidInput(f"jobs[{index}].{error.field}", error.message) from error
        requests.append(one)
    return requests


@dataclass(frozen=True, slots=True)
class Job:
    """A stored job."""

    job_id: UUID
    shard: int
    tenant: str
    name: str
    handler: str | dict[str, Any]
    payload: Any
    payload_ref: str | None
    kind: ScheduleKind
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    queue: str
    priority: int
    policy: Policy
    dedupe_key: str | None
    labels: dict[str, str]
    status: JobStatus
    status_reason: str | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    run_count: int
    created_at: datetime
    updated_at: datetime
    version: int
    unreadable: str | None = None
    """What of the stored row Python cannot read, and why. Such a field is empty here, or the default."""
