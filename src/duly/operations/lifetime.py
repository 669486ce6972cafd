"""A job over time: the schedules in force, the times when it was stopped, and so the occurrences that were expected.

No I/O: the current job and the log of its changes in, expected occurrences out. Every change of the schedule in the log
keeps the schedule before it, so the past is read backwards from the present.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from zoneinfo import ZoneInfo

from duly.checks import LAST_MOMENT
from duly.errors import InvalidInput, TooCostly
from duly.model import DEFAULT_POLICY, Job, Occurrence
from duly.store.changes import Change
from duly.timing import Definition, Fuel, Timetable, load_zone
from duly.timing.schedule import DAWN, MICROSECOND

_STOPS = ("paused", "parked", "cancelled")
_STARTS = ("resumed", "unparked", "repaired")


@dataclass(frozen=True)
class Stretch:
    """The time after `since`, up to and including `until`, with one definition. `ended_by` is the change at `until`."""

    since: datetime
    until: datetime
    definition: Definition
    ended_by: Change | None
    job: Job
    fuel: Fuel

    @cached_property
    def timetable(self) -> Timetable | None:
        """The timetable, parsed on first use because a job may have had thousands of definitions.

        None: the definition cannot be read any more, for instance because its zone is gone.
        """
        try:
            self.fuel.burn(10)
            return self.definition.timetable(self.job.job_id, self.fuel)
        except InvalidInput:
            return None


@dataclass(frozen=True, slots=True)
class StoppedSpan:
    """The time after `change`, up to and including `until`, when the job did not fire. None: it is still stopped."""

    change: Change
    until: datetime | None


class Lifetime:
    """One job over time. All questions share one `fuel`; when it runs out, a result ends early and `cut` is set."""

    def __init__(self, job: Job, changes: Sequence[Change], fuel: Fuel | None = None) -> None:
        self.job = job
        self.changes = changes
        self.cut = False
        self.fuel = fuel or Fuel()
        self.stops = _stops(job, changes)
        self.stretches = _stretches(job, changes, self.fuel)

    @property
    def ended(self) -> bool:
        """Whether nothing more is planned although the job is not stopped."""
        return self.job.next_run_at is None and (not self.stops or self.stops[-1].until is not None)

    def stretch_at(self, moment: datetime) -> Stretch:
        return next((one for one in self.stretches if moment <= one.until), self.stretches[-1])

    def stop_at(self, moment: datetime) -> StoppedSpan | None:
        for stop in self.stops:
            if stop.change.at < moment and (stop.until is None or moment <= stop.until):
                return stop
        return None

    def change_after(self, moment: datetime) -> Change | None:
        """The first change from `moment` on that took the planned occurrence away from the scheduler."""
        return next((one for one in self.changes if one.at >= moment and _unplans(one)), None)

    def rezoned_after(self, moment: datetime) -> Change | None:
        """The first change of the time-zone data from `moment` on that moved the job's plan."""
        return next((one for one in self.changes if one.what == "rezoned" and one.at >= moment), None)

    def occurs_at(self, stretch: Stretch, moment: datetime) -> bool:
        """Whether a stretch's schedule has an occurrence at `moment`, even if it was not in force then."""
        try:
            return stretch.timetable is not None and stretch.timetable.occurs_at(moment, self.fuel)
        except TooCostly:
            return False

    def at(self, moment: datetime) -> Occurrence | None:
        """The expected occurrence at exactly this moment."""
        return next(self.expected(moment, moment), None)

    def expected(self, first: datetime, last: datetime) -> Iterator[Occurrence]:
        """The occurrences expected in [first, last], oldest first, including dropped ones."""
        own = self._own_times(first, last)
        for stretch in self.stretches:
            for occurrence in self._walk(stretch, first, last):
                while own and own[0].scheduled_at < occurrence.scheduled_at:
                    yield own.pop(0)
                if own and own[0].scheduled_at == occurrence.scheduled_at:
                    own.pop(0)
                yield occurrence
        yield from own

    def after(self, moment: datetime) -> Occurrence | None:
        return next(self.expected(moment + MICROSECOND, LAST_MOMENT), None)

    def before(self, moment: datetime) -> Occurrence | None:
        """The newest expected occurrence at or before `moment`."""
        found = self._own_times(DAWN, moment)[-1:]
        for stretch in reversed(self.stretches):
            after, until = self._begin(stretch), min(moment, stretch.until)
            if stretch.timetable is not None and after < until:
                newest = self._newest(stretch.timetable, after, until)
                if newest is not None:
                    found.append(newest)
                    break
        return max(found, key=lambda one: one.scheduled_at, default=None)

    def _walk(self, stretch: Stretch, first: datetime, last: datetime) -> Iterator[Occurrence]:
        after, until = max(self._begin(stretch), first - MICROSECOND), min(last, stretch.until)
        if stretch.timetable is None or after >= until:
            return
        try:
            for occurrence in stretch.timetable.walk(after, self.fuel):
                if occurrence.scheduled_at > until:
                    return
                yield occurrence
        except TooCostly:
            self.cut = True

    def _newest(self, timetable: Timetable, after: datetime, until: datetime) -> Occurrence | None:
        try:
            return _newest(timetable, after, until, self.fuel)
        except TooCostly:
            self.cut = True
            return None

    def _begin(self, stretch: Stretch) -> datetime:
        """The time after which occurrences count. Only a one-off may be submitted for a time before its job existed."""
        if stretch.definition.kind == "once" and stretch is self.stretches[0]:
            return DAWN
        return max(stretch.since, self.job.created_at)

    def _own_times(self, first: datetime, last: datetime) -> list[Occurrence]:
        """The times of a one-off that its schedule's text does not give: `now`, or the time that a resume set."""
        if self.job.kind != "once":
            return []
        zone = _zone(self.job.timezone)
        times = {
            one for one in (self.job.last_run_at, self.job.next_run_at) if one is not None and first <= one <= last
        }
        return [Occurrence(one, one.astimezone(zone)) for one in sorted(times)]


def read_time(text: str) -> datetime:
    """Reads a time in the database's JSON format."""
    return datetime.fromisoformat(text).astimezone(UTC)


def local_time(moment: datetime, timezone: str) -> datetime:
    """The moment in the job's zone, or in UTC if that zone is gone."""
    return moment.astimezone(_zone(timezone))


def _zone(timezone: str) -> ZoneInfo:
    try:
        return load_zone(timezone)
    except InvalidInput:
        return load_zone("UTC")


def _unplans(change: Change) -> bool:
    if change.what in ("changed", "redefined"):
        # Most changes keep the timing, and so the plan. (Redefinitions that kept no old values always planned anew.)
        return "before" in change.detail or "old" not in change.detail
    # New time-zone data moves a planned occurrence and does not remove it.
    return change.what not in (*_STARTS, "rezoned")


def _stops(job: Job, changes: Sequence[Change]) -> list[StoppedSpan]:
    stops: list[StoppedSpan] = []
    for change in changes:
        open_stop = stops[-1] if stops and stops[-1].until is None else None
        if change.what in _STOPS:
            if open_stop is not None:
                stops[-1] = StoppedSpan(open_stop.change, change.at)
            stops.append(StoppedSpan(change, None))
        elif change.what in _STARTS and open_stop is not None:
            stops[-1] = StoppedSpan(open_stop.change, change.at)
    # Stops and starts from before there was a log: the job's row has its status, and the latest time it can date from.
    stopped = job.status in ("paused", "cancelled")
    is_open = bool(stops) and stops[-1].until is None
    if stopped and not is_open:
        detail = {"reason": job.status_reason} if job.status_reason else {}
        stops.append(StoppedSpan(Change(job.updated_at, job.status, detail), None))
    elif not stopped and is_open:
        stops[-1] = StoppedSpan(stops[-1].change, max(job.updated_at, stops[-1].change.at))
    return stops


def _stretches(job: Job, changes: Sequence[Change], fuel: Fuel) -> list[Stretch]:
    stretches: list[Stretch] = []
    definition, until, ended_by = Definition.of(job, job.policy), LAST_MOMENT, None
    for change in reversed(changes):
        earlier = _before(definition, change)
        if earlier != definition:
            stretches.append(Stretch(change.at, until, definition, ended_by, job, fuel))
            definition, until, ended_by = earlier, change.at, change
    stretches.append(Stretch(DAWN, until, definition, ended_by, job, fuel))
    return stretches[::-1]


def _before(definition: Definition, change: Change) -> Definition:
    """The definition in force until `change`; `definition` is in force after it."""
    kept = change.detail.get("before")
    if not isinstance(kept, dict):
        return definition
    own = {name: kept[name] for name in ("kind", "schedule", "timezone") if name in kept}
    for name in ("start_at", "end_at"):
        if name in kept:
            own[name] = None if kept[name] is None else read_time(kept[name])
    # The store keeps only those fields of a policy that differ from the defaults.
    policy = {
        name: getattr(DEFAULT_POLICY, name) if kept[name] is None else kept[name]
        for name in ("dst_gap", "dst_fold", "jitter_seconds")
        if name in kept
    }
    return definition._replace(**own, policy=dataclasses.replace(definition.policy, **policy))


def _newest(timetable: Timetable, after: datetime, until: datetime, fuel: Fuel) -> Occurrence | None:
    """The newest occurrence in (after, until], found by a binary search over the time."""
    found = timetable.next(after, fuel)
    newest = after
    if found is not None and found <= until:
        newest, high = found, until
        while newest < high:
            middle = newest + (high - newest) // 2
            found = timetable.next(middle, fuel)
            if found is not None and found <= until:
                newest = found
            else:
                # No occurrence lies in (middle, until].
                high = middle
        newest -= MICROSECOND
    # Only dropped occurrences can follow the newest one that fires.
    last = None
    for occurrence in timetable.walk(newest, fuel):
        if occurrence.scheduled_at > until:
            break
        last = occurrence
    return last
