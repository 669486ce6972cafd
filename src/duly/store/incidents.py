"""Incidents: opened once and closed once, by whoever finds what is wrong, however often it is found.

Opening and closing are each one statement that may be sent again, by another process too: a unique index allows one
open incident of a kind for a job or monitor, and only an open one is closed. What has been sent is kept beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from duly.model import Policy
from duly.model.incident import Incident
from duly.store.pool import Querier
from duly.store.reading import Reading

#: The step of the migrations that brought the tables. Without it nothing is watched.
STEP = 6
_FIELDS = [field.name for field in fields(Incident)]


@dataclass(frozen=True, slots=True)
class Opening:
    """An incident to open: of a job, or of a monitor (its slug)."""

    tenant: str
    name: str
    kind: str
    message: str
    cause: str
    job_id: UUID | None = None
    monitor: str | None = None
    scheduled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """An incident to close, and why."""

    incident_id: UUID
    why: str


async def open_many(store: Querier, openings: Sequence[Opening]) -> int:
    """Opens those that are not open yet and that no maintenance window covers, and returns how many it opened."""
    if not openings:
        return 0
    columns = [
        [getattr(one, name) for one in openings]
        for name in ("tenant", "job_id", "monitor", "name", "kind", "cause", "message", "scheduled_at")
    ]
    return len(await store.fetch("incidents/open", [uuid4() for _ in openings], *columns))


async def close_many(store: Querier, closings: Sequence[Closing]) -> int:
    """Closes those that are open, and returns how many it closed."""
    if not closings:
        return 0
    rows = await store.fetch("incidents/close", [one.incident_id for one in closings], [one.why for one in closings])
    return len(rows)


async def open_of_jobs(store: Querier, job_ids: Collection[UUID] | None, *, limit: int) -> list[Incident]:
    """The open incidents of these jobs (None: of all), at most `limit`, the oldest first."""
    wanted = None if job_ids is None else list(job_ids)
    return [to_incident(dict(row)) for row in await store.fetch("incidents/open_of_jobs", wanted, limit)]


async def open_now(store: Querier, *, limit: int) -> list[Incident]:
    """All open incidents, at most `limit`, the oldest first."""
    return [to_incident(dict(row)) for row in await store.fetch("incidents/open_now", limit)]


async def page(
    store: Querier, *, tenant: str, job_id: UUID | None, only_open: bool, before: tuple[datetime, UUID], limit: int
) -> list[Incident]:
    """A tenant's incidents before a place in their order, newest first."""
    if job_id is not None:
        rows = await store.fetch("incidents/list_of_job", tenant, *before, limit, job_id, only_open)
    else:
        rows = await store.fetch("incidents/list_open" if only_open else "incidents/list", tenant, *before, limit)
    return [to_incident(dict(row)) for row in rows]


async def ack(store: Querier, *, incident_id: UUID, tenant: str, by: str) -> Incident | None:
    row = await store.row("incidents/ack", incident_id, tenant, by)
    return None if row is None else to_incident(dict(row))


async def open_of_monitors(store: Querier, monitors: Collection[tuple[str, str]]) -> list[Incident]:
    """The open incidents of these monitors, each named by tenant and slug."""
    tenants, slugs = [tenant for tenant, _ in monitors], [slug for _, slug in monitors]
    return [to_incident(dict(row)) for row in await store.fetch("incidents/open_of_monitors", tenants, slugs)]


@dataclass(frozen=True, slots=True)
class Watched:
    """A job that the watcher looks at, as `incidents/look.sql` describes it."""

    job_id: UUID
    tenant: str
    name: str
    queue: str
    handler: str
    status: str
    timezone: str
    policy: Policy
    next_run_at: datetime | None
    last_run_at: datetime | None
    created_at: datetime
    updated_at: datetime
    now: datetime
    waiting_at: datetime | None
    unfinished_at: datetime | None
    attempt_at: datetime | None
    attempt_of: datetime | None
    mark: str


@dataclass(frozen=True, slots=True)
class Past:
    """How the latest runs of a job have ended, as `incidents/past.sql` describes it."""

    succeeded_at: datetime | None = None
    failures: int = 0
    error: str | None = None
    failed_of: datetime | None = None
    status: str | None = None
    scheduled_at: datetime | None = None
    finished_at: datetime | None = None
    reason: str | None = None


NO_PAST = Past()


async def noted(store: Querier, after: datetime) -> list[tuple[UUID, datetime]]:
    """The jobs that were noted as having alerts after this moment of the server's own clock, and when."""
    return [(row["job_id"], row["since"]) for row in await store.fetch("incidents/noted", after)]


async def touched(store: Querier, *, limit: int) -> list[UUID]:
    """The jobs among the latest changes."""
    return [row["job_id"] for row in await store.fetch("incidents/touched", limit)]


async def unwatch(store: Querier, job_ids: Collection[UUID]) -> list[UUID]:
    """Forgets jobs that have nothing to watch, except those noted a moment ago; returns the forgotten."""
    return [row["job_id"] for row in await store.fetch("incidents/unwatch", list(job_ids))]


async def look(store: Querier, job_ids: Collection[UUID]) -> list[Watched]:
    """Those of these jobs that exist."""
    found = []
    for row in await store.fetch_planned("incidents/look", list(job_ids)):
        columns = dict(row)
        found.append(Watched(**{**columns, "policy": Reading().policy(columns["policy"])}))
    return found


async def past(store: Querier, job_ids: Collection[UUID], *, since: datetime, most: int) -> dict[UUID, Past]:
    """Of occurrences from `since` on; at most so many failed attempts per job are counted."""
    rows = await store.fetch_planned("incidents/past", list(job_ids), since, most)
    return {row["job_id"]: Past(**{name: value for name, value in row.items() if name != "job_id"}) for row in rows}


@dataclass(frozen=True, slots=True)
class Group:
    """Incidents with one cause whose opening or closing is sent as one message. `members`: the first of `size`."""

    group_id: UUID
    closing: bool
    at: datetime
    size: int
    members: list[Incident]


async def group(store: Querier, *, gather_seconds: float, give_up_seconds: float) -> None:
    """Puts what is still to be sent into groups."""
    await store.fetch("incidents/group", gather_seconds, give_up_seconds)


async def unsent(store: Querier, channel: str, *, limit: int, shown: int, give_up_seconds: float) -> list[Group]:
    """The groups that a channel has not taken yet, the oldest first, each with its first members."""
    groups: dict[tuple[UUID, bool], Group] = {}
    for row in await store.fetch("incidents/unsent", channel, limit, shown, give_up_seconds):
        columns = {"acked_at": None, "acked_by": None, **dict(row)}
        key = (row["group_id"], row["closing"])
        found = groups.setdefault(key, Group(*key, row["at"], row["size"], []))
        found.members.append(to_incident(columns))
    return list(groups.values())


async def sent(store: Querier, sent: Group, channel: str, channels: Sequence[str]) -> None:
    """Notes that a channel has taken a group."""
    await store.fetch("incidents/sent", sent.group_id, sent.closing, channel, list(channels))


async def prune(store: Querier, *, kept_seconds: float, limit: int) -> int:
    """Deletes incidents and maintenance windows that ended long ago."""
    row = await store.row("incidents/prune", kept_seconds, limit)
    return int(row["forgotten"]) if row else 0


def to_incident(row: Mapping[str, Any]) -> Incident:
    return Incident(**{name: row[name] for name in _FIELDS})
