"""Maintenance windows: times in which no incident is opened (`incidents/open.sql`)."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from duly.model import MaintenanceWindow
from duly.store.pool import Querier


async def add(
    store: Querier,
    *,
    window_id: UUID,
    tenant: str,
    job_id: UUID | None,
    starts_at: datetime | None,
    ends_at: datetime,
    reason: str,
) -> MaintenanceWindow | None:
    """None: it would end before it starts. The same id adds it once."""
    row = await store.row("windows/add", window_id, tenant, job_id, starts_at, ends_at, reason)
    return None if row is None else MaintenanceWindow(**row)


async def list_windows(store: Querier, *, tenant: str, limit: int) -> list[MaintenanceWindow]:
    """Those that are not over yet."""
    return [MaintenanceWindow(**row) for row in await store.fetch("windows/list", tenant, limit)]


async def remove(store: Querier, *, window_id: UUID, tenant: str) -> bool:
    return bool(await store.fetch("windows/remove", window_id, tenant))
