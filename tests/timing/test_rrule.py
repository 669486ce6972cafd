"""RFC 5545 rules beyond the published examples: compared with another library, in other zones, and hostile texts."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice

import pytest
from dateutil.rrule import rrulestr

from duly.errors import InvalidInput, InvalidSchedule, TooCostly
from duly.timing import parse_schedule
from duly.timing.fuel import Fuel
from duly.timing.recurrence import make_recurrence
from duly.timing.rrule_text import FREQUENCIES, WEEKDAYS, read_rrule

from .helpers import NEW_YORK, chain, fires, parse, utc

MICROSECOND = timedelta(microseconds=1)
ANY_DAY = datetime.fromisoformat("2000-01-01")


def random_rule(dice: random.Random) -> str:
    """A random rule on whose meaning dateutil and the RFC agree."""

    def some(low: int, high: int, most: int, signed: bool = False) -> str:
        values = [dice.randint(low, high) * (-1 if signed and dice.random() < 0.3 else 1) for _ in range(most)]
        return ",".join(str(value) for value in values[: dice.randint(1, most)])

    freq = dice.choice(FREQUENCIES)
    parts = [f"FREQ={freq}"]
    if dice.random() < 0.5:
        parts.append(f"INTERVAL={dice.choice([1, 2, 3, 4, 5, 7, 10, 13, 24, 25, 40, 60, 90, 100])}")
    if dice.random() < 0.3:
        parts.append(f"WKST={dice.choice(WEEKDAYS)}")
    if dice.random() < 0.3:
        parts.append(f"BYMONTH={some(1, 12, 4)}")
    by_week = freq == "YEARLY" and dice.random() < 0.2
    if by_week:
        parts.append(f"BYWEEKNO={some(1, 53, 4, signed=True)}")
    if freq in ("YEARLY", "HOURLY", "MINUTELY", "SECONDLY") and dice.random() < 0.15:
        parts.append(f"BYYEARDAY={some(1, 366, 8, signed=True)}")
    if freq != "WEEKLY" and dice.random() < 0.25:
        parts.append(f"BYMONTHDAY={some(1, 31, 5, signed=True)}")
    if by_week or dice.random() < 0.35:
        # Plain and numbered days are not mixed: the RFC takes their union, dateutil does not.
        numbered = freq in ("YEARLY", "MONTHLY") and not by_week and dice.random() < 0.5
        chosen = dice.sample(WEEKDAYS, dice.randint(1, 4))
        parts.append(
            "BYDAY=" + ",".join((dice.choice(["1", "2", "-1", "5", "-5"]) if numbered else "") + d for d in chosen)
        )
    for name, high in (("BYHOUR", 23), ("BYMINUTE", 59), ("BYSECOND", 59)):
        if dice.random() < 0.25:
            parts.append(f"{name}={some(0, high, 4)}")
    # Not for weeks: dateutil counts positions in a first, partial week from DTSTART, the RFC from the week's beginning.
    if freq != "WEEKLY" and any(part.startswith("BY") for part in parts) and dice.random() < 0.2:
        parts.append(f"BYSETPOS={some(1, 6, 3, signed=True)}")
    return ";".join(parts)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_dateutil(seed: int) -> None:
    dice = random.Random(seed)
    compared = 0
    while compared < 400:
        start = ANY_DAY.replace(year=dice.randint(1990, 2030), month=dice.randint(1, 12), day=dice.randint(1, 28))
        start = start.replace(hour=dice.randint(0, 23), minute=17, second=5)
        text = random_rule(dice)
        parts = read_rrule(text).rule
        assert parts is not None
        recurrence = make_recurrence(parts, start)
        found: list[datetime] = []
        with suppress(TooCostly):  # a grid that hardly ever meets its filters
            moment = recurrence.next_local(start - MICROSECOND, Fuel())
            while moment is not None and len(found) < 6:
                found.append(moment)
                moment = recurrence.next_local(moment, Fuel())
        # dateutil walks from the start: only occurrences that it reaches in reasonable time are compared.
        reach = {"HOURLY": 400, "MINUTELY": 8, "SECONDLY": 1}.get(parts.freq, 8000)
        if not found or (found[-1] - start).days > reach:
            continue
        rule = f"RRULE:{text};UNTIL={found[-1]:%Y%m%dT%H%M%S}"
        try:
            expected = list(islice(rrulestr(rule, dtstart=start), 7))
        except ValueError:  # dateutil refuses some rules that never match
            continue
        assert found == expected, (text, start)
        assert recurrence.nth(len(found), Fuel()) == found[-1], (text, start)
        compared += 1


@pytest.mark.parametrize(
    ("minute", "hour"), [("30", "2"), ("0,30", "1,2"), ("15", "0"), ("59", "23"), ("0", "0"), ("0,20,40", "1,2,3")]
)
@pytest.mark.parametrize(
    "zone", [NEW_YORK, "America/Havana", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia"]
)
def test_a_daily_rule_is_the_same_as_its_cron(minute: str, hour: str, zone: str) -> None:
    rule = f"FREQ=DAILY;BYHOUR={hour};BYMINUTE={minute};BYSECOND=0"
    for fold in ("first", "second", "both"):
        for gap in ("shift", "skip"):
            for after in ("2026-03-07 00:00", "2026-10-31 00:00", "2026-04-04 00:00", "2011-12-28 12:00"):
                options = {"dst_fold": fold, "dst_gap": gap}
                expected = fires(f"{minute} {hour} * * *", zone, after, 20, **options)
                assert fires(rule, zone, after, 20, anchor=utc("2011-01-01"), **options) == expected


def test_without_dtstart_it_begins_at_the_anchor() -> None:
    anchor = utc("2026-01-05 09:30:10.5")
    assert fires("FREQ=WEEKLY", NEW_YORK, "2026-01-06 00:00", 2, anchor=anchor) == [
        "2026-01-12 09:30:10",
        "2026-01-19 09:30:10",
    ]
    assert fires("FREQ=DAILY;COUNT=3", "UTC", "2026-01-05 00:00", 9, anchor=anchor) == [
        "2026-01-06 09:30:10",
        "2026-01-07 09:30:10",
        "2026-01-08 09:30:10",
    ]


@pytest.mark.parametrize("microsecond", [0, 1, 500_000])
@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=SECONDLY;INTERVAL=2", "FREQ=DAILY", "FREQ=DAILY;BYHOUR=9;BYMINUTE=30;BYSECOND=10", "FREQ=YEARLY",
        "FREQ=HOURLY;BYMINUTE=7", "FREQ=MONTHLY;BYDAY=1MO,-1FR;BYSETPOS=1,-1", "FREQ=MINUTELY;BYSECOND=9,10,11",
    ],
)  # fmt: skip
def test_count_is_how_often_it_fires(rule: str, count: int, microsecond: int) -> None:
    """The moment of creation is not an occurrence and does not count. An explicit start may be one, and then counts."""
    made = utc("2026-01-05 09:30:10") + timedelta(microseconds=microsecond)
    text = f"{rule};COUNT={count}"
    found = chain(parse_schedule(text, now=made), made, 99)
    assert len(found) == count
    assert min(found) > made
    started = chain(parse_schedule(text, now=utc("2026-01-01"), anchor=made, starts=True), utc("2026-01-01"), 99)
    assert len(started) == count
    assert min(started) >= made
    dtstart = f"DTSTART:20260105T093010Z\nRRULE:{text}"
    assert len(chain(parse_schedule(dtstart, now=utc("2026-01-01")), utc("2026-01-01"), 99)) == count


def test_dates_are_added_and_taken() -> None:
    text = (
        "DTSTART;TZID=America/New_York:20260101T090000\n"
        "RRULE:FREQ=DAILY;COUNT=5\n"
        "RDATE;TZID=America/New_York:20260103T150000,20260110T090000\n"
        "RDATE:20260111T140000Z\n"
        "EXDATE;TZID=America/New_York:20260102T090000\n"
        "EXDATE;TZID=Europe/Berlin:20260104T150000\n"
    )
    assert fires(text, "UTC", "2025-12-31 00:00", 20) == [
        "2026-01-01 14:00",
        "2026-01-03 14:00",
        "2026-01-03 20:00",
        "2026-01-05 14:00",
        "2026-01-10 14:00",
        "2026-01-11 14:00",
    ]


def test_a_bare_date_takes_the_whole_day() -> None:
    text = "DTSTART:20260101T090000\nRRULE:FREQ=HOURLY;INTERVAL=8\nEXDATE;VALUE=DATE:20260102"
    assert fires(text, "UTC", "2026-01-01 09:30", 2) == ["2026-01-01 17:00", "2026-01-03 01:00"]


def test_dates_alone_are_a_schedule() -> None:
    text = "DTSTART:20260101T090000\nRDATE:20260301T090000,20260201T090000"
    assert fires(text, "UTC", "2025-12-31 00:00", 9) == ["2026-01-01 09:00", "2026-02-01 09:00", "2026-03-01 09:00"]


def test_until_ends_the_rule_but_not_the_dates_added() -> None:
    text = "DTSTART:20260101T090000\nRRULE:FREQ=DAILY;UNTIL=20260102T090000\nRDATE:20260201T090000"
    assert fires(text, "UTC", "2025-12-31 00:00", 9) == ["2026-01-01 09:00", "2026-01-02 09:00", "2026-02-01 09:00"]


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("20260103T090000", "2026-01-03 14:00"),
        ("20260103T085959", "2026-01-02 14:00"),
        ("20260103T140000Z", "2026-01-03 14:00"),
        ("20260103T135959Z", "2026-01-02 14:00"),
        ("20260103", "2026-01-03 14:00"),
    ],
)
def test_until_is_inclusive(until: str, last: str) -> None:
    text = f"DTSTART:20260101T090000\nRRULE:FREQ=DAILY;UNTIL={until}"
    assert fires(text, NEW_YORK, "2025-12-31 00:00", 9)[-1] == last


def test_until_within_a_doubled_hour_is_an_instant() -> None:
    text = "DTSTART:20261031T013000\nRRULE:FREQ=DAILY;UNTIL="
    for fold, until, count in (
        ("first", "20261101T052959Z", 1),
        ("first", "20261101T053000Z", 2),
        ("first", "20261101T061500Z", 2),
        ("second", "20261101T055900Z", 1),
        ("second", "20261101T063000Z", 2),
        ("both", "20261101T061500Z", 2),
        ("both", "20261101T063000Z", 3),
    ):
        assert len(fires(text + until, NEW_YORK, "2026-10-30 12:00", 9, dst_fold=fold)) == count, (fold, until)


def test_the_zone_of_dtstart_wins_over_the_jobs() -> None:
    text = "DTSTART;TZID=Asia/Tokyo:20260101T090000\nRRULE:FREQ=DAILY"
    schedule = parse(text, NEW_YORK)
    assert chain(schedule, "2026-01-01 12:00", 1) == [utc("2026-01-02 00:00")]
    assert next(schedule.walk(utc("2026-01-01 12:00"))).local.isoformat() == "2026-01-01T19:00:00-05:00"
    assert fires("DTSTART:20260101T090000Z\nRRULE:FREQ=DAILY", NEW_YORK, "2026-07-01 12:00", 1) == ["2026-07-02 09:00"]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("freq=daily", "RRULE:FREQ=DAILY"),
        ("RRULE:BYDAY=+1MO,-1fr;FREQ=MONTHLY;INTERVAL=1", "RRULE:FREQ=MONTHLY;BYDAY=1MO,-1FR"),
        ("RRULE:FREQ=WEEKLY;WKST=MO;BYDAY=WE,MO,MO", "RRULE:FREQ=WEEKLY;BYDAY=MO,WE"),
        ("RRULE:FREQ=YEARLY;BYMONTH=05;WKST=SU", "RRULE:FREQ=YEARLY;WKST=SU;BYMONTH=5"),
        (
            "RRULE:FREQ=DAILY;COUNT=5 dtstart;tzid=Europe/Berlin:20270101t090000",
            "DTSTART;TZID=Europe/Berlin:20270101T090000\nRRULE:FREQ=DAILY;COUNT=5",
        ),
        (
            "DTSTART:20270101T090000\r\nRRULE:FREQ=DAILY;UN\r\n TIL=20280101\r\nEXDATE:20270102T090000\r\n",
            "DTSTART:20270101T090000\nRRULE:FREQ=DAILY;UNTIL=20280101\nEXDATE:20270102T090000",
        ),
    ],
)
def test_canonical_text_comes_back_out_and_means_the_same(text: str, canonical: str) -> None:
    anchor = utc("2026-01-01 08:00")
    schedule = parse(text, NEW_YORK, anchor=anchor)
    again = parse(schedule.canonical, NEW_YORK, anchor=anchor)
    assert (schedule.kind, schedule.canonical, again.canonical) == ("rrule", canonical, canonical)
    assert schedule == again
    assert hash(schedule) == hash(again)
    assert chain(schedule, "2026-01-01", 5) == chain(again, "2026-01-01", 5)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("RRULE:", "RRULE"),
        ("RRULE", "RRULE"),
        ("DTSTART:20260101T000000", "RRULE"),
        ("RRULE:INTERVAL=2", "FREQ"),
        ("RRULE:FREQ=FORTNIGHTLY", "FREQ"),
        ("RRULE:FREQ=DAILY;FREQ=DAILY", "FREQ"),
        ("RRULE:FREQ=DAILY;INTERVAL=-1", "INTERVAL"),
        ("RRULE:FREQ=DAILY;INTERVAL=1.5", "INTERVAL"),
        ("RRULE:FREQ=DAILY;INTERVAL=99999999999", "INTERVAL"),
        ("RRULE:FREQ=DAILY;COUNT=0", "COUNT"),
        ("RRULE:FREQ=DAILY;COUNT=3;UNTIL=20300101T000000", "COUNT"),
        ("RRULE:FREQ=DAILY;BYDAY=MO;COUNT=100000000", "COUNT"),
        ("RRULE:FREQ=DAILY;UNTIL=soon", "UNTIL"),
        ("RRULE:FREQ=DAILY;UNTIL=20300230T000000", "UNTIL"),
        ("RRULE:FREQ=DAILY;BYEASTER=1", "BYEASTER"),
        ("RRULE:FREQ=DAILY;;", "RRULE"),
        ("RRULE:FREQ=DAILY;BYHOUR=24", "BYHOUR"),
        ("RRULE:FREQ=DAILY;BYHOUR=", "BYHOUR"),
        ("RRULE:FREQ=DAILY;BYHOUR=-1", "BYHOUR"),
        ("RRULE:FREQ=DAILY;BYSECOND=60", "BYSECOND"),
        ("RRULE:FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY"),
        ("RRULE:FREQ=DAILY;BYMONTHDAY=32", "BYMONTHDAY"),
        ("RRULE:FREQ=DAILY;BYDAY=XX", "BYDAY"),
        ("RRULE:FREQ=DAILY;BYDAY=1MO", "BYDAY"),
        ("RRULE:FREQ=MONTHLY;BYDAY=6MO", "BYDAY"),
        ("RRULE:FREQ=YEARLY;BYDAY=54MO", "BYDAY"),
        ("RRULE:FREQ=YEARLY;BYWEEKNO=20;BYDAY=1MO", "BYDAY"),
        ("RRULE:FREQ=DAILY;WKST=1MO", "WKST"),
        ("RRULE:FREQ=MONTHLY;BYWEEKNO=20", "BYWEEKNO"),
        ("RRULE:FREQ=MONTHLY;BYYEARDAY=20", "BYYEARDAY"),
        ("RRULE:FREQ=WEEKLY;BYMONTHDAY=20", "BYMONTHDAY"),
        ("RRULE:FREQ=DAILY;BYSETPOS=1", "BYSETPOS"),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY", "RRULE"),
        ("RRULE:FREQ=DAILY\nEXRULE:FREQ=WEEKLY", "EXRULE"),
        ("DTSTART:20260101T000000\nDTSTART:20260101T000000\nRRULE:FREQ=DAILY", "DTSTART"),
        ("DTSTART:20260101T000000,20260102T000000\nRRULE:FREQ=DAILY", "DTSTART"),
        ("DTSTART:20261301T000000\nRRULE:FREQ=DAILY", "DTSTART"),
        ("DTSTART;TZID=Europe/Berlin:20260101T000000Z\nRRULE:FREQ=DAILY", "DTSTART"),
        ("DTSTART;VALUE=PERIOD:20260101T000000\nRRULE:FREQ=DAILY", "DTSTART"),
        ("DTSTART:20200101T000000\nRRULE:FREQ=DAILY;UNTIL=20210101T000000", "schedule"),
        ("DTSTART:20200101T000000\nRRULE:FREQ=DAILY;COUNT=5", "schedule"),
    ],
)
def test_a_wrong_part_is_named(text: str, part: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse(text)
    assert caught.value.part == part
    assert len(str(caught.value)) < 300


def test_an_unknown_zone_in_dtstart_is_refused_as_a_zone() -> None:
    for name in ("Mars/Olympus", "../../etc/passwd"):
        with pytest.raises(InvalidInput) as caught:
            parse(f"DTSTART;TZID={name}:20260101T000000\nRRULE:FREQ=DAILY")
        assert caught.value.field == "timezone"


def test_counts_too_far_to_walk_are_computed_where_they_can_be() -> None:
    schedule = parse("DTSTART:20260101T000000\nRRULE:FREQ=SECONDLY;COUNT=100000000")
    assert schedule.next(utc("2029-03-03 09:46:38")) == utc("2029-03-03 09:46:39")
    assert schedule.next(utc("2029-03-03 09:46:39")) is None
    schedule = parse("DTSTART:20260101T120000\nRRULE:FREQ=DAILY;BYHOUR=6,12,18;COUNT=300000")
    # Two occurrences on the first day, three on each of the next 99,999 days, one on the last day.
    assert chain(schedule, "2299-10-13 00:00", 99)[-1] == utc("2026-01-01 06:00") + timedelta(days=100_000)


def test_mixed_plain_and_numbered_days_are_a_union() -> None:
    assert fires("DTSTART:20260101T090000\nRRULE:FREQ=MONTHLY;BYDAY=2MO,FR", "UTC", "2026-01-05 00:00", 3) == [
        "2026-01-09 09:00",
        "2026-01-12 09:00",
        "2026-01-16 09:00",
    ]


def test_a_week_number_without_a_day_takes_the_day_of_the_start() -> None:
    assert fires("DTSTART:20260107T090000\nRRULE:FREQ=YEARLY;BYWEEKNO=1,53", "UTC", "2026-01-05 00:00", 4) == [
        "2026-12-30 09:00",
        "2027-01-06 09:00",
        "2028-01-05 09:00",
        "2029-01-03 09:00",
    ]


def test_rules_end_with_the_calendar() -> None:
    for text in (
        "FREQ=YEARLY",
        "FREQ=MONTHLY",
        "FREQ=WEEKLY",
        "FREQ=DAILY",
        "FREQ=HOURLY",
        "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=-1",
    ):
        for zone in ("UTC", NEW_YORK, "Pacific/Kiritimati"):
            schedule = parse(text, zone, anchor=utc("2026-12-15 23:30"))
            moment = utc("9999-11-30")
            while (following := schedule.next(moment)) is not None:
                assert following > moment
                moment = following
            assert moment > utc("9999-11-30") or text == "FREQ=YEARLY"


def test_leap_days_to_2104() -> None:
    days = fires("DTSTART:20240229T000000\nRRULE:FREQ=YEARLY", "UTC", "2026-01-01 00:00", 19)
    assert days == [f"{year}-02-29 00:00" for year in [*range(2028, 2097, 4), 2104]]
