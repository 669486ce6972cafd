"""Strings in Duly's formats, and rules between fields, for the command line of schemathesis, which cannot know them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import CHECKS

_SCHEDULES = [
    "now", "every 15m", "every 1h30m", "PT15M", "rate(5 minutes)", "@hourly", "0 9 * * MON", "*/15 * * * *",
    "30 2 L * *", "15 30 2 * * *", "2031-05-01T09:30:00Z", "2031-05-01T09:30:00", "RRULE:FREQ=WEEKLY;BYDAY=MO",
]  # fmt: skip
_ONE_OFFS = (None, "now", "2031-05-01T09:30:00Z", "2031-05-01T09:30:00")
_ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]
_TEMPLATES = ["{{job_id}}:{{scheduled_at_unix}}", "{{name}}-{{date}}", "{{year}}w{{week}}", "fixed"]
_JOBS = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["a", "b"]), "handler": st.just("h")}), max_size=5)
_LINES = _JOBS.map(lambda jobs: "".join(json.dumps(job) + "\n" for job in jobs))
_MOMENTS = st.datetimes(datetime(2030, 1, 1), datetime(2090, 1, 1)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
)
_AHEAD = datetime(2030, 1, 1, tzinfo=UTC)
_LETTER = "64d3f1a2b3c4d.019a7c1e-5b5e-7c3a-9d3f-2f6a1d0c4b7e-4006432a6d5a2000"
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The cursors of each list. They are opaque to clients, so the description only names their format.
_CURSORS = {
    "duly-job-cursor": (st.uuids().map(str), _UUID),
    "duly-run-cursor": (_MOMENTS, r"\d{4}-\d\d-\d\dT.*Z"),
    "duly-log-cursor": (st.uuids().map(lambda claim: f"{claim}.1"), _UUID + r"\.\d+"),
    "duly-monitor-cursor": (st.sampled_from(["nightly", "a-b_c"]), "[a-z0-9][a-z0-9_-]*"),
    "duly-audit-cursor": (st.just(f"{10**15:x}.7"), "[0-9a-f]{13}\\.[0-9a-f]{1,8}"),
    "duly-incident-cursor": (st.just(f"{10**15:x}.{7:032x}"), "[0-9a-f]{13}\\.[0-9a-f]{32}"),
    "duly-dead-letter-cursor": (st.just(_LETTER), rf"[0-9a-f]{{13}}\.{_UUID}-[0-9a-f]+"),
}

schemathesis.openapi.format("duly-schedule", st.sampled_from(_SCHEDULES))
schemathesis.openapi.format(
    "duly-recurring-schedule", st.sampled_from([text for text in _SCHEDULES if text != "now" and "2031" not in text])
)
schemathesis.openapi.format("duly-timezone", st.sampled_from(_ZONES))
schemathesis.openapi.format("duly-key-template", st.sampled_from(_TEMPLATES))
schemathesis.openapi.format("duly-path", st.sampled_from(["password", "card.number", "a\\.b", "Zoë.x y"]))
schemathesis.openapi.format(
    "duly-ping-url", st.sampled_from(["https://hc-ping.com/a-b", "sentry+http://s:9000/cron/x/y/"])
)
schemathesis.openapi.format("http-url", st.sampled_from(["https://example.org/hook", "http://example.org:8080/a?b=c"]))
schemathesis.openapi.format("date-time", _MOMENTS)
schemathesis.openapi.format("duly-ndjson", _LINES)
for _format, (_strategy, _) in _CURSORS.items():
    schemathesis.openapi.format(_format, _strategy)


@schemathesis.serializer("application/x-ndjson")
def _send_lines(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _without_later_rules(job: Any) -> Any:
    """Removes fields that would break a rule between fields, because the description states those rules in words only:
    an end lies after the start, something is left to fire, a job that runs once has no bounds, no text of a payload
    holds a NUL, and secret paths are not lost without a new payload.

    Only values that are valid by themselves are removed: an invalid value was put there on purpose.
    """
    if not isinstance(job, dict):
        return job
    if "\\u0000" in json.dumps(job.get("payload"), default=str):
        job = {field: value for field, value in job.items() if field != "payload"}
    job = _with_ends_ahead(job)
    once = job.get("schedule") in _ONE_OFFS
    return {
        field: value
        for field, value in job.items()
        if not (field == "end_at" and _is_moment(value))
        and not (once and field == "start_at" and _is_moment(value))
        and not (once and field == "max_runs" and _is_count(value))
        and not (field == "secret_fields" and _is_paths(value) and "payload" not in job)
    }


def _with_ends_ahead(body: dict[str, Any]) -> dict[str, Any]:
    """The end of a pause or of a maintenance window lies ahead and after its start; a link fills in any moment."""
    for field in ("until", "ends_at"):
        if _is_moment(body.get(field)) and datetime.fromisoformat(body[field]) < _AHEAD:
            body = {**body, field: _moment(_AHEAD)}
    if _is_moment(body.get("starts_at")) and _is_moment(body.get("ends_at")):
        moments = sorted(datetime.fromisoformat(body[field]) for field in ("starts_at", "ends_at"))
        if moments[0] == moments[1]:
            moments[0] -= timedelta(seconds=1)
        body = {**body, "starts_at": _moment(moments[0]), "ends_at": _moment(moments[1])}
    return body


def _moment(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _is_paths(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(path, str) for path in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 2**31 and value == int(value)


def _is_moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


@schemathesis.hook
def map_body(_: Any, body: Any) -> Any:
    return [_without_later_rules(job) for job in body] if isinstance(body, list) else _without_later_rules(body)


@schemathesis.hook
def map_query(_: Any, query: Any) -> Any:
    """Keeps one label, because two labels could ask for two values of one key."""
    if isinstance(query, dict) and isinstance(query.get("label"), list):
        return {**query, "label": query["label"][:1]}
    return query


def _together(name: str, query: dict[str, Any]) -> dict[str, Any]:
    """Changes parameters that would break a rule between parameters, because the description states those rules in
    words only. Only values that are valid by themselves are changed."""
    if (
        name == "purge_dead_letters"
        and query.keys() <= {"all", "reason"}
        and query.get("all", False) in (False, "false")
    ):
        return {**query, "all": True}
    if name == "explain_occurrence":
        if "from" not in query:
            return {key: value for key, value in query.items() if key not in ("to", "cursor") or not _is_moment(value)}
        if _is_moment(query.get("at")):
            query = {key: value for key, value in query.items() if key != "at"}
        if _is_moment(query["from"]) and _is_moment(query.get("to")):
            first, last = sorted((query["from"], query["to"]), key=datetime.fromisoformat)
            query = {**query, "from": first, "to": last}
    return query


@schemathesis.hook
def before_call(_: Any, case: Any, __: Any) -> None:
    """Removes contradictions: the header Idempotency-Key beside the field dedupe_key, which means the same, and a new
    max_runs, which may be less than the runs that the job has had."""
    if isinstance(case.body, dict | list):
        # A link fills in any value of an answer, also beside fields that exclude it, and not every phase calls
        # `map_body`.
        case.body = map_body(None, case.body)
    if case.method == "PATCH" and isinstance(case.body, dict):
        if _is_count(case.body.get("max_runs")):
            del case.body["max_runs"]
        if case.body.get("schedule") in _ONE_OFFS[1:]:
            # A job that runs once has no bounds, so the bounds that it had are removed.
            case.body = {"start_at": None, "end_at": None, "max_runs": None, **case.body}
    if isinstance(case.body, dict) and "dedupe_key" in case.body and case.headers:
        case.headers.pop("Idempotency-Key", None)
    name = case.operation.definition.raw.get("operationId")
    meant_to_fit = case.meta is not None and case.meta.generation.mode.is_positive
    if name == "list_jobs" and meant_to_fit and "find" in (case.query or {}):
        # `find` cannot be combined with a filter, but the description says so in words only.
        case.query = {key: value for key, value in case.query.items() if key in ("find", "payload")}
    if name in ("purge_dead_letters", "explain_occurrence"):
        case.query = _together(name, dict(case.query or {}))
    if meant_to_fit and "cursor" in (case.query or {}) and not _is_cursor(case):
        case.query = {key: value for key, value in case.query.items() if key != "cursor"}


def _is_cursor(case: Any) -> bool:
    """Whether the cursor is one that this list could have returned: a link fills in any value of an answer."""
    given = str(case.query["cursor"])
    for parameter in case.operation.definition.raw["parameters"]:
        if parameter.get("name") == "cursor":
            _, form = _CURSORS[parameter["schema"]["format"]]
            return re.fullmatch(form, given) is not None and (
                form != _CURSORS["duly-run-cursor"][1] or _is_moment(given)
            )
    return False


@schemathesis.check
def batches_refuse_each_wrong_job(context: Any, response: Any, case: Any) -> None:
    """Of a batch that violates the description, at least one job is refused; with atomic, the whole batch is."""
    if case.operation.definition.raw.get("operationId") != "submit_jobs" or response.status_code != 200:
        return
    items = response.json()["items"]
    if case.media_type == "application/json" and isinstance(case.body, list):
        assert len(items) == len(case.body)
        for job, item in zip(case.body, items, strict=True):
            wrong = not isinstance(job, dict) or not {"name", "handler"} <= job.keys() or "tenant" in job
            assert not wrong or item["status"] == 422, (job, item)
    if case.query and case.query.get("atomic") in (True, "true"):
        assert all(item["status"] in (200, 201) for item in items)
    # Blank lines are a batch of no jobs, whatever rule the text was meant to violate.
    is_empty = not items and case.media_type != "application/json"
    if not is_empty and all(item["status"] in (200, 201) for item in items):
        check: Any = CHECKS.get_one("negative_data_rejection")
        check(_Strict(context), response, case)


class _Strict:
    """The context of a check, in which only a 4xx is a valid answer to wrong data."""

    config = SimpleNamespace(negative_data_rejection=SimpleNamespace(expected_statuses=["4xx"]))

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


_cancelled: set[str] = set()


@schemathesis.check
def cancelled_jobs_stay_cancelled(_: Any, response: Any, case: Any) -> None:
    """A cancelled job is shown as cancelled, whatever is done to it."""
    if not 200 <= response.status_code < 300 or not case.path.startswith("/api/v1/jobs"):
        return
    shown = response.json()
    for job in shown.get("items", [shown]):
        if "schedule" in job:
            assert job["job_id"] not in _cancelled or job["status"] == "cancelled", job
    if case.method == "DELETE":
        assert shown["status"] == "cancelled"
        _cancelled.add(shown["job_id"])
