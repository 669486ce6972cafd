"""Planning a batch of due jobs: equal jobs are planned once, and no job is planned as a different one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from duly.scheduler.planner import BatchPlan, plan_batch
from duly.states import RunFlag
from duly.store.fires import DueJob

NOW = datetime(2030, 5, 5, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
JOB = DueJob(
    UUID(int=1), "cron", "0 * * * *", "UTC", None, None, None, NOW - 24 * HOUR, NOW, None, 0, NOW, NOW - HOUR, (0, 1),
    busy=False,
)  # fmt: skip


def plan(*jobs: DueJob) -> BatchPlan:
    return plan_batch(jobs, now=NOW, misfire_grace=timedelta(seconds=10))


def test_jobs_that_differ_in_what_they_may_run_end_each_by_its_own() -> None:
    jobs = [JOB, replace(JOB, job_id=UUID(int=2), max_runs=1), replace(JOB, job_id=UUID(int=3), max_runs=2)]
    assert plan(*jobs).simple.next_run_at == [NOW + HOUR, None, NOW + HOUR]
    assert plan(*reversed(jobs)).simple.next_run_at == [NOW + HOUR, None, NOW + HOUR]


def test_jobs_that_differ_in_jitter_zone_or_bounds_are_planned_each_by_its_own() -> None:
    berlin = replace(JOB, job_id=UUID(int=2), schedule="0 12,14 * * *", timezone="Europe/Berlin")
    utc = replace(berlin, job_id=UUID(int=3), timezone="UTC")
    ends = replace(JOB, job_id=UUID(int=4), end_at=NOW)
    following = plan(JOB, berlin, utc, ends).simple.next_run_at
    assert following == [NOW + HOUR, NOW + 22 * HOUR, NOW + 2 * HOUR, None]


@pytest.mark.parametrize(("overlap", "flags"), [("skip", 0), ("parallel", 0), ("queue", int(RunFlag.SERIAL))])
def test_one_that_others_may_wait_for_is_marked(overlap: str, flags: int) -> None:
    assert plan(replace(JOB, policy=f'{{"overlap":"{overlap}"}}')).simple.run_flags == [flags]


def test_what_may_be_running_is_not_simple_unless_it_may_overlap() -> None:
    batch = plan(replace(JOB, busy=True), replace(JOB, job_id=UUID(int=2), busy=True, policy='{"overlap":"parallel"}'))
    assert batch.simple.job_ids == [UUID(int=2)]
    assert batch.fires[0].job_ids == [UUID(int=1)]
