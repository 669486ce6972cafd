"""Tenants' limits: how many jobs, how many requests. A tenant without a row has what the settings say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import EllipsisType

from duly import checks
from duly.errors import InvalidInput
from duly.operations.base import Base
from duly.store import tenants
from duly.store.tenants import StoredTenant


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a tenant may have, the settings' defaults included. None: no limit."""

    tenant: str
    max_jobs: int | None
    requests_per_second: float | None
    created_at: datetime
    updated_at: datetime


class Tenants(Base):
    async def set_tenant(
        self,
        tenant: str,
        *,
        max_jobs: int | EllipsisType | None = ...,
        requests_per_second: float | EllipsisType | None = ...,
    ) -> Tenant:
        """Set a tenant's limits. None: as the settings say. What is not given stays as it is."""
        checks.check_text("tenant", tenant, longest=100)
        if max_jobs is not None and max_jobs is not ...:
            checks.check_integer("max_jobs", max_jobs, 0, 10**12)
        rate = requests_per_second
        if rate is not None and rate is not ... and not 0 < rate <= 1e6:
            raise InvalidInput("requests_per_second", "must be more than 0 and at most 1000000")
        stored = await tenants.set_limits(
            self._pool,
            tenant=tenant,
            sets_jobs=max_jobs is not ...,
            max_jobs=None if max_jobs is ... else max_jobs,
            sets_rate=rate is not ...,
            requests_per_second=None if rate is ... else rate,
        )
        if stored.max_jobs is not None:
            # What it has already is counted now, and not by its next submit: with ten million jobs that takes a while.
            await tenants.room(self._pool, tenant=tenant, wanted=0, default_max=None)
        return self._to_tenant(stored)

    async def list_tenants(self) -> list[Tenant]:
        """Those that something was set for."""
        return [self._to_tenant(stored) for stored in await tenants.list_tenants(self._pool)]

    def _to_tenant(self, stored: StoredTenant) -> Tenant:
        rate = stored.requests_per_second
        return Tenant(
            stored.tenant,
            self._settings.tenant_max_jobs if stored.max_jobs is None else stored.max_jobs,
            self._settings.requests_per_second if rate is None else rate,
            stored.created_at,
            stored.updated_at,
        )
