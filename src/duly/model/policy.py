"""`Policy`: how a job is fired, retried and timed out, the rules of its fields, and its stored form."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from duly.errors import MAX_DELAY_SECONDS, InvalidInput
from duly.model.fields import Rule, described, rules_of

MissedWindow = Literal["SKIP", "RUN_ONCE", "RUN_ALL"]
Overlap = Literal["skip", "queue", "parallel"]
RetryBackoff = Literal["immediate", "linear", "exponential"]
DstGap = Literal["shift", "skip"]
DstFold = Literal["first", "second", "both"]


class Alerts(dict[str, Any]):
    """The alerts of a job, in one spelling: those that are set, in the order of `ALERT_RULES`. Nobody changes one."""

    def __init__(self, given: Mapping[str, Any] | None = None, /, **values: Any) -> None:
        known = {**(given or {}), **values}
        names = [name for name in ALERT_RULES if name in known] + sorted(known.keys() - ALERT_RULES.keys(), key=str)
        super().__init__(
            # 60.0 and 60 seconds are the same.
            (name, int(value) if isinstance(value, float) and value.is_integer() else value)
            for name in names
            if (value := known[name]) is not None
        )

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


@dataclass(frozen=True, slots=True)
class _AlertFields:
    late_seconds: int | None = described(
        None, "Seconds after an occurrence's time in which its run has to start", 1, MAX_DELAY_SECONDS
    )
    overrun_seconds: int | None = described(None, "Maximum duration of one attempt", 1, MAX_DELAY_SECONDS)
    not_finished_by: str | None = described(
        None, "Time of day (HH:MM) in the job's zone, by which the occurrence before it has to be over", 5, 5
    )
    failures_in_row: int | None = described(None, "Number of failed attempts without a success between them", 1, 1000)
    no_success_for: int | None = described(None, "Seconds without a success", 1, MAX_DELAY_SECONDS)


#: The rules of the fields of `Alerts`.
ALERT_RULES = rules_of(_AlertFields)

DEFAULT_KEY_TEMPLATE = "{{job_id}}:{{scheduled_at_unix}}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for firing, retrying and timing out a job. One JSON column holds them, to keep a job's row narrow.

    The store keeps only the fields that differ from these defaults, and NULL when none does. Scheduler and worker turn
    the stored JSON back into a `Policy` through a cache keyed by the JSON itself.
    """

    missed_window: MissedWindow = described("RUN_ONCE", "Missed occurrences to run")
    catch_up_window_seconds: int | None = described(
        None, "Maximum age of a missed occurrence that still runs; without it, any age", 0, MAX_DELAY_SECONDS
    )
    max_missed: int = described(100, "Maximum number of missed occurrences that RUN_ALL runs", 0, 100_000)
    overlap: Overlap = described("skip", "New runs while an earlier run of the job is unfinished")
    max_queued: int = described(100, "Maximum number of runs that wait with overlap `queue`", 0, 100_000)
    max_retries: int = described(3, "Maximum number of retries after the first attempt", 0, 10_000)
    retry_backoff: RetryBackoff = described("exponential", "Growth of the delay between retries")
    retry_delay_seconds: float = described(30, "Delay before the first retry", 0, MAX_DELAY_SECONDS)
    retry_max_delay_seconds: float = described(1800, "Maximum delay before a retry", 0, MAX_DELAY_SECONDS)
    timeout_seconds: float = described(300, "Maximum duration of one attempt", 0.001, MAX_DELAY_SECONDS)
    start_within_seconds: int | None = described(
        None,
        "Maximum age of a run that no worker has started yet; an older one ends as missed. Without it, any age",
        1,
        MAX_DELAY_SECONDS,
    )
    jitter_seconds: int = described(
        0, "Maximum offset of the job's occurrences; each job has one stable offset", 0, 86_400, timing=True
    )
    dst_gap: DstGap = described("shift", "Occurrences at a local time that DST skips", timing=True)
    dst_fold: DstFold = described("first", "Occurrences at a local time that DST repeats", timing=True)
    idempotency_key_template: str = described(
        DEFAULT_KEY_TEMPLATE,
        "Idempotency key of a run, with {{job_id}} {{scheduled_at_unix}} {{name}} {{date}} {{week}} {{month}} {{year}} "
        "{{hour}}",
        1,
        500,
        json_format="duly-key-template",
    )
    ping_url: str | None = described(
        None,
        "Address at a watching service that is told about each run; never shown whole. `healthchecks+`, `cronitor+`, "
        "`sentry+` or `plain+` before it names the form where the host does not",
        1,
        2048,
        json_format="duly-ping-url",
    )
    secret_fields: tuple[str, ...] = described(
        (),
        "Payload field that is never shown; dots lead to an inner one (`card.number`), through lists too. Removing one "
        "needs a new payload",
        0,
        32,
        json_format="duly-path",
    )
    alerts: Alerts | None = described(None, "When an incident is opened for the job")

    def __post_init__(self) -> None:
        given: Any = self.secret_fields
        if given != () and isinstance(given, list | tuple | set | frozenset):
            # One spelling for the same paths. Items that are not strings are left for `duly.checks` to refuse.
            strings = all(isinstance(path, str) for path in given)
            object.__setattr__(self, "secret_fields", tuple(sorted(set(given)) if strings else given))
        if self.alerts is not None and isinstance(self.alerts, Mapping):
            object.__setattr__(self, "alerts", Alerts(self.alerts) or None)

    def to_stored(self) -> str | None:
        """The fields that differ from the defaults as JSON, in field order; None when none does."""
        if self is DEFAULT_POLICY or self == DEFAULT_POLICY:
            return None
        changed = {
            # One spelling per value: 60 and 60.0 seconds are the same policy.
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, default in _DEFAULTS.items()
            if (value := getattr(self, name)) != default or type(value) is bool
        }
        return json.dumps(changed, separators=(",", ":"))


DEFAULT_POLICY = Policy()
POLICY_RULES = rules_of(Policy)
POLICY_FIELDS = frozenset(POLICY_RULES)
_DEFAULTS = dataclasses.asdict(DEFAULT_POLICY)


def policy_with(base: Policy, changes: Mapping[str, Any]) -> Policy:
    """`base` with some fields changed. A million jobs with equal changes share one object, written out once."""
    try:
        return _policy_with(base, tuple(changes), *changes.values())
    except TypeError:  # a value that cannot be hashed
        return dataclasses.replace(base, **changes)


# Typed, because 1 and True are equal and only one of them is a number.
@lru_cache(maxsize=1024, typed=True)
def _policy_with(base: Policy, names: tuple[str, ...], *values: Any) -> Policy:
    return dataclasses.replace(base, **dict(zip(names, values, strict=True)))


@lru_cache(maxsize=4096)
def policy_from_stored(text: str | None) -> Policy:
    """The policy that a job's column holds. `InvalidInput` if it is not valid: other programs may write the column.

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
    known = {name: value for name, value in stored.items() if name in POLICY_RULES}
    return Policy(**{name: from_stored(POLICY_RULES[name], value) for name, value in known.items()})


def from_stored(rule: Rule, value: Any) -> Any:
    """The value of one stored field; `InvalidInput` if it is not valid."""
    if rule.kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # 3.0, which only a person writes
    if rule.choices:
        valid = isinstance(value, str) and value in rule.choices
    elif rule.kind in (int, float):
        kinds = (int,) if rule.kind is int else (int, float)
        valid = type(value) in kinds and rule.minimum <= value <= rule.maximum
    elif rule.kind is tuple:
        valid = isinstance(value, list) and all(isinstance(one, str) for one in value)
    elif rule.kind is Alerts:
        valid = isinstance(value, dict)
        if valid:
            known = {name: one for name, one in value.items() if name in ALERT_RULES}
            return Alerts({name: from_stored(ALERT_RULES[name], one) for name, one in known.items()}) or None
    else:
        valid = isinstance(value, str)
    if not valid and not (value is None and rule.optional):
        raise InvalidInput(f"policy.{rule.name}", f"the stored value {str(value)[:40]!r} is not valid")
    return value
