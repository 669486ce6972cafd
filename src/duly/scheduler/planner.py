"""From due jobs to one fire batch. No I/O: rows in, columns out.

Half a million jobs due at midnight share a few schedules, so equal inputs are planned once per batch; and one job that
cannot be planned (its zone is gone) is set aside with the reason instead of sinking the batch.

Late runs ask the governor. Those that it does not let go yet are deferred: the job moves on to its future, so that no
on-time occurrence ever stands behind a late one, and `catch_up` lets them go in their turn.
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

# Plain numbers: the database driver takes a flag for a sequence of flags.
_MISSED, _SERIAL = int(RunFlag.MISSED), int(RunFlag.SERIAL)


# A catch-up can make a thousand runs of one job, and walk far for them. Past either of these a batch is full, so that
# neither the transaction nor the event loop is held up.
MAX_RUNS = 5_000
MAX_SECONDS = 0.1
# What planning one job may take of the processor. Its fuel ends long before; this is for what burns none.
MAX_CPU_SECONDS = 0.05
_EACH_CPU_SECONDS = 0.00005

# The reason by which `fires/fire.sql` tells those that run later from those that never run.
DEFERRED = "deferred"


@dataclass(slots=True)
class BatchPlan:
    """What to fire, what could not become part of it, and what of it is late.

    `simple` are the jobs that simply have one run now: almost all of them, and the reason why midnight is quick.
    `fires` are the others, by shard.
    `rezoned` were planned by rules of their zone that have changed since, and go to where those of now put them.
    `held` are not due yet, and what becomes of them can only be told when they are: an earlier run is still unfinished.
    `costly` are those whose plan costs too much, by its fuel or by the time it took.
    `planned` is how many of the jobs it came to; the others are for another batch.
    """

    simple: SimpleFires = field(default_factory=SimpleFires)
    fires: dict[int, Fires] = field(default_factory=dict)
    parked: list[tuple[DueJob, str]] = field(default_factory=list)
    costly: list[tuple[DueJob, str]] = field(default_factory=list)
    rezoned: list[tuple[DueJob, datetime]] = field(default_factory=list)
    held: list[DueJob] = field(default_factory=list)
    planned: int = 0
    runs: int = 0
    late: int = 0
    deferred: int = 0
    dropped: int = 0


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
        if out_of_time or batch.runs >= MAX_RUNS:
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
            # Nothing in the plan is this job's own. (An interval has its own anchor, a jittered job its own offset.)
            # The kind is not part of the question: it follows from the schedule's text.
            anchor = job.created_at if job.kind == "rrule" and "DTSTART" not in job.schedule else None
            key = (job.schedule, job.next_run_at, job.timezone, job.policy, job.start_at, job.end_at, anchor, since)
        plan = plans.get(key) if key is not None else None
        if plan is None:
            try:
                # One that is fired ahead is planned as of its own time.
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
                # A fault of ours, and one job's all the same: the others fire.
                log.exception("job %s cannot be planned", job.job_id)
                batch.parked.append((job, f"cannot be planned: {type(error).__name__}: {error}"[:500]))
                continue
            finally:
                before, ended = ended, time.monotonic()
                out_of_time = ended > began + MAX_SECONDS
            if ended - before > MAX_CPU_SECONDS and _collections() == collected:
                # The others of this batch took no more of the processor than of the time: the rest is its own.
                own = time.thread_time() - began_cpu - (before - began)
                if own > MAX_CPU_SECONDS + _EACH_CPU_SECONDS * _handled(plan):
                    batch.costly.append((job, f"{COSTLY}: schedule: it took {own * 1000:.0f} ms to work out"))
                    continue
            if key is not None:
                plans[key] = plan
        _add(batch, job, plan, policy, governor)
    return batch


def _collections() -> int:
    """How often all objects were gone through for garbage: that takes its time, and is nobody's plan."""
    return int(gc.get_stats()[-1]["collections"])


def _handled(plan: FirePlan) -> int:
    """How many occurrences a plan is about: a long outage takes longer to plan than a single time."""
    return len(plan.runs) + min(MAX_RUNS, sum(drop.count for drop in plan.drops))


@lru_cache(maxsize=4096)
def _within(policy: Policy, catch_up_window_seconds: int) -> Policy:
    """The policy under the server's own window, where the job has none."""
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
        batch.held.append(job)
        return
    fire = batch.fires.get(job.shard) or batch.fires.setdefault(job.shard, Fires())
    fire.job_ids.append(job_id)
    fire.expected.append(job.next_run_at)
    fire.next_run_at.append(plan.next_run_at)
    fire.overlap.append(overlap)
    fire.max_queued.append(policy.max_queued)
    fire.versions.append(job.version)
    # Late ones come first.
    if runs and runs[0][1]:
        late = sum(missed for _, missed in runs)
        granted = late if governor is None else governor.take(late)
        batch.late += late
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
    """Runs that may have to follow one another carry the mark by which each lets the next one go."""
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
