"""Cron agrees with a minute-by-minute reading of the wall clock, in every zone, around every change of its clocks.

`DULY_ORACLE_ROUNDS` multiplies the expressions tried per zone and day: 10 is a few million comparisons.
"""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta
from functools import cache
from typing import get_args
from zoneinfo import ZoneInfo, available_timezones

import pytest

from duly.errors import InvalidSchedule
from duly.model import DstFold, DstGap
from duly.timing import parse_schedule
from duly.timing.dst import shifts_between

from .helpers import utc
from .oracle import Expression, scan, transitions

ROUNDS = int(os.environ.get("DULY_ORACLE_ROUNDS", "1"))
PARTS = 8  # a failure then names fewer zones, and the tests can be spread over processes
YEARS = (2010, 2035)
ENOUGH = 130_000


def zones() -> list[str]:
    return sorted(name for name in available_timezones() if name not in ("Factory", "localtime"))


@cache
def changes(name: str) -> list[datetime]:
    return transitions(ZoneInfo(name), *YEARS)


def random_expression(dice: random.Random, around: datetime) -> str:
    """An expression mostly near the hours at which clocks change, and mostly on days that come soon."""

    def numbers(low: int, high: int, most: int) -> str:
        return ",".join(str(dice.randint(low, high)) for _ in range(dice.randint(1, most)))

    def span(low: int, high: int) -> str:
        first = dice.randint(low, high)
        return f"{first}-{dice.randint(first, high)}"

    minute = dice.choice(["0", "30", "*/15", "*/7", "*", numbers(0, 59, 3), span(0, 59) + "/9", "0,30", "15", "59"])
    hours = ["*", "*/2", "*/3", numbers(0, 4, 3), numbers(0, 23, 4), span(0, 5), "0", "1", "2", "3", "23", "1-3"]
    hour = dice.choice([*hours, "0-23", span(0, 23) + "/2"])
    day, month, weekday = "*", "*", "*"
    if dice.random() < 0.25:
        day = dice.choice(
            [str(around.day), f"{around.day},1", "*/2", "L", "LW", span(1, 31), f"{around.day - 1 or 1}-31"]
        )
    if dice.random() < 0.15:
        month = dice.choice([str(around.month), "*/2", around.strftime("%b"), span(1, 12)])
    if dice.random() < 0.25:
        weekday = dice.choice(["SUN", "0", "7", "6-7", "SAT,SUN", "5L", "0L", "SUN#2", "SUN#1,SUN#4", "MON-FRI", "*/2"])
    return f"{minute} {hour} {day} {month} {weekday}"


def compare(name: str, change: datetime, dice: random.Random) -> int:
    zone = ZoneInfo(name)
    before, after = (change - timedelta(hours=1)).astimezone(zone), change.astimezone(zone)
    jump = abs((after.utcoffset() or timedelta()) - (before.utcoffset() or timedelta()))
    reach = timedelta(hours=8) + jump
    walls = scan(zone, change - reach - jump, change + reach + jump)
    compared = 0
    for _ in range(2 * ROUNDS):
        text = random_expression(dice, after)
        gap = dice.choice(get_args(DstGap))
        fold = dice.choice(get_args(DstFold))
        expected = [moment for moment in Expression(text).expected(walls, gap, fold) if abs(moment - change) < reach]
        try:
            schedule = parse_schedule(text, now=change - reach, timezone=name, dst_gap=gap, dst_fold=fold)
        except InvalidSchedule:
            assert not expected, text  # no month of the expression has such a day
            continue
        found = []
        moment = schedule.next(change - reach)
        while moment is not None and moment < change + reach:
            found.append(moment)
            moment = schedule.next(moment)
        assert found == expected, f"{text!r} in {name} around {change} with {gap} {fold}"
        counted = schedule.count(change - reach, change + reach - timedelta(microseconds=1), 0)
        assert counted == len(expected), f"count of {text!r} in {name} around {change} with {gap} {fold}"
        compared += len(found) + 1
    return compared


@pytest.mark.parametrize("part", range(PARTS))
def test_agrees_around_every_change_of_the_clocks(part: int) -> None:
    dice = random.Random(part)
    compared = 0
    for name in zones()[part::PARTS]:
        # A zone whose clocks never change is tested on an ordinary day.
        for change in changes(name) or [utc("2026-03-29 01:00")]:
            compared += compare(name, change, dice)
    print(f"{compared} comparisons")
    assert compared >= ENOUGH / PARTS


def test_the_oracle_and_the_product_see_the_same_changes() -> None:
    for name in zones()[::5]:
        seen = [shift.at for shift in shifts_between(utc("2010-01-01"), utc("2036-01-01"), ZoneInfo(name))]
        assert seen == changes(name), name
