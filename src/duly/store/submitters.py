"""PostgreSQL roles that submit by SQL, each for one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class Submitter:
    role: str
    tenant: str
    commands: bool
    created_at: datetime


async def allow(store: Querier, *, role: str, tenant: str, commands: bool, note: str | None) -> None:
    await store.row("submitters/allow", role, tenant, commands, note)


async def disallow(store: Querier, *, role: str, note: str | None) -> bool:
    """Takes the right back; False: the role did not have it."""
    row = await store.row("submitters/disallow", role, note)
    return row is not None and bool(row["was_there"])


async def list_all(store: Querier) -> list[Submitter]:
    return [Submitter(**row) for row in await store.fetch("submitters/list_all")]
