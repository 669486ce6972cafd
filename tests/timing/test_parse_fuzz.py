"""The parser answers any string with a schedule or a refusal, in milliseconds and a few megabytes."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duly.errors import InvalidInput, TooCostly
from duly.timing import Schedule, parse_schedule

from .helpers import NEW_YORK, utc

NOW = utc("2026-03-07 12:34:56")
LIMIT = 0.02
# This rule is followed until its fuel is used up, and then refused: 10 ms.
LONGEST = "FREQ=YEARLY;COUNT=7000"

CRON = st.text(alphabet="0123456789*/-,LW# ?@MONFRISUJA\t", max_size=60)
INTERVAL = st.builds(
    lambda head, tail: head + tail, st.sampled_from(["every ", "P", "PT", "rate("]), st.text(max_size=30)
)
TIME = st.builds(
    lambda head, tail: head + tail, st.sampled_from(["2026-", "2026-03-08T", "20260308T"]), st.text(max_size=30)
)
BY = ["BYMONTH", "BYWEEKNO", "BYYEARDAY", "BYMONTHDAY", "BYDAY", "BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS"]
NAMES = ["FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", *BY, "X"]
PARTS = st.lists(
    st.builds(
        lambda name, value: f"{name}={value}",
        st.sampled_from(NAMES),
        st.one_of(
            st.sampled_from(["DAILY", "SECONDLY", "MINUTELY", "YEARLY", "1MO", "-1FR", "MO,TU", "20280229T000000Z"]),
            st.lists(st.integers(-400, 400), max_size=8).map(lambda values: ",".join(map(str, values))),
            st.integers(0, 10**12).map(str),
        ),
    ),
    max_size=8,
)
# Rules that are well-formed and often never match.
RULE = st.builds(
    lambda freq, interval, parts: ";".join([f"FREQ={freq}", f"INTERVAL={interval}", *parts]),
    st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]),
    st.integers(1, 10**6),
    st.tuples(
        st.integers(1, 12).map(lambda value: f"BYMONTH={value}"),
        st.sampled_from(["BYMONTHDAY=29", "BYMONTHDAY=31", "BYDAY=MO", "BYYEARDAY=366", "BYHOUR=0", "BYSETPOS=-5,7"]),
        st.sampled_from(["BYMINUTE=0", "BYSECOND=59", "BYHOUR=1,23", "COUNT=100000", "COUNT=3", "UNTIL=20300101"]),
    ).map(list),
)
TEXT = st.one_of(st.text(max_size=200), CRON, INTERVAL, TIME, PARTS.map(lambda parts: "RRULE:" + ";".join(parts)), RULE)


def read(text: str) -> Schedule | None:
    try:
        return parse_schedule(text, now=NOW, timezone=NEW_YORK)
    except InvalidInput as error:
        if len(str(error)) > 400 or not str(error).isprintable():
            raise
        return None


def cost(text: str) -> float:
    start = time.process_time()
    read(text)
    return time.process_time() - start


@settings(max_examples=1500, deadline=None)
@given(TEXT)
@example("\0")
@example("\ud800 * * * *")
@example("RRULE:FREQ=DAILY;BYDAY=" + "MO," * 2000)
@example("every " + "9" * 90 + "d")
@example("0 0 29 2 MON#5")
@example("FREQ=YEARLY;INTERVAL=3;BYWEEKNO=53;BYMONTH=1;BYDAY=SA")
def test_any_text_is_read_or_refused_at_once(text: str) -> None:
    # The best of four, compared with a rule that uses all its fuel, so that a slow machine does not fail the test.
    assert any(cost(text) < LIMIT or cost(text) < 2.5 * cost(LONGEST) for _ in range(4))
    schedule = read(text)
    if schedule is None:
        return
    again = parse_schedule(schedule.canonical, now=NOW, timezone=NEW_YORK)
    assert again == schedule
    assert again.canonical == schedule.canonical
    moment = NOW
    for _ in range(5):
        try:
            following = schedule.next(moment)
        except TooCostly:  # the first occurrences are near, and the next one is not
            break
        if following is None:
            break
        assert following > moment
        moment = following


@pytest.mark.parametrize(
    "text",
    [
        "*" * 20_000,
        "1," * 10_000 + "1 * * * *",
        "0-59," * 200 + "0 * * * *",
        "((((" * 5_000,
        "RRULE:" + "FREQ=DAILY;" * 700,
        "RRULE:FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "RRULE:FREQ=SECONDLY;INTERVAL=86399;BYHOUR=0;BYMINUTE=0;BYSECOND=0",
        "RRULE:FREQ=SECONDLY;INTERVAL=3599;BYMINUTE=0;BYSECOND=0;COUNT=5000",
        "RRULE:FREQ=DAILY;INTERVAL=7;BYDAY=MO",
        "RRULE:FREQ=YEARLY;BYDAY=MO;BYSETPOS=366",
        "RRULE:FREQ=MONTHLY;BYMONTHDAY=1,2;BYSETPOS=3",
        "RRULE:FREQ=YEARLY;BYWEEKNO=1;BYMONTH=6",
        "RRULE:FREQ=YEARLY;INTERVAL=1000000000;BYMONTH=1",
        "RRULE:FREQ=WEEKLY;COUNT=999999999",
        "DTSTART:00010101T000000\nRRULE:FREQ=SECONDLY;COUNT=999999",
        "RDATE:" + ",".join(["20200101T000000"] * 400),
        "DTSTART:20270101T000000\nRRULE:FREQ=DAILY;COUNT=400\nEXDATE:"
        + ",".join(f"2027{month:02}{day:02}" for month in range(1, 13) for day in range(1, 29))
        + ",20270129,20270130,20270131,20270329,20270330,20270331,20270429,20270430,20270529,20270530,20270531",
    ],
)
def test_hostile_texts_cost_little(text: str) -> None:
    assert min(cost(text) for _ in range(3)) < LIMIT
    tracemalloc.start()
    read(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
@example("Europe/Berlin\n")
@example("\ud800")
def test_any_zone_name_is_known_or_refused(name: str) -> None:
    try:
        parse_schedule("@daily", now=NOW, timezone=name)
    except InvalidInput as error:
        assert error.field == "timezone"  # noqa: PT017 - most names are refused, some may be zones


@pytest.mark.parametrize(("field", "options"), [("dst_gap", {"dst_gap": "jump"}), ("dst_fold", {"dst_fold": "third"})])
def test_an_unknown_policy_is_refused(field: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_schedule("@daily", now=NOW, **options)  # type: ignore[arg-type]
    assert caught.value.field == field
