"""A broken promise as the checker reports it, and how times are spelled in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A run is (job_id, scheduled_at in microseconds since 1970).
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise.

    It is excused if an asynchronous standby had not received a change of the job `job_id` made at about `at`
    (microseconds). `at` None: replication cannot excuse it.
    """

    invariant: str
    message: str
    evidence: list[dict[str, Any]] = field(default_factory=list)
    at: int | None = None
    job_id: str | None = None

    def document(self) -> dict[str, Any]:
        return {"invariant": self.invariant, "message": self.message, "evidence": self.evidence}


def moment(micros: int | None) -> str:
    if micros is None:
        return "never"
    try:
        text = (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    except OverflowError:
        return "infinity"
    return text.replace("+00:00", "Z").replace(".000000Z", "Z")


def seconds(micros: int) -> str:
    return f"{micros / 1e6:.3f} s"
