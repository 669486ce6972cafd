"""Checks and plans a new job. No I/O: a request in, a row or the wrong fields out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from duly import checks
from duly.config import Settings
from duly.errors import InvalidInput
from duly.model import (
    DEFAULT_POLICY,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    JOB_RULES,
    NO_DEFAULTS,
    POLICY_FIELDS,
    Alerts,
    JobRequest,
    Policy,
    TaskDefaults,
    complete,
    without_repeated,
)
from duly.operations.rights import Bounds, Rights
from duly.store import ids
from duly.store.jobs import OWN_FIELDS, NewJob, is_noted
from duly.targets import check_target
from duly.timing import load_zone

#: The defaults of tasks, by name, as their workers offer them. A task without any is missing.
Offered = Mapping[str, TaskDefaults]
NOTHING_OFFERED: Offered = {}


def defaults_of(request: JobRequest, offered: Offered) -> TaskDefaults:
    """The defaults that fill in a request."""
    handler = request.handler
    return offered.get(handler, NO_DEFAULTS) if offered and isinstance(handler, str) else NO_DEFAULTS


def may_refuse(rights: Rights, bounds: Bounds | None) -> bool:
    """Whether `check_rights` may refuse any job at all."""
    return bounds is not None or not rights.commands


def check_rights(
    request: JobRequest, rights: Rights, bounds: Bounds | None, offered: Offered = NOTHING_OFFERED
) -> None:
    """Refuses a job that the caller's rights or the tenant's bounds do not allow."""
    rights.check_handler(request.handler)
    if bounds is not None:
        queue = defaults_of(request, offered).queue if request.queue is None else request.queue
        bounds.check(request.handler, queue)


class _Shape(NamedTuple):
    """The checked and planned fields that all jobs of one shape share."""

    default_name: str
    first: datetime | None
    canonical: str
    common: tuple[Any, ...]
    labels: str | None
    policy: Policy
    sent: str
    """The schedule as the client sent it: with the task's default for `dst_fold` it may be another instant."""


def _shared(kind: type) -> Callable[[JobRequest], tuple[Any, ...]]:
    """A reader of the fields of one type that all jobs of a shape share and that are stored unchanged."""
    return attrgetter(*(name for name, rule in JOB_RULES.items() if rule.kind is kind and name in _SHAPE_FIELDS))


_SHAPE_FIELDS = NewJob._fields[OWN_FIELDS:]
_shared_strings, _shared_numbers = _shared(str), _shared(int)


class Preparing:
    """Prepares the jobs of one call. Their shape is checked and planned once, because that is most of the cost."""

    def __init__(
        self, now: datetime, *, tenant: str, settings: Settings, shard_count: int, offered: Offered = NOTHING_OFFERED
    ) -> None:
        self.now = now
        self._offered = offered
        # Requests with a dedupe_key that a task's defaults fill in.
        self._filled: dict[UUID, JobRequest] = {}
        self._tenant = tenant
        self._settings = settings
        self._shard_count = shard_count
        #: Whether a job is among them whose submit is noted in the audit trail.
        self.noted = False
        self._payload_max_bytes = settings.payload_max_bytes
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        # By identity. Each policy is kept, so that no other object can get its identity.
        self._policies: dict[int, tuple[Policy, str | None]] = {}

    def prepare(self, job_id: UUID, request: JobRequest) -> NewJob:
        """Returns the row of the function `prepare`, at less cost if the job's shape is known."""
        shard = ids.shard_of(job_id, self._shard_count)
        try:
            key = self._shape_key(request)
            shape = None if key is None else self._shapes.get(key)
        except (AttributeError, TypeError, ValueError, OverflowError):
            # A value that cannot be compared or written is wrong, and `prepare` names its field.
            key = shape = None
        if shape is not None:
            return self._shaped(job_id, shard, request, shape)
        row, policy, sent = self._whole(job_id, request, shard)
        # Jitter differs from job to job, and so does the first time that results from it.
        is_own = policy.jitter_seconds and not row.immediate and not isinstance(request.schedule, datetime)
        if key is not None and not is_own:
            default_name = request.handler if isinstance(request.handler, str) else row.name
            common = row[OWN_FIELDS:]
            self._shapes[key] = _Shape(default_name, row.next_run_at, row.schedule, common, row.labels, policy, sent)
        return row

    def prepare_one(self, job_id: UUID, request: JobRequest) -> NewJob:
        """`prepare` for a call with a single job."""
        return self._whole(job_id, request, ids.shard_of(job_id, self._shard_count))[0]

    def _whole(self, job_id: UUID, request: JobRequest, shard: int) -> _Whole:
        defaults = defaults_of(request, self._offered)
        if defaults is not NO_DEFAULTS and request.dedupe_key is not None:
            self._filled[job_id] = request
        whole = _prepare(job_id, request, defaults, self.now, tenant=self._tenant, settings=self._settings, shard=shard)
        self.noted = self.noted or is_noted(whole[0])
        return whole

    def is_same(self, row: NewJob, fingerprint: bytes | None) -> bool:
        """Whether the job that has the row's dedupe_key is the one that was asked for.

        What was sent decides. But a client may read a job and send it back with the fields that the job got from its
        task, or leave out what it used to send: so a field that has the task's default is the same as one left out.
        """
        if fingerprint == row.fingerprint:
            return True
        request = self._filled.get(row.job_id)
        if request is None:
            return False
        request = replace(request, start_at=row.start_at, end_at=row.end_at)
        defaults = defaults_of(request, self._offered)
        others = complete(request, defaults), without_repeated(request, defaults)
        return any(checks.fingerprint(one, row.payload, row.labels, row.schedule) == fingerprint for one in others)

    def _shaped(self, job_id: UUID, shard: int, request: JobRequest, shape: _Shape) -> NewJob:
        """Checks the job's own fields, in the order of the function `prepare`, and adds the fields of its shape."""
        default_name, first, canonical, common, labels, policy, sent = shape
        name = default_name if request.name is None else checks.check_text("name", request.name, longest=200)
        payload = checks.payload_text(request.payload, limit=self._payload_max_bytes)
        if policy.secret_fields:
            checks.check_secrets(request.payload, policy)
        if request.payload_ref is not None:
            checks.check_text("payload_ref", request.payload_ref, longest=2048)
        if isinstance(request.schedule, datetime):
            jitter = policy.jitter_seconds
            first, canonical = checks.plan_moment(request.schedule, job_id=job_id, jitter_seconds=jitter)
            sent = canonical
        fingerprint = None
        if request.dedupe_key is not None:
            checks.check_text("dedupe_key", request.dedupe_key, longest=200)
            fingerprint = checks.fingerprint(request, payload, labels, sent)
            if request.handler in self._offered:
                self._filled[job_id] = request
        own = (job_id, shard, name, payload, request.payload_ref, request.dedupe_key, fingerprint, first, canonical)
        return NewJob._make(own + common)

    def _shape_key(self, request: JobRequest) -> tuple[object, ...] | None:
        """The key of a job's shape. None: the job is of a rare kind and is prepared by itself.

        Jobs with equal keys must have the same shape. `True` equals 1, and the two moments of a repeated hour equal
        each other, so jobs with such values have no key.
        """
        schedule = request.schedule
        when: object = schedule
        if schedule is not None and type(schedule) is not str:
            if not isinstance(schedule, datetime):
                return None
            when = datetime
        if type(request.handler) is not str or request.start_at is not None or request.end_at is not None:
            return None
        policy = None if request.policy is DEFAULT_POLICY else self._policy_text(request.policy)
        labels = tuple(request.labels.items()) if request.labels else None
        numbers = _shared_numbers(request)
        for number in numbers:
            if type(number) is not int and number is not None:
                return None
        return (request.handler, when, policy, request.chosen, labels, numbers, _shared_strings(request))

    def _policy_text(self, policy: Policy) -> str | None:
        known = self._policies.get(id(policy))
        if known is None:
            known = self._policies[id(policy)] = (policy, policy.to_stored())
        return known[1]


def problems_of(
    request: JobRequest,
    *,
    now: datetime,
    payload_max_bytes: int | None = None,
    known: str | None = None,
    defaults: TaskDefaults = NO_DEFAULTS,
) -> list[InvalidInput]:
    """The errors of all wrong fields, each checked by itself. Only for a refused job: all checks are done again.

    `known` is a field already known to be wrong: a schedule that took too long is not worked out once more. `defaults`:
    those of the request's task.
    """
    request = complete(request, defaults)
    found: dict[str, InvalidInput] = {}

    def judge(check: Callable[[], object]) -> bool:
        try:
            check()
        except InvalidInput as error:
            found.setdefault(error.field, error)
            return False
        return True

    if isinstance(request.handler, Mapping):
        judge(partial(check_target, request.handler))
    else:
        judge(partial(checks.check_text, "handler", request.handler, longest=200))
    for name in JOB_RULES:
        judge(partial(checks.check_own_fields, {name: getattr(request, name)}))
    if payload_max_bytes is not None:
        judge(partial(checks.payload_text, request.payload, limit=payload_max_bytes))
    if request.labels:
        judge(partial(checks.check_labels, request.labels))
    chosen: dict[str, Any] = {name: getattr(request.policy, name) for name in POLICY_FIELDS}
    right = {
        name: value
        for name, value in chosen.items()
        if judge(partial(checks.check_policy, replace(DEFAULT_POLICY, **{name: value})))
    }
    if "alerts" not in right and isinstance(request.policy.alerts, Alerts):
        for name, value in request.policy.alerts.items():
            judge(partial(checks.check_policy, replace(DEFAULT_POLICY, alerts=Alerts({name: value}))))
    if "secret_fields" in right:
        judge(partial(checks.check_secrets, request.payload, request.policy))
    zoned = judge(partial(load_zone, request.timezone))
    bounds = {name: getattr(request, name) for name in ("start_at", "end_at")}
    bounds = {name: value for name, value in bounds.items() if judge(partial(checks.check_moment, name, value))}
    if len(bounds) == 2 and not judge(partial(checks.check_span, **bounds)):
        bounds = {}
    # The schedule is checked with its correct bounds, zone and policy fields; defaults replace the wrong ones.
    timing = replace(
        request,
        timezone=request.timezone if zoned else "UTC",
        policy=replace(DEFAULT_POLICY, **right),
        start_at=bounds.get("start_at"),
        end_at=bounds.get("end_at"),
    )
    if known != "schedule":
        judge(partial(checks.plan_schedule, timing, now=now, job_id=UUID(int=0), created_at=now))
    return list(found.values())


def prepare(job_id: UUID, request: JobRequest, now: datetime, *, tenant: str, settings: Settings, shard: int) -> NewJob:
    """Checks every field, plans the first occurrence and returns the row. Only general defaults fill in the request."""
    return _prepare(job_id, request, NO_DEFAULTS, now, tenant=tenant, settings=settings, shard=shard)[0]


class _Whole(NamedTuple):
    """A prepared job, its policy, and its schedule as the client sent it."""

    row: NewJob
    policy: Policy
    sent: str


def _prepare(
    job_id: UUID,
    asked: JobRequest,
    defaults: TaskDefaults,
    now: datetime,
    *,
    tenant: str,
    settings: Settings,
    shard: int,
) -> _Whole:
    request = asked if defaults is NO_DEFAULTS else complete(asked, defaults)
    handler = request.handler
    target = None
    if isinstance(handler, Mapping):
        handler, target, default_name = check_target(handler)
    else:
        default_name = checks.check_text("handler", handler, longest=200)
    own = {name: getattr(request, name) for name in JOB_RULES}
    if own["queue"] is None:
        own["queue"] = DEFAULT_QUEUE
    if own["priority"] is None:
        own["priority"] = DEFAULT_PRIORITY
    checks.check_own_fields(own)
    payload = checks.payload_text(request.payload, limit=settings.payload_max_bytes)
    checks.check_text("tenant", tenant, longest=100)
    policy = checks.check_policy(request.policy)
    checks.check_secrets(request.payload, policy)
    labels = checks.check_labels(request.labels) if request.labels else None
    if request.start_at is not None or request.end_at is not None:
        start_at, end_at = checks.check_span(request.start_at, request.end_at)
        request = replace(request, start_at=start_at, end_at=end_at)
        own |= {"start_at": start_at, "end_at": end_at}
    plan = checks.plan_schedule(request, now=now, job_id=job_id, created_at=now)
    sent, fingerprint = plan.canonical, None
    if request.dedupe_key is not None:
        if request is not asked:
            asked = replace(asked, start_at=request.start_at, end_at=request.end_at)
            sent = _canonical(asked, plan.canonical, now, job_id)
        fingerprint = checks.fingerprint(asked, payload, labels, sent)
    own |= {
        "name": default_name if request.name is None else request.name,
        "schedule": plan.canonical,
        "labels": labels,
    }
    row = NewJob(
        job_id=job_id,
        shard=shard,
        payload=payload,
        fingerprint=fingerprint,
        next_run_at=plan.first,
        tenant=tenant,
        handler=handler,
        target=target,
        kind=plan.kind,
        policy=policy.to_stored(),
        immediate=plan.first is None,
        **own,
    )
    return _Whole(row, policy, sent)


def _canonical(asked: JobRequest, filled: str, now: datetime, job_id: UUID) -> str:
    """The canonical schedule of a request by the policy that was sent; `filled` is that of the policy it got."""
    try:
        return checks.plan_schedule(asked, now=now, job_id=job_id, created_at=now).canonical
    except InvalidInput:  # it can be planned with the task's defaults only
        return filled
