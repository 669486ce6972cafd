"""The defaults that a worker offers with its tasks: those that a submit would accept."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from duly import checks
from duly.errors import InvalidInput
from duly.model import NO_DEFAULTS, TaskDefaults
from duly.worker.handler.task import Task

log = logging.getLogger("duly.worker")


def offered_defaults(tasks: Mapping[str, Task]) -> dict[str, TaskDefaults]:
    """The defaults of each task. An invalid one is said here, and not to everybody who submits a job."""
    return {name: _valid(name, task.defaults) for name, task in tasks.items()}


def _valid(name: str, defaults: TaskDefaults) -> TaskDefaults:
    try:
        checks.check_own_fields({"queue": defaults.queue, "priority": defaults.priority})
        policy = checks.check_policy(defaults.policy)
    except InvalidInput as error:
        log.error("task %r: its default for %s; its jobs get the general defaults until that is corrected", name, error)
        return NO_DEFAULTS
    return replace(defaults, policy=policy)
