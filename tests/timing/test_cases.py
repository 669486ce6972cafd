"""Cases that break schedulers, each with its input and its result, as in the project's list of such cases."""

from __future__ import annotations

import time
import tracemalloc
from datetime import timedelta

import pytest

from duly.errors import InvalidInput, InvalidSchedule
from duly.timing import load_zone

from .helpers import NEW_YORK, fires, parse, spell, utc


def refusal(text: str, **options: str) -> InvalidSchedule:
    """The error for a text. For any text it must come within 20 ms of CPU time and in little memory."""
    spent = []
    for _ in range(3):  # the best of three, because the first may import modules or fill caches
        start = time.process_time()
        with pytest.raises(InvalidSchedule) as caught:
            parse(text, **options)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.02
    tracemalloc.start()
    with pytest.raises(InvalidSchedule):
        parse(text, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000
    assert len(str(caught.value)) < 400
    return caught.value


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "0 0 0 30 2 *"])
def test_a_day_no_month_has_is_refused_as_never_firing(text: str) -> None:
    assert "can never fire" in str(refusal(text))


@pytest.mark.parametrize(
    ("text", "part", "says"),
    [
        ("77 * * * *", "minute", "minute: 77 is out of range, use 0 to 59"),
        ("*/0 * * * *", "minute", "step 0"),
        ("* */0 * * *", "hour", "step 0"),
        ("5-1 * * * *", "minute", "5-1 runs backwards"),
        ("1,,2 * * * *", "minute", "empty"),
        ("* 1,,2 * * *", "hour", "empty"),
        ("", "schedule", "empty"),
        ("   ", "schedule", "empty"),
        ("* * * *", "fields", "4 fields"),
        ("* * * * * * *", "fields", "7 fields"),
        ("0-99999999/1 * * * *", "minute", "99999999 is out of range"),
        (" ".join(["*"] * 10_000), "schedule", "characters"),
        ("0," * 5_000 + "0X * * * *", "schedule", "characters"),
        ("0," * 300 + "0X * * * *", "minute", "0X"),
        ("* 24 * * *", "hour", "24 is out of range, use 0 to 23"),
        ("* * 32 * *", "day of month", "32 is out of range, use 1 to 31"),
        ("* * 0 * *", "day of month", "0 is out of range"),
        ("*/70 * * * *", "minute", "minute: step 70 is longer than the whole field, use 1 to 60"),
        ("0,5/90 * * * *", "minute", "step 90"),
        ("* 1-5/25 * * *", "hour", "step 25 is longer than the whole field, use 1 to 24"),
        ("*/61 * * * * *", "second", "step 61"),
        ("0 0 */32 * *", "day of month", "step 32"),
        ("0 0 * */13 *", "month", "step 13"),
        ("0 0 * * */8", "day of week", "step 8 is longer than the whole field, use 1 to 7"),
        ("0 9\n* * *", "fields", "line break"),
        ("0 9 * * *\r\n0 10 * * *", "fields", "10 fields"),
        ("0 9 *\u2028* *", "fields", "line break"),
        ("cron(0 9 * * ? *)", "schedule", "write the five fields alone: 0 9 * * *"),
        ("cron(0 9 ? * 2-6 *)", "schedule", "alone: 0 9 * * MON-FRI"),
        (
            "CRON(0/15 9 ? * MON#2 2027)",
            "schedule",
            "alone: 0/15 9 * * MON#2, and the year 2027 as start_at and end_at",
        ),
        ("cron(0 9 * * *)", "schedule", "five fields alone"),
        ("cron(0 9", "schedule", "five fields alone"),
        ("* * * 13 *", "month", "13 is out of range, use 1 to 12 or JAN to DEC"),
        ("* * * * 8", "day of week", "8 is out of range, use 0 to 7 or SUN to SAT"),
        ("60 * * * * *", "second", "60 is out of range"),
    ],
)
def test_a_wrong_field_is_named(text: str, part: str, says: str) -> None:
    error = refusal(text)
    assert error.part == part
    assert says in str(error)
    assert error.field == "schedule"


def test_new_york_in_spring() -> None:
    after = "2026-03-08 00:00"
    assert fires("30 2 * * *", NEW_YORK, after, 2) == ["2026-03-08 07:00", "2026-03-09 06:30"]
    assert fires("30 2 * * *", NEW_YORK, after, 1, dst_gap="skip") == ["2026-03-09 06:30"]
    assert fires("*/15 2 * * *", NEW_YORK, after, 1) == ["2026-03-09 06:00"]
    assert fires("*/15 * * * *", NEW_YORK, "2026-03-08 06:30", 2) == ["2026-03-08 06:45", "2026-03-08 07:00"]


def test_new_york_in_autumn() -> None:
    after = "2026-11-01 00:00"
    assert fires("30 1 * * *", NEW_YORK, after, 2) == ["2026-11-01 05:30", "2026-11-02 06:30"]
    assert fires("0 * * * *", NEW_YORK, "2026-11-01 04:30", 3) == [
        "2026-11-01 05:00",
        "2026-11-01 06:00",
        "2026-11-01 07:00",
    ]


def test_lord_howe_shifts_by_half_an_hour() -> None:
    zone = "Australia/Lord_Howe"
    assert fires("15 2 * * *", zone, "2026-10-03 00:00", 2) == ["2026-10-03 15:30", "2026-10-04 15:15"]
    assert fires("45 1 * * *", zone, "2026-04-04 00:00", 2) == ["2026-04-04 14:45", "2026-04-05 15:15"]


def test_havana_has_no_midnight_and_then_two() -> None:
    zone = "America/Havana"
    assert fires("0 0 * * *", zone, "2026-03-07 12:00", 2) == ["2026-03-08 05:00", "2026-03-09 04:00"]
    assert fires("0 0 * * *", zone, "2026-10-31 12:00", 2) == ["2026-11-01 04:00", "2026-11-02 05:00"]


def test_apia_had_no_30_december_2011() -> None:
    assert fires("0 12 * * *", "Pacific/Apia", "2011-12-29 00:00", 2) == ["2011-12-29 22:00", "2011-12-30 22:00"]


@pytest.mark.parametrize("zone", [NEW_YORK, "Australia/Lord_Howe", "America/Havana", "Europe/London"])
@pytest.mark.parametrize("day", ["2026-03-07", "2026-03-28", "2026-04-04", "2026-10-03", "2026-10-24", "2026-10-31"])
def test_every_24_hours_is_24_hours_across_any_change(zone: str, day: str) -> None:
    start = utc(f"{day} 13:00")
    expected = [spell(start + n * timedelta(hours=24)) for n in (1, 2, 3)]
    assert fires("every 24h", zone, f"{day} 13:00", 3) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("RRULE:FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("RRULE:FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "schedule"),
        ("RRULE:FREQ=DAILY;BYHOUR=" + ",".join(["1"] * 50_000), "schedule"),
        ("RRULE:FREQ=DAILY;BYHOUR=" + ",".join(["1"] * 5_000), "RRULE"),
        ("DTSTART;TZID=America/New_York:20260101T090000\nRRULE:FREQ=DAILY;UNTIL=20270101T090000", "UNTIL"),
        ("DTSTART:20260101T090000Z\nRRULE:FREQ=DAILY;UNTIL=20270101T090000", "UNTIL"),
        ("DTSTART;TZID=America/New_York:20260101T090000\nRRULE:FREQ=DAILY;UNTIL=20270101", "UNTIL"),
    ],
)
def test_a_wrong_or_hopeless_rule_is_refused(text: str, part: str) -> None:
    assert refusal(text).part == part


def test_monthly_from_31_january_skips_short_months() -> None:
    rule = "DTSTART:20260131T090000\nRRULE:FREQ=MONTHLY"
    assert fires(rule, "UTC", "2026-01-01 00:00", 7) == [
        f"2026-{month:02}-31 09:00" for month in (1, 3, 5, 7, 8, 10, 12)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "right/UTC",
        "posix/UTC",
        "localtime",
        "posixrules",
        "Factory",
        "/etc/localtime",
        "America/../UTC",
        "America",
        "america new york",
        "",
        "Mars/Olympus",
        "UTC\0",
        "x" * 10_000,
        "zone.tab",
        "tzdata.zi",
        "Ünited/Kingdom",
    ],
)
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_zone(name)
    assert caught.value.field == "timezone"
    assert len(str(caught.value)) < 200
