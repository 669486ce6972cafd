"""Maps local times to instants, across every change of a zone's offset.

A schedule in local time is an ordered set of wall-clock times. Two maps lead from it to instants, one that takes the
first and one that takes the second of a time that occurs twice; each of them keeps the order. So the next instant is
found by looking for the next wall-clock time and mapping it, and "both" is the earlier answer of the two maps.

A wall-clock time that does not exist goes to the first instant after the gap, or is dropped. A calendar day that does
not exist at all (Pacific/Apia, 30 December 2011) has no occurrences: there is no such day to run on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from duly.model import DstFold, DstGap, Occurrence

from .fuel import Fuel
from .schedule import DAWN, MICROSECOND
from .zones import when_forgotten

# The first wall-clock time of a set strictly after the given one. Naive on both sides.
NextLocal = Callable[[datetime, Fuel], datetime | None]
# The number of wall-clock times of a set in (first, last]. Naive.
CountLocal = Callable[[datetime, datetime, Fuel], int]
# "vanish": the time does not occur, as for a rule that runs on elapsed time, and is not reported as a drop.
Gap = DstGap | Literal["vanish"]

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
# Fuel units for a hop over a gap, and for finding the changes of a year that is not cached yet.
_HOP = 30
_YEAR = 150


@dataclass(frozen=True, slots=True)
class Shift:
    """One change of the clocks: at instant `at` the wall clock goes from `before` to `after` (both naive).

    `before < after` is a gap: times in [before, after) do not exist. Otherwise [after, before) occurs twice.
    """

    at: datetime
    before: datetime
    after: datetime

    def lost_day(self, local: datetime) -> bool:
        """Whether the whole calendar day of a time in this gap does not exist."""
        midnight = datetime.combine(local.date(), time())
        return self.before <= midnight and midnight + _DAY <= self.after


def next_instant(
    next_local: NextLocal, after: datetime, zone: ZoneInfo, gap: Gap, fold: DstFold, fuel: Fuel
) -> datetime | None:
    """The first instant strictly after `after` that a wall-clock time of the set maps to."""
    if after < DAWN:
        after = DAWN - MICROSECOND
    try:
        here = after.astimezone(zone)
        local = here.replace(tzinfo=None, fold=0)
        early, late = _offsets(local, zone)
        if early == late:
            # In the ordinary case both maps start here, and the first of two passes is the earlier answer.
            return _resolve(next_local, local, zone, gap, fuel, second=fold == "second")
        shift = _shift_around(local, zone, early, late)
        answers = []
        if fold != "second":
            # All doubled times map into the first pass: once it is over, continue after them.
            start = shift.before - MICROSECOND if here.fold else local
            answers.append(_resolve(next_local, start, zone, gap, fuel, second=False))
        if fold != "first":
            # All doubled times map into the second pass: before it begins, all of them are still to come.
            start = local if here.fold else shift.after - MICROSECOND
            answers.append(_resolve(next_local, start, zone, gap, fuel, second=True))
        return min((answer for answer in answers if answer is not None), default=None)
    except OverflowError:  # past the year 9999
        return None


def walk_instants(
    next_local: NextLocal, after: datetime, zone: ZoneInfo, gap: Gap, fold: DstFold, fuel: Fuel
) -> Iterator[Occurrence]:
    """All occurrences in order, each with a note if a change of the clocks affected it; dropped ones are marked."""
    # Dropped occurrences are walked as if they were shifted, and recognised because their new time is not in the set.
    shown: Gap = "shift" if gap == "skip" else gap
    previous = max(after, DAWN - MICROSECOND)
    while True:
        # Most occurrences are far from any change: one step each, and no note.
        for plain in _walk_plain(next_local, previous, zone, fuel):
            yield plain
            previous = plain.scheduled_at
        moment = next_instant(next_local, previous, zone, shown, fold, fuel)
        if moment is None:
            return
        fuel.burn(_HOP)
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        if next_local(wall - MICROSECOND, fuel) != wall:
            shift = _shift_at(moment, zone)
            nominal = next_local(shift.before - MICROSECOND, fuel) or shift.before
            note = _gap_note(nominal, shift, zone, dropped=gap == "skip")
            yield Occurrence(moment, local, note, dropped=gap == "skip")
        else:
            yield Occurrence(moment, local, _note(next_local, previous, wall, local, zone, gap, fold, fuel))
        previous = moment


def _walk_plain(next_local: NextLocal, after: datetime, zone: ZoneInfo, fuel: Fuel) -> Iterator[Occurrence]:
    """Occurrences from an ordinary time on, up to the first whose wall-clock time is missing or doubled."""
    try:
        local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    except OverflowError:  # past the year 9999
        return
    early, late = _offsets(local, zone)
    while early == late:
        found = next_local(local, fuel)
        if found is None:
            return
        local = found
        early, late = _offsets(local, zone)
        if early == late:
            fuel.burn()
            try:
                moment = (local - early).replace(tzinfo=UTC)
            except OverflowError:  # past the year 9999
                return
            yield Occurrence(moment, local.replace(tzinfo=zone))


def dropped_instants(
    next_local: NextLocal, after: datetime, until: datetime, zone: ZoneInfo, fuel: Fuel
) -> list[Occurrence]:
    """The occurrences that `skip` drops in (after, until]: one per gap that has times of the set and ends on none."""
    found = []
    for shift in shifts_between(after, until, zone, fuel):
        nominal = _moved_in(next_local, shift, fuel)
        if nominal is not None:
            note = _gap_note(nominal, shift, zone, dropped=True)
            found.append(Occurrence(shift.at, shift.at.astimezone(zone), note, dropped=True))
    return found


def count_instants(
    count_local: CountLocal,
    next_local: NextLocal,
    after: datetime,
    until: datetime,
    zone: ZoneInfo,
    gap: Gap,
    fold: DstFold,
    fuel: Fuel,
) -> int:
    """The number of instants of the set in (after, until], counted per stretch of one offset, never one by one."""
    after = max(after, DAWN - MICROSECOND)
    if until <= after:
        return 0
    start, doubled = _edge(after, zone)
    if doubled is not None and fold == "first" and after >= doubled.at:
        start = doubled.before - MICROSECOND
    if doubled is not None and fold == "second" and after < doubled.at:
        start = min(start, doubled.after - MICROSECOND)
    count = 0
    for shift in shifts_between(after, until, zone, fuel):
        end = shift.before
        start_next = shift.after
        if shift.after < shift.before:
            if fold == "second":
                end = shift.after
            if fold == "first":
                start_next = shift.before
        elif gap == "shift" and _moved_in(next_local, shift, fuel) is not None:
            count += 1
        count += _count_open(count_local, start, end - MICROSECOND, fuel)
        start = start_next - MICROSECOND
    end, doubled = _edge(until, zone)
    if doubled is not None and fold == "second" and until < doubled.at:
        end = doubled.after - MICROSECOND
    return count + _count_open(count_local, start, end, fuel)


def shifts_between(after: datetime, until: datetime, zone: ZoneInfo, fuel: Fuel | None = None) -> Iterator[Shift]:
    """The changes of the offset in (after, until]. Without fuel the cost is unlimited, and the result is not cached."""
    after = max(after, DAWN)
    if until <= after or zone.utcoffset(None) is not None:  # the clocks of the latter never change
        return
    for year in range(after.year, until.year + 1):
        for shift in _find_shifts(zone, year) if fuel is None else _shifts_of(zone, year, fuel):
            if after < shift.at <= until:
                yield shift


def _shifts_of(zone: ZoneInfo, year: int, fuel: Fuel) -> tuple[Shift, ...]:
    fuel.burn()
    found = _years_seen.get((zone, year))
    if found is None:
        fuel.burn(_YEAR)
        if len(_years_seen) >= _MAX_YEARS:
            _years_seen.clear()
        found = _years_seen[zone, year] = tuple(_find_shifts(zone, year))
    return found


def _find_shifts(zone: ZoneInfo, year: int) -> Iterator[Shift]:
    """The changes from the beginning of a year to that of the next, found by looking at one moment per day."""
    low = datetime(year, 1, 1, tzinfo=UTC)
    until = datetime(year + 1, 1, 1, tzinfo=UTC) if year < _LAST_DAY.year else _LAST_DAY
    offset = low.astimezone(zone).utcoffset()
    while low < until:
        high = min(low + _DAY, until)
        here = high.astimezone(zone).utcoffset()
        if here != offset:
            shift = _find_shift(low, high, zone)
            yield shift
            # Continue at the change: there may be another one on the same day.
            low, offset = shift.at, shift.at.astimezone(zone).utcoffset()
        else:
            low = high


# The changes by zone and year. A zone whose rules are read anew is another object.
_MAX_YEARS = 20_000
_LAST_DAY = datetime(9999, 12, 31, tzinfo=UTC)
_years_seen: dict[tuple[ZoneInfo, int], tuple[Shift, ...]] = {}
when_forgotten(_years_seen.clear)


def instant_of(local: datetime, zone: ZoneInfo, *, second: bool) -> datetime:
    """The instant at which the wall clock shows a naive local time, for the second time if `second`. For a time in a
    gap: just before the gap ends."""
    early, late = _offsets(local, zone)
    if early < late:
        return _shift_around(local, zone, early, late).at - MICROSECOND
    return (local - (late if second else early)).replace(tzinfo=UTC)


def exists(local: datetime, zone: ZoneInfo) -> bool:
    """Whether the wall clock ever shows this naive local time."""
    early, late = _offsets(local, zone)
    return early >= late


def gap_text(local: datetime, zone: ZoneInfo) -> str:
    """A sentence about the gap in which a naive local time lies."""
    shift = _shift_around(local, zone, *_offsets(local, zone))
    return f"the clocks in {zone.key} go from {_wall(shift.before)} to {_wall(shift.after)}"


def _resolve(
    next_local: NextLocal, start: datetime, zone: ZoneInfo, gap: Gap, fuel: Fuel, *, second: bool
) -> datetime | None:
    while True:
        local = next_local(start, fuel)
        if local is None:
            return None
        early, late = _offsets(local, zone)
        if early == late:
            return (local - early).replace(tzinfo=UTC)
        if early > late:
            return (local - (late if second else early)).replace(tzinfo=UTC)
        fuel.burn(_HOP)
        shift = _shift_around(local, zone, early, late)
        if gap == "shift" and not shift.lost_day(local):
            return shift.at
        # Continue after the gap, or after the lost day: a day that is only partly lost may follow it.
        midnight = datetime.combine(local.date(), time()) + _DAY
        start = min(shift.after, midnight) - MICROSECOND


def _offsets(local: datetime, zone: ZoneInfo) -> tuple[timedelta, timedelta]:
    """The offsets of a naive local time, read as the first and as the second of its kind.

    Equal: an ordinary time. First larger: it occurs twice. First smaller: it does not exist (PEP 495).
    """
    early = zone.utcoffset(local)
    late = zone.utcoffset(local.replace(fold=1))
    if early is None or late is None:  # zoneinfo always knows; this is for the type checker
        raise ValueError(zone.key)
    return early, late


def _shift_around(local: datetime, zone: ZoneInfo, early: timedelta, late: timedelta) -> Shift:
    """The change of the clocks that makes `local` missing or doubled."""
    low = (local - max(early, late)).replace(microsecond=0, tzinfo=UTC)
    high = (local - min(early, late)).replace(microsecond=0, tzinfo=UTC) + _SECOND
    return _find_shift(low, high, zone)


def _shift_at(moment: datetime, zone: ZoneInfo) -> Shift:
    return _find_shift(moment - _SECOND, moment, zone)


def _find_shift(low: datetime, high: datetime, zone: ZoneInfo) -> Shift:
    """The first whole second in (low, high] with another offset than at `low`; there is one."""
    low = low.replace(microsecond=0)
    before = low.astimezone(zone).utcoffset()
    known_same, known_other = 0, -((low - high) // _SECOND)
    while known_other - known_same > 1:
        middle = (known_same + known_other) // 2
        if (low + middle * _SECOND).astimezone(zone).utcoffset() == before:
            known_same = middle
        else:
            known_other = middle
    at = low + known_other * _SECOND
    wall = (at - _SECOND).astimezone(zone).replace(tzinfo=None, fold=0) + _SECOND
    return Shift(at, wall, at.astimezone(zone).replace(tzinfo=None, fold=0))


def _edge(moment: datetime, zone: ZoneInfo) -> tuple[datetime, Shift | None]:
    """The wall clock at an instant, and the change that doubles it if one does."""
    local = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    early, late = _offsets(local, zone)
    return local, None if early == late else _shift_around(local, zone, early, late)


def _count_open(count_local: CountLocal, first: datetime, last: datetime, fuel: Fuel) -> int:
    return count_local(first, last, fuel) if first < last else 0


def _moved_in(next_local: NextLocal, shift: Shift, fuel: Fuel) -> datetime | None:
    """The first time of the set that a gap moves to its end, unless the end is in the set itself."""
    if shift.after <= shift.before or next_local(shift.after - MICROSECOND, fuel) == shift.after:
        return None
    start = shift.before - MICROSECOND
    while (nominal := next_local(start, fuel)) is not None and nominal < shift.after:
        if not shift.lost_day(nominal):
            return nominal
        start = datetime.combine(nominal.date(), time()) + _DAY - MICROSECOND
    return None


def _note(
    next_local: NextLocal,
    previous: datetime,
    wall: datetime,
    local: datetime,
    zone: ZoneInfo,
    gap: Gap,
    fold: DstFold,
    fuel: Fuel,
) -> str | None:
    if gap == "vanish":
        return None
    early, late = _offsets(wall, zone)
    if early > late:
        pass_ = "second" if local.fold else "first"
        if fold == "both":
            return f"local {_wall(wall)} occurs twice in {zone.key}: this is the {pass_} time"
        return f"local {_wall(wall)} occurs twice in {zone.key}: only the {pass_} time is used"
    nominal = next_local(previous.astimezone(zone).replace(tzinfo=None, fold=0), fuel)
    if nominal is not None and nominal < wall and not exists(nominal, zone):
        shift = _shift_around(nominal, zone, *_offsets(nominal, zone))
        if shift.lost_day(nominal):
            return f"local {nominal.date()} does not exist in {zone.key}"
    return None


def _gap_note(nominal: datetime, shift: Shift, zone: ZoneInfo, *, dropped: bool) -> str:
    what = "dropped" if dropped else f"moved to {_wall(shift.after)}"
    return f"local {_wall(nominal)} does not exist in {zone.key}: {what}"


def _wall(local: datetime) -> str:
    return local.isoformat(" ", "seconds" if local.second else "minutes")
