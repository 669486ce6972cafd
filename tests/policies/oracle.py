"""The expected fate of one job: a model of the contract that goes through the same story as the product, slowly.

Handlers take no time here, so a run is unfinished only while it waits for a retry, or behind a run that does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from policies.calendar import Answer, Definition, occurrences

GRACE = timedelta(seconds=10)
MICROSECOND = timedelta(microseconds=1)


class Refused(Exception):
    """Raised for an operation that the product must refuse."""


@dataclass(frozen=True)
class Fields:
    """The fields of a job that affect its runs."""

    schedule: str
    timezone: str = "UTC"
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    missed_window: str = "RUN_ONCE"
    catch_up_window_seconds: int | None = None
    max_missed: int = 100
    overlap: str = "skip"
    max_queued: int = 100
    max_retries: int = 3
    retry_backoff: str = "exponential"
    retry_delay_seconds: float = 30
    retry_max_delay_seconds: float = 1800
    jitter_seconds: int = 0
    dst_gap: str = "shift"
    dst_fold: str = "first"

    @property
    def once(self) -> bool:
        return self.schedule[:3] == "202"


@dataclass
class Unfinished:
    run_at: datetime | None  # None: the run waits behind another
    missed: bool
    attempt: int = 0


@dataclass(frozen=True)
class Ended:
    status: str
    missed: bool = False
    attempt: int = 0
    reason: str | None = None
    count: int | None = None
    last: datetime | None = None


@dataclass
class Model:
    """One job. `offsets`: its own offset for each jitter_seconds; `horizon`: the time that the story covers."""

    fields: Fields
    created: datetime
    behaviour: str
    offsets: dict[int, timedelta]
    horizon: tuple[datetime, datetime]
    next: datetime | None = None
    paused: bool = False
    last_run: datetime | None = None
    updated: datetime = field(init=False)
    run_count: int = 0
    unfinished: dict[datetime, Unfinished] = field(default_factory=dict)
    ended: dict[datetime, Ended] = field(default_factory=dict)
    calls: int = 0

    def __post_init__(self) -> None:
        self.updated = self.created
        self.next = self._first(self.fields, self.created)

    # Planning

    def _answer(self, fields: Fields) -> Answer:
        what = Definition(
            fields.schedule,
            fields.timezone,
            fields.dst_gap,
            fields.dst_fold,
            fields.start_at or self.created,
            fields.start_at is not None,
        )
        return occurrences(what, *self.horizon)

    def _offset(self, fields: Fields) -> timedelta:
        return self.offsets[fields.jitter_seconds]

    def _within(self, fields: Fields, moments: tuple[datetime, ...]) -> list[datetime]:
        """The moments that are within the job's bounds, with its jitter added."""
        offset = self._offset(fields)
        first = fields.start_at
        if first is None and offset and not fields.once:
            first = self.created + MICROSECOND
        return [
            one + offset
            for one in moments
            if (first is None or one >= first) and (fields.end_at is None or one <= fields.end_at)
        ]

    def _after(self, fields: Fields, after: datetime) -> datetime | None:
        return next((one for one in self._within(fields, self._answer(fields).nominal) if one > after), None)

    def _first(self, fields: Fields, now: datetime) -> datetime:
        """The first occurrence of a new plan. An occurrence beyond the horizon counts as none."""
        if fields.once:
            nominal = self._answer(fields).nominal
            if not nominal:
                raise Refused("never")
            return nominal[0] + self._offset(fields)
        found = self._after(fields, now)
        if found is None:
            raise Refused("no occurrence")
        return found

    def _answered(self, fields: Fields, fired: datetime | None, now: datetime) -> datetime:
        """The time up to which occurrences are over: the latest of now, the last run, and its occurrence's new time."""
        if fired is None:
            return now
        offset = self._offset(fields)
        nominal = self._answer(fields).nominal
        own = fired - offset
        if offset and own not in nominal:
            own = max((one for one in nominal if fired - timedelta(days=1) < one <= fired), default=own)
        return max(now, fired, own + offset)

    # Operations

    def pause(self, now: datetime) -> None:
        if self.paused:
            return
        if self.next is None:
            raise Refused("nothing is planned")
        self.paused, self.next, self.updated = True, None, now

    def resume(self, now: datetime) -> None:
        if not self.paused:
            if self.next is None:
                raise Refused("it has ended")
            return
        if self.fields.once:
            at = self._first(self.fields, now)
            self.next = max(now, at)
        else:
            found = self._after(self.fields, self._answered(self.fields, self.last_run, now))
            if found is None:
                raise Refused("no occurrence left")
            self.next = found
        self.paused, self.updated = False, now

    def change(self, now: datetime, name: str, value: Any) -> None:
        old = self.fields
        new = replace(old, **{name: value})
        if name == "max_runs" and value is not None and value <= self.run_count:
            raise Refused("max_runs")
        if new.once and (new.start_at or new.end_at or new.max_runs is not None):
            raise Refused("bounds of a one-off")
        if new.start_at is not None and new.end_at is not None and new.end_at <= new.start_at:
            raise Refused("end_at")
        if new == old:
            return
        if name in ("schedule", "timezone", "start_at", "end_at", "dst_gap", "dst_fold", "jitter_seconds"):
            self._retime(old, new, now, only_jitter=name == "jitter_seconds")
        self.fields, self.updated = new, now

    def _retime(self, old: Fields, new: Fields, now: datetime, *, only_jitter: bool) -> None:
        first = self._first(new, now)
        if self.paused:
            return
        if self.next is None:
            raise Refused("its last run has begun")
        overdue = [] if old.once else self._due(old, now)
        if new.once:
            planned = first if self.last_run is None or first > self.last_run else now
        elif only_jitter and not overdue:
            # The same occurrence at its new time, or now if that time has passed.
            planned = max(self.next - self._offset(old) + self._offset(new), now)
            if not old.once and self.next - self._offset(old) not in self._answer(new).nominal:
                planned = self._left(new, now)
        else:
            planned = self._left(new, now)
        if overdue:
            self._record(overdue[0], Ended("missed", reason="changed", count=len(overdue), last=overdue[-1]))
        self.next = planned

    def _left(self, fields: Fields, now: datetime) -> datetime:
        found = self._after(fields, self._answered(fields, self.last_run, now))
        if found is None:
            raise Refused("no occurrence left")
        return found

    def trigger(self, now: datetime) -> datetime:
        """Returns `now`. The caller takes the exact microsecond from the product and passes it to `triggered`."""
        waiting = sum(one.run_at is None for one in self.unfinished.values())
        if self.fields.overlap != "parallel" and waiting >= self.fields.max_queued:
            raise Refused("full")
        return now

    def triggered(self, at: datetime, now: datetime) -> None:
        self.unfinished[at] = Unfinished(now if self.fields.overlap == "parallel" else None, missed=False)
        self._free(now)

    def redrive(self, at: datetime, now: datetime) -> None:
        was = self.ended.pop(at)
        self.unfinished[at] = Unfinished(now if self.fields.overlap == "parallel" else None, was.missed)
        self._free(now)

    # Fires and attempts

    def pass_until(self, until: datetime, now: datetime) -> None:
        """Lets time pass from `now` on, from event to event."""
        while True:
            moments = [one.run_at for one in self.unfinished.values() if one.run_at is not None]
            if self.next is not None:
                moments.append(self.next)
            upcoming = min(moments, default=None)
            if upcoming is None or upcoming > until:
                return
            now = max(now, upcoming)
            if self.next is not None and self.next <= now:
                self._fire(now)
            for at, one in list(self.unfinished.items()):
                if one.run_at is not None and one.run_at <= now:
                    self._attempt(at, one, now)
            self._free(now)

    def _due(self, fields: Fields, now: datetime) -> list[datetime]:
        """The due occurrences that have not fired: the planned one, and those of the timetable after it."""
        if self.next is None or self.next > now:
            return []
        later = [] if fields.once else self._within(fields, self._answer(fields).nominal)
        return [self.next, *(one for one in later if self.next < one <= now)]

    def _fire(self, now: datetime) -> None:
        fields = self.fields
        due = self._due(fields, now)
        late = [one for one in due if one < now - GRACE]
        window = fields.catch_up_window_seconds
        outside = [one for one in late if window is not None and one < now - timedelta(seconds=window)]
        inside = late[len(outside) :]
        keep = {"SKIP": 0, "RUN_ONCE": 1, "RUN_ALL": fields.max_missed}[fields.missed_window]
        over = [] if fields.once else inside[: max(0, len(inside) - keep)]
        runs = [(one, True) for one in inside[len(over) :]] + [(one, False) for one in due[len(late) :]]
        following = None if fields.once else self._after(fields, now)
        if fields.max_runs is not None and not fields.once:
            room = fields.max_runs - self.run_count
            if room <= 0:
                self.next = None
                return
            if len(runs) >= room:
                runs, following = runs[:room], None
        handled = [one for one, _ in runs[-1:]] + over[-1:] + ([] if over else outside[-1:])
        if fields.dst_gap == "skip" and not fields.once:
            since = max(self.updated, self.last_run or self.updated)
            for moment in self._within(fields, self._answer(fields).dropped):
                if since < moment <= max(handled, default=due[0]):
                    self._record(moment, Ended("missed", reason="dst_gap", count=1, last=moment))
        if outside:
            self._record(outside[0], Ended("missed", reason="catch_up_window", count=len(outside), last=outside[-1]))
        if over:
            rule = "max_missed" if fields.missed_window == "RUN_ALL" else fields.missed_window
            self._record(over[0], Ended("missed", reason=rule, count=len(over), last=over[-1]))
        self._begin(runs, now)
        self.run_count += len(runs)
        self.next = following

    def _begin(self, runs: list[tuple[datetime, bool]], now: datetime) -> None:
        fields = self.fields
        busy = bool(self.unfinished)
        waiting = sum(one.run_at is None for one in self.unfinished.values())
        begun = []
        for place, (at, missed) in enumerate(runs):
            # Missed occurrences found together run one after another, and so do all that RUN_ALL makes up for.
            follows = missed and (len(runs) > 1 or fields.missed_window == "RUN_ALL")
            if fields.overlap == "parallel" or (not busy and place == 0):
                self.unfinished[at] = Unfinished(now, missed)
            elif (fields.overlap == "skip" and busy and not follows) or (
                fields.overlap == "queue" and waiting >= fields.max_queued
            ):
                self._record(at, Ended("skipped", missed=missed, reason="overlap"))
                continue
            else:
                self.unfinished[at] = Unfinished(None, missed)
                waiting += 1
            begun.append(at)
        if begun:
            self.last_run = max(begun)

    def _attempt(self, at: datetime, one: Unfinished, now: datetime) -> None:
        one.attempt += 1
        self.calls += 1
        if self.behaviour == "ok" or (self.behaviour == "flaky" and one.attempt > 1):
            self._end(at, one, "succeeded")
        elif self.behaviour == "permanent" or one.attempt > self.fields.max_retries:
            self._end(at, one, "dead")
        else:
            delay = self.fields.retry_delay_seconds
            match self.fields.retry_backoff:
                case "immediate":
                    delay = 0
                case "linear":
                    delay *= one.attempt
                case "exponential":
                    delay *= 2 ** (one.attempt - 1)
            if self.fields.retry_backoff != "immediate":
                delay = min(delay, self.fields.retry_max_delay_seconds)
            one.run_at = now + timedelta(seconds=delay)

    def _end(self, at: datetime, one: Unfinished, status: str) -> None:
        del self.unfinished[at]
        self.ended[at] = Ended(status, one.missed, one.attempt)

    def _free(self, now: datetime) -> None:
        """Lets the first waiting run start if all unfinished runs wait."""
        if self.unfinished and all(one.run_at is None for one in self.unfinished.values()):
            self.unfinished[min(self.unfinished)].run_at = now

    def _record(self, at: datetime, what: Ended) -> None:
        self.ended.setdefault(at, what)
