"""RRULE schedules: a rule's local times, with the dates added to it and taken from it, as instants."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import ClassVar
from zoneinfo import ZoneInfo

from duly.errors import InvalidSchedule, TooCostly
from duly.model import DstFold, DstGap, Occurrence, ScheduleKind

from .dst import Gap, dropped_instants, next_instant, walk_instants
from .fuel import Fuel
from .recurrence import Recurrence, make_recurrence
from .rrule_text import DateList, Moment, RuleText, read_rrule
from .schedule import DAWN, LAST, MICROSECOND, Schedule, count_by_walking
from .zones import load_zone

_HEADS = ("RRULE", "DTSTART", "RDATE", "EXDATE", "EXRULE", "FREQ=")
_ELAPSED = ("HOURLY", "MINUTELY", "SECONDLY")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RuleDates:
    """A rule and its dates as one ordered set of naive local times in the rule's zone."""

    rule: Recurrence | None
    last: datetime | None  # no time of the rule itself is later
    added: tuple[datetime, ...]
    taken: frozenset[datetime]
    taken_days: frozenset[date]

    def next_local(self, after: datetime, fuel: Fuel) -> datetime | None:
        while True:
            at = bisect_right(self.added, after)
            added = self.added[at] if at < len(self.added) else None
            found = self._next_of_rule(after, added, fuel)
            if added is not None and (found is None or added < found):
                fuel.burn()
                found = added
            if found is None:
                return None
            if found in self.taken:
                after = found
            elif found.date() in self.taken_days:
                after = datetime.combine(found.date(), time()) + _DAY - MICROSECOND
            else:
                return found

    def _next_of_rule(self, after: datetime, before: datetime | None, fuel: Fuel) -> datetime | None:
        """The rule's own next time. The search ends at the next added date and at the rule's last time."""
        if self.rule is None or (self.last is not None and after >= self.last):
            return None
        until = min(self.last or LAST, before or LAST)
        found = self.rule.next_local(after, fuel, until)
        return None if found is None or (self.last is not None and found > self.last) else found


@dataclass(frozen=True, slots=True, eq=False)
class RruleSchedule(Schedule):
    """An RFC 5545 rule. It runs in `rule_zone`, which is DTSTART's own if it names one, else the job's `zone`.

    Rules by the hour or shorter run on elapsed time, like a cron wildcard: every instant at which the wall clock
    matches, so both passes of a doubled hour and nothing in a gap.
    """

    kind: ClassVar[ScheduleKind] = "rrule"
    counts_fast: ClassVar[bool] = False

    canonical: str
    zone: ZoneInfo
    rule_zone: ZoneInfo
    dst_gap: DstGap
    dst_fold: DstFold
    start: datetime  # naive, in the rule's zone
    begin: datetime  # the instant after which the schedule has occurrences
    until: datetime | None
    dates: RuleDates
    elapsed: bool
    identity: tuple[object, ...] = field(init=False)
    added: RuleDates = field(init=False)
    _gap: Gap = field(init=False)
    _fold: DstFold = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        identity = ("rrule", self.canonical, self.zone.key, self.dst_gap, self.dst_fold, self.start, self.begin)
        object.__setattr__(self, "identity", identity)
        object.__setattr__(self, "added", replace(self.dates, rule=None))
        object.__setattr__(self, "_gap", "vanish" if self.elapsed else self.dst_gap)
        object.__setattr__(self, "_fold", "both" if self.elapsed else self.dst_fold)
        object.__setattr__(self, "_hash", hash(identity))

    @property
    def local_zone(self) -> ZoneInfo:
        return self.rule_zone

    @property
    def on_elapsed_time(self) -> bool:
        return self.elapsed

    @property
    def start_local(self) -> datetime:
        return self.start

    def next(self, after: datetime, fuel: Fuel | None = None) -> datetime | None:
        fuel = fuel or Fuel()
        dates, after = self.dates, max(after, self.begin)
        while True:
            moment = next_instant(dates.next_local, after, self.rule_zone, self._gap, self._fold, fuel)
            if moment is None or not self._ended(moment):
                return moment
            # After UNTIL there are only the added dates.
            dates, after = self.added, moment

    def walk(self, after: datetime, fuel: Fuel | None = None) -> Iterator[Occurrence]:
        after, fuel = max(after, self.begin), fuel or Fuel()
        for one in walk_instants(self.dates.next_local, after, self.rule_zone, self._gap, self._fold, fuel):
            if self._ended(one.scheduled_at):
                break
            yield self._shown(one)
            after = one.scheduled_at
        else:
            return
        for one in walk_instants(self.added.next_local, after, self.rule_zone, self._gap, self._fold, fuel):
            if not self._ended(one.scheduled_at):
                yield self._shown(one)

    def count(self, after: datetime, until: datetime, limit: int, fuel: Fuel | None = None) -> int:
        return count_by_walking(self, after, until, limit, fuel or Fuel())

    def dropped(self, after: datetime, until: datetime, fuel: Fuel | None = None) -> list[Occurrence]:
        if self._gap != "skip":
            return []
        found = dropped_instants(self.dates.next_local, max(after, self.begin), until, self.rule_zone, fuel or Fuel())
        return [self._shown(one) for one in found]

    def without_added(self) -> RruleSchedule:
        """The instants of the rule, without the added dates."""
        return replace(self, dates=replace(self.dates, added=()))

    def __hash__(self) -> int:
        return self._hash

    def _ended(self, moment: datetime) -> bool:
        """Whether UNTIL excludes an instant. UNTIL ends the rule, not the dates added to it."""
        if self.until is None or moment <= self.until:
            return False
        return moment.astimezone(self.rule_zone).replace(tzinfo=None, fold=0) not in self.dates.added

    def _shown(self, one: Occurrence) -> Occurrence:
        if self.zone.key == self.rule_zone.key:
            return one
        return Occurrence(one.scheduled_at, one.scheduled_at.astimezone(self.zone), one.note, one.dropped)


def is_rrule(text: str) -> bool:
    """Whether the text is meant as an RFC 5545 rule, valid or not."""
    return text[:8].upper().startswith(_HEADS)


def make_rrule(
    text: str,
    zone: ZoneInfo,
    dst_gap: DstGap,
    dst_fold: DstFold,
    anchor: datetime,
    *,
    starts: bool = False,
    fuel: Fuel | None = None,
) -> RruleSchedule:
    """Parses RFC 5545 text. Without DTSTART the rule begins at `anchor`, to the second.

    The time at which a job is created is not an occurrence, and COUNT does not count it. A start from the client is
    one: then `starts` is set, and `anchor` is that start.
    """
    read = read_rrule(text)
    start, rule_zone = _start(read, zone, anchor)
    begin = DAWN
    if read.dtstart is None:
        begin = anchor.astimezone(UTC) - (MICROSECOND if starts else timedelta(0))
    until = _until(read, rule_zone)
    rule = make_recurrence(read.rule, start) if read.rule is not None else None
    added = {local for dates in read.rdates for _, local in _locals(dates, rule_zone)}
    if rule is None and read.dtstart is not None:
        added.add(start)
    taken = [entry for dates in read.exdates for entry in _locals(dates, rule_zone)]
    return RruleSchedule(
        canonical=read.canonical,
        zone=zone,
        rule_zone=rule_zone,
        dst_gap=dst_gap,
        dst_fold=dst_fold,
        start=start,
        begin=begin,
        until=until,
        dates=RuleDates(
            rule=rule,
            last=_last(read, rule, until, rule_zone, begin, fuel or Fuel()),
            added=tuple(sorted(added)),
            taken=frozenset(local for moment, local in taken if not moment.is_date),
            # A bare date excludes the whole day: for a rule with times it can mean nothing else.
            taken_days=frozenset(local.date() for moment, local in taken if moment.is_date),
        ),
        elapsed=read.rule is not None and read.rule.freq in _ELAPSED,
    )


def _start(read: RuleText, zone: ZoneInfo, anchor: datetime) -> tuple[datetime, ZoneInfo]:
    if read.dtstart is None:
        return anchor.astimezone(zone).replace(tzinfo=None, fold=0, microsecond=0), zone
    value = read.dtstart.moments[0].value
    if value.tzinfo is not None:
        return value.replace(tzinfo=None), load_zone("UTC")
    return value, load_zone(read.dtstart.tzid) if read.dtstart.tzid else zone


def _until(read: RuleText, zone: ZoneInfo) -> datetime | None:
    """The last instant at which the rule may fire."""
    if read.rule is None or read.rule.until is None:
        return None
    moment = read.rule.until
    if moment.value.tzinfo is not None:
        return moment.value
    local = moment.value + _DAY - MICROSECOND if moment.is_date else moment.value
    try:
        return local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    except OverflowError:
        return None


def _last(
    read: RuleText, rule: Recurrence | None, until: datetime | None, zone: ZoneInfo, begin: datetime, fuel: Fuel
) -> datetime | None:
    """The upper bound of the rule's local times, which ends a search. It leaves a day after UNTIL for doubled hours."""
    if rule is not None and read.rule is not None and read.rule.count is not None:
        # Without DTSTART the rule starts at the very second of the anchor, and that may be before its first occurrence.
        uncounted = begin != DAWN and begin >= rule.start.replace(tzinfo=zone).astimezone(UTC)
        try:
            uncounted = uncounted and rule.next_local(rule.start - MICROSECOND, fuel) == rule.start
            return rule.nth(read.rule.count + uncounted, fuel)
        except TooCostly:
            raise InvalidSchedule(
                f"COUNT: {read.rule.count} is more than can be followed for this rule, use UNTIL", part="COUNT"
            ) from None
    try:
        return None if until is None else until.astimezone(zone).replace(tzinfo=None, fold=0) + _DAY
    except OverflowError:
        return None


def _locals(dates: DateList, zone: ZoneInfo) -> Iterator[tuple[Moment, datetime]]:
    """The moments of an RDATE or EXDATE line, each with its naive local time in the rule's zone."""
    own = load_zone(dates.tzid) if dates.tzid else zone
    for moment in dates.moments:
        value = moment.value
        if value.tzinfo is None and own.key == zone.key:
            yield moment, value
            continue
        aware = value if value.tzinfo is not None else value.replace(tzinfo=own)
        try:
            yield moment, aware.astimezone(zone).replace(tzinfo=None, fold=0)
        except OverflowError as error:
            raise InvalidSchedule(f"{moment.text} is outside the years that can be scheduled", part="RDATE") from error
