"""Plans due occurrences: each is fired, run late, or dropped and recorded as such.

An outage can have any length, so the cost of a plan must not depend on it.

- If the schedule counts in closed form (cron, interval), a long backlog is counted, not visited: one call drops
  everything that the policy drops and fires the first of the occurrences that it keeps.
- Otherwise (RRULE) the due occurrences are listed, and the policy is applied to the list. A list that is longer than
  `MAX_STEPS`, or for which the fuel runs out, is cut, and the call drops only occurrences that are certain to be
  dropped because at least as many later ones follow as the policy keeps. `next_run_at` is then the next overdue
  occurrence, and the caller continues there. The last call sees the end of the backlog, so the newest ones run.

One call returns at most `MAX_RUNS` runs; the caller continues with the rest through `next_run_at` as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from duly.errors import TooCostly
from duly.model import Policy

from .fuel import Fuel
from .schedule import MICROSECOND
from .timetable import Timetable

MAX_STEPS = 2_000
MAX_RUNS = 1_000
_SHORT = 50  # occurrences; listing a backlog this short is faster than counting it

_GRACE = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Drop:
    """Consecutive occurrences that will not run, as one record.

    `reason` is the rule: `SKIP`, `RUN_ONCE`, `max_missed`, `catch_up_window`, or `dst_gap` for a local time that did
    not exist that day.
    """

    first: datetime
    last: datetime
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class FirePlan:
    """One fire of a job: `runs` to insert as (scheduled_at, missed), oldest first, and the job's next occurrence.

    `next_run_at` is None if no occurrence follows: the last of `runs` completes the job.
    """

    runs: tuple[tuple[datetime, bool], ...]
    drops: tuple[Drop, ...]
    next_run_at: datetime | None


def plan_fire(
    timetable: Timetable,
    *,
    expected: datetime,
    now: datetime,
    policy: Policy,
    run_count: int = 0,
    max_runs: int | None = None,
    misfire_grace: timedelta = _GRACE,
    since: datetime | None = None,
    fuel: Fuel | None = None,
) -> FirePlan:
    """The plan for a job whose next occurrence, at `expected`, is found due at `now`.

    Due occurrences not older than `misfire_grace` all fire, merely late. Older ones are missed: first the catch-up
    window drops those outside it, then the policy keeps the newest (`SKIP` none, `RUN_ONCE` one, `RUN_ALL` at most
    `max_missed`) and drops the rest. Only the window drops a one-off. Dropped occurrences do not count towards
    `max_runs`. `next_run_at` is later than `expected`; it may still be due (see above).

    With `since` (when the job last fired or was last changed), the drops include what `dst_gap="skip"` dropped after
    it and before the last occurrence of this plan. If nothing is due, the plan is empty and keeps `expected`.

    Raises `TooCostly` if the occurrences that follow take too long to find.
    """
    if expected > now:
        return FirePlan((), (), expected)
    once = timetable.schedule.kind == "once"
    runs_left = None if max_runs is None or once else max_runs - run_count
    if runs_left is not None and runs_left <= 0:
        return FirePlan((), (), None)
    # A one-off has no further occurrence, whatever its text and policy say: `expected` is its only one, and is due.
    following = None if once else timetable.next(expected, fuel)
    if (following is None or following > now) and expected >= now - misfire_grace:
        # One occurrence, on time: almost every fire.
        plan = FirePlan(((expected, False),), (), following)
    else:
        plan = _plan_late(timetable, expected, now, policy, misfire_grace, fuel)
    if runs_left is not None and len(plan.runs) >= runs_left:
        plan = FirePlan(plan.runs[:runs_left], plan.drops, None)
    if since is not None and policy.dst_gap == "skip" and not once:
        return _with_dst_drops(timetable, plan, since, expected, fuel or Fuel())
    return plan


def plan_resume(timetable: Timetable, *, now: datetime, fired: datetime | None = None) -> datetime | None:
    """The next future occurrence of a job that is resumed. Occurrences during the pause do not count as missed.

    `fired` is the job's last run, which is not repeated even if the clock went back or the jitter was changed since. A
    one-off that has not run keeps its time, and is due now if that is past.
    """
    if timetable.schedule.kind == "once":
        return timetable.next(now) or now
    return timetable.next(now if fired is None else max(now, timetable.answered(fired)))


def _plan_late(
    timetable: Timetable,
    expected: datetime,
    now: datetime,
    policy: Policy,
    misfire_grace: timedelta,
    fuel: Fuel | None,
) -> FirePlan:
    rule = _Rule.of(timetable, policy, now)
    # A plan for a thousand runs needs the fuel of a list of them.
    fuel = fuel or Fuel.for_list(MAX_STEPS + min(rule.keep or 0, MAX_RUNS))
    on_time_from = now - misfire_grace
    if timetable.schedule.kind == "once":
        drops, dropped = rule.drop([expected])
        return FirePlan(() if dropped else ((expected, True),), drops, None)
    if timetable.schedule.counts_fast and timetable.count(expected, now, _SHORT, fuel) > _SHORT:
        drops, first = _drop_counted(timetable, expected, on_time_from, rule, fuel)
        due, following = _list_due(timetable, first, now, MAX_RUNS, fuel)
    else:
        due, following = _list_due(timetable, expected, now, MAX_STEPS, fuel)
        late = [moment for moment in due if moment < on_time_from]
        if len(late) == len(due) and following is not None and following < on_time_from and rule.keep is not None:
            # The list was cut. The policy keeps the newest, so the occurrences that follow count towards `keep` first.
            counting = Fuel.for_list(rule.keep)
            following_late = timetable.count(due[-1], on_time_from - MICROSECOND, rule.keep, counting)
            rule = _Rule(rule.window_from, rule.keep - following_late, rule.reason)
        drops, dropped = rule.drop(late)
        due = due[dropped:]
    if len(due) > MAX_RUNS:
        due, following = due[:MAX_RUNS], due[MAX_RUNS]
    runs = tuple((moment, moment < on_time_from) for moment in due)
    return FirePlan(runs, drops, following)


def _list_due(
    timetable: Timetable, first: datetime | None, now: datetime, limit: int, fuel: Fuel
) -> tuple[list[datetime], datetime | None]:
    """At most `limit` due occurrences from `first` on, and the one after them. Fewer if the fuel runs out."""
    due: list[datetime] = []
    following = first
    try:
        while following is not None and following <= now and len(due) < limit:
            due.append(following)
            following = timetable.next(following, fuel)
    except TooCostly:
        if len(due) < 2:
            raise
        following = due.pop()
    return due, following


@dataclass(frozen=True, slots=True)
class _Rule:
    """A missed policy at one moment: no occurrence before `window_from` runs, and of the rest the newest `keep`."""

    window_from: datetime | None
    keep: int | None
    reason: str

    @classmethod
    def of(cls, timetable: Timetable, policy: Policy, now: datetime) -> _Rule:
        window = policy.catch_up_window_seconds
        window_from = None if window is None else now - timedelta(seconds=window)
        if timetable.schedule.kind == "once":
            return cls(window_from, None, "")
        if policy.missed_window == "RUN_ALL":
            return cls(window_from, max(0, policy.max_missed), "max_missed")
        return cls(window_from, 1 if policy.missed_window == "RUN_ONCE" else 0, policy.missed_window)

    def drop(self, late: list[datetime]) -> tuple[tuple[Drop, ...], int]:
        """The drops among the late occurrences, given oldest first, and the number of occurrences dropped."""
        outside = 0
        if self.window_from is not None:
            outside = sum(moment < self.window_from for moment in late)
        over = 0 if self.keep is None else max(0, len(late) - outside - self.keep)
        drops = []
        if outside:
            drops.append(Drop(late[0], late[outside - 1], outside, "catch_up_window"))
        if over:
            drops.append(Drop(late[outside], late[outside + over - 1], over, self.reason))
        return tuple(drops), outside + over


def _drop_counted(
    timetable: Timetable, expected: datetime, on_time_from: datetime, rule: _Rule, fuel: Fuel
) -> tuple[tuple[Drop, ...], datetime | None]:
    """The drops by `rule` from `expected` on, and the first occurrence that is not dropped."""
    drops = []
    first: datetime | None = expected
    if rule.window_from is not None and expected < rule.window_from:
        window_from = min(rule.window_from, on_time_from)
        drops.append(_counted(timetable, expected, window_from, "catch_up_window", fuel))
        first = timetable.next(window_from - MICROSECOND, fuel)
    if first is not None and rule.keep is not None:
        over = _count_before(timetable, first, on_time_from, fuel) - rule.keep
        if over > 0:
            bound = _after_number(timetable, first, over, on_time_from, fuel)
            drops.append(_counted(timetable, first, bound, rule.reason, fuel))
            first = timetable.next(bound - MICROSECOND, fuel)
    return tuple(drops), first


def _counted(timetable: Timetable, first: datetime, bound: datetime, reason: str, fuel: Fuel) -> Drop:
    """One drop for all occurrences in [first, bound), including `first`."""
    count = _count_before(timetable, first, bound, fuel)
    return Drop(first, _last_before(timetable, first, bound, fuel), count, reason)


def _count_before(timetable: Timetable, first: datetime, bound: datetime, fuel: Fuel) -> int:
    """The number of occurrences in [first, bound). `first` counts even if an edited schedule does not have it."""
    if first >= bound:
        return 0
    return 1 + timetable.count(first, bound - MICROSECOND, MAX_STEPS, fuel)


def _after_number(timetable: Timetable, first: datetime, number: int, high: datetime, fuel: Fuel) -> datetime:
    """The earliest whole microsecond with `number` occurrences from `first` on before it; at most `high`."""
    low, counted, before_low = first, first, 1
    while high - low > MICROSECOND:
        middle = low + (high - low) // 2
        # Counts from where the last count ended, so each count covers half the time of the one before.
        before_middle = before_low + timetable.count(counted, middle - MICROSECOND, MAX_STEPS, fuel)
        if before_middle >= number:
            high = middle
        else:
            low, counted, before_low = middle, middle - MICROSECOND, before_middle
    return high


def _last_before(timetable: Timetable, first: datetime, bound: datetime, fuel: Fuel) -> datetime:
    """The latest occurrence before `bound`, by bisection."""
    newest, high = first, bound
    while True:
        middle = newest + (high - newest) // 2
        found = timetable.next(middle, fuel)
        if found is not None and found < bound:
            newest = found
        elif middle <= newest:
            return newest
        else:
            high = middle


def _with_dst_drops(timetable: Timetable, plan: FirePlan, since: datetime, expected: datetime, fuel: Fuel) -> FirePlan:
    handled = [moment for moment, _ in plan.runs[-1:]] + [drop.last for drop in plan.drops[-1:]]
    lost = timetable.dropped(since, max(handled, default=expected), fuel)
    if not lost:
        return plan
    drops = tuple(Drop(one.scheduled_at, one.scheduled_at, 1, "dst_gap") for one in lost)
    return FirePlan(plan.runs, drops + plan.drops, plan.next_run_at)
