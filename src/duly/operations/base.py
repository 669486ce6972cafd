"""What every group of operations stands on: the store, the settings, and how a job's text becomes its timetable."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime
from typing import Self
from uuid import UUID
from weakref import WeakValueDictionary

from duly.config import Settings
from duly.errors import InvalidInput, NotFound
from duly.model import Job
from duly.store import stores
from duly.store.pool import Pool
from duly.timing import Timetable, make_timetable


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
        # Tenants that have no limit, and until when that is believed.
        self._unlimited: dict[str, float] = {}
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

    def now(self) -> datetime:
        """The database's time, as well as it is known here."""
        return self._pool.clock.now()


def timetable_of(job: Job) -> Timetable:
    if job.unreadable is not None:
        raise InvalidInput("job", job.unreadable)
    return make_timetable(
        kind=job.kind,
        schedule=job.schedule,
        timezone=job.timezone,
        anchor=job.start_at or job.created_at,
        start_at=job.start_at,
        end_at=job.end_at,
        policy=job.policy,
        job_id=job.job_id,
    )


def to_job_id(text: str, *, field: str = "job_id") -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        if field == "job_id":
            raise NotFound(f"there is no job {text[:100]!r}") from error
        raise InvalidInput(field, "is not one that a list gave") from error
