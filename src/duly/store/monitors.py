"""Monitors, and the pings that tell of what runs elsewhere. A ping is one statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from duly.model import MonitorDefinition, Ping, PingEvent, ScheduleKind, StoredMonitor
from duly.store.pool import Querier

T = TypeVar("T")

#: The step of the migrations that brought the table. Without it there are no monitors.
STEP = 11
#: Pings and starts that a monitor keeps.
MAX_PINGS = 20
MAX_STARTS = 50
_OWN = (
    "tenant", "slug", "description", "schedule", "kind", "timezone", "grace_seconds", "max_runtime_seconds",
    "created_at", "updated_at", "watched_from", "last_start_at", "last_success_at", "last_failure_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """What the watch notes of a monitor: when to look next (None: after a ping), whether an incident may be open."""

    tenant: str
    slug: str
    look_at: datetime | None
    alarmed: bool


async def set_monitor(
    store: Querier,
    *,
    tenant: str,
    slug: str,
    definition: MonitorDefinition,
    kind: ScheduleKind,
    token: bytes,
    new_token: bool,
    limit: int,
) -> tuple[StoredMonitor, bool] | None:
    """Makes or changes a monitor: it, and whether it is new. None: the tenant has too many."""
    row = await store.row(
        "monitors/set", tenant, slug, definition.description, definition.schedule, kind, definition.timezone,
        definition.grace_seconds, definition.max_runtime_seconds, token, new_token, limit,
    )  # fmt: skip
    return None if row is None else (_to_monitor(row), bool(row["created"]))


async def get(store: Querier, *, tenant: str, slug: str) -> StoredMonitor | None:
    row = await store.row("monitors/get", tenant, slug)
    return None if row is None else _to_monitor(row)


async def page(store: Querier, *, tenant: str, after: str | None, limit: int) -> list[StoredMonitor]:
    return [_to_monitor(row) for row in await store.fetch("monitors/page", tenant, after, limit)]


async def remove(store: Querier, *, tenant: str, slug: str) -> bool:
    return await store.row("monitors/remove", tenant, slug) is not None


async def ping(
    store: Querier,
    *,
    event: PingEvent,
    tenant: str | None = None,
    slug: str | None = None,
    token: bytes | None = None,
    rid: str = "",
    exit_status: int | None = None,
    note: str | None = None,
) -> bool:
    """Notes a ping of the monitor with this token or of this name. False: there is none."""
    row = await store.row("monitors/ping", tenant, slug, token, event, rid, exit_status, note, MAX_PINGS, MAX_STARTS)
    return row is not None


async def due(store: Querier, *, limit: int) -> tuple[list[StoredMonitor], datetime | None]:
    """Locks monitors at which to look now, until the transaction ends, and returns them with the time of the look."""
    rows = await store.fetch("monitors/due", limit)
    return [_to_monitor(row) for row in rows], rows[0]["now"] if rows else None


async def looked(store: Querier, looks: Sequence[Look]) -> None:
    columns = [[getattr(one, name) for one in looks] for name in ("tenant", "slug", "look_at", "alarmed")]
    await store.fetch("monitors/looked", *columns)


async def seconds_to_next(store: Querier) -> float | None:
    row = await store.row("monitors/next_look")
    return None if row is None else row["seconds"]


def _to_monitor(row: Any) -> StoredMonitor:
    return StoredMonitor(
        **{name: row[name] for name in _OWN},
        failure=_read(row["failure"], lambda failure: _to_ping({**failure, "event": "failure"}), None),
        starts=_read(row["starts"], lambda starts: {rid: datetime.fromisoformat(at) for rid, at in starts.items()}, {}),
        pings=_read(row["pings"], lambda pings: tuple(_to_ping(one) for one in pings), ()),
    )


def _read(text: str | None, read: Callable[[Any], T], otherwise: T) -> T:
    """A column of JSON. What another program has spoilt counts as absent, so that other monitors are still watched."""
    try:
        return otherwise if text is None else read(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        return otherwise


def _to_ping(document: Mapping[str, Any]) -> Ping:
    return Ping(
        datetime.fromisoformat(document["at"]),
        document["event"],
        document.get("rid"),
        document.get("exit_status"),
        document.get("note"),
        document.get("seconds"),
    )
