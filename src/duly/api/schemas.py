"""The shape of requests and answers: what a job's fields are called and of which type, as OpenAPI tells it too.

Only types are checked here, strictly: no number is taken for a text, no text for a number. The rules (ranges, zones,
schedules) are checked by `operations`, for every interface alike; that they are also told here, as `json_schema_extra`,
is for those who read the description, and a test compares the two.
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
from duly.api.problems import MOST_ERRORS, FieldError, Problem, type_message
from duly.handlers import MAX_ARGUMENTS, MAX_HEADERS, METHODS
from duly.model import (
    DEFAULT_POLICY,
    JOB_RULES,
    POLICY_FIELDS,
    POLICY_RULES,
    DstFold,
    DstGap,
    JobRequest,
    JobStatus,
    Rule,
    ScheduleKind,
    Verdict,
    policy_with,
)
from duly.operations import previewing
from duly.operations.submitting import problems_of
from duly.states import RunState
from duly.visible import CONTROLS

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


def _whole_number(value: object) -> object:
    """JSON knows one kind of number: 3.0 is the whole number 3, to JSON Schema as to JavaScript."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole_number)]
Moment = Annotated[datetime, BeforeValidator(_read_moment)]
Seconds = Annotated[int | float, AfterValidator(_plain_number)]


# No control characters.
_PLAIN = rf"^[^{CONTROLS}]*$"
_NO_NUL = r"^[^\x00]*$"


def text_rules(longest: int, *, shortest: int = 1, **more: Any) -> dict[str, Any]:
    return {"minLength": shortest, "maxLength": longest, "pattern": _PLAIN, **more}


def _number(low: float, high: float) -> dict[str, Any]:
    return {"minimum": low, "maximum": high}


def _or_null(kind: str, rules: dict[str, Any]) -> dict[str, Any]:
    """Rules that hold unless it is null; beside `anyOf` they would hold for null too, and say nothing of it."""
    return {"anyOf": [{"type": kind, **rules}, {"type": "null"}]}


# As the years are above, for those who read the description.
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
_TYPES: dict[type, Any] = {
    str: str,
    int: Whole,
    float: Seconds,
    datetime: Moment,
    tuple: list[str],
    Mapping: dict[str, str],
}


def _described(rule: Rule) -> tuple[Any, Any]:
    """A field's type and its pydantic `Field`, as its rule says."""
    annotation = rule.annotation if rule.choices else _TYPES[rule.kind]
    kind, rules = _schema_of(rule)
    extra = _or_null(kind, rules) if rule.optional else rules
    default: Any = {"default_factory": annotation} if rule.kind in (tuple, Mapping) else {"default": rule.default}
    return (annotation | None if rule.optional else annotation), Field(
        **default, description=rule.help_text, json_schema_extra=extra
    )


def _schema_of(rule: Rule) -> tuple[str, dict[str, Any]]:
    """A field's type in JSON and its rules, for those who read the description."""
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
        chosen = {name: given.pop(name) for name in POLICY_FIELDS}
        chosen["secret_fields"] = tuple(chosen["secret_fields"])
        # Most jobs do not choose a policy.
        policy = policy_with(DEFAULT_POLICY, chosen) if POLICY_FIELDS & self.model_fields_set else DEFAULT_POLICY
        return JobRequest(policy=policy, **{**given, "dedupe_key": dedupe_key})


# What a job keeps for good.
_FIXED = frozenset({"handler", "dedupe_key"})


def change_schema() -> dict[str, Any]:
    """A `JobBody` of which every field may be left out, and none has a default: what is left out stays as it is."""
    schema = JobBody.model_json_schema()
    properties = {
        name: {key: value for key, value in rules.items() if key != "default"}
        for name, rules in schema["properties"].items()
        if name not in _FIXED
    }
    return {
        "title": "JobChange",
        "description": "What is to be different about a job. Its handler and its dedupe_key are for good.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


class JobDocument(JobBody):
    """A job as it is stored."""

    # What was once accepted is shown as it is: only the shape is promised of an answer.
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
    next_run_at: datetime | None
    last_run_at: datetime | None
    run_count: int = Field(description="how many runs it had; what max_runs bounds")
    created_at: datetime
    updated_at: datetime
    version: int = Field(description="grows with every change; its ETag")


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDocument(_Document):
    """What went wrong in one attempt."""

    type: str
    message: str
    traceback: str | None


class AttemptDocument(_Document):
    """One attempt of a run that did not end well."""

    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: ErrorDocument | None


class ProgressDocument(_Document):
    """How far a running handler says it is."""

    fraction: float
    note: str
    at: datetime


class NoteDocument(_Document):
    """Why a run was skipped, missed or cancelled."""

    reason: str | None = Field(description="the rule that kept it from running, or why it was cancelled")
    count: int | None = Field(description="how many missed occurrences this one record stands for")
    first: datetime | None = Field(description="the first of them")
    last: datetime | None = Field(description="the last of them")
    overlap: str | None = Field(description="the overlap policy that skipped it")
    unfinished: datetime | None = Field(description="scheduled_at of the run that was unfinished then")
    unfinished_run_id: str | None = Field(description="that run")


class RunDocument(_Document):
    """The execution of one occurrence."""

    run_id: str
    job_id: str
    scheduled_at: datetime
    status: RunState
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    next_attempt_at: datetime | None = Field(description="when a worker may begin the next attempt")
    worker: str | None
    idempotency_key: str | None
    missed: bool
    deduplicated: bool
    progress: ProgressDocument | None
    error: ErrorDocument | None = Field(description="of the last attempt, if that failed")
    result: Any
    note: NoteDocument | None
    attempts: list[AttemptDocument] = Field(description="all that have ended, the successful one among them")


class DeadLetterDocument(_Document):
    """A run that no retry will mend, with its payload and everything that was tried."""

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
    secret_fields: list[str] = Field(description="what of the payload is not shown")
    error: ErrorDocument
    attempts: list[AttemptDocument]


def _without_payload(schema: dict[str, Any]) -> None:
    schema["required"] = [name for name in schema["required"] if name != "payload"]


class ListedJob(JobDocument):
    """A job as it is stored; `payload` is there where it was asked for."""

    model_config = ConfigDict(json_schema_extra=_without_payload)


class ListedDeadLetter(DeadLetterDocument):
    """A run that no retry will mend, with everything that was tried; `payload` is there where it was asked for."""

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
    """What became of one occurrence and why."""

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
    """Of one occurrence, or with `from` of all in a range."""


class FieldErrorDocument(_Document):
    field: str
    message: str


class ProblemDocument(_Document):
    """What went wrong, as RFC 9457 says it."""

    type: str = Field(json_schema_extra={"format": "uri"})
    title: str
    status: int
    detail: str
    field: str | None = Field(None, description="what in the request is wrong")
    errors: list[FieldErrorDocument] | None = None


class BatchItem(_Document):
    """What became of one job of a batch: 201 created, 200 known by its dedupe_key, else why not."""

    status: Literal[200, 201, 403, 409, 422]
    job_id: str | None = None
    error: ProblemDocument | None = None


class BatchResult(_Document):
    """In the order of the request."""

    items: list[BatchItem]


class PreviewBody(BaseModel):
    """A schedule to be looked at. Nothing is saved."""

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


class PreviewDocument(_Document):
    kind: ScheduleKind
    canonical: str
    occurrences: list[OccurrenceDocument]


class PauseBody(BaseModel):
    """Optional."""

    model_config = ConfigDict(strict=True, extra="forbid")

    reason: str | None = Field(
        None, description="shown with the job as status_reason", json_schema_extra=_or_null("string", text_rules(500))
    )


def _narrowed(schema: dict[str, Any]) -> None:
    """At least one filter that is not null, or `all`."""
    filters = [name for name in schema["properties"] if name != "all"]
    schema["anyOf"] = [
        {"required": ["all"], "properties": {"all": {"const": True}}},
        *({"required": [name], "properties": {name: {"type": "string"}}} for name in filters),
    ]


class DeadLetterFilterBody(BaseModel):
    """Which dead letters; what is left out or null matches all. At least one filter is given, or `all`."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_narrowed)

    job_id: str | None = Field(None, json_schema_extra=_or_null("string", {"format": "uuid"}))
    name: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    queue: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    handler: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    error_type: str | None = Field(None, json_schema_extra=_or_null("string", text_rules(200)))
    since: Moment | None = Field(None, description="buried at this moment or later", json_schema_extra=_MOMENT)
    until: Moment | None = Field(None, description="buried before this moment", json_schema_extra=_MOMENT)
    all: bool = Field(False, description="where no filter narrows them down")


class RedriveDocument(_Document):
    """How many were sent again; `refused` are those of jobs that are cancelled or gone."""

    redriven: int
    refused: int
    more: bool = Field(description="whether this call ended before all that match were looked at: call again")


class PurgeDocument(_Document):
    """How many were forgotten."""

    purged: int
    more: bool = Field(description="whether this call ended before all that match were looked at: call again")


class ForecastItem(_Document):
    minute: datetime
    queue: str
    handler: str
    fires: int


class ForecastDocument(_Document):
    """How many fires are coming, by minute, queue and handler."""

    start: datetime
    until: datetime
    total: int
    items: list[ForecastItem]
    estimated: bool = Field(description="counted on a part of the shards and scaled: the store is too full for more")
    cut: bool = Field(description="not everything up to `until` is counted; up to `complete_until` it is")
    complete_until: datetime


class NodeDocument(_Document):
    """A process that takes part."""

    node_id: str
    name: str
    version: str
    started_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    alive: bool


class SchedulerDocument(NodeDocument):
    shards: int = Field(description="how many it leads")


class WorkerDocument(NodeDocument):
    held: int = Field(description="how many runs it holds")
    queues: list[str]
    tenants: list[str] | None = Field(
        description="whose runs it takes; null: everybody's. Other tenants are named to `admin` only"
    )
    concurrency: int | None
    hanging_threads: int = Field(description="threads whose handlers were told to stop and go on")


class ShardDocument(_Document):
    shard: int
    epoch: int
    leader: str | None = Field(description="node_id")
    leader_name: str | None
    alive: bool
    since: datetime


class ClusterDocument(_Document):
    nodes: list[SchedulerDocument]
    shards: list[ShardDocument]
    workers: list[WorkerDocument]
    lag_seconds: float = Field(description="how late the oldest job is that is due and has not fired; 0: none is")


class StatsDocument(_Document):
    """Counters for people. Each is counted up to a bound, so that asking stays cheap however full the store is."""

    scope: Literal["store", "tenant"]
    tenant: str | None = Field(description="the key's; null for the role `monitor`, which is of none")
    jobs: int
    jobs_estimated: bool = Field(description="whether `jobs` is an estimate: so it is with more than 10,000 jobs")
    queued: int
    retrying: int
    waiting: int
    running: int
    dead_letters: int
    overdue: int
    oldest_overdue_at: datetime | None
    at_least: list[str] = Field(description="counters that reached their bound: there may be more than they say")


_SETTABLE = tuple(JobBody.model_fields)
_READ_ONLY = frozenset(JobDocument.model_fields) - frozenset(JobBody.model_fields)


Body = TypeVar("Body", bound=BaseModel)


def read_job(document: Mapping[str, Any]) -> JobBody:
    """The fields of a request, or one `Problem` that names every field that is wrong."""
    try:
        return read_body(JobBody, document)
    except Problem as problem:
        # Fields of the right type may break a rule; whoever corrects the others should not have to come twice.
        named = {error.field.partition(".")[0] for error in problem.errors}
        errors = [*problem.errors, *(error for error in _broken_rules(document, named) if error.field not in named)]
        raise Problem.invalid(errors, omitted=problem.omitted) from None


def _broken_rules(document: Mapping[str, Any], wrong: Collection[str]) -> list[FieldError]:
    """What the rules say of those fields that have the right type."""
    right = {field: value for field, value in document.items() if field in JobBody.model_fields and field not in wrong}
    body = JobBody.model_validate({"name": "x", "handler": "x", **right})
    request = body.to_request(dedupe_key=body.dedupe_key)
    return [FieldError(one.field, one.message) for one in problems_of(request, now=datetime.now(UTC))]


def read_change(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are to be changed, and no others."""
    required = {"name": "", "handler": ""}
    fixed = [FieldError(field, "cannot be changed") for field in document if field in _FIXED]
    changes = {field: value for field, value in document.items() if field not in _FIXED}
    body = read_body(JobBody, {**required, **changes}, also=fixed)
    return {name: getattr(body, name) for name in changes}


def read_body(model: type[Body], document: Mapping[str, Any], *, also: Sequence[FieldError] = ()) -> Body:
    """The fields of a request as `model` has them; whatever is wrong is refused at once, with what was found before."""
    known = model.model_fields
    fields = {field: value for field, value in document.items() if field in known}
    errors = list(also)
    # Whoever sends ten thousand fields that are none is told of some, and how many there are.
    unknown = [field for field in document if field not in known]
    errors += (FieldError(field, _refused(model, field)) for field in unknown[:MOST_ERRORS])
    if isinstance(labels := fields.get("labels"), dict) and len(labels) > checks.MAX_LABELS:
        # Not one by one: each that is no text would be an error of its own.
        errors.append(FieldError("labels", f"must be at most {checks.MAX_LABELS}, these are {len(labels)}"))
        del fields["labels"]
    body: Body | None = None
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        errors += _field_errors(error.errors(include_url=False, include_input=False))
    if errors or body is None:
        raise Problem.invalid(errors, omitted=max(0, len(unknown) - MOST_ERRORS))
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
        place = [str(part) for part in error["loc"]]
        # Within `labels` the key is worth naming; elsewhere what follows is pydantic's word for a type it tried.
        field = ".".join(place[:2]) if place[0] == "labels" else place[0]
        messages.setdefault(field, []).append(type_message(error["type"], error["msg"]))
    # A field that may be one thing or another is refused once, by a sentence that names both.
    return [
        FieldError(field, " or ".join([several[0], *(one.removeprefix("must be ") for one in several[1:])]))
        for field, several in messages.items()
    ]
