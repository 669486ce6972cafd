"""API keys as the store holds them: hashed, with their tenant and role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key without its secret."""

    key_id: str
    tenant: str
    role: Any
    name: str | None
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class GoodKey:
    """A key that is neither revoked nor expired, to compare a presented one with."""

    key_id: str
    hash: bytes
    tenant: str
    role: Any
    requests_per_second: float | None
    name: str | None
    worn: bool
    """The time of its last use is old enough to be written again."""


async def create(
    store: Querier,
    *,
    key_id: str,
    digest: bytes,
    tenant: str,
    role: str,
    name: str | None,
    expires_in_seconds: float | None,
    note: str | None,
) -> StoredKey:
    row = await store.row("keys/create", key_id, digest, tenant, role, name, expires_in_seconds, note)
    assert row is not None
    return StoredKey(**row)


async def list_keys(store: Querier, *, tenant: str | None) -> list[StoredKey]:
    return [StoredKey(**row) for row in await store.fetch("keys/list_keys", tenant)]


async def revoke(store: Querier, *, key_id: str, tenant: str | None, note: str | None) -> StoredKey | None:
    row = await store.row("keys/revoke", key_id, tenant, note)
    return None if row is None else StoredKey(**row)


async def find(store: Querier, key_ids: Sequence[str], *, fresh_seconds: float) -> dict[str, GoodKey]:
    """Reads those of these keys that are valid now."""
    rows = await store.fetch("keys/find", list(key_ids), fresh_seconds)
    return {row["key_id"]: GoodKey(**row) for row in rows}


async def touch(store: Querier, key_ids: Sequence[str]) -> None:
    await store.fetch("keys/touch", list(key_ids))


async def any_keys(store: Querier) -> bool:
    row = await store.row("keys/any_keys")
    return row is not None and bool(row["any"])
