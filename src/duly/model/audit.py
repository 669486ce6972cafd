"""Who acts, through which door, and what the audit trail keeps of it (`migrations/0008_audit.sql`)."""

from __future__ import annotations

import getpass
import json
import platform
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal
from uuid import UUID

Door = Literal["api", "cli", "sdk", "sql", "code", "scheduler"]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. `key`: the id of the API key; `request`, `address`: of a call of the API."""

    via: Door
    name: str
    key: str | None = None
    request: str | None = None
    address: str | None = None

    def note(self, *, reason: str | None = None, **more: Any) -> str:
        """What a statement is told, as JSON: `who` acts, why, and what else it needs for its row."""
        who = {"via": self.via, "actor": self.name, "key": self.key, "request": self.request, "address": self.address}
        note = {"who": _given(who), "reason": reason, **more}
        return json.dumps(_given(note), default=str)


#: Duly itself: a scheduler that parks a job, or ends a pause at its time.
DULY = Actor("scheduler", "duly")


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@cache
def os_user() -> str:
    """The user of the operating system and its machine, as USER@HOST."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        import os

        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node()}"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: who did what to which object. `before`, `after`: only what changed, without secrets."""

    at: datetime
    via: str
    actor: str
    action: str
    kind: str
    object: str | None
    job_id: UUID | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str | None
    key: str | None = None
    request: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; None: any. `actor`: a name, or the id of an API key."""

    job_id: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
