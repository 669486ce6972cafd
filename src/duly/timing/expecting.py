"""When a monitor's next ping is due, and what is wrong with it. Pure: a monitor and a time in, a judgement out.

The expected times are those that a job with the same schedule and zone would run at, by the same rules for DST. A ping
answers the expected times up to its own. One that comes a moment too early, because two clocks differ, answers the next
one too. A period (`every 15m`) counts from the last ping, because nothing ties the other side to Duly's anchor.

With `max_runtime_seconds` a start answers too, and its end is then due within that time. Without it only an end
answers, so that a run which starts and never ends is noticed by the grace.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from duly.formats import rough_span, utc_text
from duly.model import DEFAULT_POLICY, MonitorState, StoredMonitor
from duly.timing.definition import Definition
from duly.timing.fuel import Fuel

#: The kinds of incidents of monitors.
NO_PING, PING_FAILED, PING_OVERRUN = "no_ping", "ping_failed", "ping_overrun"
# A ping that comes at most this much before its time answers it, or a tenth of the time to the one after it.
_EARLY = timedelta(seconds=30)
_NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`wrong`: what is wrong, as a sentence for each kind. `look_at`: when that may change without a ping."""

    state: MonitorState
    expected_at: datetime | None
    down_at: datetime | None
    wrong: dict[str, str]
    look_at: datetime | None


def judge(monitor: StoredMonitor, now: datetime) -> Judgement:
    """Raises `InvalidInput` if its zone is gone from the time-zone data, or if its plan costs too much."""
    answered = _answered_at(monitor)
    expected_at = _expected_after(monitor, answered)
    down_at = None if expected_at is None else expected_at + timedelta(seconds=monitor.grace_seconds)
    wrong: dict[str, str] = {}
    coming: list[datetime] = []
    if expected_at is not None and down_at is not None:
        if down_at <= now:
            last = "no ping yet" if answered is None else f"the last ping came at {utc_text(answered)}"
            grace = rough_span(monitor.grace_seconds)
            wrong[NO_PING] = f"a ping was expected at {utc_text(expected_at)} (grace {grace}); {last}"
        else:
            coming.append(down_at)
    if (failure := monitor.failure) is not None:
        status = "" if failure.exit_status is None else f" with exit status {failure.exit_status}"
        note = "" if failure.note is None else f": {failure.note.strip()[:200]}"
        wrong[PING_FAILED] = f"it failed at {utc_text(failure.at)}{status}{note}"
    if monitor.max_runtime_seconds is not None:
        longest = timedelta(seconds=monitor.max_runtime_seconds)
        ends = sorted(at + longest for at in monitor.starts.values())
        if ends and ends[0] <= now:
            wrong[PING_OVERRUN] = (
                f"it started at {utc_text(ends[0] - longest)} and has not ended within "
                f"{rough_span(monitor.max_runtime_seconds)}"
            )
        coming += [end for end in ends if end > now][:1]
    if wrong:
        state: MonitorState = "down"
    elif expected_at is not None and expected_at <= now:
        state = "late"
    else:
        state = "new" if not monitor.pings else "up"
    return Judgement(state, expected_at, down_at, wrong, min(coming, default=None))


def _answered_at(monitor: StoredMonitor) -> datetime | None:
    """The last ping that answers an expected time."""
    pings = [monitor.last_success_at, monitor.last_failure_at]
    if monitor.max_runtime_seconds is not None:
        pings.append(monitor.last_start_at)
    return max((at for at in pings if at is not None), default=None)


def _expected_after(monitor: StoredMonitor, answered: datetime | None) -> datetime | None:
    base = monitor.watched_from if answered is None else max(answered, monitor.watched_from)
    anchor = base if monitor.kind == "interval" else monitor.created_at
    definition = Definition(monitor.kind, monitor.schedule, monitor.timezone, None, None, anchor, DEFAULT_POLICY)
    fuel = Fuel()
    timetable = definition.timetable(_NOBODY, fuel)
    first = timetable.next(base, fuel)
    if first is None or base != answered or monitor.kind == "interval" or first - base > _EARLY:
        return first
    second = timetable.next(first, fuel)
    if second is None or first - base > (second - first) / 10:
        return first
    return second
