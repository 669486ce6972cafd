"""The answer of `duly explain`: one `Verdict` for each occurrence, with a sentence and the facts behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from duly.model.run import Run


class Verdict(StrEnum):
    FIRED = "fired"
    FIRED_LATE = "fired_late"
    TRIGGERED = "triggered"
    SKIPPED = "skipped"
    MISSED = "missed"
    CATCHING_UP = "catching_up"
    DST_DROPPED = "dst_dropped"
    PAUSED = "paused"
    PARKED = "parked"
    CANCELLED = "cancelled"
    CHANGED = "changed"
    ENDED = "ended"
    OVERDUE = "overdue"
    NOT_DUE = "not_due"
    NOT_CREATED = "not_created"
    NOT_AN_OCCURRENCE = "not_an_occurrence"
    PRUNED = "pruned"
    UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one occurrence fired or did not. `scheduled_at` is the occurrence, or the time asked about if none is then.

    `note` tells what DST did to it. `related` is another occurrence worth knowing: the next one if no time was asked
    about, the previous one if the time asked about is not an occurrence.
    """

    job_id: UUID
    scheduled_at: datetime
    local: datetime
    verdict: Verdict
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    run: Run | None = None
    related: Explanation | None = None
