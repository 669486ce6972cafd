"""The speed of planning on one core: in CPU time, and the best of several tries, because the machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from duly.timing import Schedule

from .helpers import NEW_YORK, parse, utc

NOW = utc("2026-03-01")


def rate(work: Callable[[], int], wanted: float) -> float:
    """The best rate per second of CPU time of up to five tries; ends as soon as the wanted rate is reached."""
    best = 0.0
    for _ in range(5):
        start = time.process_time()
        done = work()
        best = max(best, done / (time.process_time() - start))
        if best >= wanted:
            break
    return best


def steps(schedule: Schedule, number: int) -> int:
    moment = NOW
    for _ in range(number):
        following = schedule.next(moment)
        moment = NOW if following is None else following
    return number


@pytest.mark.parametrize(
    "text", ["*/15 * * * *", "30 2 * * *", "0 9 * * MON", "0 0 L * *", "0 0 29 2 *", "* * * * * *"]
)
def test_uncached_cron(text: str) -> None:
    assert rate(lambda: steps(parse(text, NEW_YORK), 4000), 20_000) >= 20_000


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY",
        "FREQ=MONTHLY;BYDAY=-1FR",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        "DTSTART:19970902T090000\nRRULE:FREQ=DAILY;BYDAY=MO,WE",
    ],
)
def test_uncached_rules(text: str) -> None:
    assert rate(lambda: steps(parse(text, NEW_YORK), 2000), 5_000) >= 5_000
