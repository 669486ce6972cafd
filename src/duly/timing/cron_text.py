"""Parses cron expressions: five fields, or six with leading seconds, or an @name.

All checks are here, in one pass and in time linear in the text, so that an error can name the field and say what would
be right. The meaning is Debian cron's: a day field that begins with `*` does not restrict the day, and
when both day fields do, either of them is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from duly.errors import InvalidSchedule
from duly.formats import quote

from .times import TimesOfDay

_MAX_CHARS = 1024  # every value of every field, spelled out, is about 600 characters

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of values of the field; 7 is only another name for Sunday."""
        return self.high - self.low + (self.name != "day of week")

    @property
    def wanted(self) -> str:
        numbers = f"{self.low} to {self.high}"
        return f"{numbers} or {self.names[0]} to {self.names[-1]}" if self.names else numbers


_SECOND = _Field("second", 0, 59)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY_OF_MONTH = _Field("day of month", 1, 31)
_MONTH = _Field("month", 1, 12, _MONTHS)
_DAY_OF_WEEK = _Field("day of week", 0, 7, _DAYS)


@dataclass(frozen=True, slots=True)
class CronFields:
    """A parsed cron expression, ready to be searched. Weekdays count from Monday = 0."""

    canonical: str
    times: TimesOfDay
    months: frozenset[int]
    days: frozenset[int]
    last_day: bool
    last_weekday: bool
    weekdays: frozenset[int]
    last_of: frozenset[int]  # weekdays of which the last in the month matches: 5L
    nth_of: frozenset[tuple[int, int]]  # (weekday, n): MON#2
    both_days: bool  # both day fields must match, because one of them begins with *
    elapsed: bool  # hour or minute is a wildcard or a step of one: runs on elapsed time across DST


def read_cron(text: str) -> CronFields:
    """Parses a cron expression; raises an `InvalidSchedule` that names the field."""
    if len(text) > _MAX_CHARS:
        raise InvalidSchedule(f"a cron expression of {len(text)} characters, use at most {_MAX_CHARS}", part="schedule")
    if text.startswith("@"):
        named = _NAMED.get(text.lower())
        if named is None:
            raise InvalidSchedule(f"{quote(text)} is not known, use one of {' '.join(_NAMED)}", part="schedule")
        text = named
    if text[:5].lower() == "cron(":
        raise _amazon_error(text)
    parts = text.upper().split()
    if len(parts) not in (5, 6):
        raise InvalidSchedule(
            f"{len(parts)} fields, use 5 (minute, hour, day of month, month, day of week) or 6 (second first)",
            part="fields",
        )
    second, minute, hour, day, month, weekday = parts if len(parts) == 6 else ["0", *parts]
    seconds = _values(_SECOND, second.split(","))
    minutes = _values(_MINUTE, minute.split(","))
    hours = _values(_HOUR, hour.split(","))
    day_items = day.split(",")
    days = _values(_DAY_OF_MONTH, [item for item in day_items if item not in ("L", "LW")])
    months = _values(_MONTH, month.split(","))
    plain, last_of, nth_of = _split_weekdays(weekday.split(","))
    weekdays = {(value - 1) % 7 for value in _values(_DAY_OF_WEEK, plain)}
    return CronFields(
        canonical=" ".join(parts),
        times=TimesOfDay(hours, minutes, seconds),
        months=frozenset(months),
        days=frozenset(days),
        last_day="L" in day_items,
        last_weekday="LW" in day_items,
        weekdays=frozenset(weekdays),
        last_of=frozenset(last_of),
        nth_of=frozenset(nth_of),
        both_days=day.startswith("*") or weekday.startswith("*"),
        elapsed=any(item.startswith("*") for item in (minute + "," + hour).split(",")),
    )


def check_cron(text: str) -> None:
    """Refuses expressions that can be parsed but are probably mistakes. Stored ones are not checked again."""
    if len(text.splitlines()) > 1:
        raise InvalidSchedule("has a line break, write the fields in one line", part="fields")
    parts = text.split()
    fields = (_MINUTE, _HOUR, _DAY_OF_MONTH, _MONTH, _DAY_OF_WEEK)
    for field, part in zip(fields if len(parts) == 5 else (_SECOND, *fields), parts, strict=False):
        for item in part.split(","):
            _, slash, step = item.partition("/")
            if slash and step.isdigit() and int(step) > field.size:
                raise _error(field, f"step {quote(step)} is longer than the whole field, use 1 to {field.size}")


def _amazon_error(text: str) -> InvalidSchedule:
    """The expression to write instead of Amazon EventBridge's `cron(minute hour day month weekday year)`."""
    inner = text[5:].strip().removesuffix(")").split()
    said = "is the form of Amazon EventBridge, write the five fields alone"
    if len(inner) == 6:
        weekday = re.sub(r"(?<![#/\d])[1-7](?!\d)", lambda one: _DAYS[int(one[0]) - 1], inner[4])
        ours = " ".join(["*" if part == "?" else part for part in (*inner[:4], weekday)])
        try:
            read_cron(ours)
        except InvalidSchedule:
            ours = ""
        if ours:
            said += f": {ours}"
        if inner[5] != "*":
            said += f", and the year {quote(inner[5])} as start_at and end_at"
    return InvalidSchedule(f"cron(…) {said}", part="schedule")


def _values(field: _Field, items: Sequence[str]) -> set[int]:
    values: set[int] = set()
    for item in items:
        base, slash, step_text = item.partition("/")
        step = _step(field, step_text) if slash else 1
        low, dash, high = base.partition("-")
        if base == "*":
            # Sunday is 0 here; 7 is another name for it and would break the step.
            start, stop = field.low, 6 if field is _DAY_OF_WEEK else field.high
        elif dash:
            start, stop = _number(field, low), _number(field, high)
            if field is _DAY_OF_WEEK and high in ("SUN", "0") and start > 0:
                stop = 7  # MON-SUN: a week that ends on Sunday
            if stop < start:
                raise _error(field, f"{quote(base)} runs backwards, put the smaller value first")
        else:
            start = _number(field, base)
            stop = start if not slash else 6 if field is _DAY_OF_WEEK else field.high
        values.update(range(start, stop + 1, step))
    return values


def _split_weekdays(items: Sequence[str]) -> tuple[list[str], set[int], set[tuple[int, int]]]:
    plain: list[str] = []
    last_of: set[int] = set()
    nth_of: set[tuple[int, int]] = set()
    for item in items:
        if "#" in item:
            name, _, nth = item.partition("#")
            if nth not in ("1", "2", "3", "4", "5"):
                raise _error(_DAY_OF_WEEK, f"{quote(item)}: the number after # is 1 to 5")
            nth_of.add(((_number(_DAY_OF_WEEK, name) - 1) % 7, int(nth)))
        elif item == "L":
            raise _error(_DAY_OF_WEEK, "L needs a day before it, such as 5L for the last Friday")
        elif item.endswith("L"):
            last_of.add((_number(_DAY_OF_WEEK, item[:-1]) - 1) % 7)
        else:
            plain.append(item)
    return plain, last_of, nth_of


def _number(field: _Field, text: str) -> int:
    if text in field.names:
        # Months count from 1, days of the week from 0.
        return field.names.index(text) + field.low
    if not text:
        raise _error(field, f"an empty value, use {field.wanted}")
    if not (text.isascii() and text.isdigit()):
        raise _error(field, f"{quote(text)} is not a value, use {field.wanted}{_hint(field, text)}")
    if len(text) > 4 or not field.low <= int(text) <= field.high:
        raise _error(field, f"{quote(text)} is out of range, use {field.wanted}")
    return int(text)


def _hint(field: _Field, text: str) -> str:
    if text == "?":
        return " or * for any"
    if "*" in text:
        return ", or * alone or with a step such as */5"
    if field is _DAY_OF_MONTH and text.startswith(("L", "W")):
        return ", L for the last day or LW for the last weekday"
    return ""


def _step(field: _Field, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 4 or int(text) == 0:
        raise _error(field, f"step {quote(text) or 'missing'} is not usable, use a number from 1 to {field.high}")
    return int(text)


def _error(field: _Field, message: str) -> InvalidSchedule:
    return InvalidSchedule(f"{field.name}: {message}", part=field.name)
