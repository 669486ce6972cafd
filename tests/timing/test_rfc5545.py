"""The published examples of RFC 5545, section 3.8.5.3: each rule with the dates the RFC gives for it.

All rules begin at 09:00 in New York unless they state a time. The lists below leave out the times of day if all are
09:00. If the RFC ends a list with `…`, more dates follow, and the end is not checked here.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from duly.timing import parse_schedule

from .helpers import NEW_YORK, chain

ZONE = ZoneInfo(NEW_YORK)
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def days(year: int, **months: str) -> list[str]:
    """The days as texts: `days(1997, sep="2 4 6")`."""
    return [
        f"{year}-{MONTHS.index(m) + 1:02}-{int(day):02} 09:00" for m, text in months.items() for day in text.split()
    ]


def span(first: str, last: str) -> list[str]:
    start, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    return [f"{start + timedelta(days=n):%Y-%m-%d} 09:00" for n in range((end - start).days + 1)]


EVERY_DAY_IN_JANUARY = [
    *span("1998-01-01", "1998-01-31"),
    *span("1999-01-01", "1999-01-31"),
    *span("2000-01-01", "2000-01-31"),
]
UNTIL_CHRISTMAS_EVE = span("1997-09-02", "1997-12-23")
TUESDAYS_AND_THURSDAYS = days(1997, sep="2 4 9 11 16 18 23 25 30", oct="2")
EVERY_OTHER_WEEK = [
    *days(1997, sep="1 3 5 15 17 19 29", oct="1 3 13 15 17 27 29 31", nov="10 12 14 24 26 28", dec="8 10 12 22")
]
SUMMER_THURSDAYS = [
    *days(1997, jun="5 12 19 26", jul="3 10 17 24 31", aug="7 14 21 28"),
    *days(1998, jun="4 11 18 25", jul="2 9 16 23 30", aug="6 13 20 27"),
    *days(1999, jun="3 10 17 24", jul="1 8 15 22 29", aug="5 12 19 26"),
]
WORKING_TIMES = [
    f"1997-09-0{day} {hour:02}:{minute:02}" for day in (2, 3) for hour in range(9, 17) for minute in (0, 20, 40)
]

# (name, DTSTART, rule, dates, whether the list of dates is complete)
EXAMPLES: list[tuple[str, str, str, list[str], bool]] = [
    ("daily for 10", "19970902", "FREQ=DAILY;COUNT=10", span("1997-09-02", "1997-09-11"), True),
    ("daily until", "19970902", "FREQ=DAILY;UNTIL=19971224T000000Z", UNTIL_CHRISTMAS_EVE, True),
    (
        "every other day",
        "19970902",
        "FREQ=DAILY;INTERVAL=2",
        days(1997, sep="2 4 6 8 10 12 14 16 18 20 22 24 26 28 30", oct="2 4 6"),
        False,
    ),
    ("every 10 days", "19970902", "FREQ=DAILY;INTERVAL=10;COUNT=5", days(1997, sep="2 12 22", oct="2 12"), True),
    (
        "January by year",
        "19980101",
        "FREQ=YEARLY;UNTIL=20000131T140000Z;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA",
        EVERY_DAY_IN_JANUARY,
        True,
    ),
    ("January by day", "19980101", "FREQ=DAILY;UNTIL=20000131T140000Z;BYMONTH=1", EVERY_DAY_IN_JANUARY, True),
    (
        "weekly for 10",
        "19970902",
        "FREQ=WEEKLY;COUNT=10",
        days(1997, sep="2 9 16 23 30", oct="7 14 21 28", nov="4"),
        True,
    ),
    (
        "weekly until",
        "19970902",
        "FREQ=WEEKLY;UNTIL=19971224T000000Z",
        days(1997, sep="2 9 16 23 30", oct="7 14 21 28", nov="4 11 18 25", dec="2 9 16 23"),
        True,
    ),
    (
        "every other week",
        "19970902",
        "FREQ=WEEKLY;INTERVAL=2;WKST=SU",
        [*days(1997, sep="2 16 30", oct="14 28", nov="11 25", dec="9 23"), *days(1998, jan="6 20", feb="3 17")],
        False,
    ),
    (
        "five weeks until",
        "19970902",
        "FREQ=WEEKLY;UNTIL=19971007T000000Z;WKST=SU;BYDAY=TU,TH",
        TUESDAYS_AND_THURSDAYS,
        True,
    ),
    ("five weeks for 10", "19970902", "FREQ=WEEKLY;COUNT=10;WKST=SU;BYDAY=TU,TH", TUESDAYS_AND_THURSDAYS, True),
    (
        "every other week until",
        "19970901",
        "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR",
        EVERY_OTHER_WEEK,
        True,
    ),
    (
        "every other week for 8",
        "19970902",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH",
        days(1997, sep="2 4 16 18 30", oct="2 14 16"),
        True,
    ),
    (
        "first Fridays for 10",
        "19970905",
        "FREQ=MONTHLY;COUNT=10;BYDAY=1FR",
        [
            *days(1997, sep="5", oct="3", nov="7", dec="5"),
            *days(1998, jan="2", feb="6", mar="6", apr="3", may="1", jun="5"),
        ],
        True,
    ),
    (
        "first Fridays until",
        "19970905",
        "FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR",
        days(1997, sep="5", oct="3", nov="7", dec="5"),
        True,
    ),
    (
        "first and last Sundays",
        "19970907",
        "FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU",
        [*days(1997, sep="7 28", nov="2 30"), *days(1998, jan="4 25", mar="1 29", may="3 31")],
        True,
    ),
    (
        "second-to-last Mondays",
        "19970922",
        "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
        [*days(1997, sep="22", oct="20", nov="17", dec="22"), *days(1998, jan="19", feb="16")],
        True,
    ),
    (
        "third-to-last days",
        "19970928",
        "FREQ=MONTHLY;BYMONTHDAY=-3",
        [*days(1997, sep="28", oct="29", nov="28", dec="29"), *days(1998, jan="29", feb="26")],
        False,
    ),
    (
        "2nd and 15th",
        "19970902",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15",
        [*days(1997, sep="2 15", oct="2 15", nov="2 15", dec="2 15"), *days(1998, jan="2 15")],
        True,
    ),
    (
        "first and last days",
        "19970930",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1",
        [*days(1997, sep="30", oct="1 31", nov="1 30", dec="1 31"), *days(1998, jan="1 31", feb="1")],
        True,
    ),
    (
        "every 18 months",
        "19970910",
        "FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15",
        [*days(1997, sep="10 11 12 13 14 15"), *days(1999, mar="10 11 12 13")],
        True,
    ),
    (
        "Tuesdays of every other month",
        "19970902",
        "FREQ=MONTHLY;INTERVAL=2;BYDAY=TU",
        [*days(1997, sep="2 9 16 23 30", nov="4 11 18 25"), *days(1998, jan="6 13 20 27", mar="3 10 17 24 31")],
        False,
    ),
    (
        "June and July",
        "19970610",
        "FREQ=YEARLY;COUNT=10;BYMONTH=6,7",
        [day for year in range(1997, 2002) for day in days(year, jun="10", jul="10")],
        True,
    ),
    (
        "every other winter",
        "19970310",
        "FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3",
        [
            *days(1997, mar="10"),
            *[day for year in (1999, 2001, 2003) for day in days(year, jan="10", feb="10", mar="10")],
        ],
        True,
    ),
    (
        "days of the year",
        "19970101",
        "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200",
        [
            *days(1997, jan="1", apr="10", jul="19"),
            *days(2000, jan="1", apr="9", jul="18"),
            *days(2003, jan="1", apr="10", jul="19"),
            *days(2006, jan="1"),
        ],
        True,
    ),
    (
        "20th Mondays",
        "19970519",
        "FREQ=YEARLY;BYDAY=20MO",
        [*days(1997, may="19"), *days(1998, may="18"), *days(1999, may="17")],
        False,
    ),
    (
        "Mondays of week 20",
        "19970512",
        "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
        [*days(1997, may="12"), *days(1998, may="11"), *days(1999, may="17")],
        False,
    ),
    (
        "Thursdays in March",
        "19970313",
        "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
        [*days(1997, mar="13 20 27"), *days(1998, mar="5 12 19 26"), *days(1999, mar="4 11 18 25")],
        False,
    ),
    ("Thursdays in summer", "19970605", "FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8", SUMMER_THURSDAYS, False),
    (
        "Friday the 13th",
        "19970902",
        "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13\nEXDATE;TZID=America/New_York:19970902T090000",
        [*days(1998, feb="13", mar="13", nov="13"), *days(1999, aug="13"), *days(2000, oct="13")],
        False,
    ),
    (
        "Saturdays after first Sundays",
        "19970913",
        "FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13",
        [
            *days(1997, sep="13", oct="11", nov="8", dec="13"),
            *days(1998, jan="10", feb="7", mar="7", apr="11", may="9", jun="13"),
        ],
        False,
    ),
    (
        "election days",
        "19961105",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
        [*days(1996, nov="5"), *days(2000, nov="7"), *days(2004, nov="2")],
        False,
    ),
    (
        "third of Tu, We, Th",
        "19970904",
        "FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3",
        days(1997, sep="4", oct="7", nov="6"),
        True,
    ),
    (
        "second-to-last weekdays",
        "19970929",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
        [*days(1997, sep="29", oct="30", nov="27", dec="30"), *days(1998, jan="29", feb="26", mar="30")],
        False,
    ),
    # The RFC writes UNTIL=19970902T170000Z, which is 13:00 in New York; its erratum corrects that to 17:00 local time.
    (
        "every 3 hours",
        "19970902",
        "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T210000Z",
        [f"1997-09-02 {hour}:00" for hour in ("09", "12", "15")],
        True,
    ),
    (
        "every 15 minutes",
        "19970902",
        "FREQ=MINUTELY;INTERVAL=15;COUNT=6",
        [f"1997-09-02 {t}" for t in ("09:00", "09:15", "09:30", "09:45", "10:00", "10:15")],
        True,
    ),
    (
        "every hour and a half",
        "19970902",
        "FREQ=MINUTELY;INTERVAL=90;COUNT=4",
        [f"1997-09-02 {t}" for t in ("09:00", "10:30", "12:00", "13:30")],
        True,
    ),
    (
        "every 20 minutes by day",
        "19970902",
        "FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40",
        WORKING_TIMES,
        False,
    ),
    (
        "every 20 minutes by minute",
        "19970902",
        "FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16",
        WORKING_TIMES,
        False,
    ),
    (
        "weeks from Monday",
        "19970805",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO",
        days(1997, aug="5 10 19 24"),
        True,
    ),
    (
        "weeks from Sunday",
        "19970805",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU",
        days(1997, aug="5 17 19 31"),
        True,
    ),
    (
        "invalid dates are ignored",
        "20070115",
        "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
        days(2007, jan="15 30", feb="15", mar="15 30"),
        True,
    ),
]


@pytest.mark.parametrize(
    ("start", "rule", "expected", "complete"), [e[1:] for e in EXAMPLES], ids=[e[0] for e in EXAMPLES]
)
def test_example(start: str, rule: str, expected: list[str], complete: bool) -> None:
    text = f"DTSTART;TZID=America/New_York:{start}T090000\nRRULE:{rule}"
    before = datetime.strptime(start, "%Y%m%d").replace(tzinfo=ZONE)
    schedule = parse_schedule(text, now=before)
    found = chain(schedule, before, len(expected) + complete)
    assert [f"{moment.astimezone(ZONE):%Y-%m-%d %H:%M}" for moment in found] == expected
    assert parse_schedule(schedule.canonical, now=before) == schedule
