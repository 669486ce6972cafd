"""Intervals and one-offs: every spelling is read, and intervals do not drift."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import InvalidSchedule
from duly.timing import parse_schedule
from duly.timing.interval import IntervalSchedule

from .helpers import NEW_YORK, chain, fires, parse, utc


@pytest.mark.parametrize(
    ("text", "canonical", "seconds"),
    [
        ("every 15m", "every 15m", 900),
        ("every 1h30m", "every 1h30m", 5400),
        ("every 90 minutes", "every 1h30m", 5400),
        ("every 1 hour 30 minutes", "every 1h30m", 5400),
        ("Every 2 Hours", "every 2h", 7200),
        ("every hour", "every 1h", 3600),
        ("every minute", "every 1m", 60),
        ("every 1s", "every 1s", 1),
        ("every 45 sec", "every 45s", 45),
        ("every 1d", "every 24h", 86_400),
        ("every 24h", "every 24h", 86_400),
        ("every 36h", "every 36h", 129_600),
        ("every 2 weeks", "every 14d", 1_209_600),
        ("PT15M", "every 15m", 900),
        ("PT1H30M", "every 1h30m", 5400),
        ("P1D", "every 24h", 86_400),
        ("P1DT12H", "every 36h", 129_600),
        ("P2W", "every 14d", 1_209_600),
        ("PT90S", "every 1m30s", 90),
        ("rate(5 minutes)", "every 5m", 300),
        ("rate(1 minute)", "every 1m", 60),
        ("rate(7 days)", "every 7d", 604_800),
        ("RATE(1 hour)", "every 1h", 3600),
    ],
)
def test_every_spelling(text: str, canonical: str, seconds: int) -> None:
    schedule = parse(text)
    assert isinstance(schedule, IntervalSchedule)
    assert (schedule.kind, schedule.canonical, schedule.period) == ("interval", canonical, timedelta(seconds=seconds))
    assert parse(canonical) == schedule
    assert hash(parse(canonical)) == hash(schedule)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("every", "no length"),
        ("every ", "no length"),
        ("every 0s", "shortest is 1 second"),
        ("PT0S", "shortest is 1 second"),
        ("rate(0 minutes)", "shortest is 1 second"),
        ("every 15x", "x is not a unit"),
        ("every 500ms", "ms is not a unit"),
        ("every 1.5h", "whole numbers"),
        ("every 15", "is not an interval"),
        ("every -5m", "is not an interval"),
        ("every 1h1h", "twice"),
        ("every 1h m", "no number before m"),
        ("every 5m please", "please is not a unit"),
        ("every 999999999999d", "is not an interval"),
        ("every 9999999999d", "hundred years"),
        ("rate(5 minutes", "without its )"),
        ("rate()", "no length"),
        ("PT", "nothing after T"),
        ("P1M", "months and years"),
        ("P1Y", "months and years"),
        ("PT1.5H", "ISO 8601"),
        ("PT5M1H", "ISO 8601"),
        ("P1H", "ISO 8601"),
        ("every " + "1" * 500, "characters"),
    ],
)
def test_a_wrong_one_is_refused_with_what_is_right(text: str, says: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse(text)
    assert says in str(caught.value)
    assert caught.value.part == "interval"


def test_the_first_is_one_period_after_creation_or_at_a_start_to_come() -> None:
    assert fires("every 15m", "UTC", "2026-01-01 00:00:07", 2) == ["2026-01-01 00:15:07", "2026-01-01 00:30:07"]
    later = parse("every 15m", anchor=utc("2026-01-01 12:00"))
    assert chain(later, "2026-01-01 00:00", 2) == [utc("2026-01-01 12:00"), utc("2026-01-01 12:15")]


@given(
    st.integers(min_value=1, max_value=10**7),
    st.datetimes(min_value=utc("1990-01-01").replace(tzinfo=None), max_value=utc("2060-01-01").replace(tzinfo=None)),
    st.datetimes(min_value=utc("1990-01-01").replace(tzinfo=None), max_value=utc("2060-01-01").replace(tzinfo=None)),
)
def test_the_nth_is_the_anchor_plus_n_periods(seconds: int, anchor: datetime, after: datetime) -> None:
    anchor, after = anchor.replace(tzinfo=UTC), after.replace(tzinfo=UTC)
    period = timedelta(seconds=seconds)
    found = parse_schedule(f"every {seconds}s", now=after, anchor=anchor).next(after)
    assert found is not None
    assert found > after
    assert found >= anchor
    assert (found - anchor) % period == timedelta(0)
    assert found == anchor or found - period <= after


def test_counting_is_arithmetic() -> None:
    schedule = parse("every 7s", anchor=utc("2026-01-01"))
    for first, last in (
        ("2025-12-31", "2026-01-02"),
        ("2026-01-01", "2026-01-01 00:00:07"),
        ("2026-01-03", "2026-01-02"),
    ):
        walked = [moment for moment in chain(schedule, first, 20_000) if moment <= utc(last)]
        assert schedule.count(utc(first), utc(last), 0) == len(walked)


def test_an_interval_ends_with_the_calendar() -> None:
    assert parse("every 36500d").next(utc("9990-01-01")) is None


@pytest.mark.parametrize(
    ("text", "zone", "canonical", "at"),
    [
        ("2026-05-01T12:00:00Z", NEW_YORK, "2026-05-01T12:00:00Z", "2026-05-01 12:00"),
        ("2026-05-01T12:00:00+02:00", NEW_YORK, "2026-05-01T10:00:00Z", "2026-05-01 10:00"),
        ("2026-05-01t12:00:00z", NEW_YORK, "2026-05-01T12:00:00Z", "2026-05-01 12:00"),
        ("2026-05-01T12:00", NEW_YORK, "2026-05-01T12:00:00", "2026-05-01 16:00"),
        ("2026-05-01 12:00", NEW_YORK, "2026-05-01T12:00:00", "2026-05-01 16:00"),
        ("2026-05-01", NEW_YORK, "2026-05-01T00:00:00", "2026-05-01 04:00"),
        ("20260501T120000Z", "UTC", "2026-05-01T12:00:00Z", "2026-05-01 12:00"),
        ("2026-05-01T12:00:00.250Z", "UTC", "2026-05-01T12:00:00.250000Z", "2026-05-01 12:00:00.250"),
        ("9999-12-31T23:59:59Z", "UTC", "9999-12-31T23:59:59Z", "9999-12-31 23:59:59"),
    ],
)
def test_a_one_off_at_a_time(text: str, zone: str, canonical: str, at: str) -> None:
    schedule = parse(text, zone)
    assert (schedule.kind, schedule.canonical) == ("once", canonical)
    assert parse(canonical, zone) == schedule
    assert hash(parse(canonical, zone)) == hash(schedule)
    assert chain(schedule, "2000-01-01", 5) == [utc(at)]
    assert schedule.next(utc(at)) is None
    assert schedule.count(utc("2000-01-01"), utc(at), 10) == 1


@pytest.mark.parametrize("text", [None, "now", " NOW "])
def test_now(text: str | None) -> None:
    now = utc("2026-01-01 00:00:00.123456")
    schedule = parse_schedule(text, now=now, timezone=NEW_YORK)
    assert (schedule.kind, schedule.canonical) == ("once", "2026-01-01T00:00:00.123456Z")
    assert parse_schedule(schedule.canonical, now=utc("2027-01-01"), timezone=NEW_YORK) == schedule


def test_a_one_off_in_the_past_is_due_at_once_and_not_refused() -> None:
    assert chain(parse("2020-01-01T00:00:00Z", now="2026-01-01"), "2019-01-01", 2) == [utc("2020-01-01")]


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01",
        "2026-02-30T00:00",
        "2026-05-01T25:00",
        "2026-05-01T12:00:00+99:00",
        "9999-12-31T23:59:59-05:00",
        "0001-01-01T00:00:00+05:00",
        "2026-05-01T12:00:00Z" + "0" * 1000,
        "2026-",
        "2026-05-01Tnoon",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse(text)
    assert caught.value.part == "time"
    assert len(str(caught.value)) < 200
