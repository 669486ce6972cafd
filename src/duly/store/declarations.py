"""Declarations: which application and which deploy declared a job last (`migrations/0003_declarations.sql`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.model import DULY, Declarer
from duly.store import jobs
from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class Taken:
    """A declaration that is locked for a deploy. `job_id` is None if the key is new."""

    job_id: UUID | None
    renamed_to: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Declaration:
    job_id: UUID | None
    owner: str
    deploy: str | None
    rank: str
    renamed_to: str | None
    undeclared_at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Noted:
    """A declared job that does not do what its code, or the lack of it, says."""

    key: str
    owner: str
    deploy: str | None
    job_id: UUID
    name: str
    status: str
    undeclared_at: datetime | None
    declared: bool
    """Whether a live worker declares it."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A job that no live deploy declares, and the oldest live deploy."""

    tenant: str
    key: str
    owner: str
    job_id: UUID
    rank: str
    since_deploy: str | None
    since_rank: str

    @property
    def reason(self) -> str:
        app = f"app {self.owner!r}" if self.owner else "its app"
        return f"no longer declared since deploy {self.since_deploy} of {app}"


async def exist(store: Querier) -> bool:
    """Whether the store has declarations; a store that is not migrated yet has none."""
    row = await store.row("declarations/exist")
    return row is not None and bool(row["exist"])


async def take(within: Querier, *, tenant: str, key: str, by: Declarer) -> Taken | None:
    """Locks a declaration for this deploy; None if a newer deploy, or another live application, has declared it."""
    row = await within.row("declarations/take", tenant, key, by.owner, by.deploy, by.rank, sorted(by.keys))
    return None if row is None else Taken(**row)


async def get(store: Querier, *, tenant: str, key: str) -> Declaration | None:
    row = await store.row("declarations/get", tenant, key)
    return None if row is None else Declaration(**row)


async def fingerprint_of(store: Querier, *, job_id: UUID, tenant: str) -> bytes | None:
    row = await store.row("declarations/fingerprint_of", job_id, tenant)
    fingerprint: bytes | None = None if row is None else row["fingerprint"]
    return fingerprint


async def bind(within: Querier, *, tenant: str, key: str, job_id: UUID, fingerprint: bytes | None) -> None:
    await within.fetch("declarations/bind", tenant, key, job_id, fingerprint)


async def rename(within: Querier, *, tenant: str, key: str, job_id: UUID | None, renamed_to: str) -> None:
    await within.fetch("declarations/rename", tenant, key, job_id, renamed_to)


async def pass_key(within: Querier, *, tenant: str, job_id: UUID, key: str, new_key: str) -> None:
    await within.fetch("declarations/pass_key", tenant, job_id, key, new_key)


async def astray(store: Querier, *, tenant: str, by: Declarer) -> set[str]:
    """Keys whose jobs are not as this deploy declared them, unless a newer one has."""
    rows = await store.fetch("declarations/astray", tenant, sorted(by.keys), by.rank, by.owner)
    return {row["key"] for row in rows}


async def list_noted(store: Querier, *, tenant: str, limit: int) -> list[Noted]:
    return [Noted(**row) for row in await store.fetch("declarations/list_all", tenant, limit)]


async def orphans(store: Querier, *, limit: int) -> list[Orphan]:
    return [Orphan(**row) for row in await store.fetch("declarations/orphans", limit)]


async def pause_orphan(store: Querier, orphan: Orphan) -> bool:
    """Pauses a job that no live deploy declares, with the reason; False if it was declared meanwhile, or does not fire.

    A job that others have paused stays as it is, and is theirs to resume.
    """

    async def write(within: Querier) -> bool:
        noted = await within.row(
            "declarations/undeclare",
            orphan.tenant, orphan.key, orphan.rank, orphan.since_deploy, orphan.since_rank, orphan.reason,
        )  # fmt: skip
        if noted is None:
            return False
        job_id: UUID = noted["job_id"]
        paused = await jobs.pause(within, job_id=job_id, tenant=orphan.tenant, reason=orphan.reason, note=DULY.note())
        return paused is not None

    return await store.together(write)


async def keep_paused(
    store: Querier,
    *,
    job_id: UUID,
    tenant: str,
    reason: str | None,
    note: str | None,
    until: datetime | None = None,
) -> bool:
    """Makes the pause of an undeclared job a user's; False if it is one, or is for another reason."""

    async def write(within: Querier) -> bool:
        if await within.row("declarations/keep_paused", job_id, tenant, reason, note) is None:
            return False
        if until is not None:
            await within.row("pauses/set", job_id, until)
        return True

    return await store.together(write)


async def restore(
    store: Querier, *, job_id: UUID, tenant: str, next_run_at: datetime, version: int, note: str | None
) -> bool:
    return await store.row("declarations/restore", job_id, tenant, next_run_at, version, note) is not None
