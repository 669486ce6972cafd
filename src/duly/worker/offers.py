"""Decides about runs of tasks that this worker does not have.

During a deploy, old workers claim runs of tasks that only new ones have, and several apps may share a queue. Such a run
goes back to the queue, and no attempt counts. If a live worker has the task for this queue, this worker leaves its runs
alone for a while; if no worker has had it for long, its runs end in the dead letters. The store is asked once per task
every few seconds, not for each run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from duly.errors import StoreUnavailable, Unable
from duly.model import ClaimedRun, to_micros
from duly.store import cluster
from duly.store.pool import Pool
from duly.worker.handler.errors import Elsewhere, RemotePermanent

log = logging.getLogger("duly.worker")

# An answer of the store is used for this long.
FRESH_SECONDS = 5.0
# Runs of a task that another worker has are left alone for this long; then the next one asks the store again.
LEFT_SECONDS = 30.0
_LOG_SECONDS = 60.0


@dataclass(slots=True)
class _Lacking:
    """A task that this worker lacks and claimed a run of. Times are the loop's; `_us` are the database's."""

    noticed_us: int
    asking: asyncio.Task[cluster.Offer] | None = None
    offer: cluster.Offer | None = None
    until: float = 0.0
    left_until: float = 0.0
    logged_at: float = float("-inf")


class Offers:
    """The tasks that this worker lacks, and the store's last answer about each."""

    def __init__(self, pool: Pool, *, queues: Iterable[str], missing_seconds: float) -> None:
        """`queues`: those that this worker serves. `missing_seconds`: a run is buried if no live worker has had its
        task for this long."""
        self._pool = pool
        self._queues = sorted(queues)
        self._missing = missing_seconds
        self._lacking: dict[str, _Lacking] = {}

    def elsewhere(self) -> list[str]:
        """Names of the missing tasks that live workers elsewhere have."""
        if not self._lacking:
            return []
        now = asyncio.get_running_loop().time()
        return [name for name, lacking in self._lacking.items() if lacking.left_until > now]

    async def refuse(self, run: ClaimedRun) -> None:
        """Raises the error that decides about a run of a missing task: `Elsewhere`, `Unable` or `RemotePermanent`."""
        name, now_us = run.handler, self._pool.clock.now_us()
        lacking = self._lacking.setdefault(name, _Lacking(now_us))
        try:
            offer = await self._asked(name, lacking)
        except StoreUnavailable as error:
            raise Unable(
                f"this worker has no task {name!r}, and the store cannot say which worker has it: {error}"
            ) from error
        if offer.live:
            raise Elsewhere(f"this worker has no task {name!r}, but another worker has it")
        if offer.for_others:
            # Not left alone: the runs would stay at the head of their queue, before those that this worker can run.
            raise Unable(
                f"this worker has no task {name!r}; another worker has it, but serves other queues or some tenants only"
            )
        # Counted from the run's due time at the earliest: a job may be submitted before the first worker that has its
        # task starts.
        since_us = max(lacking.noticed_us, to_micros(run.scheduled_at))
        if offer.seconds_ago is not None:
            since_us = max(since_us, now_us - int(offer.seconds_ago * 1e6))
        if now_us - since_us < self._missing * 1e6:
            raise Unable(f"no live worker has a task {name!r}")
        raise RemotePermanent(
            "NoSuchTask",
            f"no live worker has had a task {name!r} for {self._missing:g} s (missing_task_seconds): start a worker "
            "whose app has it and redrive this run, or cancel the job",
        )

    async def _asked(self, name: str, lacking: _Lacking) -> cluster.Offer:
        loop = asyncio.get_running_loop()
        if lacking.offer is not None and lacking.until > loop.time():
            return lacking.offer
        if lacking.asking is None:
            # A separate asyncio task: the run that asked first may be cancelled while others wait for the answer.
            lacking.asking = loop.create_task(self._ask(name, lacking))
        return await asyncio.shield(lacking.asking)

    async def _ask(self, name: str, lacking: _Lacking) -> cluster.Offer:
        loop = asyncio.get_running_loop()
        try:
            offer = lacking.offer = await cluster.offer_of(self._pool, task=name, queues=self._queues)
        finally:
            lacking.asking = None
        now = loop.time()
        lacking.until = now + FRESH_SECONDS
        lacking.left_until = now + LEFT_SECONDS if offer.live else 0.0
        if now - lacking.logged_at >= _LOG_SECONDS:
            lacking.logged_at = now
            if offer.live:
                log.info("this worker has no task %r and leaves its runs to workers that have it", name)
            elif offer.for_others:
                log.warning(
                    "no live worker has a task %r for the queues that this worker serves: its runs wait; duly doctor "
                    "names them",
                    name,
                )
            else:
                log.warning(
                    "no live worker has a task %r: its runs wait, and go to the dead letters when none has had it for "
                    "%g s (missing_task_seconds)",
                    name, self._missing,
                )  # fmt: skip
        return offer
