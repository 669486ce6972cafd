"""From due jobs to one fire batch. No I/O: rows in, columns out.

Half a million jobs due at midnight share a few schedules, so equal inputs are planned once per batch; and one job that
cannot be planned (its zone is gone) is set aside with the reason instead of sinking the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly.errors import InvalidInput
from duly.model import policy_from_stored
from duly.states import RunFlag
from duly.store.fires import DueJob, Fire
from duly.timing import FirePlan, make_timetable, plan_fire

# Plain numbers: the database driver takes a flag for a sequence of flags.
_MISSED, _SERIAL = int(RunFlag.MISSED), int(RunFlag.SERIAL)


@dataclass(slots=True)
class Batch:
    """A fire, and what could not become part of it."""

    fire: Fire = field(default_factory=Fire)
    parked: list[tuple[UUID, datetime, str]] = field(default_factory=list)


def plan_batch(jobs: Sequence[DueJob], *, now: datetime, misfire_grace: timedelta) -> Batch:
    batch = Batch()
    plans: dict[Any, FirePlan] = {}
    for job in jobs:
        policy = policy_from_stored(job.policy)
        key: Any = None
        if policy.jitter_seconds == 0 and job.max_runs is None and job.kind != "interval":
            # Nothing in the plan is this job's own. (An interval has its own anchor, a jittered job its own offset.)
            anchor = job.created_at if job.kind == "rrule" and "DTSTART" not in job.schedule else None
            key = (job.schedule, job.timezone, job.policy, job.start_at, job.end_at, job.next_run_at, job.kind, anchor)
        plan = plans.get(key) if key is not None else None
        if plan is None:
            try:
                plan = _plan(job, now=now, misfire_grace=misfire_grace)
            except InvalidInput as error:
                batch.parked.append((job.job_id, job.next_run_at, f"cannot be planned: {error}"))
                continue
            if key is not None:
                plans[key] = plan
        _add(batch.fire, job, plan, overlap=policy.overlap, max_queued=policy.max_queued)
    return batch


def _plan(job: DueJob, *, now: datetime, misfire_grace: timedelta) -> FirePlan:
    policy = policy_from_stored(job.policy)
    timetable = make_timetable(
        kind=job.kind,
        schedule=job.schedule,
        timezone=job.timezone,
        anchor=job.start_at or job.created_at,
        start_at=job.start_at,
        end_at=job.end_at,
        policy=policy,
        job_id=job.job_id,
    )
    return plan_fire(
        timetable,
        expected=job.next_run_at,
        now=now,
        policy=policy,
        run_count=job.run_count,
        max_runs=job.max_runs,
        misfire_grace=misfire_grace,
    )


def _add(fire: Fire, job: DueJob, plan: FirePlan, *, overlap: str, max_queued: int) -> None:
    fire.job_ids.append(job.job_id)
    fire.expected.append(job.next_run_at)
    fire.next_run_at.append(plan.next_run_at)
    fire.overlap.append(overlap)
    fire.max_queued.append(max_queued)
    # Runs that may have to follow one another carry the mark by which each lets the next one go.
    serial = overlap == "queue" or (overlap == "skip" and len(plan.runs) > 1)
    for place, (scheduled_at, missed) in enumerate(plan.runs, start=1):
        fire.run_job_ids.append(job.job_id)
        fire.run_scheduled_at.append(scheduled_at)
        fire.run_flags.append((_MISSED if missed else 0) | (_SERIAL if serial else 0))
        fire.run_place.append(place)
    for drop in plan.drops:
        fire.drop_job_ids.append(job.job_id)
        fire.drop_first.append(drop.first)
        fire.drop_last.append(drop.last)
        fire.drop_count.append(drop.count)
        fire.drop_reason.append(drop.reason)
