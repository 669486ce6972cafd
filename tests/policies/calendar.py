"""Finds when a schedule occurs, slowly: minute by minute on the wall clock, or by another library. No product code.

`occurrences` covers one range of time. Its answer has the nominal instants (before jitter and bounds) and the instants
at which `dst_gap="skip"` dropped an occurrence.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from timing.oracle import Expression, Wall, numbers, scan

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
ELAPSED = ("FREQ=HOURLY", "FREQ=MINUTELY", "FREQ=SECONDLY")
UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


@dataclass(frozen=True)
class Answer:
    nominal: tuple[datetime, ...]
    dropped: tuple[datetime, ...] = ()


@lru_cache(maxsize=64)
def walls(zone: str, first: datetime, last: datetime) -> tuple[dict[datetime, Wall], list[Wall]]:
    found = scan(ZoneInfo(zone), first.replace(second=0, microsecond=0), last)
    return {wall.local: wall for wall in found}, found


@dataclass(frozen=True)
class Definition:
    """The fields that decide when a job occurs."""

    schedule: str
    timezone: str
    dst_gap: str
    dst_fold: str
    anchor: datetime
    starts: bool

    @property
    def once(self) -> bool:
        return self.schedule[:3] == "202"


@lru_cache(maxsize=4096)
def occurrences(what: Definition, first: datetime, last: datetime) -> Answer:
    """All nominal occurrences in [first, last]."""
    text = what.schedule
    if text.startswith("every "):
        return Answer(tuple(_interval(what, first, last)))
    if what.once:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return Answer((moment.astimezone(UTC),))
        fold = "first" if what.dst_fold == "both" else what.dst_fold
        return _mapped([moment], what.timezone, what.dst_gap, fold, first, last)
    if "FREQ=" in text:
        return _rule(what, first, last)
    return _cron(what, first, last)


def _interval(what: Definition, first: datetime, last: datetime) -> list[datetime]:
    period, number = 0, ""
    for char in what.schedule.removeprefix("every "):
        if char.isdigit():
            number += char
        else:
            period, number = period + int(number) * UNITS[char], ""
    moment, found = what.anchor, []
    while moment <= last:
        if moment >= first and (what.starts or moment > what.anchor):
            found.append(moment)
        moment += timedelta(seconds=period)
    return found


def _cron(what: Definition, first: datetime, last: datetime) -> Answer:
    fields = what.schedule.split()
    seconds = sorted(numbers(fields.pop(0), 0, 59)) if len(fields) == 6 else [0]
    cron = Expression(" ".join(fields))
    locals_ = [
        wall.local + second * SECOND
        for wall in walls(what.timezone, first, last)[1]
        if wall.local.minute in cron.minutes and wall.local.hour in cron.hours and cron.has_day(wall.local.date())
        for second in seconds
    ]
    gap, fold = ("vanish", "both") if cron.elapsed else (what.dst_gap, what.dst_fold)
    return _mapped(locals_, what.timezone, gap, fold, first, last)


def _rule(what: Definition, first: datetime, last: datetime) -> Answer:
    text, zone, until, count = what.schedule, what.timezone, None, None
    start = None
    rule = []
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        if name.startswith("DTSTART"):
            zone = name.partition("TZID=")[2] or ("UTC" if value.endswith("Z") else zone)
            start = datetime.strptime(value.rstrip("Z"), "%Y%m%dT%H%M%S")  # noqa: DTZ007 - local
        else:
            for part in (value or line).split(";"):
                if part.startswith("COUNT="):
                    count = int(part[6:])
                elif part.startswith("UNTIL="):
                    until = datetime.strptime(part[6:], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                else:
                    rule.append(part)
    given = start is not None
    if start is None:
        start = what.anchor.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0, microsecond=0)
    counts_start = given or (what.starts and what.anchor.microsecond == 0)
    end = last.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    locals_: list[datetime] = []
    for local in rrulestr(";".join(rule), dtstart=start):
        if local == start and not counts_start:
            continue
        if local > end or (count is not None and len(locals_) == count):
            break
        locals_.append(local)
    elapsed = any(part in ELAPSED for part in rule)
    gap, fold = ("vanish", "both") if elapsed else (what.dst_gap, what.dst_fold)
    answer = _mapped(locals_, zone, gap, fold, first, last)
    if until is not None:
        return Answer(tuple(one for one in answer.nominal if one <= until), answer.dropped)
    return answer


def _mapped(locals_: list[datetime], zone: str, gap: str, fold: str, first: datetime, last: datetime) -> Answer:
    by_local = walls(zone, first, last)[0]
    fired: set[datetime] = set()
    moved: set[datetime] = set()
    for local in locals_:
        minute = local.replace(second=0, microsecond=0)
        wall = by_local.get(minute)
        if wall is None:
            continue
        instants = [one + (local - minute) for one in wall.instants]
        if fold != "both":
            instants = instants[:1] if fold == "first" else instants[-1:]
        fired.update(instants)
        if wall.gap_end is not None and wall.day_exists and gap != "vanish":
            moved.add(wall.gap_end)
    if gap == "shift":
        return Answer(tuple(sorted(fired | moved)))
    return Answer(tuple(sorted(fired)), tuple(sorted(moved - fired)))
