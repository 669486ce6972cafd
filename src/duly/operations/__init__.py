"""Operations: all that a client can do with a store. API, CLI, dashboard and SDK call them; none of those speaks SQL,
and nothing here speaks HTTP or terminal.

`StoreOperations` is the way in. A tenant is bound once, by `for_tenant`, and no method of the `Operations` that it
returns takes one: no caller can forget it. So is the actor, for the audit trail. Each file holds one part. Read in this
order:

1. `core`: what all parts share. `rights`: what a role allows, and what a tenant is bound to.
2. `submits` (storing new jobs) over `preparing` (checking and planning them, without I/O); `caller_transaction`
   submits on a connection of the caller's, and `sql_submits` plans jobs that came in through SQL.
3. `jobs` over `revising` (what a change makes of a job, without I/O); `declare` for jobs that code declares; `runs`;
   `dead_letters`; `monitors` for what runs elsewhere.
4. `explain` over `lifetime`, `verdicts` and `wording`; `forecast`; `previewing`, which needs no store.
5. `audit`: who did what. `incidents`: what is wrong with jobs, and when nobody wants to hear of it.
6. Store-wide: `cluster`, `keys`, `tenants`, `submitters`; `neighbours`, hints for those who open the store themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Self

from duly.config import Settings
from duly.model import Actor, Counts
from duly.operations.audit import AuditOperations
from duly.operations.cluster import ClusterOperations
from duly.operations.core import Core
from duly.operations.dead_letters import DeadLetterOperations
from duly.operations.declare import DeclareOperations
from duly.operations.explain import ExplainOperations
from duly.operations.forecast import ForecastOperations
from duly.operations.incidents import IncidentOperations, WindowOperations
from duly.operations.jobs import JobOperations
from duly.operations.keys import CreatedKey, Key, KeyOperations, Principal
from duly.operations.monitors import MonitorOperations, PingDoor
from duly.operations.neighbours import NeighbourOperations
from duly.operations.previewing import preview
from duly.operations.runs import RunOperations
from duly.operations.submits import BatchRefused, SubmitOperations
from duly.operations.submitters import SubmitterOperations
from duly.operations.tenants import Tenant, TenantOperations
from duly.store import stores
from duly.store.pool import Pool

__all__ = [
    "BatchRefused",
    "CreatedKey",
    "Key",
    "Operations",
    "Principal",
    "StoreOperations",
    "Tenant",
    "preview",
]


class Operations:
    """Everything that one tenant can do with its jobs."""

    def __init__(self, core: Core, tenant: str, cluster: ClusterOperations, actor: Actor) -> None:
        self._core = core
        self._tenant = self.tenant = tenant
        self.runs = RunOperations(core, tenant, actor)
        self.jobs = JobOperations(core, tenant, self.runs, actor)
        self.dead_letters = DeadLetterOperations(core, tenant, actor)
        self.monitors = MonitorOperations(core, tenant)
        self.explain = ExplainOperations(core, self.jobs)
        #: The store as a whole, the same for every tenant.
        self.cluster = cluster
        submits = SubmitOperations(core, tenant, actor)
        self.submit, self.submit_many, self.submit_each = submits.submit, submits.submit_many, submits.submit_each
        #: Jobs that an application's code declares.
        self.declarations = DeclareOperations(core, tenant, jobs=self.jobs, submits=submits)
        self.declare, self.declare_all = self.declarations.declare, self.declarations.declare_all
        self.forecast = ForecastOperations(core, tenant).forecast
        self.audit = AuditOperations(core, tenant)
        self.incidents = IncidentOperations(core, tenant, actor)
        self.windows = WindowOperations(core, tenant, self.jobs)
        self.now = core.now

    async def counts(self) -> Counts:
        """Counts of the tenant's jobs and runs."""
        return await stores.tenant_counts(self._core.pool, tenant=self._tenant)


class StoreOperations:
    """One store: its tenants' jobs through `for_tenant`, and everything that belongs to no tenant."""

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        *,
        shard_count: int,
        local_handlers: Collection[str] = (),
        actor: Actor | None = None,
    ) -> None:
        """`actor`: who acts with this object, for the audit trail; by default the user of this process, by the SDK."""
        self.settings = settings
        self._pool = pool
        self._core = core = Core(pool, settings, shard_count=shard_count, local_handlers=local_handlers, actor=actor)
        self.cluster = ClusterOperations(core)
        self.keys = KeyOperations(core)
        self.tenants = TenantOperations(core)
        self.submitters = SubmitterOperations(core)
        #: Pings by the address of a monitor, which need no key.
        self.ping_door = PingDoor(pool)
        self.neighbours = NeighbourOperations(core)

    @classmethod
    async def open(
        cls, pool: Pool, settings: Settings, *, local_handlers: Collection[str] = (), actor: Actor | None = None
    ) -> Self:
        """For a store that exists and has this version's schema."""
        shard_count = await stores.shard_count(pool)
        return cls(pool, settings, shard_count=shard_count, local_handlers=local_handlers, actor=actor)

    def for_tenant(self, tenant: str, actor: Actor | None = None) -> Operations:
        """`actor`: who acts, if it is not the one with whom this object was opened."""
        return Operations(self._core, tenant, self.cluster, actor or self._core.actor)

    def now(self) -> datetime:
        """The database's time, as well as it is known here."""
        return self._core.now()

    def bound_waiting(self, seconds: float) -> None:
        """Fail a call that gets no connection to the store within this time."""
        self._pool.acquire_seconds = seconds

    def bound_reads(self, seconds: float) -> None:
        """Give up a tenant's read after this time, and serve other tenants beside it."""
        self._pool.bound_reads(seconds)
