"""Every question about a schedule has a budget: for any rule the answer takes milliseconds, and it is an answer."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.checks import plan_schedule
from duly.errors import InvalidSchedule, TooCostly
from duly.model import JobRequest, Policy, ScheduleKind
from duly.operations import preview
from duly.timing import Definition, Fuel, Timetable, parse_schedule, plan_fire
from duly.timing.fuel import MAX_FUEL
from duly.timing.timetable import TOO_FAR
from duly.timing.zones import forget_zones
from harness.nasty import GAPS, PLACES, SIXTY, ZONES, schedules

from .helpers import NEW_YORK, utc

NOW = utc("2030-05-05 12:00")
NASTY = schedules()


def cost(ask: Callable[[Fuel], Any], units: int = MAX_FUEL) -> int:
    """The fuel that a question burns, even if it ends in a refusal."""
    fuel = Fuel(units)
    with suppress(InvalidSchedule):
        ask(fuel)
    return units - fuel.left


def test_there_are_288_of_them() -> None:
    assert len(set(NASTY)) == len(NASTY) == 288


@pytest.mark.parametrize("count", [1, 1000])
def test_no_question_burns_more_than_its_fuel(count: int) -> None:
    refused = 0
    for number, text in enumerate(NASTY):
        options: dict[str, Any] = {
            "timezone": ZONES[number % len(ZONES)],
            "dst_gap": ("skip", "shift")[number // 5 % 2],
        }
        fuel = Fuel.for_list(count)
        try:
            parsed = parse_schedule(text, now=NOW, fuel=fuel, **options)
            found = Timetable(parsed).listed(NOW, count, fuel)
        except InvalidSchedule:
            refused += 1
        else:
            assert len(found) >= 1
        # The last step may overdraw the fuel.
        assert fuel.left >= -200, (text, fuel.left)
    assert refused < len(NASTY) // 2, "most of these rules are nasty but valid"


@pytest.mark.alone
@pytest.mark.parametrize("count", [1, 1000])
def test_each_costs_milliseconds(count: int) -> None:
    slow: dict[str, float] = {}
    for number, text in enumerate(NASTY):
        zone = ZONES[number % len(ZONES)]

        def seconds(text: str = text, zone: str = zone) -> float:
            began = time.process_time()
            with suppress(InvalidSchedule):
                preview(text, timezone=zone, dst_gap="skip", after=NOW, count=count)
            return time.process_time() - began

        # Ten milliseconds, or as long as counting to a million takes at that moment, because on a busy machine
        # everything takes longer. A list of a thousand may take four times that; the test above bounds its fuel.
        tries = 0
        while (took := seconds()) >= 0.010 and took >= (1 if count == 1 else 4) * counting() and tries < 10:
            tries += 1
        if tries == 10:
            slow[text] = took
    assert not slow


@pytest.mark.parametrize(
    ("number", "rule"),
    [
        (8_000, "FREQ=YEARLY;INTERVAL={};BYYEARDAY=1,17;BYSETPOS=1,-1"),
        (1_200, f"FREQ=MONTHLY;INTERVAL={{}};BYDAY=MO,TU,WE,TH,FR;BYHOUR=9;BYSETPOS={PLACES}"),
    ],
    ids=["short", "long"],
)
def test_what_is_remembered_of_schedules_is_bounded_in_memory(number: int, rule: str) -> None:
    """A client that may preview can ask about any number of rules, and no tenant's limit bounds what is cached."""
    forget_zones()
    tracemalloc.start()
    try:
        for interval in range(1, number + 1):
            definition = Definition("rrule", rule.format(interval), "UTC", None, None, NOW, Policy())
            with suppress(TooCostly):
                definition.timetable(UUID(int=1)).next(NOW)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        forget_zones()
    assert held < 24 << 20, f"{held >> 20} MB are held"


def counting() -> float:
    began = time.process_time()
    for _ in range(1_000_000):
        pass
    return time.process_time() - began


def test_a_rule_of_nothing_but_gaps_is_refused_by_name() -> None:
    options: dict[str, Any] = {"timezone": NEW_YORK, "dst_gap": "skip"}
    with pytest.raises(TooCostly, match="schedule: takes too long to work out"):
        preview(GAPS, after=NOW, **options)
    request = JobRequest("noop", schedule=GAPS, timezone=NEW_YORK, policy=Policy(dst_gap="skip"))
    with pytest.raises(TooCostly):
        plan_schedule(request, now=NOW, job_id=UUID(int=1), created_at=NOW)


def test_dates_added_to_it_do_not_hide_it() -> None:
    with pytest.raises(TooCostly):
        parse_schedule(f"{GAPS}\nRDATE:20300505T130000", now=NOW, timezone=NEW_YORK, dst_gap="skip")
    plain = parse_schedule("FREQ=DAILY\nRDATE:20300505T130000", now=NOW, timezone=NEW_YORK)
    assert plain.next(NOW) == NOW + timedelta(hours=5)


def test_a_rule_that_was_stored_before_is_too_costly_to_fire_not_over() -> None:
    made, policy = NOW - timedelta(days=1), Policy(dst_gap="skip")
    definition = Definition("rrule", f"{GAPS}\nRDATE:20300505T120000", NEW_YORK, None, None, made, policy)
    timetable = definition.timetable(UUID(int=1))
    expected = utc("2030-05-05 16:00")
    assert timetable.occurs_at(expected), "a near occurrence is known"
    for _ in range(2):  # the second time the cost is remembered
        with pytest.raises(TooCostly):
            plan_fire(timetable, expected=expected, now=expected, policy=Policy(dst_gap="skip"))


def test_places_in_all_their_number_are_found_like_few() -> None:
    many = parse_schedule(
        f"FREQ=DAILY;BYHOUR=2,3;BYMINUTE={SIXTY};BYSECOND={SIXTY};BYSETPOS={PLACES}", now=NOW, timezone="UTC"
    )
    few = parse_schedule("FREQ=DAILY;BYHOUR=2;BYMINUTE=0;BYSECOND=0,1", now=NOW, timezone="UTC")
    found = [one.scheduled_at for one in Timetable(many).listed(NOW, 3)]
    assert found[:2] == [one.scheduled_at for one in Timetable(few).listed(NOW, 2)]
    assert cost(lambda fuel: many.next(NOW, fuel)) <= 3 * cost(lambda fuel: few.next(NOW, fuel))


def test_a_count_that_cannot_be_followed_is_refused_and_one_that_can_is_not() -> None:
    with pytest.raises(InvalidSchedule, match="COUNT: 1000000 is more than can be followed"):
        preview(f"FREQ=MONTHLY;BYDAY=SU;BYHOUR=2;BYSETPOS={PLACES};COUNT=1000000", after=NOW)
    assert preview("FREQ=DAILY;BYDAY=MO,WE;COUNT=100000", after=NOW).occurrences
    assert preview("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;COUNT=600", after=NOW).occurrences


def test_a_list_that_ends_early_says_so() -> None:
    found = preview(GAPS, timezone=NEW_YORK, after=NOW, count=1000).occurrences
    assert 1 < len(found) < 1000
    assert [one for one in found if TOO_FAR in (one.note or "")] == found[-1:]
    assert preview("FREQ=MONTHLY;BYDAY=FR;BYSETPOS=-1", after=NOW, count=1000).occurrences[-1].note is None


@pytest.mark.parametrize(
    "text", ["* * * * *", "0 9 * * MON-FRI", "every 1s", "FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,WE", "FREQ=MINUTELY",
             "FREQ=MONTHLY;BYDAY=-1FR", "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", "30 2 * * *", "FREQ=YEARLY"]
)  # fmt: skip
def test_ordinary_rules_are_listed_whole(text: str) -> None:
    for zone in ZONES:
        found = preview(text, timezone=zone, after=NOW, count=1000).occurrences
        assert sum(not one.dropped for one in found) == 1000
        assert TOO_FAR not in (found[-1].note or "")


def test_a_rule_that_is_over_is_over_however_often_it_came() -> None:
    """No search second by second takes place after UNTIL."""
    over = parse_schedule("FREQ=SECONDLY;UNTIL=20300505T130000Z", now=NOW, timezone="UTC")
    assert cost(lambda fuel: over.next(utc("2030-05-05 13:00"), fuel)) < 100
    assert over.next(utc("2030-05-05 13:00")) is None
    assert over.next(utc("2030-05-05 12:59:59")) == utc("2030-05-05 13:00")


@pytest.mark.parametrize("text", ["0 9 * * *", "every 1s", "*/5 * * * *"])
@pytest.mark.parametrize("years", [2, 25])
def test_an_outage_of_years_is_counted_within_the_fuel(text: str, years: int) -> None:
    kind: ScheduleKind = "interval" if text.startswith("every") else "cron"
    timetable = Definition(kind, text, NEW_YORK, None, None, NOW, Policy()).timetable(UUID(int=1))
    first = timetable.next(NOW)
    assert first is not None
    plan = plan_fire(timetable, expected=first, now=NOW + timedelta(days=365 * years), policy=Policy())
    assert len(plan.drops) == 1
