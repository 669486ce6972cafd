"""The scheduler's own planner, not a stand-in for it: a few hundred schedules among many jobs.

The bar, a million a second, is measured by `duly bench --only planning` (1.1 million when this was written). What is
asserted here is far enough below it that only a change of the code can fail it, and not a busy machine.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.scheduler.planner import plan_batch
from duly.store.fires import DueJob

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_planning_in_batches_keeps_its_pace() -> None:
    jobs = [
        DueJob(
            UUID(int=n),
            NOW,
            "cron",
            f"{n % 300 % 60} {n % 300 // 60} * * *",
            "America/New_York",
            None,
            None,
            None,
            0,
            None,
            NOW,
            NOW,
        )
        for n in range(200_000)
    ]
    best = 0.0
    for _ in range(5):
        began = time.process_time()
        planned = 0
        while planned < len(jobs):
            batch = plan_batch(jobs[planned : planned + 2000], now=NOW, misfire_grace=timedelta(seconds=10))
            planned += batch.planned
        best = max(best, planned / (time.process_time() - began))
    assert best >= 500_000, f"{best:,.0f} a second"
