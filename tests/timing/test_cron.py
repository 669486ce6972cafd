"""The meaning of cron expressions on ordinary days, and their canonical texts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import InvalidSchedule
from duly.timing import parse_schedule

from .helpers import chain, fires, parse, utc


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 9 * * *", ["01-01 09:30", "01-02 09:30"]),
        ("0 9 * * MON", ["01-05 09:00", "01-12 09:00"]),
        ("0 9 * * mon-fri", ["01-01 09:00", "01-02 09:00", "01-05 09:00"]),
        ("0 9 * * 7", ["01-04 09:00"]),
        ("0 9 * * 0", ["01-04 09:00"]),
        ("0 9 * * SAT-SUN", ["01-03 09:00", "01-04 09:00", "01-10 09:00"]),
        ("0 9 * * 6-7", ["01-03 09:00", "01-04 09:00", "01-10 09:00"]),
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00"]),
        ("0 0 LW * *", ["01-30 00:00", "02-27 00:00", "03-31 00:00"]),
        ("0 0 1,L * *", ["01-31 00:00", "02-01 00:00", "02-28 00:00"]),
        ("0 0 * * 5L", ["01-30 00:00", "02-27 00:00", "03-27 00:00"]),
        ("0 0 * * FRIL", ["01-30 00:00", "02-27 00:00", "03-27 00:00"]),
        ("0 0 * * MON#2", ["01-12 00:00", "02-09 00:00", "03-09 00:00"]),
        ("0 0 * * 1#5", ["03-30 00:00", "06-29 00:00"]),
        ("0 0 * * MON#1,FRI#3", ["01-05 00:00", "01-16 00:00", "02-02 00:00"]),
        ("0 0 13 * FRI", ["01-02 00:00", "01-09 00:00", "01-13 00:00", "01-16 00:00"]),
        ("0 0 */10 * *", ["01-11 00:00", "01-21 00:00", "01-31 00:00", "02-01 00:00"]),
        ("0 0 1 JAN,jul *", ["07-01 00:00"]),
        ("0 0 1 */6 *", ["07-01 00:00"]),
        ("5/20 0 * * *", ["01-01 00:05", "01-01 00:25", "01-01 00:45", "01-02 00:05"]),
        ("10-30/10 0 * * *", ["01-01 00:10", "01-01 00:20", "01-01 00:30", "01-02 00:10"]),
        ("*/40 * * * *", ["01-01 00:40", "01-01 01:00", "01-01 01:40"]),
        ("*/60 * * * *", ["01-01 01:00", "01-01 02:00"]),
        ("*/20 * * * * *", ["01-01 00:00:20", "01-01 00:00:40", "01-01 00:01"]),
        ("15 30 9 * * *", ["01-01 09:30:15", "01-02 09:30:15"]),
        ("@hourly", ["01-01 01:00", "01-01 02:00"]),
        ("@daily", ["01-02 00:00"]),
        ("@midnight", ["01-02 00:00"]),
        ("@weekly", ["01-04 00:00", "01-11 00:00"]),
        ("@monthly", ["02-01 00:00", "03-01 00:00"]),
    ],
)
def test_fires_when_it_says(text: str, expected: list[str]) -> None:
    assert fires(text, "UTC", "2026-01-01 00:00", len(expected)) == [f"2026-{moment}" for moment in expected]


@pytest.mark.parametrize("text", ["@yearly", "@annually", "@YEARLY"])
def test_yearly(text: str) -> None:
    assert fires(text, "UTC", "2026-01-01 00:00", 2) == ["2027-01-01 00:00", "2028-01-01 00:00"]


def test_both_day_fields_restricted_means_either_but_a_star_with_a_step_means_both() -> None:
    # Debian cron's rule: if one of the day fields begins with *, a day must match both fields; otherwise either.
    assert fires("0 0 1 * MON", "UTC", "2026-02-02 12:00", 3) == [
        "2026-02-09 00:00",
        "2026-02-16 00:00",
        "2026-02-23 00:00",
    ]
    assert fires("0 0 */2 * MON", "UTC", "2026-02-02 12:00", 2) == ["2026-02-09 00:00", "2026-02-23 00:00"]


def test_leap_days_come_every_four_years_but_not_in_2100() -> None:
    days = fires("0 0 29 2 *", "UTC", "2026-01-01 00:00", 20)
    assert days == [f"{year}-02-29 00:00" for year in [*range(2028, 2097, 4), 2104, 2108]]


def test_a_fifth_monday_in_february_is_found_however_far_it_is() -> None:
    # The next one is in 2044. After 2072 it takes forty years, because 2100 has no leap day.
    assert fires("0 0 * 2 MON#5", "UTC", "2026-01-01 00:00", 3) == [
        "2044-02-29 00:00",
        "2072-02-29 00:00",
        "2112-02-29 00:00",
    ]


def test_the_calendar_ends_with_the_year_9999_and_nothing_breaks() -> None:
    for zone in ("UTC", "America/New_York", "Pacific/Kiritimati", "Pacific/Niue"):
        schedule = parse("0 0 31 12 *", zone)
        last = chain(schedule, "9990-01-01", 100)
        assert len(last) in (9, 10)
        assert last[-1].year == 9999
        assert schedule.next(last[-1]) is None
        assert parse("* * * * *", zone).next(utc("9999-12-31 23:59")) is None
    with pytest.raises(InvalidSchedule, match="never fire again"):
        parse("0 0 1 1 *", now="9999-06-01")


def test_fires_are_on_whole_seconds_after_any_moment() -> None:
    schedule = parse("* * * * *")
    assert schedule.next(utc("2026-01-01 00:00:59.999999")) == utc("2026-01-01 00:01")
    assert schedule.next(utc("2026-01-01 00:01")) == utc("2026-01-01 00:02")
    assert schedule.next(utc("0001-01-01")) == utc("0002-01-01")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  0   9 * *  mon ", "0 9 * * MON"),
        ("@daily", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("0 0 l * *", "0 0 L * *"),
        ("*/5 0 9 1-3 jan,feb *", "*/5 0 9 1-3 JAN,FEB *"),
    ],
)
def test_canonical_text_comes_back_out_and_means_the_same(text: str, canonical: str) -> None:
    schedule = parse(text, "Europe/Berlin")
    again = parse(schedule.canonical, "Europe/Berlin")
    assert schedule.canonical == again.canonical == canonical
    assert schedule == again
    assert hash(schedule) == hash(again)
    assert schedule != parse(text, "Europe/Paris")
    assert schedule != parse(text, "Europe/Berlin", dst_fold="both")
    assert schedule.kind == "cron"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * ? * *", "day of month: ? is not a value, use 1 to 31 or * for any"),
        ("* * * * L", "5L for the last Friday"),
        ("* * * * FRI#6", "1 to 5"),
        ("* * * * FRI#", "1 to 5"),
        ("* * 15W * *", "day of month: 15W"),
        ("* * L-3 * *", "day of month"),
        ("* * * * MON-", "day of week: an empty value"),
        ("* * * FOO *", "month: FOO is not a value, use 1 to 12 or JAN to DEC"),
        ("* * * * FRI-MON", "day of week: FRI-MON runs backwards"),
        ("*5 * * * *", "minute: *5 is not a value"),
        ("**/5 * * * *", "minute: **"),
        ("1/2/3 * * * *", "minute: step 2/3"),
        ("-1 * * * *", "minute: an empty value"),
        ("1.5 * * * *", "minute: 1.5"),
        ("\u0663 * * * *", "minute: \u0663"),
        ("@reboot", "@reboot is not known, use one of @hourly"),
        ("@every 5m", "is not known"),
        ("tomorrow", "tomorrow is not a schedule"),
    ],
)
def test_an_error_says_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse(text)
    assert says in str(caught.value)


FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "0", "5,10,59", "10-40/3", "*/15"]),
    st.sampled_from(["*", "*/5", "0", "2,23", "9-17", "1-20/6"]),
    st.sampled_from(["*", "*/3", "1", "31", "L", "LW", "10-20", "29,30"]),
    st.sampled_from(["*", "*/5", "2", "JAN,JUL", "4-9", "12"]),
    st.sampled_from(["*", "1", "SUN", "MON-FRI", "5L", "TUE#2", "0,6", "7"]),
)


@given(
    FIELDS,
    st.datetimes(min_value=utc("2000-01-01").replace(tzinfo=None), max_value=utc("2090-01-01").replace(tzinfo=None)),
)
def test_agrees_with_cronsim_where_clocks_do_not_change(fields: tuple[str, ...], start: datetime) -> None:
    text = " ".join(fields)
    after = start.replace(tzinfo=UTC)
    try:
        schedule = parse_schedule(text, now=after)
    except InvalidSchedule:
        with pytest.raises(Exception, match=r"Bad day-of-month|^$"):
            next(CronSim(text, after))
        return
    other = CronSim(text, after)
    try:
        expected = [next(other) for _ in range(3)]
    except StopIteration:
        return  # CronSim gives up after fifty years
    assert chain(schedule, after, 3) == expected
