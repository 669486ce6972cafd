"""Who has a task that this worker has not.

While a deploy goes on, old workers meet runs of tasks that only new ones have, and several apps may share a queue. Such
a run goes back uncounted. Where a live worker has the task, this one leaves its runs alone for a while; where none has
had it for long, they end in the dead letters. The store is asked once a task and a few seconds, not for each run.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from duly.errors import StoreUnavailable, Unable
from duly.model import ClaimedRun, to_micros
from duly.store import cluster
from duly.store.pool import Pool
from duly.worker.handler.errors import Elsewhere, RemotePermanent

log = logging.getLogger("duly.worker")

# An answer of the store's counts for so long.
FRESH_SECONDS = 5.0
# And for so long runs of a task that another worker has are not claimed; then one tells whether it still has it.
LEFT_SECONDS = 30.0
_SAY_SECONDS = 60.0


@dataclass(slots=True)
class _Lacking:
    """A task that this worker was given a run of and has not. Times are the loop's; `_us` are the database's."""

    noticed_us: int
    asked: asyncio.Task[cluster.Offer] | None = None
    offer: cluster.Offer | None = None
    until: float = 0.0
    left_until: float = 0.0
    said_at: float = float("-inf")


class Offers:
    def __init__(self, pool: Pool, *, missing_seconds: float) -> None:
        """`missing_seconds`: a run of a task that no live worker has had for so long is given up."""
        self._pool = pool
        self._missing = missing_seconds
        self._lacking: dict[str, _Lacking] = {}

    def elsewhere(self) -> list[str]:
        """Tasks of which live workers elsewhere take care."""
        if not self._lacking:
            return []
        now = asyncio.get_running_loop().time()
        return [name for name, lacking in self._lacking.items() if lacking.left_until > now]

    async def refuse(self, run: ClaimedRun) -> None:
        """Raise what is to become of a run whose task is not here."""
        name, now_us = run.handler, self._pool.clock.now_us()
        lacking = self._lacking.setdefault(name, _Lacking(now_us))
        try:
            offer = await self._asked(name, lacking)
        except StoreUnavailable as error:
            raise Unable(f"this worker has no task {name!r}, and the store cannot say who has: {error}") from error
        if offer.live:
            raise Elsewhere(f"this worker has no task {name!r}, but another has")
        if offer.for_some:
            raise Unable(f"this worker has no task {name!r}; another has, which takes some tenants' runs only")
        # Of the run's own age, too: a task may be submitted some time before the first worker that has it starts.
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
        if lacking.asked is None:
            # A task of its own: the run that asked first may be cancelled while the others wait.
            lacking.asked = loop.create_task(self._ask(name, lacking))
        return await asyncio.shield(lacking.asked)

    async def _ask(self, name: str, lacking: _Lacking) -> cluster.Offer:
        loop = asyncio.get_running_loop()
        try:
            offer = lacking.offer = await cluster.offer_of(self._pool, task=name)
        finally:
            lacking.asked = None
        now = loop.time()
        lacking.until = now + FRESH_SECONDS
        lacking.left_until = now + LEFT_SECONDS if offer.live else 0.0
        if now - lacking.said_at >= _SAY_SECONDS:
            lacking.said_at = now
            if offer.live:
                log.info("this worker has no task %r and leaves its runs to those that have it", name)
            else:
                log.warning(
                    "no live worker has a task %r: its runs wait, and go to the dead letters when none has had it for "
                    "%g s (missing_task_seconds)",
                    name, self._missing,
                )  # fmt: skip
        return offer
