"""From due jobs to one fire batch. No I/O: rows in, columns out.

Half a million jobs due at midnight share a few schedules, so equal inputs are planned once per batch; and one job that
cannot be planned (its zone is gone) is set aside with the reason, so that the rest of the batch fires.

The governor limits late runs. Late runs beyond its limit are deferred: the job moves on to its next occurrence, so that
no on-time occurrence waits behind a late one, and `catch_up` releases the deferred runs later.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from duly.errors import InvalidInput, TooCostly
from duly.model import Policy, policy_from_stored
from duly.scheduler.governor import Governor
from duly.states import RunFlag
from duly.store.fires import COSTLY, DueJob, Fires, SimpleFires
from duly.timing import Definition, FirePlan, carried, changed_since, is_rezoned, plan_fire

log = logging.getLogger("duly.scheduler")

# Plain numbers: the database driver takes an enum flag for a sequence of flags.
_MISSED, _SERIAL = int(RunFlag.MISSED), int(RunFlag.SERIAL)


# One job that catches up can have a thousand runs, and a long walk to them. A batch ends at this many runs or after
# this much planning, so that it holds up neither the transaction nor the event loop.
MAX_BATCH_RUNS = 5_000
MAX_PLANNING_SECONDS = 0.1
# Processor time for planning one job, and for each occurrence of its plan. Fuel ends long before that; this limit is
# for code that forgets to burn fuel.
MAX_CPU_SECONDS = 0.05
_CPU_SECONDS_PER_OCCURRENCE = 0.00005

# The reason by which `fires/fire.sql` tells deferred occurrences, which run later, from dropped ones, which never run.
DEFERRED = "deferred"


@dataclass(slots=True)
class BatchPlan:
    """The fires of a batch of jobs, and the jobs that are not fired.

    `simple`: jobs with exactly one run, on time. Almost all jobs are, which is why midnight is quick.
    `fires`: all other fires, by shard.
    `parked`: jobs that cannot be planned, with the reason.
    `costly`: jobs whose plan costs too much fuel or processor time, with the reason.
    `rezoned`: jobs planned by rules of their zone that have changed since, with the time by the present rules.
    `undecided`: jobs that are not due yet and have an unfinished earlier run: their overlap cannot be decided yet.
    `planned`: how many of the jobs were planned; the others are for another batch.
    """

    simple: SimpleFires = field(default_factory=SimpleFires)
    fires: dict[int, Fires] = field(default_factory=dict)
    parked: list[tuple[DueJob, str]] = field(default_factory=list)
    costly: list[tuple[DueJob, str]] = field(default_factory=list)
    rezoned: list[tuple[DueJob, datetime]] = field(default_factory=list)
    undecided: list[DueJob] = field(default_factory=list)
    planned: int = 0
    runs: int = 0
    deferred: int = 0


def plan_batch(
    jobs: Sequence[DueJob],
    *,
    now: datetime,
    misfire_grace: timedelta,
    catch_up_window_seconds: int | None = None,
    governor: Governor | None = None,
) -> BatchPlan:
    batch = BatchPlan()
    plans: dict[Any, FirePlan] = {}
    began, began_cpu, collected = time.monotonic(), time.thread_time(), _collections()
    ended = began
    out_of_time = False
    policies: dict[str | None, Policy] = {}
    any_rezoned = changed_since() is not None
    for job in jobs:
        if out_of_time or batch.runs >= MAX_BATCH_RUNS:
            break
        batch.planned += 1
        policy = policies.get(job.policy)
        if policy is None:
            try:
                policy = policies.setdefault(job.policy, policy_from_stored(job.policy))
            except InvalidInput as error:
                batch.parked.append((job, f"cannot be planned: {error}"))
                continue
        if catch_up_window_seconds is not None and job.kind != "once":
            policy = _within(policy, catch_up_window_seconds)
        since = job.since if policy.dst_gap == "skip" else None
        key: Any = None
        shared = policy.jitter_seconds == 0 and job.max_runs is None and job.kind != "interval"
        if shared and not (any_rezoned and is_rezoned(job.kind, job.schedule, job.timezone)):
            # Nothing in the plan is specific to this job. (An interval has its own anchor, a jittered job its offset.)
            # The kind is not part of the key: it follows from the schedule's text.
            anchor = job.created_at if job.kind == "rrule" and "DTSTART" not in job.schedule else None
            key = (job.schedule, job.next_run_at, job.timezone, job.policy, job.start_at, job.end_at, anchor, since)
        plan = plans.get(key) if key is not None else None
        if plan is None:
            try:
                # An occurrence fired ahead is planned as of its own time.
                at = max(now, job.next_run_at)
                definition = Definition.of(job, policy)
                if any_rezoned:
                    moved = carried(definition, job.job_id, job.next_run_at, planned=job.since, now=at)
                    if moved != job.next_run_at:
                        batch.rezoned.append((job, moved))
                        continue
                plan = plan_fire(
                    definition.timetable(job.job_id),
                    expected=job.next_run_at,
                    now=at,
                    policy=policy,
                    run_count=job.run_count,
                    max_runs=job.max_runs,
                    misfire_grace=misfire_grace,
                    since=since,
                )
            except TooCostly as error:
                batch.costly.append((job, f"{COSTLY}: {error}"))
                continue
            except InvalidInput as error:
                batch.parked.append((job, f"cannot be planned: {error}"))
                continue
            except Exception as error:
                # A bug of ours, but it concerns one job only: the others fire.
                log.exception("job %s cannot be planned", job.job_id)
                batch.parked.append((job, f"cannot be planned: {type(error).__name__}: {error}"[:500]))
                continue
            finally:
                before, ended = ended, time.monotonic()
                out_of_time = ended > began + MAX_PLANNING_SECONDS
            if ended - before > MAX_CPU_SECONDS and _collections() == collected:
                # The jobs before it took at most as much processor time as real time: the rest is this job's own.
                own = time.thread_time() - began_cpu - (before - began)
                if own > MAX_CPU_SECONDS + _CPU_SECONDS_PER_OCCURRENCE * _handled(plan):
                    batch.costly.append((job, f"{COSTLY}: schedule: it took {own * 1000:.0f} ms to work out"))
                    continue
            if key is not None:
                plans[key] = plan
        _add(batch, job, plan, policy, governor)
    return batch


def _collections() -> int:
    """The number of full garbage collections so far: their processor time belongs to no plan."""
    return int(gc.get_stats()[-1]["collections"])


def _handled(plan: FirePlan) -> int:
    """The number of occurrences a plan covers: a long outage takes longer to plan than one occurrence."""
    return len(plan.runs) + min(MAX_BATCH_RUNS, sum(drop.count for drop in plan.drops))


@lru_cache(maxsize=4096)
def _within(policy: Policy, catch_up_window_seconds: int) -> Policy:
    """The policy with the server's catch-up window, unless the job has one of its own."""
    if policy.catch_up_window_seconds is not None:
        return policy
    return replace(policy, catch_up_window_seconds=catch_up_window_seconds)


def _add(batch: BatchPlan, job: DueJob, plan: FirePlan, policy: Policy, governor: Governor | None) -> None:
    job_id, overlap, runs = job.job_id, policy.overlap, plan.runs
    if len(runs) == 1 and not runs[0][1] and not plan.drops and job.ctid and (not job.busy or overlap == "parallel"):
        simple = batch.simple
        simple.ctids.append(job.ctid)
        simple.versions.append(job.version)
        simple.job_ids.append(job_id)
        simple.expected.append(job.next_run_at)
        simple.next_run_at.append(plan.next_run_at)
        simple.run_flags.append(_SERIAL if overlap == "queue" else 0)
        simple.shards.append(job.shard)
        return
    if not job.due:
        batch.undecided.append(job)
        return
    fire = batch.fires.get(job.shard) or batch.fires.setdefault(job.shard, Fires())
    fire.job_ids.append(job_id)
    fire.expected.append(job.next_run_at)
    fire.next_run_at.append(plan.next_run_at)
    fire.overlap.append(overlap)
    fire.max_queued.append(policy.max_queued)
    fire.versions.append(job.version)
    # Late runs come first in a plan.
    if runs and runs[0][1]:
        late = sum(missed for _, missed in runs)
        granted = late if governor is None else governor.take(late)
        if granted < late:
            batch.deferred += late - granted
            _add_drop(fire, job.job_id, runs[granted][0], runs[late - 1][0], late - granted, DEFERRED)
            runs = runs[:granted] + runs[late:]
    batch.runs += len(runs)
    for number, (scheduled_at, missed) in enumerate(runs, start=1):
        fire.run_job_ids.append(job.job_id)
        fire.run_scheduled_at.append(scheduled_at)
        fire.run_flags.append(run_flags(policy, missed=missed, alone=len(plan.runs) == 1))
        fire.run_number.append(number)
    for drop in plan.drops:
        _add_drop(fire, job.job_id, drop.first, drop.last, drop.count, drop.reason)


def run_flags(policy: Policy, *, missed: bool, alone: bool) -> int:
    """SERIAL marks runs of which one may have to wait for another: when one ends, the next is released."""
    serial = policy.overlap == "queue" or (
        policy.overlap == "skip" and (not alone or (missed and policy.missed_window == "RUN_ALL"))
    )
    return (_MISSED if missed else 0) | (_SERIAL if serial else 0)


def _add_drop(fire: Fires, job_id: UUID, first: datetime, last: datetime, count: int, reason: str) -> None:
    fire.drop_job_ids.append(job_id)
    fire.drop_first.append(first)
    fire.drop_last.append(last)
    fire.drop_count.append(count)
    fire.drop_reason.append(reason)
