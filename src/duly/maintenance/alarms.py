"""What is wrong with a watched job, by its alerts and what the store knows of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from duly.errors import InvalidInput
from duly.formats import time_text
from duly.model import Alerts
from duly.store.incidents import Past, Watched
from duly.timing import load_zone

#: Longest time between two looks at a job, and the time between two at one that has something going on.
CALM, BUSY = timedelta(seconds=60), timedelta(seconds=3)
# A fire is looked at this long after its time, when most runs have started.
_AFTER_A_FIRE = timedelta(seconds=1)

#: Why an incident of each kind is over, if nothing else ended it.
OVER = {
    "late": "nothing of it is late any more",
    "overrun": "the attempt has ended",
    "not_finished_by": "the occurrence is over",
    "failures_in_row": "an attempt has succeeded",
    "no_success_for": "a run has succeeded",
}


@dataclass(frozen=True, slots=True)
class Found:
    """Something wrong. Those with equal causes are told as one."""

    kind: str
    message: str
    cause: str
    scheduled_at: datetime | None


def found_of(job: Watched, past: Past, alerts: Mapping[str, Any]) -> list[Found]:
    """Everything that is wrong with an active job now."""
    found = [
        _late(job, past, alerts.get("late_seconds")),
        _overrun(job, alerts.get("overrun_seconds")),
        _not_finished(job, alerts.get("not_finished_by")),
        _failures(job, past, alerts.get("failures_in_row")),
        _no_success(job, past, alerts.get("no_success_for")),
    ]
    return [one for one in found if one is not None]


def next_look(job: Watched, past: Past, alerts: Mapping[str, Any], *, troubled: bool) -> datetime:
    """When something about the job may have changed that nobody announces."""
    moments = [job.now + CALM]
    if troubled or job.unfinished_at is not None:
        moments.append(job.now + BUSY)
    if (overrun := alerts.get("overrun_seconds")) is not None and job.attempt_at is not None:
        moments.append(job.attempt_at + timedelta(seconds=overrun))
    if (late := alerts.get("late_seconds")) is not None:
        due = (job.waiting_at, job.next_run_at)
        moments += [moment + timedelta(seconds=late) for moment in due if moment is not None]
    if job.next_run_at is not None:
        moments.append(job.next_run_at + _AFTER_A_FIRE)
    if (bound := alerts.get("no_success_for")) is not None:
        moments.append(_success_base(job, past) + timedelta(seconds=bound))
    by = alerts.get("not_finished_by")
    unfinished = _earliest(job.unfinished_at, job.next_run_at)
    if by is not None and unfinished is not None:
        moments.append(deadline(unfinished, by, job.timezone))
    to_come = [moment for moment in moments if moment > job.now]
    return max(min(to_come), job.now + _AFTER_A_FIRE)


def deadline(scheduled_at: datetime, by: str, timezone: str) -> datetime:
    """The first moment after `scheduled_at` at which clocks in the zone show `by`."""
    zone = _zone(timezone)
    hour, minute = int(by[:2]), int(by[3:])
    local = scheduled_at.astimezone(zone)
    wanted = local.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0)
    if wanted.astimezone(UTC) <= scheduled_at:
        following = local.date() + timedelta(days=1)
        wanted = datetime(following.year, following.month, following.day, hour, minute, tzinfo=zone)
    return wanted.astimezone(UTC)


def _late(job: Watched, past: Past, bound: int | None) -> Found | None:
    if bound is None:
        return None
    waiting = _earliest(job.waiting_at, job.next_run_at)
    if waiting is not None and job.now - waiting > timedelta(seconds=bound):
        fired = waiting == job.waiting_at
        where = f"waits in queue {job.queue}" if fired else "has not been fired"
        cause = f"late: queue {job.queue}" if fired else "late: not fired"
        seconds = int((job.now - waiting).total_seconds())
        return Found("late", f"the occurrence of {time_text(waiting)} {where} since {seconds} s", cause, waiting)
    missed = past.status == "missed" and past.reason != "changed" and past.finished_at is not None
    # Nothing has started since, and nobody has changed the job since.
    if missed and past.finished_at is not None and job.unfinished_at is None and past.finished_at >= job.updated_at:
        when = past.scheduled_at
        text = "" if when is None else f" of {time_text(when)}"
        return Found("late", f"the occurrence{text} was missed: it never started", "late: missed", when)
    return None


def _overrun(job: Watched, bound: int | None) -> Found | None:
    if bound is None or job.attempt_at is None or job.now - job.attempt_at <= timedelta(seconds=bound):
        return None
    seconds = int((job.now - job.attempt_at).total_seconds())
    message = f"an attempt has been running for {seconds} s, and {bound} s are allowed"
    return Found("overrun", message, f"overrun: {job.handler}", job.attempt_of)


def _not_finished(job: Watched, by: str | None) -> Found | None:
    unfinished = _earliest(job.unfinished_at, job.next_run_at)
    if by is None or unfinished is None or job.now < deadline(unfinished, by, job.timezone):
        return None
    message = f"the occurrence of {time_text(unfinished)} is not over at {by} ({job.timezone})"
    return Found("not_finished_by", message, f"not_finished_by: queue {job.queue}", unfinished)


def _failures(job: Watched, past: Past, bound: int | None) -> Found | None:
    if bound is None or past.failures < bound:
        return None
    message = f"{past.failures} attempts have failed in a row, the last with {past.error}"
    return Found("failures_in_row", message, f"failures_in_row: {job.handler}: {past.error}", past.failed_of)


def _no_success(job: Watched, past: Past, bound: int | None) -> Found | None:
    base = _success_base(job, past)
    if bound is None or job.status != "active" or job.now - base <= timedelta(seconds=bound):
        return None
    since = "has never succeeded" if past.succeeded_at is None else f"last succeeded at {time_text(past.succeeded_at)}"
    return Found("no_success_for", f"the job {since}", f"no_success_for: {job.handler}", past.scheduled_at)


def _success_base(job: Watched, past: Past) -> datetime:
    """The moment from which the time without a success counts: a success, or the last change of the job."""
    return max(job.updated_at, past.succeeded_at or job.updated_at)


def _earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _zone(name: str) -> ZoneInfo:
    try:
        return load_zone(name)
    except InvalidInput:  # it was taken out of this machine's data
        return ZoneInfo("UTC")


def reaches_back(job: Watched, alerts: Alerts) -> timedelta:
    """How far back the ends of its runs decide: the days whose partitions are read."""
    days = [8.0]
    if (bound := alerts.get("no_success_for")) is not None:
        days.append(bound / 86400 + 2)
    if job.next_run_at is not None and job.last_run_at is not None and (failures := alerts.get("failures_in_row")):
        days.append((job.next_run_at - job.last_run_at) / timedelta(days=1) * (failures + 1))
    return timedelta(days=next((step for step in (8, 35, 400) if step >= max(days)), 3650))
