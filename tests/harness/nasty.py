"""288 schedules, of every kind and with every part, that are made to cost a scheduler much time."""

from __future__ import annotations

from itertools import product

PLACES = ",".join(map(str, [*range(1, 367), *range(-366, 0)]))
SIXTY = ",".join(map(str, range(60)))
HOURS = ",".join(map(str, range(24)))
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

#: Has no occurrence for thousands of years in America/New_York with dst_gap=skip: 732 places a year, all in the gap.
GAPS = f"RRULE:FREQ=YEARLY;BYMONTH=3;BYDAY=2SU;BYHOUR=2;BYMINUTE={SIXTY};BYSECOND={SIXTY};BYSETPOS={PLACES}"
ZONES = ("UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca")


def schedules() -> list[str]:
    """All 288 schedules as strings."""
    return [*_crons(), *_grids(), *_filters(), *_places(), *_counts(), *_dates(), *_others()]


def _crons() -> list[str]:
    days = ("29 2 *", "31 2,12 7", "30 4,6 SUN#5", "29 2 MON#5", "* * *", "1,15 * FRI#3", "29 2 SUN", "L 2 *")
    times = ("0 0", "30 2", "* *", "*/7 */5", "59 23", "15,45 1-3", "*/59 2")
    return [f"{time} {day}" for time, day in product(times, days)]


def _grids() -> list[str]:
    """Rules whose interval and filters rarely meet, or never."""
    clocks = ("", ";BYHOUR=3", ";BYHOUR=2;BYMINUTE=30")
    grids = (
        "DAILY;INTERVAL=7;BYDAY=MO,TU", "DAILY;INTERVAL=364;BYMONTHDAY=29;BYMONTH=2", "WEEKLY;INTERVAL=53;BYMONTH=2",
        "MONTHLY;INTERVAL=13;BYMONTHDAY=31", "YEARLY;INTERVAL=7;BYMONTH=2;BYMONTHDAY=29", "YEARLY;BYWEEKNO=53;BYDAY=MO",
        "HOURLY;INTERVAL=1000003;BYMONTHDAY=29;BYMONTH=2", "MINUTELY;INTERVAL=999983;BYDAY=SU",
        "SECONDLY;INTERVAL=86399;BYMONTH=2;BYMONTHDAY=29", "SECONDLY;INTERVAL=999999937;BYDAY=MO",
        "MINUTELY;INTERVAL=1441;BYYEARDAY=366", "HOURLY;INTERVAL=25;BYYEARDAY=-366", "WEEKLY;INTERVAL=1461;BYMONTH=6",
    )  # fmt: skip
    return [f"FREQ={grid}{clock}" for grid, clock in product(grids, clocks)]


def _filters() -> list[str]:
    """Rules with lists of the maximum length."""
    every_day = ",".join(WEEKDAYS)
    numbered = ",".join(f"{n}{day}" for n in (*range(1, 54), *range(-53, 0)) for day in WEEKDAYS)
    month_days = ",".join(map(str, [*range(1, 32), *range(-31, 0)]))
    year_days = ",".join(map(str, [*range(1, 367), *range(-366, 0)]))
    weeks = ",".join(map(str, [*range(1, 54), *range(-53, 0)]))
    days = (
        f"YEARLY;BYDAY={numbered}", f"YEARLY;BYYEARDAY={year_days}", f"YEARLY;BYWEEKNO={weeks};BYDAY={every_day}",
        f"MONTHLY;BYMONTHDAY={month_days}", f"MONTHLY;BYMONTHDAY={month_days};BYDAY=5MO,-5TU",
        f"WEEKLY;BYDAY={every_day}", f"DAILY;BYMONTHDAY={month_days};BYDAY=SU",
        f"YEARLY;BYYEARDAY=366;BYMONTHDAY={month_days};BYDAY=MO", f"HOURLY;BYYEARDAY={year_days};BYDAY=SU;BYMONTH=2",
    )  # fmt: skip
    clocks = ("", f";BYHOUR={HOURS}", f";BYMINUTE={SIXTY}", f";BYHOUR=2;BYMINUTE={SIXTY};BYSECOND={SIXTY}")
    return [f"FREQ={day}{clock}" for day, clock in product(days, clocks)]


def _places() -> list[str]:
    periods = (
        "YEARLY;BYMONTH=3;BYDAY=2SU", "YEARLY;BYDAY=MO", "MONTHLY;BYDAY=SU", "MONTHLY;BYMONTHDAY=29,30,31", "DAILY",
        "WEEKLY;BYDAY=SU,MO", "HOURLY", "YEARLY;BYMONTH=2;BYMONTHDAY=29", "MONTHLY;INTERVAL=7;BYDAY=5SU",
    )  # fmt: skip
    clocks = (f";BYHOUR=2;BYMINUTE={SIXTY};BYSECOND={SIXTY}", f";BYMINUTE={SIXTY}")
    places = (PLACES, "366,-366", "1,-1")
    return [f"FREQ={period}{clock};BYSETPOS={place}" for period, clock, place in product(periods, clocks, places)]


def _counts() -> list[str]:
    rules = (
        "DAILY;BYDAY=MO", f"MONTHLY;BYDAY=SU;BYSETPOS={PLACES}", "DAILY;BYHOUR=1,2;BYSETPOS=1", "WEEKLY;INTERVAL=3",
        "YEARLY;BYMONTH=2;BYMONTHDAY=29", "SECONDLY", "SECONDLY;BYHOUR=2", "MINUTELY;INTERVAL=7;BYDAY=SU",
        f"{GAPS.removeprefix('RRULE:FREQ=')}",
    )  # fmt: skip
    return [f"FREQ={rule};COUNT={count}" for rule, count in product(rules, (1, 1000, 1_000_000, 1_000_000_000))]


def _dates() -> list[str]:
    """Rules whose only occurrences are added dates, or all of whose occurrences are excluded."""
    added = ",".join(
        f"2027{month:02}{day:02}T0230{second:02}" for month in (3, 4) for day in (1, 14) for second in range(60)
    )
    taken = ",".join(f"2027{month:02}{day:02}" for month in range(1, 13) for day in range(1, 29))
    rules = (GAPS, "RRULE:FREQ=SECONDLY", "RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "RRULE:FREQ=YEARLY;INTERVAL=3")
    ends = ("", ";UNTIL=20270101T000000Z", ";UNTIL=20990101T000000Z")
    lines = (f"\nRDATE:{added}", f"\nEXDATE;VALUE=DATE:{taken}", f"\nRDATE:{added}\nEXDATE:{added}")
    return [f"{rule}{end}{line}" for rule, end, line in product(rules, ends, lines)]


def _others() -> list[str]:
    return [
        GAPS, f"{GAPS}\nRDATE:20300505T120000", "every 1s", "every 36500d", "PT1S", "rate(1 minute)",
        "DTSTART:19000101T000000\nRRULE:FREQ=SECONDLY", "DTSTART:99981231T235959\nRRULE:FREQ=YEARLY",
        "DTSTART;TZID=Pacific/Apia:20111230T000000\nRRULE:FREQ=DAILY", "30 2 * 3 SUN#2", "30 2 8-14 3 *", "@yearly",
        "DTSTART;TZID=Australia/Lord_Howe:20261004T021500\nRRULE:FREQ=YEARLY;BYMONTH=10;BYDAY=1SU",
        "RRULE:FREQ=YEARLY;INTERVAL=1000000000", "RRULE:FREQ=DAILY;INTERVAL=1000000000",
        "RRULE:FREQ=SECONDLY;INTERVAL=1000000000", "RRULE:FREQ=MINUTELY;INTERVAL=1000000000",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=31", "FREQ=MONTHLY;BYDAY=5SU;BYMONTHDAY=1",
        "FREQ=YEARLY;BYWEEKNO=1;BYMONTH=12;BYDAY=SA", "FREQ=YEARLY;BYWEEKNO=-53;BYMONTH=1;BYDAY=MO",
        "30 2 29 3 SUN", "0 3 31 3,10 0", "FREQ=DAILY;BYHOUR=0;BYMINUTE=0;BYMONTH=12;BYMONTHDAY=30",
        "FREQ=YEARLY;BYDAY=1SU,-1SU;BYHOUR=2,3;BYMINUTE=0,30", "FREQ=WEEKLY;WKST=SU;INTERVAL=5217;BYDAY=SU",
        "FREQ=DAILY;BYHOUR=2;BYMINUTE=30;UNTIL=20300506T000000Z", "FREQ=SECONDLY;UNTIL=20300505T115000Z",
        "FREQ=MINUTELY;BYHOUR=2;BYDAY=SU;BYMONTH=3", "FREQ=HOURLY;BYMINUTE=30;BYSECOND=30;BYSETPOS=-1",
        "FREQ=YEARLY;BYMONTH=10;BYDAY=-1SU;BYHOUR=1;BYMINUTE=30",
    ]  # fmt: skip
