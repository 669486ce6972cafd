"""A second opinion on cron and DST: slow, obvious, and without a line of the product.

The oracle reads a zone's wall clock minute by minute, notes which local time it shows at which instant, and derives
from that when an expression must fire. No arithmetic on offsets, no search: only `zoneinfo`'s answer for each minute.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


@dataclass(frozen=True)
class Wall:
    """One minute of the wall clock: the instants at which it is shown or, if it is never shown, the end of its gap."""

    local: datetime
    instants: tuple[datetime, ...]
    gap_end: datetime | None
    day_exists: bool


def scan(zone: ZoneInfo, first: datetime, last: datetime) -> list[Wall]:
    """Every minute of the wall clock between two instants, in order of local time."""
    shown: dict[datetime, list[datetime]] = {}
    gaps: dict[datetime, datetime] = {}
    moment, previous = first, None
    while moment <= last:
        local = moment.astimezone(zone).replace(tzinfo=None, fold=0)
        shown.setdefault(local, []).append(moment)
        if previous is not None:
            missing = previous + MINUTE
            while missing < local:
                gaps[missing] = moment
                missing += MINUTE
        previous = local
        moment += MINUTE
    days = {local.date() for local in shown}
    walls = [Wall(local, tuple(instants), None, True) for local, instants in shown.items()]
    walls += [Wall(local, (), end, local.date() in days) for local, end in gaps.items() if local not in shown]
    return sorted(walls, key=lambda wall: wall.local)


class Expression:
    """Five cron fields, read in the plainest way. The text must be valid."""

    def __init__(self, text: str) -> None:
        minute, hour, day, month, weekday = text.upper().split()
        self.minutes = numbers(minute, 0, 59)
        self.hours = numbers(hour, 0, 23)
        self.months = numbers(month, 1, 12, MONTHS)
        self.day_items = day.split(",")
        self.days = numbers(",".join(i for i in self.day_items if not i.startswith("L")), 1, 31)
        self.weekday_items = [i for i in weekday.split(",") if "#" in i or i.endswith("L")]
        self.weekdays = numbers(",".join(i for i in weekday.split(",") if i not in self.weekday_items), 0, 7, DAYS, 0)
        self.either = not day.startswith("*") and not weekday.startswith("*")
        self.elapsed = minute.startswith("*") or hour.startswith("*")
        self._seen: dict[date, bool] = {}

    def has_day(self, day: date) -> bool:
        if day not in self._seen:
            by_date, by_weekday = self.by_date(day), self.by_weekday(day)
            fits = by_date or by_weekday if self.either else by_date and by_weekday
            self._seen[day] = day.month in self.months and fits
        return self._seen[day]

    def by_date(self, day: date) -> bool:
        in_month = [date(day.year, day.month, n + 1) for n in range(calendar.monthrange(day.year, day.month)[1])]
        if "L" in self.day_items and day == in_month[-1]:
            return True
        if "LW" in self.day_items and day == [d for d in in_month if d.isoweekday() <= 5][-1]:
            return True
        return day.day in self.days

    def by_weekday(self, day: date) -> bool:
        number = day.isoweekday() % 7
        if number in {n % 7 for n in self.weekdays}:
            return True
        in_month = [date(day.year, day.month, n + 1) for n in range(calendar.monthrange(day.year, day.month)[1])]
        alike = [d for d in in_month if d.isoweekday() == day.isoweekday()]
        for item in self.weekday_items:
            name, _, nth = item.partition("#")
            if not nth:
                name, nth = item[:-1], "0"
            value = DAYS.index(name) if name in DAYS else int(name)
            if value % 7 == number and (alike[-1] if nth == "0" else (alike + [None] * 5)[int(nth) - 1]) == day:
                return True
        return False

    def expected(self, walls: list[Wall], gap: str, fold: str) -> list[datetime]:
        """The instants at which the expression must fire, according to the scanned wall clock."""
        fired: set[datetime] = set()
        for wall in walls:
            local = wall.local
            if local.minute not in self.minutes or local.hour not in self.hours or not self.has_day(local.date()):
                continue
            if self.elapsed or fold == "both":
                fired.update(wall.instants)
            else:
                fired.update(wall.instants[:1] if fold == "first" else wall.instants[-1:])
            if wall.gap_end and wall.day_exists and gap == "shift" and not self.elapsed:
                fired.add(wall.gap_end)
        return sorted(fired)


def numbers(text: str, low: int, high: int, names: list[str] | None = None, first: int = 1) -> set[int]:
    found: set[int] = set()
    for item in text.split(",") if text else []:
        body, _, step = item.partition("/")
        for position, name in enumerate(names or []):
            body = body.replace(name, str(position + first))
        if body == "*":
            start, stop = low, high
        elif "-" in body:
            start, stop = (int(part) for part in body.split("-"))
        else:
            start = stop = int(body)
        found.update(range(start, stop + 1, int(step or 1)))
    return found


def transitions(zone: ZoneInfo, first_year: int, last_year: int) -> list[datetime]:
    """The minutes at which a zone's offset changes: found by day first, then by minute."""
    found = []
    day = datetime(first_year, 1, 1, tzinfo=UTC)
    end = datetime(last_year + 1, 1, 1, tzinfo=UTC)
    offset = day.astimezone(zone).utcoffset()
    while day < end:
        following = day + DAY
        if following.astimezone(zone).utcoffset() != offset:
            low, high = 0, 1440
            while high - low > 1:
                middle = (low + high) // 2
                if (day + middle * MINUTE).astimezone(zone).utcoffset() == offset:
                    low = middle
                else:
                    high = middle
            found.append(day + high * MINUTE)
            offset = following.astimezone(zone).utcoffset()
        day = following
    return found
