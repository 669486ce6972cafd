"""A task's own defaults: the queue, priority and policy of its jobs wherever the submitter leaves them out.

A field of a job comes from the first of these that sets it: the request, the task, the general defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from duly.errors import InvalidInput
from duly.model.fields import Rule
from duly.model.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, JOB_RULES, JobRequest
from duly.model.policy import DEFAULT_POLICY, POLICY_FIELDS, POLICY_RULES, Policy, from_stored, policy_with


@dataclass(frozen=True, slots=True)
class TaskDefaults:
    """The defaults that a task sets. A field that has the general default is not set."""

    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    policy: Policy = DEFAULT_POLICY

    def to_stored(self) -> str | None:
        """What is set, as JSON; None if nothing is."""
        own = {name: value for name in _OWN if (value := getattr(self, name)) != JOB_RULES[name].default}
        policy = self.policy.to_stored()
        if policy is not None:
            own["policy"] = json.loads(policy)
        return json.dumps(own, separators=(",", ":")) if own else None

    @classmethod
    def from_stored(cls, stored: object) -> TaskDefaults:
        """The defaults of a stored document. What cannot be read is left out: jobs get the general default instead."""
        if not isinstance(stored, Mapping):
            return NO_DEFAULTS
        own = _readable(stored, {name: JOB_RULES[name] for name in _OWN})
        policy = stored.get("policy")
        chosen = _readable(policy, POLICY_RULES) if isinstance(policy, Mapping) else {}
        return cls(policy=policy_with(DEFAULT_POLICY, chosen) if chosen else DEFAULT_POLICY, **own)

    def __bool__(self) -> bool:
        return self != NO_DEFAULTS


_OWN = ("queue", "priority")
#: The fields of a job for which a task can have a default.
TASK_FIELDS = frozenset(_OWN) | POLICY_FIELDS
NO_DEFAULTS = TaskDefaults()


def complete(request: JobRequest, defaults: TaskDefaults = NO_DEFAULTS) -> JobRequest:
    """The request with the defaults in the fields that it leaves out. The result leaves none out."""
    if request.is_complete:
        return request
    return replace(
        request,
        queue=defaults.queue if request.queue is None else request.queue,
        priority=defaults.priority if request.priority is None else request.priority,
        policy=_policy_over(defaults.policy, request.policy, request.chosen),
        chosen=POLICY_FIELDS,
    )


def without_repeated(request: JobRequest, defaults: TaskDefaults) -> JobRequest:
    """The request without the fields that only repeat the task's defaults."""
    same = {
        name
        for name in POLICY_FIELDS
        if getattr(request.policy, name) == (own := getattr(defaults.policy, name))
        and own != getattr(DEFAULT_POLICY, name)
    }
    return replace(
        request,
        queue=None if request.queue == defaults.queue else request.queue,
        priority=None if request.priority == defaults.priority else request.priority,
        policy=replace(request.policy, **{name: getattr(DEFAULT_POLICY, name) for name in same}),
        chosen=request.chosen - same,
    )


def _policy_over(base: Policy, asked: Policy, chosen: frozenset[str]) -> Policy:
    if base is DEFAULT_POLICY:
        return asked
    if asked is DEFAULT_POLICY and not chosen:
        return base
    changes = {
        name: value
        for name in POLICY_RULES
        if (value := getattr(asked, name)) != getattr(DEFAULT_POLICY, name) or name in chosen
    }
    return policy_with(base, changes)


def _readable(stored: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, rule in rules.items():
        if name not in stored:
            continue
        try:
            value = from_stored(rule, stored[name])
        except InvalidInput:
            continue
        if not isinstance(value, str) or rule.choices or rule.minimum <= len(value) <= rule.maximum:
            read[name] = value
    return read
