"""The speed of the scheduler's real planner, with a few hundred schedules among many jobs.

The goal, a million jobs a second, is measured by `duly bench --only planning` (1.1 million when this was written). This
test compares the planner with the least work that can be done for each job, in the same run, because machines differ
by more than a change of the code should.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.scheduler.planner import plan_batch
from duly.store.fires import DueJob

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MOST = 12.0


def test_planning_in_batches_keeps_its_pace() -> None:
    jobs = [
        DueJob(
            UUID(int=n),
            "cron",
            f"{n % 300 % 60} {n % 300 // 60} * * *",
            "America/New_York",
            None,
            None,
            None,
            NOW,
            NOW,
            None,
            0,
            NOW,
        )
        for n in range(200_000)
    ]
    ratios = []
    for _ in range(5):
        began = time.process_time()
        planned = 0
        while planned < len(jobs):
            batch = plan_batch(jobs[planned : planned + 2000], now=NOW, misfire_grace=timedelta(seconds=10))
            planned += batch.planned
        middle = time.process_time()
        _look_at(jobs)
        ratios.append((middle - began) / (time.process_time() - middle))
    assert min(ratios) <= MOST, f"planning took {min(ratios):.1f} times as long as the least work"


def _look_at(jobs: list[DueJob]) -> None:
    """Does the least that planning in batches must do: recognise equal jobs, and put each job into columns."""
    known: dict[tuple[object, ...], int] = {}
    ids, moments, places = [], [], []
    for job in jobs:
        key = (job.schedule, job.timezone, job.next_run_at, job.policy)
        ids.append(job.job_id)
        moments.append(job.next_run_at)
        places.append(known.setdefault(key, len(known)))
