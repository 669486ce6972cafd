"""Runs whose retries are used up (`DeadLetter`), how they are selected, and the progress of a bulk operation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.model.ids import make_run_id
from duly.model.run import Attempt, ErrorInfo


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A run that Duly does not retry any more, with all of its data: it outlives its history."""

    job_id: UUID
    scheduled_at: datetime
    buried_at: datetime
    attempt: int
    tenant: str
    name: str
    queue: str
    handler: str | dict[str, Any]
    payload: Any
    payload_ref: str | None
    error: ErrorInfo
    attempts: tuple[Attempt, ...]
    secret_fields: tuple[str, ...] = ()
    """Paths of the payload that are never shown, copied from its job when the run was buried."""

    @property
    def run_id(self) -> str:
        return make_run_id(self.job_id, self.scheduled_at)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters: every field that is not None must match."""

    job_id: str | None = None
    name: str | None = None
    queue: str | None = None
    handler: str | None = None
    error_type: str | None = None
    since: datetime | None = None
    """Buried at or after this time."""
    until: datetime | None = None
    """Buried before this time."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Progress of a redrive or purge by filter. `refused` counts dead letters whose job is cancelled or gone."""

    done: int
    refused: int
