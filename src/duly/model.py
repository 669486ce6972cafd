"""Job, run and policies: the small frozen values that every part of Duly passes around.

They hold what spec'd fields are called and what they default to; nothing here does I/O. Validation of what a client
sends is in `operations`; the moves between run states are in `states`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, get_args
from uuid import UUID

from duly.errors import InvalidInput

MissedWindow = Literal["SKIP", "RUN_ONCE", "RUN_ALL"]
Overlap = Literal["skip", "queue", "parallel"]
RetryBackoff = Literal["immediate", "linear", "exponential"]
DstGap = Literal["shift", "skip"]
DstFold = Literal["first", "second", "both"]
ScheduleKind = Literal["once", "cron", "interval", "rrule"]
JobStatus = Literal["active", "paused", "completed", "cancelled"]

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_KEY_TEMPLATE = "{{job_id}}:{{scheduled_at_unix}}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a job that only Python reads: never a column, so that a job's row stays narrow.

    The store keeps just what differs from these defaults, as one JSON text, and NULL when nothing does. Scheduler and
    worker turn that text back into a `Policy` through a cache keyed by the text itself.
    """

    missed_window: MissedWindow = "RUN_ONCE"
    catch_up_window_seconds: int | None = None
    max_missed: int = 100
    overlap: Overlap = "skip"
    max_queued: int = 100
    max_retries: int = 3
    retry_backoff: RetryBackoff = "exponential"
    retry_delay_seconds: float = 30
    retry_max_delay_seconds: float = 1800
    timeout_seconds: float = 300
    jitter_seconds: int = 0
    dst_gap: DstGap = "shift"
    dst_fold: DstFold = "first"
    idempotency_key_template: str = DEFAULT_KEY_TEMPLATE
    #: Paths to what of the payload is never shown; `masking` says how they are read.
    secret_fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: Any = self.secret_fields
        if given != () and isinstance(given, list | tuple | set | frozenset):
            # One spelling for the same paths. What is no path is left to be refused.
            texts = all(isinstance(path, str) for path in given)
            object.__setattr__(self, "secret_fields", tuple(sorted(set(given)) if texts else given))

    def to_stored(self) -> str | None:
        """The JSON text of what differs from the defaults, in field order; None when nothing does."""
        if self is DEFAULT_POLICY or self == DEFAULT_POLICY:
            return None
        changed = {
            # One spelling per value: 60 and 60.0 seconds are the same policy.
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, default in _POLICY_DEFAULTS.items()
            if (value := getattr(self, name)) != default or type(value) is bool
        }
        return json.dumps(changed, separators=(",", ":"))


DEFAULT_POLICY = Policy()
_POLICY_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Policy)}
POLICY_FIELDS = frozenset(_POLICY_DEFAULTS)


# The rules of a policy's fields: what they may be, or from where to where they go.
MAX_SECONDS = 10 * 365 * 86400
POLICY_CHOICES: dict[str, tuple[str, ...]] = {
    "missed_window": get_args(MissedWindow),
    "overlap": get_args(Overlap),
    "retry_backoff": get_args(RetryBackoff),
    "dst_gap": get_args(DstGap),
    "dst_fold": get_args(DstFold),
}
POLICY_INTEGERS: dict[str, tuple[int, int]] = {
    "catch_up_window_seconds": (0, MAX_SECONDS),
    "max_missed": (0, 100_000),
    "max_queued": (0, 100_000),
    "max_retries": (0, 10_000),
    "jitter_seconds": (0, 86_400),
}
POLICY_NUMBERS: dict[str, tuple[float, float]] = {
    "retry_delay_seconds": (0, MAX_SECONDS),
    "retry_max_delay_seconds": (0, MAX_SECONDS),
    "timeout_seconds": (0.001, MAX_SECONDS),
}


@lru_cache(maxsize=4096)
def policy_from_stored(text: str | None) -> Policy:
    """The policy behind a stored text; `InvalidInput` if that is none, as somebody else's SQL may have left it.

    A key this version does not know is ignored: a newer node wrote it.
    """
    if text is None:
        return DEFAULT_POLICY
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("policy", f"cannot be read: {str(error)[:100]}") from error
    if not isinstance(stored, dict):
        raise InvalidInput("policy", "is not an object")
    return Policy(**{name: _stored_value(name, value) for name, value in stored.items() if name in POLICY_FIELDS})


def _stored_value(name: str, value: Any) -> Any:
    if name in POLICY_CHOICES:
        fits = value in POLICY_CHOICES[name] if isinstance(value, str) else False
    elif name in POLICY_INTEGERS or name in POLICY_NUMBERS:
        low, high = POLICY_INTEGERS.get(name) or POLICY_NUMBERS[name]
        if name in POLICY_INTEGERS and isinstance(value, float) and value.is_integer():
            value = int(value)  # 3.0, as only a hand writes it
        kinds = (int,) if name in POLICY_INTEGERS else (int, float)
        fits = type(value) in kinds and low <= value <= high
        fits = fits or (value is None and name == "catch_up_window_seconds")
    elif name == "secret_fields":
        fits = isinstance(value, list) and all(isinstance(path, str) for path in value)
    else:
        fits = isinstance(value, str)
    if not fits:
        raise InvalidInput(f"policy.{name}", f"is {str(value)[:40]!r} in the store, which it cannot be")
    return value


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


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What went wrong in one attempt."""

    type: str
    message: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run, after its end. `error` is None for the one that succeeded."""

    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: ErrorInfo | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running handler says it is."""

    fraction: float
    note: str
    at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A run that will not be tried again by itself, whole: it outlives its history."""

    job_id: UUID
    scheduled_at: datetime
    buried_at: datetime
    attempt: int
    tenant: str
    name: str
    queue: str
    handler: str | dict[str, Any]
    payload: Any
    payload_ref: str | None
    error: ErrorInfo
    attempts: tuple[Attempt, ...]
    secret_fields: tuple[str, ...] = ()
    """What of the payload is never shown, as its job said when it was buried."""

    @property
    def run_id(self) -> str:
        return make_run_id(self.job_id, self.scheduled_at)


@dataclass(frozen=True, slots=True)
class Run:
    """One occurrence's execution as a reader sees it, wherever its row is: queue, claim or history."""

    job_id: UUID
    scheduled_at: datetime
    status: str
    attempt: int
    missed: bool = False
    deduplicated: bool = False
    run_at: datetime | None = None
    fired_at: datetime | None = None
    epoch: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    idempotency_key: str | None = None
    error: ErrorInfo | None = None
    result: Any = None
    note: dict[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    job_name: str | None = None
    progress: Progress | None = None

    @property
    def run_id(self) -> str:
        return make_run_id(self.job_id, self.scheduled_at)

    @property
    def next_attempt_at(self) -> datetime | None:
        """When a worker may begin the next attempt. None once one has begun, and while an earlier run is unfinished."""
        return self.run_at if self.status in ("queued", "retrying") else None


# A run is named by what it is, (job, scheduled_at), so its id is derived and never stored.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 in UTC: exact, unlike `timestamp()`."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def make_run_id(job_id: UUID, scheduled_at: datetime) -> str:
    # Offset by 2**62 so that times before 1970 stay non-negative and ids sort by time within a job.
    return f"{job_id}-{to_micros(scheduled_at) + (1 << 62):016x}"


def parse_run_id(run_id: str) -> tuple[UUID, datetime] | None:
    """The (job, scheduled_at) behind a run id, or None if it is not one."""
    job_text, _, micros_text = run_id.rpartition("-")
    if len(micros_text) != 16:
        return None
    try:
        return UUID(job_text), from_micros(int(micros_text, 16) - (1 << 62))
    except (ValueError, OverflowError):
        return None
