"""The schemas of requests and answers, from which the OpenAPI description is made.

Only types are checked here, strictly: a number is not a string, and a string is not a number. `duly.checks` checks the
rules (ranges, zones, schedules), for every interface alike. The description repeats them (`json_schema_extra`). Both
come from the same `Rule` of each field, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails

from duly import checks
from duly.api.problems import MAX_ERRORS, FieldError, Problem, type_message
from duly.model import (
    ALERT_RULES,
    DEFAULT_POLICY,
    JOB_RULES,
    POLICY_FIELDS,
    POLICY_RULES,
    TASK_FIELDS,
    Alerts,
    DstFold,
    DstGap,
    JobRequest,
    JobStatus,
    MonitorDefinition,
    MonitorState,
    PingEvent,
    Rule,
    ScheduleKind,
    Verdict,
    policy_with,
)
from duly.operations import monitors, previewing
from duly.operations.preparing import problems_of
from duly.states import RunState
from duly.targets import MAX_ARGUMENTS, MAX_HEADERS, METHODS
from duly.visible import CONTROLS


def _read_body_moment(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a time such as 2026-03-08T09:30:00Z") from None
    if not checks.FIRST_YEAR <= moment.year <= checks.LAST_YEAR:
        raise ValueError(f"must be in the years {checks.FIRST_YEAR} to {checks.LAST_YEAR}")
    return moment


def _plain_number(value: float) -> float:
    """60.0 means 60, also when two requests are compared. The limit keeps whole numbers within a float's range."""
    if abs(value) > 1e15:
        raise ValueError("is too large")
    return int(value) if value == int(value) else value


def _whole_number(value: object) -> object:
    """JSON has one kind of number: 3.0 is the whole number 3, as in JSON Schema and JavaScript."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole_number)]
Moment = Annotated[datetime, BeforeValidator(_read_body_moment)]
Seconds = Annotated[int | float, AfterValidator(_plain_number)]


# A string without control characters.
_PLAIN = rf"^[^{CONTROLS}]*$"
_NO_NUL = r"^[^\x00]*$"


def text_rules(longest: int, *, shortest: int = 1, **more: Any) -> dict[str, Any]:
    return {"minLength": shortest, "maxLength": longest, "pattern": _PLAIN, **more}


def _number(low: float, high: float) -> dict[str, Any]:
    return {"minimum": low, "maximum": high}


def _or_null(kind: str, rules: dict[str, Any]) -> dict[str, Any]:
    """Rules for a value that may be null. Beside `anyOf` they would apply to null too."""
    return {"anyOf": [{"type": kind, **rules}, {"type": "null"}]}


# The years of `checks`, for readers of the description.
MOMENT_RULES: dict[str, Any] = {
    "format": "date-time",
    "pattern": "^(19[0-9]{2}|[2-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])-",
}
_MOMENT = _or_null("string", MOMENT_RULES)
_HEADERS: dict[str, Any] = {
    "type": "object",
    "maxProperties": MAX_HEADERS,
    "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9]{0,7}-[A-Za-z0-9]{1,90}$"},
    "additionalProperties": {"type": "string", "maxLength": 8192, "pattern": "^[ -~]*$"},
}
_VARIABLES: dict[str, Any] = {
    "type": "object",
    "propertyNames": {"pattern": "^[A-Z_][A-Z0-9_]{0,199}$"},
    "additionalProperties": {"type": "string", "pattern": _NO_NUL},
}
_HANDLER: dict[str, Any] = {
    "anyOf": [
        {"type": "string", **text_rules(200)},
        {
            "type": "object",
            "required": ["type", "url"],
            "additionalProperties": False,
            "properties": {
                "type": {"const": "http"},
                "url": {"type": "string", "format": "http-url", "maxLength": 2048},
                "method": {"enum": list(METHODS)},
                "headers": _HEADERS,
                "secret_headers": _HEADERS,
            },
        },
        {
            "type": "object",
            "required": ["type", "argv"],
            "additionalProperties": False,
            "properties": {
                "type": {"const": "command"},
                "argv": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_ARGUMENTS,
                    "items": {"type": "string", "minLength": 1, "pattern": _NO_NUL},
                },
                "env": _VARIABLES,
                "secret_env": _VARIABLES,
                "cwd": _or_null("string", {"minLength": 1, "maxLength": 4096, "pattern": _NO_NUL}),
            },
        },
    ]
}
_LABELS: dict[str, Any] = {
    "maxProperties": checks.MAX_LABELS,
    "propertyNames": text_rules(63),
    "additionalProperties": {"type": "string", **text_rules(255, shortest=0)},
}


def _alert(rule: Rule) -> dict[str, Any]:
    if rule.kind is int:
        return _or_null("integer", _number(int(rule.minimum), int(rule.maximum)))
    return _or_null("string", {"pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"})


_ALERTS: dict[str, Any] = {
    "additionalProperties": False,
    "properties": {name: {**_alert(rule), "description": rule.help_text} for name, rule in ALERT_RULES.items()},
}
_TYPES: dict[type, Any] = {
    str: str,
    int: Whole,
    float: Seconds,
    datetime: Moment,
    tuple: list[str],
    Mapping: dict[str, str],
    Alerts: dict[str, Any],
}


def _described(rule: Rule) -> tuple[Any, Any]:
    """A field's type and its pydantic `Field`, as its rule says."""
    annotation = rule.annotation if rule.choices else _TYPES[rule.kind]
    kind, rules = _schema_of(rule)
    extra = _or_null(kind, rules) if rule.optional else rules
    default: Any = {"default_factory": annotation} if rule.kind in (tuple, Mapping) else {"default": rule.default}
    text = rule.help_text
    if rule.name in TASK_FIELDS:
        # Not as a `default` of the schema: clients that are made from it would send that, and so override the task's.
        if "default" in default:
            default = {"default_factory": lambda: rule.default}
        text += f"; if not given, the task's default, else {rule.default if rule.default not in (None, ()) else 'none'}"
    return (annotation | None if rule.optional else annotation), Field(
        **default, description=text, json_schema_extra=extra
    )


def _schema_of(rule: Rule) -> tuple[str, dict[str, Any]]:
    """A field's type in JSON and its rules, for readers of the description."""
    if rule.choices:
        return "string", {}
    if rule.kind is int:
        return "integer", _number(int(rule.minimum), int(rule.maximum))
    if rule.kind is float:
        return "number", {"type": "number", **_number(rule.minimum, rule.maximum)}
    if rule.kind is datetime:
        return "string", MOMENT_RULES
    if rule.kind is tuple:
        return "array", {"maxItems": rule.maximum, "items": {"type": "string", "format": rule.json_format}}
    if rule.kind is Mapping:
        return "object", _LABELS
    if rule.kind is Alerts:
        return "object", _ALERTS
    return "string", {"format": rule.json_format, "minLength": 1} if rule.json_format else text_rules(int(rule.maximum))


if TYPE_CHECKING:

    class _DescribedFields(BaseModel):
        schedule: str | None
        dedupe_key: str | None
else:
    _DescribedFields = create_model(
        "_DescribedFields", **{rule.name: _described(rule) for rule in (JOB_RULES | POLICY_RULES).values()}
    )


class JobBody(_DescribedFields):
    """A job to be submitted."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(description="1 to 200 characters, no control characters", json_schema_extra=text_rules(200))
    handler: str | dict[str, Any] = Field(
        description=(
            "The name of a Python task; or an endpoint: `{type: http, url, method, headers, secret_headers}`; or a "
            "program, on workers that allow it: `{type: command, argv, env, secret_env, cwd}`. Secrets are hidden"
        ),
        json_schema_extra=_HANDLER,
    )
    payload: Any = Field(default_factory=dict, description="Any JSON, without NUL characters in its strings")

    def to_request(self, *, dedupe_key: str | None) -> JobRequest:
        given = {name: getattr(self, name) for name in _SETTABLE}
        values = {name: given.pop(name) for name in POLICY_FIELDS}
        values["secret_fields"] = tuple(values["secret_fields"])
        chosen = POLICY_FIELDS & self.model_fields_set
        # Most jobs do not choose a policy.
        policy = policy_with(DEFAULT_POLICY, values) if chosen else DEFAULT_POLICY
        # What is left out comes from the task.
        for name in _OWN_TASK_FIELDS - self.model_fields_set:
            given[name] = None
        return JobRequest(policy=policy, chosen=chosen, **{**given, "dedupe_key": dedupe_key})


_OWN_TASK_FIELDS = TASK_FIELDS - POLICY_FIELDS

# Fields that cannot be changed.
_FIXED = frozenset({"dedupe_key"})


def change_schema() -> dict[str, Any]:
    """The schema of a change: `JobBody` with optional fields and without defaults. Absent fields stay as they are."""
    schema = JobBody.model_json_schema()
    properties = {
        name: {key: value for key, value in rules.items() if key != "default"}
        for name, rules in schema["properties"].items()
        if name not in _FIXED
    }
    return {
        "title": "JobChange",
        "description": "The fields of a job to change. Its dedupe_key cannot be changed.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


class JobDocument(JobBody):
    """A stored job."""

    # Stored values are shown as they are, although rules may have changed since: only the types are promised.
    handler: str | dict[str, Any]
    idempotency_key_template: str
    secret_fields: list[str]
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    job_id: str
    tenant: str
    status: JobStatus
    status_reason: str | None
    paused_until: datetime | None = Field(description="when the pause ends by itself")
    next_run_at: datetime | None
    last_run_at: datetime | None
    run_count: int = Field(description="number of runs so far; max_runs limits it")
    created_at: datetime
    updated_at: datetime
    version: int = Field(description="grows with every change; the ETag")


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDocument(_Document):
    """The error of one attempt."""

    type: str
    message: str
    traceback: str | None


class AttemptDocument(_Document):
    """One ended attempt of a run."""

    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: ErrorDocument | None


class ProgressDocument(_Document):
    """Progress that a running handler reports."""

    fraction: float
    note: str
    at: datetime


class NoteDocument(_Document):
    """The reason why a run was skipped, missed or cancelled."""

    reason: str | None = Field(description="the rule that kept the run from starting, or the reason of the cancel")
    count: int | None = Field(description="number of missed occurrences that this record stands for")
    first: datetime | None = Field(description="the first of these occurrences")
    last: datetime | None = Field(description="the last of these occurrences")
    overlap: str | None = Field(description="the overlap policy that skipped the run")
    unfinished: datetime | None = Field(description="scheduled_at of the run that was unfinished at that time")
    unfinished_run_id: str | None = Field(description="the run that was unfinished at that time")


class RunDocument(_Document):
    """The execution of one occurrence."""

    run_id: str
    job_id: str
    scheduled_at: datetime
    status: RunState
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    next_attempt_at: datetime | None = Field(description="earliest time of the next attempt")
    worker: str | None
    idempotency_key: str | None
    missed: bool
    deduplicated: bool
    trace_id: str | None = Field(description="the trace that the run belongs to, as ctx.trace_id and log lines have it")
    progress: ProgressDocument | None
    error: ErrorDocument | None = Field(description="error of the last attempt, if it failed")
    result: Any
    note: NoteDocument | None
    attempts: list[AttemptDocument] = Field(description="all ended attempts, including the successful one")


class LogLineDocument(_Document):
    attempt: int
    number: int = Field(description="number of the line within its attempt, from 1")
    at: datetime
    level: str | None = Field(description="level of a logged record; null for what was printed")
    source: str = Field(description="name of the logger; stdout or stderr for what was printed")
    text: str
    left_out: int = Field(description="number of lines right before this one that were not kept")


class LogDocument(_Document):
    """A page of what a run's handler logged and printed."""

    items: list[LogLineDocument]
    next_cursor: str = Field(description="position after this page, from which a later call goes on")
    more: bool = Field(description="there may be more lines already")
    complete: bool = Field(description="the run has ended, and no lines follow")


class DeadLetterDocument(_Document):
    """A run whose retries are used up, with its payload and all attempts."""

    run_id: str
    job_id: str
    name: str
    queue: str
    handler: str | dict[str, Any]
    scheduled_at: datetime
    buried_at: datetime
    attempt: int
    payload: Any
    payload_ref: str | None
    secret_fields: list[str] = Field(description="payload fields that are not shown")
    error: ErrorDocument
    attempts: list[AttemptDocument]


def _without_payload(schema: dict[str, Any]) -> None:
    schema["required"] = [name for name in schema["required"] if name != "payload"]


class ListedJob(JobDocument):
    """A stored job; `payload` is present if it was requested."""

    model_config = ConfigDict(json_schema_extra=_without_payload)


class ListedDeadLetter(DeadLetterDocument):
    """A run whose retries are used up, with all attempts; `payload` is present if it was requested."""

    model_config = ConfigDict(json_schema_extra=_without_payload)


class JobList(_Document):
    items: list[ListedJob]
    next_cursor: str | None


class RunList(_Document):
    items: list[RunDocument]
    next_cursor: str | None


class DeadLetterList(_Document):
    items: list[ListedDeadLetter]
    next_cursor: str | None


class AuditDocument(_Document):
    """One change: who did what to which object. `before` and `after` have only what changed, and no secrets."""

    at: datetime
    via: str = Field(description="api, cli, sdk, sql, code (declared by a deploy) or scheduler (Duly itself)")
    actor: str
    key: str | None = Field(description="id of the API key")
    request: str | None = Field(description="X-Request-Id of the request")
    address: str | None
    action: str
    kind: str = Field(description="job, run, dead_letter, key, tenant or role")
    object: str | None = Field(description="its id; null: several, which `after` names")
    job_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str | None


class AuditList(_Document):
    items: list[AuditDocument]
    next_cursor: str | None


class IncidentDocument(_Document):
    """Something that is or was wrong with a job or a monitor."""

    incident_id: str
    job_id: str | None = Field(description="null: it is a monitor's")
    monitor: str | None = Field(description="slug of the monitor")
    name: str
    kind: str = Field(description="late, overrun, not_finished_by, failures_in_row, no_success_for; or a monitor's")
    cause: str = Field(description="incidents that share it are sent as one message")
    message: str
    scheduled_at: datetime | None
    opened_at: datetime
    closed_at: datetime | None
    closed_why: str | None
    acked_at: datetime | None
    acked_by: str | None


class IncidentList(_Document):
    items: list[IncidentDocument]
    next_cursor: str | None


class WindowBody(BaseModel):
    """A time in which no incident is opened."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ends_at: Moment = Field(json_schema_extra=MOMENT_RULES)
    starts_at: Moment | None = Field(None, description="absent: now", json_schema_extra=_MOMENT)
    job_id: str | None = Field(
        None, description="absent: all jobs and monitors", json_schema_extra=_or_null("string", {"format": "uuid"})
    )
    reason: str = Field("maintenance", json_schema_extra=text_rules(500))


class WindowDocument(_Document):
    """A time in which no incident is opened."""

    window_id: str
    job_id: str | None
    starts_at: datetime
    ends_at: datetime
    reason: str
    created_at: datetime


class WindowList(_Document):
    items: list[WindowDocument]


class OccurrenceDocument(_Document):
    """One moment at which a job is due; `note` says where DST moved, dropped or doubled it."""

    scheduled_at: datetime
    local: datetime
    note: str | None
    dropped: bool = Field(description="true if DST drops it: it does not fire")


class OccurrenceList(_Document):
    items: list[OccurrenceDocument]
    next_cursor: None


class ExplanationDocument(_Document):
    """The verdict on one occurrence, with its reason."""

    job_id: str
    scheduled_at: datetime
    local: datetime
    verdict: Verdict
    sentence: str
    note: str | None
    facts: dict[str, Any]
    run: RunDocument | None
    related: ExplanationDocument | None


class ExplanationList(_Document):
    items: list[ExplanationDocument]
    next_cursor: str | None


class ExplanationAnswer(RootModel[ExplanationDocument | ExplanationList]):
    """The explanation of one occurrence, or with `from` of all occurrences in a range."""


class FieldErrorDocument(_Document):
    field: str
    message: str


class ProblemDocument(_Document):
    """An error, in the form of RFC 9457."""

    type: str = Field(json_schema_extra={"format": "uri"})
    title: str
    status: int
    detail: str
    field: str | None = Field(None, description="the invalid field of the request")
    errors: list[FieldErrorDocument] | None = None


class BatchItem(_Document):
    """The result of one job of a batch: 201 created, 200 existing job with that dedupe_key, otherwise the error."""

    status: Literal[200, 201, 403, 409, 422]
    job_id: str | None = None
    error: ProblemDocument | None = None


class BatchResult(_Document):
    """One result per job, in the order of the request."""

    items: list[BatchItem]


class PreviewBody(BaseModel):
    """A schedule to preview. Nothing is stored."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schedule: str | None = Field(
        None, json_schema_extra=_or_null("string", {"format": "duly-schedule", "minLength": 1})
    )
    timezone: str = Field("UTC", json_schema_extra={"format": "duly-timezone", "minLength": 1})
    dst_gap: DstGap = DEFAULT_POLICY.dst_gap
    dst_fold: DstFold = DEFAULT_POLICY.dst_fold
    start_at: Moment | None = Field(None, json_schema_extra=_MOMENT)
    end_at: Moment | None = Field(None, json_schema_extra=_MOMENT)
    after: Moment | None = Field(None, description="absent: now", json_schema_extra=_MOMENT)
    count: Whole = Field(10, json_schema_extra=_number(1, previewing.MAX_COUNT))


class MonitorBody(BaseModel):
    """What is expected of something that runs elsewhere."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schedule: str = Field(
        description="when pings are expected: cron, an interval or an RRULE. An interval counts from the last ping",
        json_schema_extra={"format": "duly-recurring-schedule", "minLength": 1},
    )
    timezone: str = Field("UTC", json_schema_extra={"format": "duly-timezone", "minLength": 1})
    grace_seconds: Whole = Field(
        300, description="how late a ping may be", json_schema_extra=_number(0, monitors.MAX_SECONDS)
    )
    max_runtime_seconds: Whole | None = Field(
        None,
        description="the time from a start to its end; without it, starts expect nothing",
        json_schema_extra=_or_null("integer", _number(1, monitors.MAX_SECONDS)),
    )
    description: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(monitors.MAX_DESCRIPTION)))
    new_token: bool = Field(False, description="replace the ping address; the old one works no more")

    def to_definition(self) -> MonitorDefinition:
        return MonitorDefinition(
            self.schedule, self.timezone, self.grace_seconds, self.max_runtime_seconds, self.description
        )


class PingDocument(_Document):
    """One ping."""

    at: datetime
    event: PingEvent
    rid: str | None
    exit_status: int | None
    note: str | None
    seconds: float | None = Field(description="from its start to this end")


class MonitorDocument(_Document):
    """Something that runs elsewhere, as its pings show it."""

    slug: str
    schedule: str
    timezone: str
    grace_seconds: int
    max_runtime_seconds: int | None
    description: str | None
    state: MonitorState = Field(
        description="new: no ping yet. late: a ping is expected and has its grace. down: something is wrong"
    )
    why: str | None = Field(description="what is wrong")
    expected_at: datetime | None = Field(description="when the next ping is due")
    down_at: datetime | None = Field(description="when it is down without a ping")
    last_start_at: datetime | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    created_at: datetime
    updated_at: datetime
    running: int = Field(description="starts without an end")
    pings: list[PingDocument] = Field(description="the last ones, newest first; empty in a list")
    ping_path: str | None = Field(description="the address for pings without a key, where it has just been made")


class MonitorList(_Document):
    items: list[MonitorDocument]
    next_cursor: str | None


class PreviewDocument(_Document):
    kind: ScheduleKind
    canonical: str
    occurrences: list[OccurrenceDocument]


class PauseBody(BaseModel):
    """The reason of a pause, and when it ends by itself; both optional."""

    model_config = ConfigDict(strict=True, extra="forbid")

    reason: str | None = Field(
        None, description="shown as the job's status_reason", json_schema_extra=_or_null("string", text_rules(500))
    )
    until: str | None = Field(
        None,
        description="when the job goes on by itself; null: when it is resumed",
        json_schema_extra=_or_null("string", MOMENT_RULES),
    )


def _narrowed(schema: dict[str, Any]) -> None:
    """The schema requires at least one filter that is not null, or `all`."""
    filters = [name for name in schema["properties"] if name != "all"]
    schema["anyOf"] = [
        {"required": ["all"], "properties": {"all": {"const": True}}},
        *({"required": [name], "properties": {name: {"type": "string"}}} for name in filters),
    ]


class DeadLetterFilterBody(BaseModel):
    """A filter for dead letters; an absent or null field matches all. Give at least one filter, or `all`."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_narrowed)

    job_id: str | None = Field(None, json_schema_extra=_or_null("string", {"format": "uuid"}))
    name: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    queue: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    handler: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    error_type: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    since: Moment | None = Field(None, description="buried at this moment or later", json_schema_extra=_MOMENT)
    until: Moment | None = Field(None, description="buried before this moment", json_schema_extra=_MOMENT)
    all: bool = Field(False, description="set this to select all dead letters without a filter")


class RedriveDocument(_Document):
    """Number of dead letters redriven; `refused` counts those whose jobs are cancelled or deleted."""

    redriven: int
    refused: int
    more: bool = Field(description="true if matching dead letters are left: call again")


class CountDocument(_Document):
    """The number of dead letters that match."""

    count: int


class PurgeDocument(_Document):
    """Number of dead letters deleted."""

    purged: int
    more: bool = Field(description="true if matching dead letters are left: call again")


class ForecastItem(_Document):
    minute: datetime
    queue: str
    handler: str
    fires: int


class ForecastDocument(_Document):
    """Number of coming fires, by minute, queue and handler."""

    start: datetime
    until: datetime
    total: int
    items: list[ForecastItem]
    estimated: bool = Field(
        description="counted on some of the shards and scaled, because the store is too full to count all"
    )
    cut: bool = Field(description="true if only the fires up to `complete_until` are counted, not all up to `until`")
    complete_until: datetime


class NodeDocument(_Document):
    """A scheduler or worker process."""

    node_id: str
    name: str
    version: str
    started_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    alive: bool


class SchedulerDocument(NodeDocument):
    shards: int = Field(description="number of shards that it leads")
    coordinator: str | None = Field(description="service that elects shard leaders for it")


class WorkerDocument(NodeDocument):
    held: int = Field(description="number of runs that it holds")
    queues: list[str]
    tenants: list[str] | None = Field(
        description="tenants whose runs it takes; null: all tenants. Only the role `admin` sees other tenants' names"
    )
    concurrency: int | None
    hanging_threads: int = Field(description="threads whose handlers keep running after they were told to stop")


class ShardDocument(_Document):
    shard: int
    epoch: int
    leader: str | None = Field(description="node_id of the leader")
    leader_name: str | None
    alive: bool
    since: datetime


class UnrunnableDocument(_Document):
    """Jobs of one queue and handler that no live worker can run."""

    tenant: str
    queue: str
    kind: str = Field(description="`task`, `http` or `command`")
    handler: str = Field(description="the task's name, or the command's program; empty for an endpoint")
    jobs: int = Field(description="number of active jobs")
    runs: int = Field(description="number of waiting runs that were seen")
    at_least: bool = Field(description="true if there may be more active jobs")
    job_id: str = Field(description="one of the jobs")
    job_name: str | None
    message: str
    next_step: str


class ClusterDocument(_Document):
    nodes: list[SchedulerDocument]
    shards: list[ShardDocument]
    workers: list[WorkerDocument]
    lag_seconds: float = Field(description="lateness of the oldest due job that has not fired; 0 if there is none")
    unrunnable: list[UnrunnableDocument] = Field(description="jobs of the key's tenant that no live worker can run")
    surveyed_at: datetime | None = Field(
        description="every job that was active then has been looked at for `unrunnable`; null: only a part of the jobs"
    )


class StatsDocument(_Document):
    """Counters for people. Each counts up to a limit, so that a request stays cheap however full the store is."""

    scope: Literal["store", "tenant"]
    tenant: str | None = Field(description="tenant of the key; null for the role `monitor`, which has no tenant")
    jobs: int
    jobs_estimated: bool = Field(description="true if `jobs` is an estimate, as it is with more than 10,000 jobs")
    queued: int
    retrying: int
    waiting: int
    running: int
    dead_letters: int
    overdue: int
    oldest_overdue_at: datetime | None
    at_least: list[str] = Field(description="counters that reached their limit: the true number may be larger")


_SETTABLE = tuple(JobBody.model_fields)
_READ_ONLY = frozenset(JobDocument.model_fields) - frozenset(JobBody.model_fields)


Body = TypeVar("Body", bound=BaseModel)


def read_job(document: Mapping[str, Any]) -> JobBody:
    """The fields of a request, or one `Problem` that names every invalid field."""
    try:
        return read_body(JobBody, document)
    except Problem as problem:
        # Fields of the right type may break a rule: the client learns of all errors at once.
        named = {error.field.partition(".")[0] for error in problem.errors}
        errors = [*problem.errors, *(error for error in _broken_rules(document, named) if error.field not in named)]
        raise Problem.invalid(errors, omitted=problem.omitted) from None


def _broken_rules(document: Mapping[str, Any], wrong: Collection[str]) -> list[FieldError]:
    """Errors in fields that have the right type but break a rule."""
    right = {field: value for field, value in document.items() if field in JobBody.model_fields and field not in wrong}
    body = JobBody.model_validate({"name": "x", "handler": "x", **right})
    request = body.to_request(dedupe_key=body.dedupe_key)
    return [FieldError(one.field, one.message) for one in problems_of(request, now=datetime.now(UTC))]


def read_change(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields to change."""
    required = {"name": "", "handler": ""}
    fixed = [FieldError(field, "cannot be changed") for field in document if field in _FIXED]
    changes = {field: value for field, value in document.items() if field not in _FIXED}
    body = read_body(JobBody, {**required, **changes}, also=fixed)
    return {name: getattr(body, name) for name in changes}


def read_body(model: type[Body], document: Mapping[str, Any], *, also: Sequence[FieldError] = ()) -> Body:
    """The fields of a request as a `model`. All field errors, including `also`, are reported together."""
    known = model.model_fields
    fields = {field: value for field, value in document.items() if field in known}
    errors = list(also)
    # Of ten thousand unknown fields the answer names some, and says how many there are.
    unknown = [field for field in document if field not in known]
    errors += (FieldError(field, _refused(model, field)) for field in unknown[:MAX_ERRORS])
    if isinstance(labels := fields.get("labels"), dict) and len(labels) > checks.MAX_LABELS:
        # Not one by one: each label that is not a string would be an error of its own.
        errors.append(FieldError("labels", f"must be at most {checks.MAX_LABELS}, these are {len(labels)}"))
        del fields["labels"]
    body: Body | None = None
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        errors += _field_errors(error.errors(include_url=False, include_input=False))
    if errors or body is None:
        raise Problem.invalid(errors, omitted=max(0, len(unknown) - MAX_ERRORS))
    return body


def _refused(model: type[BaseModel], field: str) -> str:
    if field == "tenant":
        return "cannot be chosen by a request"
    if model is not JobBody:
        return "is not a field of this call"
    return "is read-only" if field in _READ_ONLY else "is not a field of a job"


def _field_errors(found: Iterable[ErrorDetails]) -> list[FieldError]:
    messages: dict[str, list[str]] = {}
    for error in found:
        path = [str(part) for part in error["loc"]]
        # Within `labels` the key is named; elsewhere the next part is pydantic's name of a type it tried.
        field = ".".join(path[:2]) if path[0] == "labels" else path[0]
        messages.setdefault(field, []).append(type_message(error["type"], error["msg"]))
    # A field of several types gets one error, which names all of them.
    return [
        FieldError(field, " or ".join([several[0], *(one.removeprefix("must be ") for one in several[1:])]))
        for field, several in messages.items()
    ]
