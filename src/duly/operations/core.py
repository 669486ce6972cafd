"""The store as all operations share it, and the two readings that most of them need: a job's id and its timetable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from datetime import datetime
from uuid import UUID
from weakref import WeakValueDictionary

from duly import checks
from duly.config import Settings
from duly.errors import InvalidInput, NotFound
from duly.model import Actor, Job, os_user
from duly.operations.preparing import NOTHING_OFFERED, Offered
from duly.operations.rights import Bounds
from duly.store import cluster, tenants
from duly.store.pool import Pool
from duly.store.tenants import KnownTenant
from duly.timing import Definition, Timetable

# Seconds for which a tenant's limits are believed without asking the store again, and the maximum number of tenants
# that are remembered.
_BELIEVED_SECONDS = 2.0
_MAX_BELIEVED = 10_000

# Maximum number of items that a page of any list may have.
MAX_PAGE = 1000
#: Characters that a reason may have.
MAX_REASON = 500
INVALID_CURSOR = "invalid; use next_cursor from the previous page"


class Core:
    """One store: its connections, its settings, and everything that is remembered about it between two calls."""

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        *,
        shard_count: int,
        local_handlers: Collection[str] = (),
        actor: Actor | None = None,
    ) -> None:
        #: Who acts, where no caller of an API is known.
        self.actor = actor or Actor("sdk", os_user())
        self.pool = pool
        self.settings = settings
        self.shard_count = shard_count
        #: The tasks of this process's own application.
        self.local_handlers = local_handlers
        #: The tasks that workers of the store had when it was last asked.
        self.store_handlers: frozenset[str] = frozenset()
        #: The defaults of the tasks of the store's workers. After `known` they are not older than what that returned.
        self.offered: Offered = NOTHING_OFFERED
        self._offered_text: str | None = None
        self._believed: dict[str, tuple[float, KnownTenant]] = {}
        # Per tenant with a limit, the lock that its submits take. An entry lives while a submit uses it.
        self._submit_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def now(self) -> datetime:
        """The database's time, as well as it is known here."""
        return self.pool.clock.now()

    async def known(self, tenant: str) -> KnownTenant:
        """The limits of a tenant. The store is not asked for every submit. The same answer brings `offered` up to
        date."""
        now = time.monotonic()
        if (believed := self._believed.get(tenant)) is not None and now < believed[0]:
            return believed[1]
        known, offered = await tenants.known_beside_offers(self.pool, tenant)
        if offered != self._offered_text:
            self.offered, self._offered_text = cluster.read_offered(offered), offered
        self.believe(tenant, known, until=now + _BELIEVED_SECONDS)
        return known

    async def read_handlers(self) -> None:
        """Ask the store which tasks its workers have, and for their defaults."""
        self.store_handlers, self.offered = await cluster.known_handlers(self.pool)
        self._offered_text = ""  # unlike any text, so that the next one is read

    def believe(self, tenant: str, known: KnownTenant, *, until: float) -> None:
        """Take these limits for the tenant's without asking the store, until this monotonic time."""
        if len(self._believed) > _MAX_BELIEVED:
            self._believed.clear()
        self._believed[tenant] = until, known

    def forget(self, tenant: str) -> None:
        """Ask the store for the tenant's limits next time."""
        self._believed.pop(tenant, None)

    async def bounds(self, tenant: str) -> Bounds | None:
        """The tasks, queues and commands that the tenant is bound to; None if it is bound to nothing."""
        known = await self.known(tenant)
        if known[1:] == tenants.UNKNOWN[1:]:
            return None
        return Bounds(tenant, known.tasks, known.queues, known.commands)

    def submit_lock(self, tenant: str) -> asyncio.Lock:
        """The lock that lets only one submit of a tenant with a limit use a connection at a time."""
        return self._submit_locks.get(tenant) or self._submit_locks.setdefault(tenant, asyncio.Lock())


def timetable_of(job: Job) -> Timetable:
    if job.unreadable is not None:
        raise InvalidInput("job", job.unreadable)
    return Definition.of(job, job.policy).timetable(job.job_id)


def check_reason(reason: str | None) -> str | None:
    return None if reason is None else checks.check_text("reason", reason, longest=MAX_REASON)


def to_job_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise NotFound(f"there is no job {text[:100]!r}") from error
