"""The coming occurrences of a stored job: one answer for the API, the client, the commands and the live page."""

from __future__ import annotations

from duly.model import Job, Occurrence
from duly.operations.core import timetable_of
from duly.timing import Fuel, load_zone
from duly.timing.schedule import MICROSECOND

MAX_OCCURRENCES = 1000


def upcoming(job: Job, *, count: int, fuel: Fuel | None = None) -> list[Occurrence]:
    """The next `count` occurrences with their local times, or fewer where `max_runs` allows fewer runs.

    Occurrences that DST drops between them are there too, marked and uncounted. A job that is paused or has ended has
    none: nothing is planned for it. Where working out more of them takes too long, the list ends early and its last
    one says so.
    """
    left = count if job.max_runs is None else min(count, job.max_runs - job.run_count)
    if job.next_run_at is None or left <= 0:
        return []
    planned = Occurrence(job.next_run_at, job.next_run_at.astimezone(load_zone(job.timezone)))
    if job.kind == "once":
        return [planned]
    timetable, fuel = timetable_of(job), fuel or Fuel.for_list(count)
    if not timetable.occurs_at(job.next_run_at, fuel):
        # Less jitter moved an occurrence to the past, for instance: its run is planned for the moment of the change.
        return [planned, *timetable.listed(job.next_run_at, left - 1, fuel)]
    return timetable.listed(job.next_run_at - MICROSECOND, left, fuel)
