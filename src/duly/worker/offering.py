"""Offers a worker's tasks, with the defaults that they set for their jobs, to all who submit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from duly.model import Declarer, TaskDefaults
from duly.service import Service
from duly.store import cluster
from duly.store.pool import Pool, Querier

log = logging.getLogger("duly.worker")

_MAX_NAMED = 5


class Offering(Service):
    """The offer of one worker.

    It is made when the worker starts. It is repeated only while it is not complete: the store has no place for defaults
    until it is migrated, and another application's defaults stay in force as long as that one lives.
    """

    interval = 20.0

    def __init__(self, pool: Pool, tasks: Mapping[str, TaskDefaults], *, by: Declarer) -> None:
        super().__init__()
        self._pool = pool
        self._tasks = tasks
        self._by = by
        self._said: frozenset[tuple[str, str]] = frozenset()
        #: Whether the offer is to be repeated later.
        self.open = False

    async def offer(self, store: Querier) -> None:
        if not store.has_step(cluster.DEFAULTS_STEP):
            await cluster.offer_handlers(store, list(self._tasks))
            self.open = bool(self._tasks)
            return
        kept = await cluster.offer_tasks(store, self._tasks, by=self._by)
        foreign = [task for task in kept if task.owner not in ("", self._by.owner)]
        self.open = bool(foreign)
        differing = [task for task in kept if task.defaults != self._tasks[task.name]]
        # Each of these once, however often the offer is repeated.
        new = frozenset((task.name, task.owner) for task in differing) - self._said
        self._said |= new
        self._say([task for task in differing if (task.name, task.owner) in new])

    def _say(self, kept: Sequence[cluster.OfferedTask]) -> None:
        foreign = [task for task in kept if task.owner not in ("", self._by.owner)]
        older = [task for task in kept if task not in foreign]
        if foreign:
            log.warning(
                "%s also belong%s to live workers of app %r, whose defaults (queue, priority, policy) apply to what "
                "others submit; give the tasks of one of the apps other names",
                _named(foreign), "s" if len(foreign) == 1 else "", foreign[0].owner,
            )  # fmt: skip
        if older:
            log.warning(
                "the defaults of %s (queue, priority, policy) stay those of deploy %s, because this is %s; to go back "
                "on purpose, start with a newer DULY_DEPLOY",
                _named(older), older[0].deploy, self._by.described(),
            )  # fmt: skip

    async def run_once(self) -> float | None:
        if self.open and self._pool.has_step(cluster.DEFAULTS_STEP):
            await self.offer(self._pool)
        return None


def _named(tasks: Sequence[cluster.OfferedTask]) -> str:
    names = ", ".join(repr(task.name) for task in tasks[:_MAX_NAMED])
    return f"task{'' if len(tasks) == 1 else 's'} {names}{', …' if len(tasks) > _MAX_NAMED else ''}"
