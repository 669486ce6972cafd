"""Short helpers for the tests of schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

from duly.model import Occurrence
from duly.timing import Schedule, parse_schedule

NEW_YORK = "America/New_York"


def utc(text: str) -> datetime:
    """An instant: `utc("2026-03-08 07:00")`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def parse(text: str, zone: str = "UTC", *, now: str = "2026-01-01", **options: Any) -> Schedule:
    return parse_schedule(text, now=utc(now), timezone=zone, **options)


def chain(schedule: Schedule, after: datetime | str, count: int) -> list[datetime]:
    """The next `count` occurrences, or fewer if the schedule ends, found by one call of `next` each."""
    moment = utc(after) if isinstance(after, str) else after
    found: list[datetime] = []
    while len(found) < count:
        following = schedule.next(moment)
        if following is None:
            break
        assert following > moment
        found.append(following)
        moment = following
    return found


def fires(text: str, zone: str, after: str, count: int, **options: Any) -> list[str]:
    """The next `count` occurrences as texts: `["2026-03-08 07:00", …]`, with seconds only if they are not zero."""
    schedule = parse_schedule(text, now=utc(after), timezone=zone, **options)
    return [spell(moment) for moment in chain(schedule, after, count)]


def shows(text: str, zone: str, after: str, count: int, **options: Any) -> list[Occurrence]:
    """The first rows of a preview."""
    schedule = parse_schedule(text, now=utc(after), timezone=zone, **options)
    return list(islice(schedule.walk(utc(after)), count))


def spell(moment: datetime) -> str:
    assert moment.tzinfo is UTC
    return moment.strftime("%Y-%m-%d %H:%M:%S" if moment.second else "%Y-%m-%d %H:%M")
