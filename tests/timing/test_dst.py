"""Every kind of clock change, and the occurrences that each DST policy makes of it."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest

from duly.errors import InvalidSchedule

from .helpers import NEW_YORK, chain, fires, parse, shows, utc

BERLIN = "Europe/Berlin"


def test_a_gap_shifts_to_its_end_or_skips() -> None:
    assert fires("30 2 * * *", BERLIN, "2026-03-28 12:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:30"]
    assert fires("30 2 * * *", BERLIN, "2026-03-28 12:00", 2, dst_gap="skip") == [
        "2026-03-30 00:30",
        "2026-03-31 00:30",
    ]


def test_a_count_has_what_a_gap_moved_and_not_what_it_dropped() -> None:
    after, until = utc("2026-03-28 12:00"), utc("2026-03-30 12:00")
    assert parse("30 2 * * *", BERLIN).count(after, until, 100) == 2
    assert parse("30 2 * * *", BERLIN, dst_gap="skip").count(after, until, 100) == 1


def test_several_times_in_a_gap_collapse_to_one() -> None:
    assert fires("0,20,40 2 * * *", BERLIN, "2026-03-28 12:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:00"]
    # 03:00 is both a time of the schedule and the end of the gap: still one occurrence.
    assert fires("30 2,3 * * *", BERLIN, "2026-03-28 12:00", 2) == ["2026-03-29 01:00", "2026-03-29 01:30"]
    assert fires("0 2,3 * * *", BERLIN, "2026-03-28 12:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:00"]
    assert fires("0 2,3 * * *", BERLIN, "2026-03-28 12:00", 2, dst_gap="skip") == [
        "2026-03-29 01:00",
        "2026-03-30 00:00",
    ]
    assert fires("* 30 2 * * *", BERLIN, "2026-03-28 12:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:30"]


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        ("first", ["2026-10-25 00:30", "2026-10-26 01:30"]),
        ("second", ["2026-10-25 01:30", "2026-10-26 01:30"]),
        ("both", ["2026-10-25 00:30", "2026-10-25 01:30", "2026-10-26 01:30"]),
    ],
)
def test_a_time_that_occurs_twice(fold: str, expected: list[str]) -> None:
    assert fires("30 2 * * *", BERLIN, "2026-10-24 12:00", len(expected), dst_fold=fold) == expected


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        ("first", ["00:00", "00:30", "02:00"]),
        ("second", ["01:00", "01:30", "02:00"]),
        ("both", ["00:00", "00:30", "01:00", "01:30", "02:00"]),
    ],
)
def test_doubled_times_keep_the_order_of_instants(fold: str, expected: list[str]) -> None:
    found = fires("0,30 2,3 * * *", BERLIN, "2026-10-24 23:30", len(expected), dst_fold=fold)
    assert found == [f"2026-10-25 {moment}" for moment in expected]


@pytest.mark.parametrize("minute", range(0, 180, 7))
def test_next_from_anywhere_inside_a_doubled_hour(minute: int) -> None:
    start = utc("2026-10-24 23:30") + timedelta(minutes=minute, microseconds=1)
    for fold in ("first", "second", "both"):
        schedule = parse("0,30 2,3 * * *", BERLIN, dst_fold=fold)
        everything = chain(schedule, "2026-10-24 23:00", 10)
        assert schedule.next(start) == min(moment for moment in everything if moment > start)


def test_wildcards_run_on_elapsed_time() -> None:
    for text, step in (("*/15 * * * *", 15), ("* * * * *", 1), ("0 * * * *", 60), ("30 */1 * * *", 60)):
        for day in ("2026-03-28 20:10", "2026-10-24 20:10"):
            found = chain(parse(text, BERLIN), day, 700 // step)
            assert {later - sooner for sooner, later in pairwise(found)} == {timedelta(minutes=step)}
    # The policies apply to fixed times only and change nothing here.
    for fold in ("first", "second", "both"):
        assert fires("*/30 2 * * *", BERLIN, "2026-10-24 20:00", 4, dst_fold=fold) == [
            "2026-10-25 00:00",
            "2026-10-25 00:30",
            "2026-10-25 01:00",
            "2026-10-25 01:30",
        ]
    assert fires("*/30 2 * * *", BERLIN, "2026-03-28 20:00", 1, dst_gap="shift") == ["2026-03-30 00:00"]


def test_seconds_across_a_change() -> None:
    assert fires("*/30 59 1 * * *", NEW_YORK, "2026-11-01 05:50", 3) == [
        "2026-11-01 05:59",
        "2026-11-01 05:59:30",
        "2026-11-02 06:59",
    ]
    assert fires("59 59 * * * *", NEW_YORK, "2026-11-01 05:59:58", 2) == ["2026-11-01 05:59:59", "2026-11-01 06:59:59"]


@pytest.mark.parametrize(
    ("zone", "text", "after", "expected"),
    [
        # Midnight is missing: the day begins at one.
        ("America/Santiago", "0 0 * * *", "2026-09-05 12:00", ["2026-09-06 04:00", "2026-09-07 03:00"]),
        ("Asia/Beirut", "0 0 * * *", "2026-03-28 12:00", ["2026-03-28 22:00", "2026-03-29 21:00"]),
        ("Africa/Cairo", "30 0 * * *", "2026-04-23 12:00", ["2026-04-23 22:00", "2026-04-24 21:30"]),
        # The clock changes by two hours at once.
        ("Antarctica/Troll", "30 2 * * *", "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:30"]),
        ("Antarctica/Troll", "30 1 * * *", "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-29 23:30"]),
        ("Antarctica/Troll", "0 2 * * *", "2026-10-24 12:00", ["2026-10-25 00:00", "2026-10-26 02:00"]),
        # Zones that stopped changing their clocks.
        ("America/Sao_Paulo", "0 0 * * *", "2018-11-03 12:00", ["2018-11-04 03:00", "2018-11-05 02:00"]),
        ("America/Sao_Paulo", "0 0 * * *", "2019-11-02 12:00", ["2019-11-03 03:00", "2019-11-04 03:00"]),
        ("Europe/Istanbul", "30 3 * * *", "2016-10-29 12:00", ["2016-10-30 00:30", "2016-10-31 00:30"]),
        ("Asia/Pyongyang", "45 23 * * *", "2018-05-04 00:00", ["2018-05-04 15:00", "2018-05-05 14:45"]),
        # Negative DST (Dublin's winter) and an odd quarter of an hour (Chatham).
        ("Europe/Dublin", "30 1 * * *", "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:30"]),
        ("Pacific/Chatham", "0 3 * * *", "2026-09-26 00:00", ["2026-09-26 14:00", "2026-09-27 13:15"]),
        # Ramadan: the clocks go back and forth again within weeks.
        ("Africa/Casablanca", "30 2 * * *", "2026-03-21 12:00", ["2026-03-22 02:00", "2026-03-23 01:30"]),
    ],
)
def test_families_of_changes(zone: str, text: str, after: str, expected: list[str]) -> None:
    assert fires(text, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "after", "expected"),
    [
        ("Pacific/Apia", "2011-12-29 00:00", ["2011-12-29 22:00", "2011-12-30 22:00"]),
        ("Pacific/Fakaofo", "2011-12-29 00:00", ["2011-12-29 23:00", "2011-12-30 23:00"]),
        ("Pacific/Kwajalein", "1993-08-20 12:00", ["1993-08-21 00:00", "1993-08-22 00:00"]),
        ("Pacific/Kiritimati", "1994-12-30 00:00", ["1994-12-30 22:00", "1994-12-31 22:00"]),
    ],
)
@pytest.mark.parametrize("gap", ["shift", "skip"])
def test_a_calendar_day_that_never_was_has_no_occurrence(zone: str, after: str, expected: list[str], gap: str) -> None:
    assert fires("0 12 * * *", zone, after, 2, dst_gap=gap) == expected
    second = shows("0 12 * * *", zone, after, 2, dst_gap=gap)[1]
    assert not second.dropped
    assert second.note is not None
    assert "does not exist" in second.note


def test_the_far_future_keeps_the_last_known_rules() -> None:
    assert fires("30 2 * * *", NEW_YORK, "9998-03-07 12:00", 2) == ["9998-03-08 07:00", "9998-03-09 06:30"]
    assert fires("30 2 * * *", NEW_YORK, "2104-03-08 12:00", 2) == ["2104-03-09 07:00", "2104-03-10 06:30"]


def test_a_preview_says_what_happened() -> None:
    moved, plain = shows("30 2 * * *", NEW_YORK, "2026-03-08 00:00", 2)
    assert moved.note == "local 2026-03-08 02:30 does not exist in America/New_York: moved to 2026-03-08 03:00"
    assert (moved.scheduled_at, moved.dropped, moved.local.isoformat()) == (
        utc("2026-03-08 07:00"),
        False,
        "2026-03-08T03:00:00-04:00",
    )
    assert (plain.note, plain.local.isoformat()) == (None, "2026-03-09T02:30:00-04:00")


def test_a_preview_shows_what_was_dropped() -> None:
    dropped, plain = shows("30 2 * * *", NEW_YORK, "2026-03-08 00:00", 2, dst_gap="skip")
    assert dropped.dropped
    assert dropped.note == "local 2026-03-08 02:30 does not exist in America/New_York: dropped"
    assert dropped.scheduled_at == utc("2026-03-08 07:00")
    assert (plain.scheduled_at, plain.note, plain.dropped) == (utc("2026-03-09 06:30"), None, False)


def test_a_preview_says_which_of_two_it_is() -> None:
    (first,) = shows("30 1 * * *", NEW_YORK, "2026-11-01 00:00", 1)
    assert first.note == "local 2026-11-01 01:30 occurs twice in America/New_York: only the first time is used"
    first, second, plain = shows("30 1 * * *", NEW_YORK, "2026-11-01 00:00", 3, dst_fold="both")
    assert first.note is not None
    assert first.note.endswith("this is the first time")
    assert second.note is not None
    assert second.note.endswith("this is the second time")
    assert (second.local.isoformat(), second.local.fold) == ("2026-11-01T01:30:00-05:00", 1)
    assert plain.note is None


def test_what_skip_dropped_can_be_asked_for() -> None:
    schedule = parse("0,30 2 * * *", NEW_YORK, dst_gap="skip")
    dropped = schedule.dropped(utc("2020-01-01"), utc("2026-12-31"))
    assert [one.scheduled_at for one in dropped] == [
        utc(f"{day} 07:00")
        for day in ("2020-03-08", "2021-03-14", "2022-03-13", "2023-03-12", "2024-03-10", "2025-03-09", "2026-03-08")
    ]
    assert schedule.dropped(utc("2026-03-08 07:00"), utc("2026-12-31")) == []
    assert parse("0 2,3 * * *", NEW_YORK, dst_gap="skip").dropped(utc("2026-01-01"), utc("2026-12-31")) == []
    assert parse("0 2 * * *", NEW_YORK).dropped(utc("2026-01-01"), utc("2026-12-31")) == []
    assert parse("*/30 2 * * *", NEW_YORK, dst_gap="skip").dropped(utc("2026-01-01"), utc("2026-12-31")) == []
    rule = parse("FREQ=DAILY;BYHOUR=2;BYMINUTE=30;BYSECOND=0", NEW_YORK, dst_gap="skip")
    assert [one.scheduled_at for one in rule.dropped(utc("2026-01-01"), utc("2026-12-31"))] == [utc("2026-03-08 07:00")]


def test_rules_and_local_one_offs_follow_the_same_policies() -> None:
    rule = "DTSTART:20260307T023000\nRRULE:FREQ=DAILY"
    assert fires(rule, NEW_YORK, "2026-03-07 12:00", 2) == ["2026-03-08 07:00", "2026-03-09 06:30"]
    assert fires(rule, NEW_YORK, "2026-03-07 12:00", 1, dst_gap="skip") == ["2026-03-09 06:30"]
    rule = "DTSTART:20261031T013000\nRRULE:FREQ=DAILY"
    for fold, expected in (("first", ["05:30"]), ("second", ["06:30"]), ("both", ["05:30", "06:30"])):
        instants = [f"2026-11-01 {moment}" for moment in expected]
        assert fires(rule, NEW_YORK, "2026-10-31 12:00", len(instants), dst_fold=fold) == instants
        # A one-off has one time: with dst_fold=both it is the first of the two.
        assert fires("2026-11-01T01:30", NEW_YORK, "2026-10-31 12:00", 5, dst_fold=fold) == instants[:1]
    assert fires("2026-03-08T02:30", NEW_YORK, "2026-03-07 12:00", 5) == ["2026-03-08 07:00"]
    with pytest.raises(InvalidSchedule, match="go from 2026-03-08 02:00 to 2026-03-08 03:00"):
        parse("2026-03-08T02:30", NEW_YORK, dst_gap="skip")


def test_rules_by_the_hour_run_on_elapsed_time() -> None:
    for text in ("FREQ=HOURLY", "FREQ=MINUTELY;INTERVAL=15", "FREQ=SECONDLY;INTERVAL=600"):
        for day in ("2026-03-07 23:00", "2026-10-31 23:00"):
            found = chain(parse(text, NEW_YORK, anchor=utc(day)), day, 60)
            assert len({later - sooner for sooner, later in pairwise(found)}) == 1


def test_next_strictly_advances_in_every_zone_and_form() -> None:
    texts = ("30 2 * * *", "0 0 * * *", "*/20 */2 * * *", "FREQ=DAILY", "FREQ=HOURLY;INTERVAL=5", "every 7h")
    for number, name in enumerate(sorted(available_timezones() - {"Factory", "localtime"})):
        text = texts[number % len(texts)]
        for start in ("1900-01-01 00:00:30", "2011-12-29 03:00", "2037-03-01", "2200-10-20"):
            anchor = utc("1890-01-01 02:30")
            for fold in ("first", "second", "both"):
                schedule = parse(text, name, now=start, anchor=anchor, dst_fold=fold)
                found = chain(schedule, start, 40)  # `chain` asserts that each is later than the previous one
                assert len(found) == 40
                assert [one.scheduled_at for one in islice(schedule.walk(utc(start)), 40)] == found


def test_each_occurrence_is_the_next_of_any_moment_before_it() -> None:
    """`next` gives the same answer for every moment between two occurrences, so it can be computed anew each time."""
    for zone in (NEW_YORK, "Australia/Lord_Howe", "America/Havana", "Antarctica/Troll", "Pacific/Apia"):
        for fold in ("first", "second", "both"):
            schedule = parse("15,45 0-3 * * *", zone, dst_fold=fold)
            for day in ("2026-03-07 12:00", "2026-10-31 12:00", "2026-04-04 06:00", "2011-12-29 06:00"):
                found = chain(schedule, day, 16)
                for sooner, later in pairwise(found):
                    for share in (0.001, 0.3, 0.7, 0.999):
                        assert schedule.next(sooner + (later - sooner) * share) == later


def test_occurrences_show_the_local_time_of_the_jobs_zone() -> None:
    (one,) = shows("0 9 * * *", "Asia/Kolkata", "2026-01-01 00:00", 1)
    assert one.local.tzinfo is ZoneInfo("Asia/Kolkata")
    assert one.local.isoformat() == "2026-01-01T09:00:00+05:30"
