"""`Monitor`: something that runs elsewhere and tells Duly by pings that it ran; `Ping`: one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from duly.model.job import ScheduleKind

#: A `note` is kept and changes nothing.
PingEvent = Literal["start", "success", "failure", "note"]
#: `new`: no ping yet. `late`: a ping is expected and still has its grace. `down`: something is wrong.
MonitorState = Literal["new", "up", "late", "down"]


@dataclass(frozen=True, slots=True)
class Ping:
    """`rid`: the id of what runs, if the ping gave one. `seconds`: from its start to this end."""

    at: datetime
    event: PingEvent
    rid: str | None = None
    exit_status: int | None = None
    note: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MonitorDefinition:
    """What a client says of a monitor."""

    schedule: str
    timezone: str = "UTC"
    grace_seconds: int = 300
    max_runtime_seconds: int | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Monitor:
    """A monitor as it is now. `expected_at`: when its next ping is due; `down_at`: when it is down without one."""

    slug: str
    definition: MonitorDefinition
    state: MonitorState
    why: str | None
    expected_at: datetime | None
    down_at: datetime | None
    last_start_at: datetime | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    running: int
    created_at: datetime
    updated_at: datetime
    pings: tuple[Ping, ...] = ()
    ping_path: str | None = None
    """The address for pings that need no key, below the API's; only where it has just been made."""


@dataclass(frozen=True, slots=True)
class StoredMonitor:
    """A monitor's row."""

    tenant: str
    slug: str
    description: str | None
    schedule: str
    kind: ScheduleKind
    timezone: str
    grace_seconds: int
    max_runtime_seconds: int | None
    created_at: datetime
    updated_at: datetime
    watched_from: datetime
    last_start_at: datetime | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    failure: Ping | None
    starts: Mapping[str, datetime] = field(default_factory=dict)
    pings: tuple[Ping, ...] = ()
