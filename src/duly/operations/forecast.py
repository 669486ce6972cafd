"""Forecasting: how many fires are coming, so that a midnight herd is seen before it comes.

The work is bounded, however many jobs there are. Only those that fall due within the horizon are read; jobs that go on
alike are one group with a count; and where even that is too much, some shards stand for all of them, because a job's
shard is a hash of its id. What is still too much is cut off in time, and the answer says where.
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
from duly.store.forecasts import Group
from duly.timing import EACH, Fuel, Timetable
from duly.turns import Turns

MAX_MINUTES = 24 * 60
# Jobs read for one forecast: half a second of the database on an idle machine with cold pages.
_MOST_JOBS = 100_000
# A tenant with no more jobs than that is forecast by all of them.
_OWN_JOBS = 20_000
# Occurrences worked out for one forecast: about half a second of this process, in turns with others.
_MOST_STEPS = 50_000
_MOST_ITEMS = 20_000


class ForecastOperations:
    """Forecasts for one tenant's jobs."""

    def __init__(self, core: Core, tenant: str) -> None:
        self._pool = core.pool
        self._shard_count = core.shard_count
        self._tenant = tenant

    async def forecast(self, *, minutes: int = 60) -> Forecast:
        """The fires of the coming minutes as everything is planned now; what is overdue counts for this minute."""
        checks.check_integer("minutes", minutes, 1, MAX_MINUTES)
        start = self._pool.clock.now()
        until = start + timedelta(minutes=minutes)
        groups, shards_read, complete_until = await self._near(until)
        share = self._shard_count / shards_read
        counts: Counter[tuple[datetime, str, str]] = Counter()
        moment, turns = start, Turns()
        try:
            coming = _in_order(groups, start, min(until, complete_until or until), Fuel(EACH * _MOST_STEPS))
            for steps, (moment, group) in enumerate(coming, start=1):
                counts[moment.replace(second=0, microsecond=0), group.queue, group.handler] += group.jobs
                await turns.give()
                if steps == _MOST_STEPS or len(counts) > _MOST_ITEMS:
                    raise TooCostly
        except TooCostly:
            # They come in the order of time, so everything before this minute is counted.
            complete_until = moment.replace(second=0, microsecond=0)
        items = [
            Expected(minute, queue, handler, round(fires * share))
            for (minute, queue, handler), fires in sorted(counts.items())
            if complete_until is None or minute < complete_until
        ]
        cut = complete_until is not None and complete_until < until
        return Forecast(start, until, items, share > 1, cut, complete_until if cut and complete_until else until)

    async def _near(self, until: datetime) -> tuple[list[Group], int, datetime | None]:
        """The groups, how many shards they were read from, and up to where they are all there."""
        shards = list(range(self._shard_count))
        own = await forecasts.near_of_tenant(self._pool, tenant=self._tenant, until=until, limit=_OWN_JOBS)
        if own is not None:
            # Others' jobs are not among what it costs, so they do not make an estimate of it.
            return own, len(shards), None
        # The first says how full they are. The limit holds for each shard, and so for all that are read after it too.
        first = await forecasts.near(self._pool, shards=shards[:1], tenant=self._tenant, until=until, limit=_MOST_JOBS)
        afforded = min(len(shards), max(1, _MOST_JOBS // max(1, first.jobs_seen)))
        if afforded == 1:
            return first.groups, 1, first.complete_until
        limit = 2 * _MOST_JOBS // afforded
        rest = await forecasts.near(
            self._pool, shards=shards[1:afforded], tenant=self._tenant, until=until, limit=limit
        )  # fmt: skip
        return first.groups + rest.groups, afforded, rest.complete_until


def _in_order(
    groups: Sequence[Group], start: datetime, until: datetime, fuel: Fuel
) -> Iterator[tuple[datetime, Group]]:
    """Every occurrence of every group before `until`, the earliest first. `TooCostly`: what follows the last of them
    is more than all of them together may cost."""
    order = itertools.count()
    waiting: list[tuple[datetime, int, Group, Iterator[datetime]]] = []
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


def _moments(group: Group, start: datetime, fuel: Fuel) -> Iterator[datetime]:
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
    except InvalidInput:  # its zone is gone, or its rule takes too long: nobody knows how it goes on
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
