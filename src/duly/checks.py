"""Checks a job that a client sends: every field against its rule, with an error that names the field. No I/O.

The rules of plain fields are in `duly.model` (`JOB_RULES`, `POLICY_RULES`) and applied by `check_field`; payload,
labels, times and schedules have functions of their own here. Targets are checked in `duly.targets`, and
`operations.preparing.prepare` makes the row to store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from duly.errors import InvalidInput, InvalidSchedule
from duly.masking import HIDDEN, shown_instead
from duly.model import (
    ALERT_RULES,
    DEFAULT_POLICY,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    JOB_RULES,
    POLICY_RULES,
    Alerts,
    DstFold,
    JobRequest,
    Policy,
    Rule,
    ScheduleKind,
)
from duly.pings import check_ping_url
from duly.timing import Definition, Fuel, anchor_of, check_template, jitter_offset, load_zone, parse_schedule
from duly.timing.schedule import DAWN
from duly.visible import CONTROLS

_CONTROL = re.compile(rf"[{CONTROLS}\ud800-\udfff]")
_LOCAL_TIME = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")
# Names separated by dots; a backslash escapes the next character.
_PATH = re.compile(r"(?:[^.\\]|\\.)+(?:\.(?:[^.\\]|\\.)+)*")
# The database driver takes the first and last moment of Python's calendar for infinity, and a step in local time from a
# moment near them leaves the calendar. `LAST_YEAR` is the API's bound: it takes whole years, by the year as written,
# and with an offset the last day of 9999 would lie beyond `LAST_MOMENT`.
FIRST_YEAR, LAST_YEAR = 1900, 9998
FIRST_MOMENT, LAST_MOMENT = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_YEARS = f"must lie between the years {FIRST_YEAR} and {LAST_MOMENT.year}"
# Levels of nesting in a payload. Far more than people write by hand, far fewer than Python's and PostgreSQL's parsers
# take: an accepted payload can be parsed again from any depth of the call stack.
MAX_DEPTH = 200
# Made once: json.dumps with options makes an encoder per call.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
MAX_LABELS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """A parsed schedule: its kind, its canonical form, and its first occurrence (None: now)."""

    kind: ScheduleKind
    canonical: str
    first: datetime | None


def check_text(field: str, value: object, *, longest: int, shortest: int = 1) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a string, not {_kind(value)}")
    return _check_text(field, value, longest, shortest)


@lru_cache(maxsize=8192)
def _check_text(field: str, value: str, longest: int, shortest: int) -> str:
    """Cached: the jobs of a bulk submit share their handler, queue, tenant and zone."""
    if not shortest <= len(value) <= longest:
        raise InvalidInput(field, f"must have {shortest} to {longest} characters, this has {len(value)}")
    if _CONTROL.search(value):
        raise InvalidInput(field, "must not contain control characters")
    return value


def check_integer(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field, f"must be a whole number, not {_kind(value)}")
    if not low <= value <= high:
        raise InvalidInput(
            field, f"must be {low} to {high}, not {value if abs(value) < 10**20 else 'a number that large'}"
        )
    return value


def check_moment(field: str, value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidInput(field, f"must be a time, not {_kind(value)}")
    if value.tzinfo is None:
        raise InvalidInput(field, "must have an offset or time zone, such as 2026-03-08T09:30:00Z")
    try:
        moment = value.astimezone(UTC)
    except OverflowError as error:
        raise InvalidInput(field, _YEARS) from error
    if not FIRST_MOMENT <= moment <= LAST_MOMENT:
        raise InvalidInput(field, _YEARS)
    return moment


def check_span(start_at: object, end_at: object) -> tuple[datetime | None, datetime | None]:
    """The time in which a recurring job runs; None: without an end on that side."""
    start, end = check_moment("start_at", start_at), check_moment("end_at", end_at)
    if start is not None and end is not None and end <= start:
        raise InvalidInput("end_at", "must be after start_at")
    return start, end


def read_moment(field: str, text: str, *, timezone: str = "UTC", dst_fold: DstFold = "first") -> datetime:
    """Reads an ISO 8601 time. Without an offset it is in `timezone`, by the same rules as a one-off's time."""
    try:
        datetime.fromisoformat(text.upper())  # not any other form of schedule
        parsed = parse_schedule(text, now=DAWN, timezone=timezone, dst_fold=dst_fold)
        moment = check_moment(field, parsed.next(DAWN))
    except InvalidSchedule as error:
        raise InvalidInput(field, error.message) from error
    except ValueError as error:
        raise InvalidInput(field, f"{text[:40]!r} is not an ISO 8601 time such as 2026-03-08T09:30:00Z") from error
    if moment is None:
        raise InvalidInput(field, _YEARS)
    return moment


def check_policy(policy: Policy) -> Policy:
    """Every policy field against its rule."""
    if policy is not DEFAULT_POLICY:
        for rule in POLICY_RULES.values():
            check_field(rule, getattr(policy, rule.name))
        check_template(policy.idempotency_key_template)
    return policy


def check_own_fields(values: Mapping[str, Any]) -> None:
    """Checks the strings and numbers among a job's own fields. Times, labels and schedules are checked elsewhere."""
    for name, value in values.items():
        if (rule := JOB_RULES.get(name)) is not None and rule.kind in (str, int) and name != "schedule":
            check_field(rule, value)


def check_field(rule: Rule, value: object) -> None:
    """One value against the rule of its field."""
    if value is None and rule.optional:
        return
    if rule.choices:
        if value not in rule.choices:
            raise InvalidInput(rule.name, f"must be one of {', '.join(rule.choices)}, not {str(value)[:40]!r}")
    elif rule.kind is int:
        check_integer(rule.name, value, int(rule.minimum), int(rule.maximum))
    elif rule.kind is float:
        _check_seconds(rule.name, value, rule.minimum, rule.maximum)
    elif rule.kind is tuple:
        _check_paths(rule, value)
    elif rule.json_format == "duly-ping-url":
        check_ping_url(rule.name, check_text(rule.name, value, longest=int(rule.maximum)))
    elif rule.kind is Alerts:
        _check_alerts(rule, value)
    else:
        check_text(rule.name, value, longest=int(rule.maximum))


def _check_paths(rule: Rule, paths: object) -> None:
    if not isinstance(paths, tuple):
        raise InvalidInput(rule.name, f'must be a list of paths such as ["card.number"], not {_kind(paths)}')
    if len(paths) > rule.maximum:
        raise InvalidInput(rule.name, f"must be at most {rule.maximum}, these are {len(paths)}")
    for path in paths:
        check_text(rule.name, path, longest=200)
        if not _PATH.fullmatch(path):
            raise InvalidInput(rule.name, f"{path!r} is not a path: names with dots between them, as in card.number")


def _check_alerts(rule: Rule, alerts: object) -> None:
    if not isinstance(alerts, Alerts):
        raise InvalidInput(rule.name, f'must be an object such as {{"late_seconds": 60}}, not {_kind(alerts)}')
    for name, value in alerts.items():
        field = f"{rule.name}.{str(name)[:60]}"
        if (known := ALERT_RULES.get(name)) is None:
            raise InvalidInput(field, f"is not an alert: there are {', '.join(ALERT_RULES)}")
        if known.kind is int:
            check_integer(field, value, int(known.minimum), int(known.maximum))
        elif not isinstance(value, str) or not _LOCAL_TIME.fullmatch(value):
            raise InvalidInput(field, f"must be a time of day such as 06:30, not {str(value)[:40]!r}")


def check_secrets(payload: Any, policy: Policy) -> None:
    """Refuses `***` instead of a secret: a client that sends back a shown payload would lose the secret."""
    if policy.secret_fields and (where := shown_instead(payload, policy.secret_fields)) is not None:
        raise InvalidInput(
            f"payload.{where[:200]}", f"is {HIDDEN}, which stands for a hidden secret: send the secret itself"
        )


def _check_seconds(field: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidInput(field, f"must be a number of seconds, not {_kind(value)}")
    if not low <= value <= high:
        raise InvalidInput(field, f"must be {low:g} to {high:g} seconds")


def payload_text(payload: Any, *, limit: int) -> str:
    """The payload as the JSON that is stored."""
    if payload == {} and isinstance(payload, dict):
        return "{}"
    try:
        text = _encode(payload)
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput("payload", "must not contain lone surrogates: that is not valid Unicode") from error
    except RecursionError as error:
        raise InvalidInput("payload", f"must be nested at most {MAX_DEPTH} levels deep") from error
    except (TypeError, ValueError) as error:
        reason = "NaN and infinity are not" if "Out of range" in str(error) else str(error)[:200]
        raise InvalidInput("payload", f"must be JSON: {reason}") from error
    if size > limit:
        raise InvalidInput("payload", f"must be at most {limit} bytes as JSON, this has {size}; use payload_ref")
    if "\\u0000" in text and _contains(payload, "\x00"):
        raise InvalidInput("payload", "must not contain NUL characters (\\u0000)")
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(payload) > MAX_DEPTH:
        raise InvalidInput("payload", f"must be nested at most {MAX_DEPTH} levels deep")
    return text


def read_label(text: str) -> tuple[str, str]:
    """A label as commands and the API take it: key=value."""
    key, found, value = text.partition("=")
    if not found or not key:
        raise InvalidInput("label", f"must be key=value, not {text[:100]!r}")
    return key, value


def check_labels(labels: object) -> str | None:
    if not isinstance(labels, Mapping):
        raise InvalidInput("labels", f"must be a map of strings, not {_kind(labels)}")
    if not labels:
        return None
    if len(labels) > MAX_LABELS:
        raise InvalidInput("labels", f"must be at most {MAX_LABELS}, these are {len(labels)}")
    checked = {
        check_text("labels", key, longest=63): check_text(f"labels.{str(key)[:63]}", value, longest=255, shortest=0)
        for key, value in labels.items()
    }
    return json.dumps(checked, ensure_ascii=False, sort_keys=True)


_NOW = Plan("once", "now", None)


def plan_moment(moment: datetime, *, job_id: UUID, jitter_seconds: int) -> tuple[datetime, str]:
    """`plan_schedule` for a moment: the first occurrence and the canonical schedule."""
    nominal = check_moment("schedule", moment)
    assert nominal is not None
    first = nominal if not jitter_seconds else _jittered(nominal, job_id, jitter_seconds)
    return first, nominal.isoformat().replace("+00:00", "Z")


def _jittered(nominal: datetime, job_id: UUID, jitter_seconds: int) -> datetime:
    """The time of a one-off. Its jitter is applied here and nowhere else: a fire takes the stored time as it is."""
    offset = jitter_offset(job_id, jitter_seconds)
    if offset > LAST_MOMENT - nominal:
        raise InvalidInput("jitter_seconds", f"puts the time past the year {LAST_MOMENT.year}")
    return nominal + offset


def check_bounds(
    kind: ScheduleKind, *, start_at: datetime | None, end_at: datetime | None, max_runs: int | None
) -> None:
    """Refuses bounds for a one-off, which runs once, at its time."""
    if kind == "once":
        for field, value in (("start_at", start_at), ("end_at", end_at), ("max_runs", max_runs)):
            if value is not None:
                raise InvalidInput(field, "is for recurring jobs, and this one runs once: leave it out")


def plan_schedule(request: JobRequest, *, now: datetime, job_id: UUID, created_at: datetime) -> Plan:
    """Parses the schedule and finds the first occurrence within the job's bounds."""
    start_at, end_at, policy = request.start_at, request.end_at, request.policy
    schedule = request.schedule
    if isinstance(schedule, datetime):
        schedule = (check_moment("schedule", schedule) or now).isoformat()
    if schedule is not None and not isinstance(schedule, str):
        raise InvalidSchedule(f"must be a string, not {_kind(schedule)}")
    timezone = check_text("timezone", request.timezone, longest=100)
    if schedule is None or schedule.strip().lower() == "now":
        load_zone(timezone)
        check_bounds("once", start_at=start_at, end_at=end_at, max_runs=request.max_runs)
        return _NOW
    fuel = Fuel()
    parsed = parse_schedule(
        schedule,
        # A time that has passed is still to come where jitter puts it after now.
        now=now - jitter_offset(job_id, policy.jitter_seconds),
        timezone=timezone,
        dst_gap=policy.dst_gap,
        dst_fold=policy.dst_fold,
        anchor=anchor_of(start_at, created_at),
        starts=start_at is not None,
        fuel=fuel,
    )
    check_bounds(parsed.kind, start_at=start_at, end_at=end_at, max_runs=request.max_runs)
    if parsed.kind == "once":
        first = check_moment("schedule", parsed.next(DAWN))
        if first is None:
            raise InvalidSchedule("can never fire")
        return Plan("once", parsed.canonical, _jittered(first, job_id, policy.jitter_seconds))
    definition = Definition(parsed.kind, parsed.canonical, timezone, start_at, end_at, created_at, policy)
    timetable = definition.timetable(job_id)
    first = timetable.next(now, fuel)
    if first is None:
        raise InvalidSchedule("has no occurrence between now and end_at" if end_at else "can never fire")
    return Plan(parsed.kind, parsed.canonical, first)


def fingerprint(request: JobRequest, payload: str, labels: str | None, schedule: str) -> bytes:
    """A hash of everything the client chose: the same dedupe_key with other content is a conflict.

    It is of what the client sent, not of what the job got from its task: a task's defaults may change between two
    submits of the same job. A field that was left out counts as one with the general default.
    """
    own = {name: getattr(request, name) for name in JOB_RULES if name != "dedupe_key"}
    if request.queue is None:
        own["queue"] = DEFAULT_QUEUE
    if request.priority is None:
        own["priority"] = DEFAULT_PRIORITY
    content = [own | {"schedule": schedule, "labels": labels}, request.handler, payload, request.policy.to_stored()]
    return hashlib.sha256(_encode_content(content).encode()).digest()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else dict(value)


_encode_content = json.JSONEncoder(default=_plain, sort_keys=True).encode


def _kind(value: object) -> str:
    names = {"NoneType": "nothing", "bool": "true or false", "int": "a number", "float": "a number", "str": "a string",
             "dict": "an object", "list": "a list"}  # fmt: skip
    return names.get(type(value).__name__, type(value).__name__)


def _contains(value: Any, needle: str) -> bool:
    """Whether any string within contains `needle`. A loop, not recursion, because the client chooses the depth."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if needle in item:
                return True
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
    return False


def _depth(value: Any) -> int:
    """Number of levels of objects and lists."""
    depth, level = 0, [value]
    while level:
        inner = [item for item in level if isinstance(item, dict | list | tuple)]
        if not inner:
            break
        depth += 1
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
    return depth
