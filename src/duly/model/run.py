"""One execution of an occurrence: `Run`, its attempts, its errors and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.model.ids import make_run_id


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The error of one attempt."""

    type: str
    message: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A finished attempt of a run. `error` is None if it succeeded."""

    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: ErrorInfo | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a running handler reports."""

    fraction: float
    note: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of an occurrence, wherever its row is: queue, claim or history."""

    job_id: UUID
    scheduled_at: datetime
    status: str
    attempt: int
    missed: bool = False
    deduplicated: bool = False
    run_at: datetime | None = None
    fired_at: datetime | None = None
    epoch: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    idempotency_key: str | None = None
    error: ErrorInfo | None = None
    result: Any = None
    note: dict[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    job_name: str | None = None
    progress: Progress | None = None
    trace_id: str | None = None
    """The trace that the run belongs to, as its log lines name it; None in lists that do not tell."""

    @property
    def run_id(self) -> str:
        return make_run_id(self.job_id, self.scheduled_at)

    @property
    def next_attempt_at(self) -> datetime | None:
        """The earliest start of the next attempt. None once it has started, and while an earlier run is unfinished."""
        return self.run_at if self.status in ("queued", "retrying") else None
