"""Computes the new row of a job when a client edits some of its fields, or when the code declares it differently than
before. No I/O: a job and changes in, a row out.

Only a change of the timing plans anew. Occurrences overdue at that moment are given up and recorded as missed, with the
reason `changed` and their number. The missed policy was made for the old schedule: applying it to occurrences that an
edit makes overdue would cause a burst that nobody asked for, and so would a new schedule that begins before the edit.
Occurrences are fired ahead of their time, so none is overdue unless no scheduler was there to fire it. A one-off is
only moved; it misses no occurrence.

The plan goes on with the first occurrence after now, and never at or before an occurrence that has fired. If only the
jitter changes, the next occurrence stays the same and is only moved: if its new time has passed, it is not lost, and it
does not run twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from duly import checks
from duly.errors import Conflict, InvalidInput, InvalidSchedule, TooCostly
from duly.masking import covers, shown_payload, shown_ping_url
from duly.model import JOB_RULES, POLICY_FIELDS, POLICY_RULES, Actor, Declarer, Job, JobRequest, Policy, ScheduleKind
from duly.operations.core import timetable_of
from duly.store.jobs import ChangedJob, NewJob
from duly.targets import check_target, shown_target
from duly.timing import Definition, Fuel, jitter_offset, plan_fire

_PLAIN = ("payload", *(name for name, rule in JOB_RULES.items() if not rule.timing and name != "dedupe_key"))
_TIMING = tuple(name for name, rule in JOB_RULES.items() if rule.timing)
_TIMING_POLICY = tuple(name for name, rule in POLICY_RULES.items() if rule.timing)
CHANGEABLE = frozenset({"handler", *_PLAIN, *_TIMING, *POLICY_FIELDS})
# Number of given-up occurrences that an edit has fuel to count, if counting takes a walk.
_MAX_LOST = 2_000
_NONE = timedelta(0)


def touches_timing(changes: Mapping[str, Any]) -> bool:
    """Whether the changes may plan anew: then an occurrence that was fired ahead of its time is taken back first."""
    return not changes.keys().isdisjoint((*_TIMING, *_TIMING_POLICY))


@dataclass(frozen=True, slots=True)
class _Timing:
    kind: ScheduleKind
    schedule: str
    next_run_at: datetime | None
    lost: tuple[datetime, datetime, int] | None = None


def revise(job: Job, changes: Mapping[str, Any], *, now: datetime, payload_max_bytes: int) -> ChangedJob | None:
    """The row of `job` after `changes`; None if they change nothing. An error names the first wrong field."""
    for field in changes:
        if field not in CHANGEABLE:
            raise InvalidInput(str(field)[:100], "is not a field that can be changed")
    wanted = _checked(job, changes)
    if "max_runs" in changes and wanted["max_runs"] is not None and wanted["max_runs"] <= job.run_count:
        raise InvalidInput("max_runs", f"must be more than the {job.run_count} runs there were; or cancel the job")
    payload = checks.payload_text(wanted["payload"], limit=payload_max_bytes)
    labels = checks.check_labels(wanted["labels"])
    policy: Policy = wanted["policy"]
    _check_secrets(job, changes, policy)
    moved = _moves(job, wanted)
    timing = _Timing(job.kind, job.schedule, job.next_run_at)
    if moved:
        timing = _retime(job, wanted, policy, now)
        wanted["schedule"] = timing.schedule
        # Another spelling of the same schedule is no change.
        moved = _moves(job, wanted)
    else:
        given = {field: wanted[field] if field in changes else None for field in ("start_at", "end_at", "max_runs")}
        checks.check_bounds(timing.kind, **given)
    old = _old_values(job, wanted)
    handler, target = _checked_handler(changes["handler"]) if "handler" in changes else (None, None)
    if handler is not None and not _is_handler(job, handler, target):
        old["handler"] = _shown_handler(job)
    if not old:
        return None
    new = _new_values(job, wanted, old, handler if target is None else json.loads(target))
    changed = _changed(job, wanted, timing, payload=payload, labels=labels, planned_anew=moved, old=old, new=new)
    return changed._replace(handler=handler, target=target)


def redefine(
    job: Job, request: JobRequest, row: NewJob, *, now: datetime, by: Declarer | None = None
) -> ChangedJob | None:
    """The row of `job` after the code's declaration; None if the declaration changes nothing.

    `row` is the request as a new job: every field is checked and in its stored form. Unlike an edit, a declaration may
    plan an ended job anew, and may set max_runs to fewer runs than the job has had. `by`: who declares it.
    """
    wanted = {field: getattr(request, field) for field in (*_PLAIN, *_TIMING)} | {
        "name": row.name,
        "queue": row.queue,
        "priority": row.priority,
        "payload": json.loads(row.payload),
        "schedule": row.schedule,
        "start_at": row.start_at,
        "end_at": row.end_at,
        "labels": dict(request.labels),
        "policy": checks.check_policy(request.policy),
    }
    over = job.status != "paused" and job.next_run_at is None
    exhausted = row.max_runs is not None and row.max_runs <= job.run_count
    moved = _moves(job, wanted)
    timing = _Timing(job.kind, job.schedule, job.next_run_at)
    planned_anew = moved or (over != exhausted and row.max_runs != job.max_runs and job.status != "paused")
    if planned_anew:
        timing = _retime(job, wanted, wanted["policy"], now, declared=True)
        if exhausted:
            timing = replace(timing, next_run_at=None)
    old = _old_values(job, wanted)
    if not _is_handler(job, row.handler, row.target):
        old["handler"] = _shown_handler(job)
    if not old:
        return None
    new = _new_values(job, wanted, old, row.handler if row.target is None else json.loads(row.target))
    changed = _changed(
        job, wanted, timing, payload=row.payload, labels=row.labels, planned_anew=planned_anew, old=old, new=new
    )
    declared = {} if by is None else {"reason": by.described()}
    return changed._replace(
        what="redefined",
        handler=row.handler,
        target=row.target,
        fingerprint=row.fingerprint,
        detail=json.dumps(json.loads(changed.detail) | declared),
    )


def _checked_handler(handler: Any) -> tuple[str, str | None]:
    if isinstance(handler, Mapping):
        kind, target, _ = check_target(handler)
        return kind, target
    return checks.check_text("handler", handler, longest=200), None


def _is_handler(job: Job, handler: str, target: str | None) -> bool:
    return job.handler == (handler if target is None else json.loads(target))


def _shown_handler(job: Job) -> Any:
    # The fields of a target may be secret: its type is enough here.
    return job.handler if isinstance(job.handler, str) else job.handler.get("type")


def _check_secrets(job: Job, changes: Mapping[str, Any], policy: Policy) -> None:
    """Refuses an edit that would reveal a secret by shortening secret_fields, or replace a secret by its `***`."""
    if "payload" in changes:
        checks.check_secrets(changes["payload"], policy)
    elif any(not covers(path, policy.secret_fields) for path in job.policy.secret_fields):
        raise InvalidInput("secret_fields", "cannot lose a path without a new payload: the old one would be shown")


def _moves(job: Job, wanted: Mapping[str, Any]) -> bool:
    policy = wanted["policy"]
    return any(wanted[field] != getattr(job, field) for field in _TIMING) or any(
        getattr(policy, field) != getattr(job.policy, field) for field in _TIMING_POLICY
    )


def _old_values(job: Job, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The old values of the fields that change, as far as they may be shown."""
    policy = wanted["policy"]
    old = {field: getattr(job, field) for field in (*_PLAIN, *_TIMING) if wanted[field] != getattr(job, field)}
    old |= {
        field: getattr(job.policy, field)
        for field in sorted(POLICY_FIELDS)
        if getattr(policy, field) != getattr(job.policy, field)
    }
    return _shown(old, job, policy)


def _new_values(job: Job, wanted: Mapping[str, Any], old: Mapping[str, Any], handler: Any) -> dict[str, Any]:
    """The new values of the fields in `old`, as far as they may be shown."""
    policy = wanted["policy"]
    new = {field: getattr(policy, field) if field in POLICY_FIELDS else wanted.get(field) for field in old}
    if "handler" in new:
        new["handler"] = handler if isinstance(handler, str) else shown_target(handler)
    return _shown(new, job, policy)


def _shown(values: dict[str, Any], job: Job, policy: Policy) -> dict[str, Any]:
    """The values without what is secret before or after the change to this policy."""
    if "payload" in values:
        values["payload"] = shown_payload(values["payload"], (*job.policy.secret_fields, *policy.secret_fields))
    if "ping_url" in values:
        values["ping_url"] = shown_ping_url(values["ping_url"])
    return values


def noted_change(change: ChangedJob, actor: Actor, *, reason: str | None) -> ChangedJob:
    """The change with who makes it. Code that declares a job gives a reason of its own."""
    detail = json.loads(change.detail)
    detail["audit"] |= json.loads(actor.note(reason=reason or detail.get("reason")))
    return change._replace(detail=json.dumps(detail))


def _changed(
    job: Job,
    wanted: Mapping[str, Any],
    timing: _Timing,
    *,
    payload: str,
    labels: str | None,
    planned_anew: bool,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
) -> ChangedJob:
    first, last, count = (planned_anew and timing.lost) or (None, None, 0)
    columns = {name: wanted[name] for name in (*_PLAIN, *_TIMING)} | {
        "payload": payload,
        "labels": labels,
        "kind": timing.kind,
        "schedule": timing.schedule,
        "policy": wanted["policy"].to_stored(),
    }
    before = dict(old)
    if "handler" in before:
        before["handler"] = job.handler if isinstance(job.handler, str) else shown_target(job.handler)
    audit = {"before": before, "after": new}
    return ChangedJob(
        job_id=job.job_id,
        tenant=job.tenant,
        version=job.version,
        planned_anew=planned_anew,
        expected=job.next_run_at,
        next_run_at=timing.next_run_at,
        detail=json.dumps({"old": old, "audit": audit}, default=lambda value: value.isoformat()),
        lost_first=first,
        lost_last=last,
        lost_count=count,
        what="changed",
        handler=None,
        target=None,
        fingerprint=None,
        **columns,
    )


def _checked(job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The wanted value of every field; changed fields are checked against their rules."""
    wanted = {field: changes.get(field, getattr(job, field)) for field in (*_PLAIN, *_TIMING)}
    checks.check_text("name", wanted["name"], longest=200)  # a request may leave the name out, a job may not
    checks.check_own_fields({name: value for name, value in wanted.items() if name in changes or type(value) is str})
    wanted["start_at"], wanted["end_at"] = checks.check_span(wanted["start_at"], wanted["end_at"])
    policies = {field: value for field, value in changes.items() if field in POLICY_FIELDS}
    wanted["policy"] = checks.check_policy(replace(job.policy, **policies)) if policies else job.policy
    return wanted


def _retime(job: Job, wanted: Mapping[str, Any], policy: Policy, now: datetime, *, declared: bool = False) -> _Timing:
    schedule = wanted["schedule"]
    if schedule is None or (isinstance(schedule, str) and schedule.strip().lower() == "now"):
        schedule = now
    start_at, end_at, timezone = wanted["start_at"], wanted["end_at"], wanted["timezone"]
    request = JobRequest(
        "",
        schedule=schedule,
        timezone=timezone,
        start_at=start_at,
        end_at=end_at,
        max_runs=wanted["max_runs"],
        policy=policy,
    )
    plan = checks.plan_schedule(request, now=now, job_id=job.job_id, created_at=job.created_at)
    if job.status == "paused":
        return _Timing(plan.kind, plan.canonical, None)
    over = job.next_run_at is None
    if over and not declared:
        raise Conflict(f"job {job.job_id} cannot be planned anew: its last run has begun")
    overdue = job.next_run_at is not None and job.next_run_at <= now
    lost = _overdue(job, now) if overdue and job.kind != "once" else None
    fired = job.last_run_at
    if plan.kind == "once":
        assert plan.first is not None
        if over and fired is not None and plan.first <= fired:
            return _Timing("once", plan.canonical, None)  # the one-off has run
        # As at submit, a one-off whose time has passed runs at once.
        return _Timing("once", plan.canonical, plan.first if fired is None or plan.first > fired else now, lost)
    definition = Definition(plan.kind, plan.canonical, timezone, start_at, end_at, job.created_at, policy)
    timetable = definition.timetable(job.job_id)
    if job.next_run_at is not None and not overdue and _same_but_jitter(job, plan, wanted, policy):
        nominal = job.next_run_at - jitter_offset(job.job_id, job.policy.jitter_seconds)
        if (moved := timetable.of_nominal(nominal)) is not None:
            # An occurrence whose new time has passed runs now: at its own time it would count as missed.
            return _Timing(plan.kind, plan.canonical, max(moved, now))
    next_run_at = timetable.next(now if fired is None else max(now, timetable.answered(fired)))
    if next_run_at is None:
        raise InvalidSchedule("has no occurrence left")
    return _Timing(plan.kind, plan.canonical, next_run_at, lost)


def _same_but_jitter(job: Job, plan: checks.Plan, wanted: Mapping[str, Any], policy: Policy) -> bool:
    return (
        (plan.canonical, wanted["timezone"], wanted["start_at"], wanted["end_at"], policy.dst_gap, policy.dst_fold)
        == (job.schedule, job.timezone, job.start_at, job.end_at, job.policy.dst_gap, job.policy.dst_fold)
    )  # fmt: skip


def _overdue(job: Job, now: datetime) -> tuple[datetime, datetime, int]:
    """The first, the last and the number of the old timing's occurrences up to now that have not fired."""
    assert job.next_run_at is not None
    first = last = moment = job.next_run_at
    count = 0
    nothing_runs = Policy(missed_window="SKIP")
    try:
        timetable = timetable_of(job)
    except InvalidInput:  # its zone is gone: only the planned occurrence is known
        return first, last, 1
    fuel = Fuel.for_list(_MAX_LOST)
    while True:
        try:
            plan = plan_fire(timetable, expected=moment, now=now, policy=nothing_runs, misfire_grace=_NONE, fuel=fuel)
        except TooCostly:  # the count is a lower bound then
            return first, last, max(count, 1)
        count += sum(drop.count for drop in plan.drops) + len(plan.runs)
        last = max([last, *(drop.last for drop in plan.drops), *(at for at, _ in plan.runs)])
        if plan.next_run_at is None or plan.next_run_at > now:
            break
        moment = plan.next_run_at
    return first, last, count
