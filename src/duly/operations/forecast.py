"""Forecasts of how many fires are coming, so that a peak is seen before it comes.

The work is bounded, however many jobs there are. Only jobs that fall due within the horizon are read; jobs with the
same timing are one group with a count; and where even that is too much, some shards are read and scaled up, because a
job's shard is a hash of its id. Where it is still too much, the forecast ends early and says where.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from duly import checks
from duly.errors import InvalidInput, TooCostly
from duly.model import Expected, Forecast
from duly.operations.core import Core
from duly.store import forecasts
from duly.store.forecasts import AlikeJobs
from duly.timing import EACH, Fuel, Timetable
from duly.turns import Turns

MAX_MINUTES = 24 * 60
# Jobs read for one forecast: half a second of the database on an idle machine with cold pages.
_MAX_JOBS = 100_000
# A tenant with at most this many jobs is forecast from all of them.
_MAX_OWN_JOBS = 20_000
# Occurrences computed for one forecast: about half a second of this process, interleaved with other requests.
_MAX_STEPS = 50_000
_MAX_ITEMS = 20_000


class ForecastOperations:
    """Forecasts for one tenant's jobs."""

    def __init__(self, core: Core, tenant: str) -> None:
        self._pool = core.pool
        self._shard_count = core.shard_count
        self._tenant = tenant

    async def forecast(self, *, minutes: int = 60) -> Forecast:
        """The fires of the coming minutes as planned now. Overdue occurrences count for the current minute."""
        checks.check_integer("minutes", minutes, 1, MAX_MINUTES)
        start = self._pool.clock.now()
        until = start + timedelta(minutes=minutes)
        groups, shards_read, complete_until = await self._near(until)
        share = self._shard_count / shards_read
        counts: Counter[tuple[datetime, str, str]] = Counter()
        moment, turns = start, Turns()
        try:
            coming = _in_order(groups, start, min(until, complete_until or until), Fuel(EACH * _MAX_STEPS))
            for steps, (moment, group) in enumerate(coming, start=1):
                counts[moment.replace(second=0, microsecond=0), group.queue, group.handler] += group.jobs
                await turns.give()
                if steps == _MAX_STEPS or len(counts) > _MAX_ITEMS:
                    raise TooCostly
        except TooCostly:
            # Occurrences come in order of time, so every minute before this one is complete.
            complete_until = moment.replace(second=0, microsecond=0)
        items = [
            Expected(minute, queue, handler, round(fires * share))
            for (minute, queue, handler), fires in sorted(counts.items())
            if complete_until is None or minute < complete_until
        ]
        cut = complete_until is not None and complete_until < until
        return Forecast(start, until, items, share > 1, cut, complete_until if cut and complete_until else until)

    async def _near(self, until: datetime) -> tuple[list[AlikeJobs], int, datetime | None]:
        """The groups, the number of shards they were read from, and the time up to which they are complete."""
        shards = list(range(self._shard_count))
        own = await forecasts.near_of_tenant(self._pool, tenant=self._tenant, until=until, limit=_MAX_OWN_JOBS)
        if own is not None:
            # Other tenants' jobs cost nothing here, so they do not turn the forecast into an estimate.
            return own, len(shards), None
        # The first shard shows how many jobs a shard has. The limit holds per shard, so also for the shards read next.
        first = await forecasts.near(self._pool, shards=shards[:1], tenant=self._tenant, until=until, limit=_MAX_JOBS)
        afforded = min(len(shards), max(1, _MAX_JOBS // max(1, first.jobs_seen)))
        if afforded == 1:
            return first.groups, 1, first.complete_until
        limit = 2 * _MAX_JOBS // afforded
        rest = await forecasts.near(
            self._pool, shards=shards[1:afforded], tenant=self._tenant, until=until, limit=limit
        )  # fmt: skip
        return first.groups + rest.groups, afforded, rest.complete_until


def _in_order(
    groups: Sequence[AlikeJobs], start: datetime, until: datetime, fuel: Fuel
) -> Iterator[tuple[datetime, AlikeJobs]]:
    """Every occurrence of every group before `until`, earliest first. Raises `TooCostly` when the fuel of all groups
    together is used up."""
    order = itertools.count()
    waiting: list[tuple[datetime, int, AlikeJobs, Iterator[datetime]]] = []
    for group in groups:
        moments = _moments(group, start, fuel)
        if (first := next(moments, None)) is not None and first < until:
            waiting.append((first, next(order), group, moments))
    heapq.heapify(waiting)
    while waiting:
        moment, number, group, moments = waiting[0]
        yield moment, group
        following = next(moments, None)
        if following is None or following >= until:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (following, number, group, moments))


def _moments(group: AlikeJobs, start: datetime, fuel: Fuel) -> Iterator[datetime]:
    moment: datetime | None = max(group.next_run_at, start)
    left = group.runs_left
    if left is not None and left <= 0:
        return
    assert moment is not None
    yield moment
    if group.kind == "once":
        return
    jitter = timedelta(seconds=group.policy.jitter_seconds)
    try:
        timetable = group.definition.timetable(UUID(int=0))
        if jitter and group.kind != "interval":
            nominal = _next(timetable, group.next_run_at - jitter, fuel)
            timetable = replace(timetable, offset=max(group.next_run_at - (nominal or group.next_run_at), timedelta(0)))
        while (left is None or left > 1) and (moment := _next(timetable, moment, fuel)) is not None:
            left = None if left is None else left - 1
            yield moment
    except InvalidInput:  # its zone is gone, or its rule takes too long: later occurrences are unknown
        if fuel.left <= 0:
            raise TooCostly from None


def _next(timetable: Timetable, after: datetime, fuel: Fuel) -> datetime | None:
    """One of many questions: each has fuel of its own, and all of them together share `fuel`."""
    part = fuel.part()
    given = part.left
    try:
        return timetable.next(after, part)
    finally:
        fuel.used(part, given)
