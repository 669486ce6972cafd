"""Tenants: their limits and rights, and the number of their jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from duly.errors import StoreBusy, StoreUnavailable
from duly.store.cluster import DEFAULTS_STEP
from duly.store.jobs import NewJob
from duly.store.pool import InTransaction, Pool, Querier

#: Seconds that a submit waits for an unfinished one of the same tenant.
LOCKED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StoredTenant:
    """A tenant's settings. None: the default; for tasks, queues and commands: any."""

    tenant: str
    max_jobs: int | None
    requests_per_second: float | None
    tasks: list[str] | None
    queues: list[str] | None
    commands: bool | None
    created_at: datetime
    updated_at: datetime


class KnownTenant(NamedTuple):
    """The facts about a tenant that a submit needs. None: any."""

    counted: bool = False
    """Whether its jobs are counted: it has a limit of its own."""
    tasks: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    commands: bool | None = None


#: A tenant without settings.
UNKNOWN = KnownTenant()
_SETTABLE = ("max_jobs", "requests_per_second", "tasks", "queues", "commands")


async def set_tenant(store: Querier, tenant: str, changes: Mapping[str, Any], *, note: str | None) -> StoredTenant:
    """Sets the fields of `StoredTenant` that `changes` names."""
    wanted = (changes.get(name) for name in _SETTABLE)
    row = await store.row("tenants/set_tenant", tenant, *wanted, sorted(changes), note)
    assert row is not None
    return StoredTenant(**row)


async def list_tenants(store: Querier, *, tenant: str | None = None) -> list[StoredTenant]:
    return [StoredTenant(**row) for row in await store.fetch("tenants/list_tenants", tenant)]


async def known(store: Querier, tenants: Collection[str]) -> dict[str, KnownTenant]:
    """Reads those of these tenants that have settings."""
    return {row["tenant"]: to_known(dict(row)) for row in await store.fetch("tenants/known", sorted(tenants))}


async def known_beside_offers(store: Querier, tenant: str) -> tuple[KnownTenant, str | None]:
    """What is known of one tenant, and the defaults of the workers' tasks, as a JSON object; None: there are none."""
    if not store.has_step(DEFAULTS_STEP):
        return (await known(store, {tenant})).get(tenant, UNKNOWN), None
    row = await store.row("tenants/known_beside_offers", tenant)
    assert row is not None
    return to_known(dict(row)) if row["counted"] is not None else UNKNOWN, row["offered"]


def to_known(row: Mapping[str, Any]) -> KnownTenant:
    tasks, queues = (None if row[name] is None else tuple(row[name]) for name in ("tasks", "queues"))
    return KnownTenant(row["counted"], tasks, queues, row["commands"])


async def free_slots(store: Querier, *, tenant: str, wanted: int, default_max: int | None) -> int | None:
    """The number of further jobs the tenant may have; None: any. The tenant is locked until the transaction ends.

    In Duly's own transactions the wait for that lock is short. In a caller's, the caller's settings decide.
    """
    if not isinstance(store, (Pool, InTransaction)):
        row = await store.row("tenants/free_slots", tenant, wanted, default_max)
    else:
        try:
            row = await store.row("tenants/free_slots_in_time", tenant, wanted, default_max, f"{LOCKED_SECONDS:g}s")
        except (asyncpg.LockNotAvailableError, StoreUnavailable) as error:
            # Inside a transaction it is the server's own error; from the pool it is translated.
            if not any(isinstance(one, asyncpg.LockNotAvailableError) for one in (error, error.__cause__)):
                raise
            raise busy(tenant) from error
    return None if row is None or row["slots"] is None else int(row["slots"])


def busy(tenant: str) -> StoreBusy:
    return StoreBusy(
        f"another transaction that submits jobs of tenant {tenant!r} is still open, and its jobs are counted when it "
        "ends: try again later"
    )


async def count_new(store: Querier, *, tenant: str, rows: Sequence[NewJob]) -> int:
    """The number of these jobs that do not exist yet."""
    found = await store.row("tenants/count_new", tenant, [row.job_id for row in rows], [row.dedupe_key for row in rows])
    assert found is not None
    return int(found["new"])


async def take(store: Querier, *, tenant: str, job_ids: Sequence[UUID]) -> None:
    """Counts jobs that were just stored."""
    await store.fetch("tenants/take", tenant, list(job_ids))


# Jobs that one statement of a hint reads at most.
_MAX_JOBS_READ = 20_000


async def with_jobs(store: Querier, *, without: str, limit: int) -> list[str]:
    """Tenants that have jobs, other than one: at most `limit`, in the order of their names."""
    return [row["tenant"] for row in await store.fetch("tenants/with_jobs", without, limit, _MAX_JOBS_READ)]


async def with_job(
    store: Querier, *, ids: tuple[UUID, UUID] | None, name: str, without: str, limit: int
) -> list[tuple[str, bool]]:
    """Tenants other than one that have a job with an id in this range (True), or with this name (False)."""
    low, high = (None, None) if ids is None else ids
    rows = await store.fetch("tenants/with_job", low, high, name, without, _MAX_JOBS_READ, limit)
    return [(row["tenant"], row["by_id"]) for row in rows]


async def with_dead_letter(store: Querier, *, job_id: UUID, scheduled_at: datetime, without: str) -> list[str]:
    rows = await store.fetch("tenants/with_dead_letter", job_id, scheduled_at, without)
    return [row["tenant"] for row in rows]
