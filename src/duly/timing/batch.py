"""Planning for many jobs at once: equal questions are asked once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from duly.model import Policy

from .missed import FirePlan, plan_fire
from .timetable import Timetable


class FireRequest(NamedTuple):
    """One due job, as `plan_many` needs it."""

    timetable: Timetable
    expected: datetime
    policy: Policy
    run_count: int = 0
    max_runs: int | None = None


def next_many(timetable: Timetable, expected: Sequence[datetime]) -> list[datetime | None]:
    """`timetable.next` of each."""
    answers = {moment: timetable.next(moment) for moment in set(expected)}
    return list(map(answers.__getitem__, expected))


def plan_many(
    requests: Sequence[FireRequest], *, now: datetime, misfire_grace: timedelta = timedelta(seconds=10)
) -> list[FirePlan]:
    """`plan_fire` of each.

    Requests are the same question when they hold the same timetable and policy objects, which `make_timetable` and
    `policy_from_stored` give to jobs that say the same. Comparing by identity keeps a million questions under a second.
    """
    plans: dict[tuple[int, datetime, int, int | None], FirePlan] = {}
    answers: list[FirePlan] = []
    for timetable, expected, policy, run_count, max_runs in requests:
        key = (id(timetable), expected, id(policy), None if max_runs is None else max_runs - run_count)
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = plan_fire(
                timetable,
                expected=expected,
                now=now,
                policy=policy,
                run_count=run_count,
                max_runs=max_runs,
                misfire_grace=misfire_grace,
            )
        answers.append(plan)
    return answers
