"""A job as a client asks for it (`JobRequest`) and as it is stored (`Job`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from duly.errors import InvalidInput, NotFound
from duly.model.fields import described, rules_of
from duly.model.policy import DEFAULT_POLICY, POLICY_FIELDS, Policy, policy_with

ScheduleKind = Literal["once", "cron", "interval", "rrule"]
JobStatus = Literal["active", "paused", "completed", "cancelled"]

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as a client asks for it: section 2 of the specification, before anything is checked."""

    handler: str | Mapping[str, Any]
    name: str | None = described(None, "Name of the job; the handler's name if not given", 1, 200)
    payload: Any = field(default_factory=dict)
    payload_ref: str | None = described(
        None, "URI of a payload that is too large to store; passed on as it is", 1, 2048
    )
    schedule: str | datetime | None = described(
        None,
        "An ISO 8601 time, cron, `every 15m` or an RRULE; now if not given",
        json_format="duly-schedule",
        timing=True,
    )
    timezone: str = described("UTC", "IANA time zone of the schedule", 1, 100, json_format="duly-timezone", timing=True)
    start_at: datetime | None = described(None, "Earliest time of a recurring job's occurrences", timing=True)
    end_at: datetime | None = described(None, "Latest time of a recurring job's occurrences", timing=True)
    max_runs: int | None = described(None, "Maximum number of runs of a recurring job", 1, 2**31 - 1)
    queue: str | None = described(None, "Queue of the job's runs", 1, 100, otherwise=DEFAULT_QUEUE)
    priority: int | None = described(None, "Priority, 0 to 9; higher runs first", 0, 9, otherwise=DEFAULT_PRIORITY)
    policy: Policy = DEFAULT_POLICY
    dedupe_key: str | None = described(
        None, "Submitting the same job under the same key again returns the existing job", 1, 200
    )
    labels: Mapping[str, str] = described(dict, "Labels of the job, by key", 0, 32)
    chosen: frozenset[str] = frozenset()
    """The policy's fields that the client has set. Those that differ from the general defaults count as set, too."""

    @property
    def is_complete(self) -> bool:
        """Whether the defaults of a task have nothing to fill in."""
        return self.queue is not None and self.priority is not None and self.chosen >= POLICY_FIELDS


#: The rules of a job's own fields. Handler and payload have rules of their own; the policy's are `POLICY_RULES`.
JOB_RULES = rules_of(JobRequest)


def make_request(
    handler: str | Mapping[str, Any],
    payload: Any,
    run_at: datetime | None,
    schedule: str | datetime | None,
    options: Mapping[str, Any],
    own: dict[str, Any],
    policy: Policy = DEFAULT_POLICY,
    chosen: frozenset[str] = frozenset(),
) -> JobRequest:
    """The request of a submit with these arguments. `own` and `policy`: the defaults that the options change.

    `chosen`: the fields of `policy` that are not to be replaced by other defaults.
    """
    if run_at is not None:
        if schedule is not None:
            raise InvalidInput("run_at", "cannot be given together with schedule")
        schedule = run_at
    if options:
        changes = {}
        for name, value in options.items():
            if name in POLICY_FIELDS:
                changes[name] = value
            elif name in JOB_RULES:
                own[name] = value
            else:
                raise InvalidInput(min(options.keys() - POLICY_FIELDS - JOB_RULES.keys()), "is not a field of a job")
        if changes:
            policy = policy_with(policy, changes)
            chosen = chosen.union(changes)
    payload = {} if payload is None else payload
    return JobRequest(handler, payload=payload, schedule=schedule, policy=policy, chosen=chosen, **own)


def each_request(
    given: Iterable[JobRequest | Mapping[str, Any]], make: Callable[[Any, dict[str, Any]], JobRequest]
) -> list[JobRequest]:
    """Requests as given, or made by `make` from the handler and the other fields of a mapping."""
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
    shard: int | None
    """None for a job that was read through the API, which does not tell its shard."""
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
    """The stored fields that Python cannot read, and why. Such a field is empty here, or has its default."""
    paused_until: datetime | None = None
    """When the job's pause ends by itself."""


class Submitted(NamedTuple):
    """A submitted job. `created` is False if its dedupe_key named an existing job with the same content."""

    job: Job
    created: bool

    @property
    def job_id(self) -> UUID:
        return self.job.job_id


class SubmittedId(NamedTuple):
    """`Submitted` for one of many jobs: the id alone, because reading thousands of jobs back would cost too much."""

    job_id: UUID
    created: bool


def id_range(text: str) -> tuple[UUID, UUID] | None:
    """The lowest and the highest job id that begin with `text`; None if no id can, or if it is too short to search."""
    digits = text.replace("-", "").lower()
    if not (4 <= len(digits) <= 32 and all(digit in "0123456789abcdef" for digit in digits)):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def only_match(text: str, found: Iterable[Job]) -> Job:
    """The one job that a person means by an id, the beginning of an id, or a name; else an error."""
    matches = sorted(found, key=lambda job: job.job_id, reverse=True)
    if not matches:
        raise NotFound(f"there is no job with the id or name {text!r}; see: duly job list", kind="job", sought=text)
    if len(matches) > 1:
        shown = ", ".join(str(job.job_id) for job in matches)
        raise InvalidInput("job", f"{text!r} could be any of {shown}; give more of the id")
    return matches[0]
