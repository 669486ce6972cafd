"""Options for a job's fields, made from the fields' rules, and the way back from options to fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from duly.cli.options import Command, make_option, read_labels, with_options
from duly.errors import InvalidInput
from duly.model import ALERT_RULES, JOB_RULES, POLICY_RULES, Alerts, Rule

_RULES = JOB_RULES | POLICY_RULES
_TYPES: dict[type, Any] = {int: int, float: float, tuple: list[str], Mapping: list[str], Alerts: list[str]}
_METAVARS: dict[type, str] = {
    int: "N",
    float: "SECONDS",
    datetime: "TIME",
    tuple: "PATH",
    Mapping: "K=V",
    Alerts: "KIND=BOUND",
}


def with_job_options(*, before: str) -> Callable[[Command], Command]:
    """Replaces a command's `**fields` by an option for each field of a job, in front of its option `before`."""
    return with_options([_option(rule) for rule in _RULES.values()], before=before)


def _option(rule: Rule) -> inspect.Parameter:
    text = rule.help_text.replace("`", "")
    if rule.choices:
        text += f": {', '.join(rule.choices[:-1])} or {rule.choices[-1]}"
    if rule.kind is Alerts:
        text += f": {', '.join(name.replace('_', '-') for name in _ALERTS)}"
    several = rule.kind in (tuple, Mapping, Alerts)
    panel = "Timing" if rule.timing or rule.name == "max_runs" else "Policy" if rule.name in POLICY_RULES else None
    return make_option(
        rule.name,
        _TYPES.get(rule.kind, str),
        *([f"--{rule.name.removesuffix('s').replace('_', '-')}"] if several else []),
        help=f"{text}; repeat for several." if several else f"{text}.",
        metavar=_METAVARS.get(rule.kind),
        rich_help_panel=panel,
    )


def read_job_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that options were given for."""
    return {name: _read(_RULES[name], value) for name, value in given.items() if value not in (None, [])}


def _read(rule: Rule, value: Any) -> Any:
    if rule.kind is datetime:
        return read_time(rule.name, value)
    if rule.kind is Mapping:
        return read_labels(value)
    if rule.kind is tuple:
        return tuple(value)
    if rule.kind is Alerts:
        return read_alerts(value)
    return next((one for one in rule.choices if one.lower() == value.lower()), value) if rule.choices else value


def read_alerts(given: Sequence[str]) -> Alerts:
    """Alerts as commands take them: late=60, failures=3, not-finished-by=06:30; or with the whole name of a field."""
    alerts: dict[str, Any] = {}
    for one in given:
        kind, found, bound = one.partition("=")
        name = kind.strip().replace("-", "_")
        field = _ALERTS.get(name, name)
        if not found or field not in ALERT_RULES:
            kinds = ", ".join(name.replace("_", "-") for name in _ALERTS)
            raise InvalidInput("alert", f"must be KIND=BOUND with one of {kinds}, not {one[:60]!r}")
        if field in alerts:
            raise InvalidInput("alert", f"{kind} is given twice")
        alerts[field] = int(bound) if re.fullmatch(r"-?[0-9]{1,15}", bound) else bound
    return Alerts(alerts)


# The names of alerts in commands, and the fields.
_ALERTS = {
    "late": "late_seconds",
    "overrun": "overrun_seconds",
    "not_finished_by": "not_finished_by",
    "failures": "failures_in_row",
    "no_success_for": "no_success_for",
}


def read_time(field: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(field, f"{text[:40]!r} is not an ISO 8601 time such as 2026-03-08T09:30:00Z") from error
