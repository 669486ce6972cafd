"""What every group of operations stands on: the store, the settings, and how a job's text becomes its timetable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from datetime import datetime
from typing import Self
from uuid import UUID
from weakref import WeakValueDictionary

from duly.config import Settings
from duly.errors import InvalidInput, NotFound
from duly.model import Job
from duly.operations.rights import Bounds
from duly.store import stores, tenants
from duly.store.pool import Pool, reading
from duly.store.tenants import KnownTenant
from duly.timing import Definition, Timetable

__all__ = ["Base", "reading", "timetable_of", "to_job_id"]

# How long what was found out about a tenant is believed, and of how many tenants.
_BELIEVED_SECONDS = 2.0
_MOST_BELIEVED = 10_000


class Base:
    """One store, seen by a client."""

    def __init__(
        self, pool: Pool, settings: Settings, *, shard_count: int, local_handlers: Collection[str] = ()
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._shard_count = shard_count
        self._local_handlers = local_handlers
        self._store_handlers: frozenset[str] = frozenset()
        # What was found out about tenants, and until when it is believed.
        self._believed: dict[str, tuple[float, KnownTenant]] = {}
        # Whose turn it is among the submits of a tenant that has a limit. Kept while somebody holds or waits for it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    async def open(cls, pool: Pool, settings: Settings, *, local_handlers: Collection[str] = ()) -> Self:
        """For a store that is there and of this version."""
        return cls(pool, settings, shard_count=await stores.shard_count(pool), local_handlers=local_handlers)

    @property
    def settings(self) -> Settings:
        return self._settings

    def bound_waiting(self, seconds: float) -> None:
        """From now on whoever finds no free connection to the store within that time is told so."""
        self._pool.acquire_seconds = seconds

    def bound_reads(self, seconds: float) -> None:
        """From now on what is only read for a tenant is given up after that time, and others are served beside it."""
        self._pool.bound_reads(seconds)

    def now(self) -> datetime:
        """The database's time, as well as it is known here."""
        return self._pool.clock.now()

    async def _known(self, asked: Collection[str]) -> dict[str, KnownTenant]:
        """What was set for each of these tenants. The store is not asked about one for every submit."""
        now = time.monotonic()
        unsure = {tenant for tenant in asked if tenant not in self._believed or self._believed[tenant][0] <= now}
        known = {tenant: self._believed[tenant][1] for tenant in asked if tenant not in unsure}
        if unsure:
            found = await tenants.known(self._pool, unsure)
            known |= {tenant: found.get(tenant, tenants.UNKNOWN) for tenant in unsure}
            if len(self._believed) > _MOST_BELIEVED:
                self._believed.clear()
            self._believed |= {tenant: (now + _BELIEVED_SECONDS, known[tenant]) for tenant in unsure}
        return known

    async def _bounds(self, asked: Collection[str]) -> dict[str, Bounds]:
        """Those of these tenants that are bound to some tasks or queues, or may not submit commands."""
        return {
            tenant: Bounds(tenant, known.tasks, known.queues, known.commands)
            for tenant, known in (await self._known(asked)).items()
            if known[1:] != tenants.UNKNOWN[1:]
        }


def timetable_of(job: Job) -> Timetable:
    if job.unreadable is not None:
        raise InvalidInput("job", job.unreadable)
    return Definition.of(job, job.policy).timetable(job.job_id)


def to_job_id(text: str, *, field: str = "job_id") -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        if field == "job_id":
            raise NotFound(f"there is no job {text[:100]!r}") from error
        raise InvalidInput(field, "is not one that a list gave") from error
