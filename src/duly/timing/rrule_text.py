"""Parses RFC 5545 text: the lines DTSTART, RRULE, RDATE and EXDATE. An error names the invalid part.

Text that the RFC forbids is refused, not guessed at, and every list is bounded, so that parsing is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from duly.errors import InvalidSchedule
from duly.formats import quote

MAX_CHARS = 8192

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

_PROPERTIES = ("DTSTART", "RRULE", "RDATE", "EXDATE")
# Lists of integers: minimum, maximum, and whether they may count from the end.
_NUMBERS = {
    "BYMONTH": (1, 12, False),
    "BYWEEKNO": (1, 53, True),
    "BYYEARDAY": (1, 366, True),
    "BYMONTHDAY": (1, 31, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}
# The order of the canonical text.
_PARTS = (
    "FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST",
    "BYMONTH", "BYWEEKNO", "BYYEARDAY", "BYMONTHDAY", "BYDAY", "BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS",
)  # fmt: skip
_MAX_NUMBER = 1_000_000_000
_WEEKDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_MOMENT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Moment:
    """One date or time of the text: `value` is naive unless it was given in UTC; a date is its midnight."""

    value: datetime
    is_date: bool
    text: str


@dataclass(frozen=True, slots=True)
class DateList:
    """One DTSTART, RDATE or EXDATE line."""

    tzid: str | None
    moments: tuple[Moment, ...]

    def spell(self, name: str) -> str:
        zone = f";TZID={self.tzid}" if self.tzid else ""
        return f"{name}{zone}:{','.join(moment.text for moment in self.moments)}"


@dataclass(frozen=True, slots=True)
class RuleParts:
    """One RRULE line. Weekdays count from Monday = 0; `byday` pairs a weekday with its number, 0 for every."""

    freq: str
    interval: int = 1
    count: int | None = None
    until: Moment | None = None
    wkst: int = 0
    bymonth: tuple[int, ...] = ()
    byweekno: tuple[int, ...] = ()
    byyearday: tuple[int, ...] = ()
    bymonthday: tuple[int, ...] = ()
    byday: tuple[tuple[int, int], ...] = ()
    byhour: tuple[int, ...] = ()
    byminute: tuple[int, ...] = ()
    bysecond: tuple[int, ...] = ()
    bysetpos: tuple[int, ...] = ()

    def spell(self) -> str:
        pieces = []
        for name in _PARTS:
            value = getattr(self, name.lower())
            if name == "FREQ":
                pieces.append(f"FREQ={value}")
            elif name == "INTERVAL":
                pieces += [f"INTERVAL={value}"] if value != 1 else []
            elif name == "WKST":
                pieces += [f"WKST={WEEKDAYS[value]}"] if value else []
            elif name == "UNTIL":
                pieces += [f"UNTIL={value.text}"] if value else []
            elif name == "BYDAY":
                spelled = ",".join(f"{number or ''}{WEEKDAYS[day]}" for day, number in value)
                pieces += [f"BYDAY={spelled}"] if value else []
            elif isinstance(value, tuple):
                pieces += [f"{name}={','.join(map(str, value))}"] if value else []
            elif value is not None:
                pieces.append(f"{name}={value}")
        return "RRULE:" + ";".join(pieces)


@dataclass(frozen=True, slots=True)
class RuleText:
    """The whole text."""

    dtstart: DateList | None
    rule: RuleParts | None
    rdates: tuple[DateList, ...]
    exdates: tuple[DateList, ...]

    @property
    def canonical(self) -> str:
        lines = [self.dtstart.spell("DTSTART")] if self.dtstart else []
        lines += [self.rule.spell()] if self.rule else []
        lines += [dates.spell("RDATE") for dates in self.rdates]
        lines += [dates.spell("EXDATE") for dates in self.exdates]
        return "\n".join(lines)


def read_rrule(text: str) -> RuleText:
    """Parses the text; raises an `InvalidSchedule` that names the part."""
    if len(text) > MAX_CHARS:
        raise _error("RRULE", f"a rule of {len(text)} characters, use at most {MAX_CHARS}")
    dtstart: DateList | None = None
    rule: RuleParts | None = None
    rdates: list[DateList] = []
    exdates: list[DateList] = []
    for name, parameters, value in _lines(text):
        if name == "RRULE":
            if rule is not None:
                raise _error("RRULE", "there are two rules, use one")
            rule = _read_rule(value)
            continue
        dates = _read_dates(name, parameters, value)
        if name == "RDATE":
            rdates.append(dates)
        elif name == "EXDATE":
            exdates.append(dates)
        elif dtstart is not None or len(dates.moments) != 1:
            raise _error("DTSTART", "there are several, use one")
        else:
            dtstart = dates
    if rule is None and not rdates:
        raise _error("RRULE", "there is no rule, use for example RRULE:FREQ=DAILY")
    if rule is not None and rule.until is not None:
        _check_until(rule.until, dtstart)
    return RuleText(dtstart, rule, tuple(rdates), tuple(exdates))


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """(name, parameters, value) of each property; a folded line is joined, and blanks separate as well as newlines."""
    joined: list[list[str]] = []
    for word in text.split():
        head = word[:8].upper()
        if head.startswith("FREQ="):
            word, head = "RRULE:" + word, "RRULE"
        if head.startswith((*_PROPERTIES, "EXRULE")) or not joined:
            joined.append([word])
        else:
            joined[-1].append(word)
    for words in joined:
        left, colon, value = "".join(words).partition(":")
        name, _, parameters = left.partition(";")
        if name.upper() not in _PROPERTIES or not colon:
            raise _error(quote(name.upper()), "is not a line of a rule, use DTSTART: RRULE: RDATE: or EXDATE:")
        yield name.upper(), parameters, value
    if not joined:
        raise _error("RRULE", "is empty")


def _read_dates(name: str, parameters: str, value: str) -> DateList:
    tzid: str | None = None
    for parameter in parameters.split(";") if parameters else ():
        key, _, setting = parameter.partition("=")
        if key.upper() == "TZID":
            tzid = setting
        elif (key.upper(), setting.upper()) not in (("VALUE", "DATE"), ("VALUE", "DATE-TIME")):
            raise _error(name, f"{quote(parameter)} is not supported, use TZID= or VALUE=DATE")
    moments = tuple(_read_moment(name, piece) for piece in value.split(","))
    if tzid and any(moment.value.tzinfo is not None for moment in moments):
        raise _error(name, "has both a TZID and a time in UTC, use one of them")
    return DateList(tzid, moments)


def _read_moment(name: str, text: str) -> Moment:
    found = _MOMENT.fullmatch(text.upper())
    try:
        if found is None:
            raise ValueError(text)
        year, month, day, hour, minute, second, zulu = found.groups()
        value = datetime.combine(date(int(year), int(month), int(day)), time())
        if hour is not None:
            value = value.replace(hour=int(hour), minute=int(minute), second=int(second))
    except ValueError as error:
        raise _error(name, f"{quote(text)} is not a time, use for example 20260308T093000") from error
    return Moment(value.replace(tzinfo=UTC) if zulu else value, hour is None, found[0])


def _read_rule(text: str) -> RuleParts:
    given: dict[str, str] = {}
    for piece in text.upper().split(";"):
        name, equals, value = piece.partition("=")
        if name not in _PARTS or not equals:
            raise _error(quote(name) or "RRULE", f"is not a part of a rule, use {' '.join(_PARTS)}")
        if name in given:
            raise _error(name, "is there twice")
        given[name] = value
    if given.get("FREQ") not in FREQUENCIES:
        raise _error("FREQ", f"{quote(given.get('FREQ', 'nothing'))} is not known, use one of {' '.join(FREQUENCIES)}")
    if "COUNT" in given and "UNTIL" in given:
        raise _error("COUNT", "is there beside UNTIL, use one of them")
    numbers = {name.lower(): _read_numbers(name, given[name]) for name in _NUMBERS if name in given}
    rule = RuleParts(
        freq=given["FREQ"],
        interval=_read_number("INTERVAL", given.get("INTERVAL", "1")),
        count=_read_number("COUNT", given["COUNT"]) if "COUNT" in given else None,
        until=_read_moment("UNTIL", given["UNTIL"]) if "UNTIL" in given else None,
        wkst=_read_weekday("WKST", given["WKST"])[0] if "WKST" in given else 0,
        byday=_read_weekdays(given["BYDAY"]) if "BYDAY" in given else (),
        **numbers,
    )
    _check_parts(rule)
    return rule


def _read_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or not 1 <= int(text) <= _MAX_NUMBER:
        raise _error(name, f"{quote(text) or 'nothing'} is not usable, use a whole number from 1")
    return int(text)


def _read_numbers(name: str, text: str) -> tuple[int, ...]:
    low, high, signed = _NUMBERS[name]
    wanted = f"{low} to {high}{f' or -{high} to -{low}' if signed else ''}"
    values = set()
    for piece in text.split(","):
        digits = piece[1:] if signed and piece[:1] in ("+", "-") else piece
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 3 or not low <= int(digits) <= high:
            raise _error(name, f"{quote(piece) or 'an empty value'} is out of range, use {wanted}")
        values.add(int(piece))
    return tuple(sorted(values))


def _read_weekdays(text: str) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({_read_weekday("BYDAY", piece) for piece in text.split(",")}))


def _read_weekday(name: str, text: str) -> tuple[int, int]:
    found = _WEEKDAY.fullmatch(text)
    if found is None or (found[1] and (name == "WKST" or not 1 <= abs(int(found[1])) <= 53)):
        numbered = " or with a number such as 2MO or -1FR" if name == "BYDAY" else ""
        raise _error(name, f"{quote(text) or 'an empty value'} is not a day, use {' '.join(WEEKDAYS)}{numbered}")
    return WEEKDAYS.index(found[2]), int(found[1] or 0)


def _check_parts(rule: RuleParts) -> None:
    """Raises an error for combinations that RFC 5545 3.3.10 forbids."""
    freq = rule.freq
    numbers = [abs(number) for _, number in rule.byday if number]
    if numbers and freq not in ("YEARLY", "MONTHLY"):
        raise _error("BYDAY", f"has numbered days, which FREQ={freq} does not allow")
    if numbers and rule.byweekno:
        raise _error("BYDAY", "has numbered days, which BYWEEKNO does not allow")
    if numbers and max(numbers) > 5 and (freq == "MONTHLY" or rule.bymonth):
        raise _error("BYDAY", f"{max(numbers)} is out of range within a month, use 1 to 5 or -5 to -1")
    if rule.byweekno and freq != "YEARLY":
        raise _error("BYWEEKNO", "is for FREQ=YEARLY only")
    if rule.byyearday and freq in ("MONTHLY", "WEEKLY", "DAILY"):
        raise _error("BYYEARDAY", f"is not for FREQ={freq}")
    if rule.bymonthday and freq == "WEEKLY":
        raise _error("BYMONTHDAY", "is not for FREQ=WEEKLY")
    others = (
        rule.bymonth, rule.byweekno, rule.byyearday, rule.bymonthday, rule.byday,
        rule.byhour, rule.byminute, rule.bysecond,
    )  # fmt: skip
    if rule.bysetpos and not any(others):
        raise _error("BYSETPOS", "needs another BY part to choose from")


def _check_until(until: Moment, dtstart: DateList | None) -> None:
    """Refuses an UNTIL without a zone for a DTSTART that has one: it would be ambiguous."""
    zoned = dtstart is not None and (dtstart.tzid or dtstart.moments[0].value.tzinfo is not None)
    if zoned and until.value.tzinfo is None:
        raise _error("UNTIL", f"{until.text} has no zone but DTSTART has: give it in UTC, such as 20261231T235959Z")


def _error(part: str, message: str) -> InvalidSchedule:
    return InvalidSchedule(f"{part}: {message}", part=part)
