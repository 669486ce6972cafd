"""`Incident`: something that is wrong with a job or a monitor, from its opening to its closing; `MaintenanceWindow`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Incident:
    """Of a job (`job_id`) or of a monitor (its slug). `cause`: incidents that share it are sent as one message."""

    incident_id: UUID
    tenant: str
    job_id: UUID | None
    monitor: str | None
    name: str
    kind: str
    cause: str
    message: str
    scheduled_at: datetime | None
    opened_at: datetime
    closed_at: datetime | None = None
    closed_why: str | None = None
    acked_at: datetime | None = None
    acked_by: str | None = None

    @property
    def is_open(self) -> bool:
        return self.closed_at is None


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A time in which no incident is opened: of one job (`job_id`), or of a whole tenant."""

    window_id: UUID
    tenant: str
    job_id: UUID | None
    starts_at: datetime
    ends_at: datetime
    reason: str
    created_at: datetime
