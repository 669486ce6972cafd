"""Hints about other tenants, for people who open the store themselves and looked under the wrong tenant.

Whoever opens the store may read all of it, so such a hint tells nothing new. The API gives none: there, another
tenant's id is as unknown as one that nobody has. Each hint costs a few bounded statements, and only where something was
missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from duly.errors import NotFound
from duly.model import id_range, parse_run_id
from duly.operations.core import Core
from duly.store import jobs, tenants

_MAX_NAMED = 5


class NeighbourOperations:
    """What other tenants have, in sentences."""

    def __init__(self, core: Core) -> None:
        self._pool = core.pool

    async def of_empty(self, tenant: str) -> str | None:
        """Says that a tenant has no jobs, and which tenants have some; None if it has jobs, or nobody has."""
        own = await jobs.list_ids(self._pool, jobs.Wanted(tenant), limit=1)
        if own.job_ids:
            return None
        others = await tenants.with_jobs(self._pool, without=tenant, limit=_MAX_NAMED + 1)
        if not others:
            return None
        shown = ", ".join(others[:_MAX_NAMED]) + (", …" if len(others) > _MAX_NAMED else "")
        # The walk for the default tenant ends early where others have many jobs.
        none = "has no jobs" if own.stop is None else f"has none of the newest {jobs.MAX_ROWS_READ} jobs"
        return f"tenant {tenant!r} {none}; tenants here: {shown} ({_command(others[0])})"

    async def of_missing(self, error: NotFound, tenant: str) -> str | None:
        """Says which other tenant has what was not found; None if none has, or if it is not a tenant's."""
        sought = error.sought
        if sought is None:
            return None
        run = parse_run_id(sought)
        if error.kind == "dead letter" and run is not None:
            found = await tenants.with_dead_letter(self._pool, job_id=run[0], scheduled_at=run[1], without=tenant)
            return _having(found, "it") or await self.of_empty(tenant)
        if error.kind == "run" and run is not None:
            having = await self._with_job(str(run[0]), tenant)
            return _having([name for name, by_id in having if by_id], "the job of this run")
        if error.kind != "job":
            return None
        having = await self._with_job(sought, tenant)
        return (
            _having([name for name, by_id in having if by_id], "one with this id")
            or _having([name for name, _ in having], "one with this name")
            or await self.of_empty(tenant)
        )

    async def _with_job(self, text: str, tenant: str) -> list[tuple[str, bool]]:
        return await tenants.with_job(self._pool, ids=id_range(text), name=text, without=tenant, limit=_MAX_NAMED)


def _having(names: Sequence[str], what: str) -> str | None:
    if not names:
        return None
    verb = "tenant {} has" if len(names) == 1 else "tenants {} have"
    return f"{verb.format(', '.join(map(repr, names)))} {what} ({_command(names[0])})"


def _command(tenant: str) -> str:
    return f"duly --tenant {shlex.quote(tenant)} …"
