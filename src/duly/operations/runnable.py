"""Can some live worker run this job? The one answer to that question, from what live workers say of themselves.

A worker's row in `duly.nodes` names its queues, its tasks, its kinds of targets, the commands that it may run, and the
tenants that it serves, if not all. What a job demands is its tenant, its queue and its handler (`store/demands.py`); so
the question is asked per demand, not per job. No I/O.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duly.config import check_programs
from duly.model import NodeStatus, Unrunnable
from duly.store.demands import Demand
from duly.worker.targets.programs import may_start

#: The kinds of handlers.
KINDS = ("task", "http", "command")
# Queues that one sentence names.
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Ability:
    """What a live worker can run. `tenants` is None for all; `programs` are patterns, None for all programs."""

    queues: frozenset[str]
    tasks: frozenset[str]
    kinds: frozenset[str]
    tenants: frozenset[str] | None
    programs: tuple[str, ...] | None

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Ability:
        """By the row of the worker. Workers of 0.1.0 do not say which commands they run: all, if any."""
        kinds = set(info.get("targets") or ())
        commands = info.get("commands", True)
        if not commands:
            kinds.discard("command")
        tenants = info.get("tenants")
        return cls(
            frozenset(info.get("queues") or ()),
            frozenset(info.get("tasks") or ()),
            frozenset(kinds),
            None if tenants is None else frozenset(tenants),
            tuple(commands) if isinstance(commands, list) else None,
        )

    def has(self, demand: Demand) -> bool:
        """Whether it has the task, or calls such targets."""
        if demand.kind == "task":
            return demand.handler in self.tasks
        if demand.kind not in self.kinds:
            return False
        return demand.kind != "command" or self.programs is None or may_start(demand.handler, self.programs)

    def serves(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


def abilities_of(nodes: Iterable[NodeStatus]) -> list[Ability]:
    """The abilities of the live workers; workers of one application have the same."""
    return list(dict.fromkeys(Ability.of(node.info) for node in nodes if node.kind == "worker" and node.alive))


def can_run(demand: Demand, abilities: Iterable[Ability]) -> bool:
    return any(
        demand.queue in ability.queues and ability.has(demand) and ability.serves(demand.tenant)
        for ability in abilities
    )


def unrunnable(demands: Iterable[Demand], nodes: Iterable[NodeStatus]) -> tuple[Unrunnable, ...]:
    """The demands that no live worker meets, those of most jobs first, each with the reason and the next step."""
    abilities = abilities_of(nodes)
    found = [_described(demand, abilities) for demand in demands if not can_run(demand, abilities)]
    return tuple(sorted(found, key=lambda one: (-one.jobs - one.runs, one.tenant, one.queue, one.kind, one.handler)))


def _described(demand: Demand, abilities: Sequence[Ability]) -> Unrunnable:
    reason, next_step = _reason(demand, abilities)
    example = "" if demand.job_name is None else f" (such as {demand.job_name!r}, {demand.job_id})"
    return Unrunnable(
        tenant=demand.tenant,
        queue=demand.queue,
        kind=demand.kind,
        handler=demand.handler,
        jobs=demand.jobs,
        runs=demand.runs,
        at_least=demand.at_least,
        job_id=demand.job_id,
        job_name=demand.job_name,
        message=f"{_counted(demand)} of queue {demand.queue!r}{example} cannot run: {reason}",
        next_step=next_step,
    )


def _counted(demand: Demand) -> str:
    parts = []
    if demand.jobs:
        more = "at least " if demand.at_least else ""
        parts.append(f"{more}{demand.jobs} active job{'s' if demand.jobs > 1 else ''}")
    if demand.runs:
        parts.append(f"{demand.runs} waiting run{'s' if demand.runs > 1 else ''}")
    return " and ".join(parts) or "a job"


def _reason(demand: Demand, abilities: Sequence[Ability]) -> tuple[str, str]:
    """Why no live worker can run such a job, and what to do. Names no other tenant."""
    what, start = _WORDS.get(demand.kind, _WORDS["task"])(demand.handler)
    queue = "" if demand.queue == "default" else f" --queue {demand.queue}"
    if not abilities:
        return "no worker is alive", f"start one {start}{queue}"
    having = [ability for ability in abilities if ability.has(demand)]
    if not having:
        return f"no live worker {what}", f"start one {start}{queue}"
    serving = [ability for ability in having if demand.queue in ability.queues]
    if not serving:
        queues = sorted({queue for ability in having for queue in ability.queues})
        named = ", ".join(queues[:_MAX_NAMED]) + (", …" if len(queues) > _MAX_NAMED else "")
        return (
            f"a live worker {what}, but only for the queues {named}",
            f"start one with --queue {demand.queue}, or move the jobs to a queue that it serves",
        )
    return f"each live worker that {what} for this queue serves other tenants only", "start one that serves all tenants"


def _of_task(name: str) -> tuple[str, str]:
    return f"has the task {name!r}", "whose app has it: duly worker --app module:app"


def _of_endpoints(_: str) -> tuple[str, str]:
    return "calls HTTP endpoints", "where this is installed: pip install 'duly[http]'; then: duly worker"


def _of_commands(program: str) -> tuple[str, str]:
    try:
        (pattern,) = check_programs([program])
        option = f"--allow-command {shlex.quote(pattern)}"
    except ValueError:  # a relative path, for example, which no pattern names
        option = "--allow-commands"
    return f"runs the command {program!r}", f"that allows it: duly worker {option}"


_WORDS = {"task": _of_task, "http": _of_endpoints, "command": _of_commands}
