"""Tenants: limits of jobs and requests, allowed tasks and queues. A tenant without a row has the settings' defaults."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from types import EllipsisType
from typing import Any

from duly import checks
from duly.errors import InvalidInput, NotFound
from duly.operations.core import Core, check_reason
from duly.store import tenants
from duly.store.tenants import StoredTenant

# Bounded because every submit of the tenant searches the list.
_MAX_NAMES = 200


@dataclass(frozen=True, slots=True)
class Tenant:
    """The limits and bounds of a tenant, including the settings' defaults. None: no limit, or any."""

    tenant: str
    max_jobs: int | None
    requests_per_second: float | None
    tasks: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    commands: bool
    """Whether the tenant may submit commands, if the role of its keys allows that."""
    created_at: datetime
    updated_at: datetime


class TenantOperations:
    """The limits of each tenant."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pool = core.pool

    async def set(
        self,
        tenant: str,
        *,
        max_jobs: int | EllipsisType | None = ...,
        requests_per_second: float | EllipsisType | None = ...,
        tasks: Collection[str] | EllipsisType | None = ...,
        queues: Collection[str] | EllipsisType | None = ...,
        commands: bool | EllipsisType = ...,
        reason: str | None = None,
    ) -> Tenant:
        """Sets limits and bounds of a tenant. None: the settings' default, or any. Omitted arguments change nothing.

        `tasks`, `queues`: the only ones that the tenant may submit to; a name that ends in * stands for all names with
        that beginning. Other processes follow within two seconds.
        """
        checks.check_text("tenant", tenant, longest=100)
        if max_jobs is not None and max_jobs is not ...:
            checks.check_integer("max_jobs", max_jobs, 0, 10**12)
        rate = requests_per_second
        if rate is not None and rate is not ... and not 0 < rate <= 1e6:
            raise InvalidInput("requests_per_second", "must be more than 0 and at most 1000000")
        asked: dict[str, Any] = {"max_jobs": max_jobs, "requests_per_second": rate, "commands": commands}
        for field, names in (("tasks", tasks), ("queues", queues)):
            asked[field] = names if names is None or names is ... else _names(field, names)
        changes = {field: value for field, value in asked.items() if value is not ...}
        stored = await tenants.set_tenant(
            self._pool, tenant, changes, note=self._core.actor.note(reason=check_reason(reason))
        )
        self._core.forget(tenant)
        if stored.max_jobs is not None:
            # The tenant's jobs are counted now and not by its next submit: for ten million jobs that takes a while.
            await tenants.free_slots(self._pool, tenant=tenant, wanted=0, default_max=None)
        return self._to_tenant(stored)

    async def get(self, tenant: str) -> Tenant:
        for stored in await tenants.list_tenants(self._pool, tenant=tenant):
            return self._to_tenant(stored)
        raise NotFound(f"tenant {tenant[:100]!r} has no settings of its own; see: duly tenant list")

    async def all(self) -> list[Tenant]:
        """The tenants that have limits of their own."""
        return [self._to_tenant(stored) for stored in await tenants.list_tenants(self._pool)]

    def _to_tenant(self, stored: StoredTenant) -> Tenant:
        rate = stored.requests_per_second
        return Tenant(
            stored.tenant,
            self._core.settings.tenant_max_jobs if stored.max_jobs is None else stored.max_jobs,
            self._core.settings.requests_per_second if rate is None else rate,
            None if stored.tasks is None else tuple(stored.tasks),
            None if stored.queues is None else tuple(stored.queues),
            stored.commands is not False,
            stored.created_at,
            stored.updated_at,
        )


def _names(field: str, names: Collection[str]) -> list[str]:
    """The checked names without repetitions, in their order."""
    if not names:
        raise InvalidInput(field, "must name at least one")
    for name in names:
        checks.check_text(field, name, longest=200)
        if "*" in name[:-1]:
            raise InvalidInput(field, f"{name[:100]!r}: a * stands at the end of a name, for all that begin so")
    if len(names) > _MAX_NAMES:
        raise InvalidInput(field, f"must be at most {_MAX_NAMES} names")
    return list(dict.fromkeys(names))
