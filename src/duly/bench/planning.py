"""Planning: occurrences planned per second on one core. There is no raw loop, because no database is involved."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from duly.bench.figures import Bar, Figure
from duly.bench.lab import Lab
from duly.scheduler.backlog import MAX_BATCH_JOBS
from duly.scheduler.planner import plan_batch
from duly.store.fires import DueJob
from duly.timing import Schedule, parse_schedule

ZONE = "America/New_York"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
SCHEDULES = 300
# Easy and hard schedules; the slowest is reported.
CRON = ("*/15 * * * *", "30 2 * * *", "0 9 * * MON", "0 0 L * *", "0 0 29 2 *")
RULES = (
    "FREQ=DAILY",
    "FREQ=MONTHLY;BYDAY=-1FR",
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
)


async def measure(lab: Lab) -> list[Figure]:
    cached = Figure("planning", "fires planned, 300 schedules", "/s", goal=Bar(1_000_000))
    cron = Figure("planning", "uncached cron, the slowest of 5", "/s", goal=Bar(20_000))
    rule = Figure("planning", "uncached RRULE, the slowest of 4", "/s", goal=Bar(5_000))
    jobs = _due_jobs(lab.scaled(300_000))
    for number in range(1, lab.rounds + 1):
        lab.say(f"planning: round {number} of {lab.rounds}")
        cached.duly.append(_rate(partial(_plan_batches, jobs)))
        cron.duly.append(min(_rate(partial(_walk, _parse(text), lab.scaled(4000))) for text in CRON))
        rule.duly.append(min(_rate(partial(_walk, _parse(text), lab.scaled(2000))) for text in RULES))
    return [cached, cron, rule]


def _rate(work: Callable[[], int]) -> float:
    """Measured in CPU time, so that other work of the machine does not matter."""
    began = time.process_time()
    done = work()
    return done / max(time.process_time() - began, 1e-9)


def _parse(text: str) -> Schedule:
    return parse_schedule(text, now=NOW, timezone=ZONE)


def _walk(schedule: Schedule, steps: int) -> int:
    moment = NOW
    for _ in range(steps):
        moment = schedule.next(moment) or NOW
    return steps


def _due_jobs(count: int) -> list[DueJob]:
    """Jobs as the firer reads them: a row each, with a few hundred different schedules."""
    due = NOW + timedelta(days=1)
    texts = [f"{n % 60} {n // 60} * * *" for n in range(SCHEDULES)]
    firsts = [_parse(text).next(NOW) or NOW for text in texts]
    return [
        DueJob(
            UUID(int=n), "cron", texts[n % SCHEDULES], ZONE, None, None, None, NOW, firsts[n % SCHEDULES], None, 0, due
        )
        for n in range(count)
    ]


def _plan_batches(jobs: list[DueJob]) -> int:
    """The scheduler's planner, in batches of the firer's size."""
    now, grace = NOW + timedelta(days=1), timedelta(days=2)
    planned = 0
    while planned < len(jobs):
        planned += plan_batch(jobs[planned : planned + MAX_BATCH_JOBS], now=now, misfire_grace=grace).planned
    return planned
