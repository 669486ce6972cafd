"""Tenants: what each may have and ask, and how many jobs it has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from duly.errors import StoreBusy, StoreUnavailable
from duly.store.jobs import NewJob
from duly.store.pool import Executor, InTransaction, Pool

#: How long a submit waits for another of its tenant's that has not ended.
LOCKED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StoredTenant:
    """None: as the settings say."""

    tenant: str
    max_jobs: int | None
    requests_per_second: float | None
    created_at: datetime
    updated_at: datetime


async def set_limits(
    store: Executor,
    *,
    tenant: str,
    sets_jobs: bool,
    max_jobs: int | None,
    sets_rate: bool,
    requests_per_second: float | None,
) -> StoredTenant:
    row = await store.row("tenants/set", tenant, sets_jobs, max_jobs, sets_rate, requests_per_second)
    assert row is not None
    return StoredTenant(**row)


async def list_tenants(store: Executor) -> list[StoredTenant]:
    return [StoredTenant(**row) for row in await store.fetch("tenants/list")]


async def limited(store: Executor, tenants: Collection[str]) -> set[str]:
    """Those of these tenants that have a limit of their own."""
    return {row["tenant"] for row in await store.fetch("tenants/limited", sorted(tenants))}


async def room(store: Executor, *, tenant: str, wanted: int, default_max: int | None) -> int | None:
    """How many more jobs the tenant may have; None: any number. The tenant is locked until the transaction ends.

    In a transaction of our own nobody waits for that lock for long. In a caller's the caller's settings decide.
    """
    if not isinstance(store, (Pool, InTransaction)):
        row = await store.row("tenants/room", tenant, wanted, default_max)
    else:
        try:
            row = await store.row("tenants/room_in_time", tenant, wanted, default_max, f"{LOCKED_SECONDS:g}s")
        except (asyncpg.LockNotAvailableError, StoreUnavailable) as error:
            # In a transaction the server's own word, and of the pool in the pool's words.
            if not any(isinstance(one, asyncpg.LockNotAvailableError) for one in (error, error.__cause__)):
                raise
            raise busy(tenant) from error
    return None if row is None or row["room"] is None else int(row["room"])


def busy(tenant: str) -> StoreBusy:
    return StoreBusy(
        f"another transaction that submits jobs of tenant {tenant!r} is still open, and its jobs are counted when it "
        "ends: try again later"
    )


async def count_new(store: Executor, *, tenant: str, rows: Sequence[NewJob]) -> int:
    """How many of these jobs are not there yet."""
    found = await store.row("tenants/count_new", tenant, [row.job_id for row in rows], [row.dedupe_key for row in rows])
    assert found is not None
    return int(found["new"])


async def take(store: Executor, *, tenant: str, job_ids: Sequence[UUID]) -> None:
    """Count jobs that were just stored."""
    await store.fetch("tenants/take", tenant, list(job_ids))
