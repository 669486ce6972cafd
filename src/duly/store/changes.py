"""Reads the log of changes made to a job. The statements that change a job write it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.store.pool import Querier


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `what` is a word that duly.job_changes allows, such as paused, resumed, changed or parked."""

    at: datetime
    what: str
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        reason = self.detail.get("reason")
        return None if reason is None else str(reason)

    @property
    def until(self) -> datetime | None:
        """When this pause ends by itself."""
        until = self.detail.get("until")
        return datetime.fromisoformat(until) if isinstance(until, str) else None


async def of_job(store: Querier, *, job_id: UUID, limit: int) -> list[Change]:
    """The newest `limit` changes of a job, oldest first."""
    rows = await store.fetch("changes/of_job", job_id, limit)
    changes = [Change(row["at"], row["what"], json.loads(row["detail"]) if row["detail"] else {}) for row in rows]
    return changes[::-1]
