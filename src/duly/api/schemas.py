"""The shape of requests and answers: what a job's fields are called and of which type, as OpenAPI tells it too.

Only types are checked here, strictly: no number is taken for a text, no text for a number. The rules (ranges, zones,
schedules) are checked by `operations`, for every interface alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from duly.api.problems import FieldError, Problem, type_message
from duly.model import (
    DEFAULT_POLICY,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    POLICY_FIELDS,
    DstFold,
    DstGap,
    JobRequest,
    JobStatus,
    MissedWindow,
    Overlap,
    Policy,
    RetryBackoff,
)

# The very first and last moments of Python's calendar mean ±infinity to the database driver, and a step in local time
# from any moment near them leaves the calendar.
_FIRST_YEAR, _LAST_YEAR = 1900, 9998


def _read_moment(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a time such as 2026-03-08T09:30:00Z") from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"must be in the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return moment


def _plain_number(value: float) -> float:
    """60.0 means 60, also to whoever compares two requests. The bound keeps whole numbers within a float's range."""
    if abs(value) > 1e15:
        raise ValueError("is too large")
    return int(value) if value == int(value) else value


Moment = Annotated[datetime, BeforeValidator(_read_moment)]
Seconds = Annotated[int | float, AfterValidator(_plain_number)]


class JobBody(BaseModel):
    """A job to be submitted."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(description="1 to 200 characters, no control characters")
    handler: str | dict[str, Any] = Field(
        description=(
            "the name of a Python task; or an endpoint: `{type: http, url, method, headers, secret_headers}`; or a "
            "program, on workers that allow it: `{type: command, argv, env, secret_env, cwd}`. What is secret is not "
            "shown again"
        )
    )
    payload: Any = Field(default_factory=dict, description="any JSON")
    payload_ref: str | None = Field(None, description="a URI for what is too large to hold")
    schedule: str | None = Field(None, description="now, an ISO-8601 time, cron, `every 15m` or an RRULE; absent: now")
    timezone: str = Field("UTC", description="an IANA name")
    start_at: Moment | None = Field(None, description="a recurring job's first moment")
    end_at: Moment | None = Field(None, description="a recurring job's last moment")
    max_runs: int | None = Field(None, description="how often a recurring job runs at most")
    queue: str = DEFAULT_QUEUE
    priority: int = Field(DEFAULT_PRIORITY, description="0 to 9, higher first")
    missed_window: MissedWindow = DEFAULT_POLICY.missed_window
    catch_up_window_seconds: int | None = Field(None, description="older occurrences are not run; null: no limit")
    max_missed: int = Field(DEFAULT_POLICY.max_missed, description="cap on RUN_ALL")
    overlap: Overlap = DEFAULT_POLICY.overlap
    max_queued: int = Field(DEFAULT_POLICY.max_queued, description="with overlap `queue`: how many may wait")
    max_retries: int = Field(DEFAULT_POLICY.max_retries, description="after the first attempt")
    retry_backoff: RetryBackoff = DEFAULT_POLICY.retry_backoff
    retry_delay_seconds: Seconds = DEFAULT_POLICY.retry_delay_seconds
    retry_max_delay_seconds: Seconds = DEFAULT_POLICY.retry_max_delay_seconds
    timeout_seconds: Seconds = Field(DEFAULT_POLICY.timeout_seconds, description="for one attempt")
    jitter_seconds: int = Field(DEFAULT_POLICY.jitter_seconds, description="one stable offset per job in this range")
    dst_gap: DstGap = DEFAULT_POLICY.dst_gap
    dst_fold: DstFold = DEFAULT_POLICY.dst_fold
    idempotency_key_template: str = DEFAULT_POLICY.idempotency_key_template
    dedupe_key: str | None = Field(None, description="the same key with the same content returns the existing job")
    labels: dict[str, str] = Field(default_factory=dict)

    def to_request(self, *, dedupe_key: str | None) -> JobRequest:
        given = {name: getattr(self, name) for name in type(self).model_fields}
        policy = Policy(**{name: given.pop(name) for name in POLICY_FIELDS})
        return JobRequest(policy=policy, **{**given, "dedupe_key": dedupe_key})


class JobDocument(JobBody):
    """A job as it is stored."""

    job_id: str
    tenant: str
    status: JobStatus
    status_reason: str | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    created_at: datetime
    updated_at: datetime


class ErrorDocument(BaseModel):
    """What went wrong in one attempt."""

    type: str
    message: str
    traceback: str | None


class AttemptDocument(BaseModel):
    """One attempt of a run that did not end well."""

    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: ErrorDocument | None


class ProgressDocument(BaseModel):
    """How far a running handler says it is."""

    fraction: float
    note: str
    at: datetime


class RunDocument(BaseModel):
    """The execution of one occurrence."""

    run_id: str
    job_id: str
    scheduled_at: datetime
    status: str
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    idempotency_key: str | None
    missed: bool
    deduplicated: bool
    progress: ProgressDocument | None
    error: ErrorDocument | None
    result: Any
    attempts: list[AttemptDocument]


class JobList(BaseModel):
    items: list[JobDocument]
    next_cursor: str | None


class RunList(BaseModel):
    items: list[RunDocument]
    next_cursor: str | None


_SETTABLE = frozenset(JobBody.model_fields)
_READ_ONLY = frozenset(JobDocument.model_fields) - _SETTABLE


def read_job(document: Mapping[str, Any]) -> JobBody:
    """The fields of a request, or one `Problem` that names every field that is wrong."""
    errors = [FieldError(field, _refused(field)) for field in document if field not in _SETTABLE]
    try:
        body = JobBody.model_validate({field: value for field, value in document.items() if field in _SETTABLE})
    except ValidationError as error:
        errors += _field_errors(error.errors(include_url=False, include_input=False))
    if errors:
        raise Problem.invalid(errors)
    return body


def _refused(field: str) -> str:
    if field == "tenant":
        return "cannot be chosen by a request"
    if field in _READ_ONLY:
        return "is read-only"
    return "is not a field of a job"


def _field_errors(found: Iterable[ErrorDetails]) -> list[FieldError]:
    messages: dict[str, list[str]] = {}
    for error in found:
        place = [str(part) for part in error["loc"]]
        # Within `labels` the key is worth naming; elsewhere what follows is pydantic's word for a type it tried.
        field = ".".join(place[:2]) if place[0] == "labels" else place[0]
        messages.setdefault(field, []).append(type_message(error["type"], error["msg"]))
    # A field that may be one thing or another is refused once, by a sentence that names both.
    return [
        FieldError(field, " or ".join([several[0], *(one.removeprefix("must be ") for one in several[1:])]))
        for field, several in messages.items()
    ]
