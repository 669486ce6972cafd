"""A tenant's incidents and maintenance windows: list, acknowledge, add, remove."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

from duly import checks
from duly.errors import InvalidInput, NotFound, StoreMismatch
from duly.model import Actor, Incident, MaintenanceWindow, Page, from_micros, to_micros
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core, to_job_id
from duly.operations.jobs import JobOperations
from duly.store import incidents, windows

# Windows of a tenant that are not over yet. Each opening of an incident looks through them.
MAX_WINDOWS = 1000
_FROM_THE_END = (checks.LAST_MOMENT, UUID(int=(1 << 128) - 1))


class IncidentOperations:
    """What is or was wrong with the tenant's jobs and monitors."""

    def __init__(self, core: Core, tenant: str, actor: Actor) -> None:
        self._pool = core.pool
        self._tenant = tenant
        self._actor = actor

    async def page(
        self, *, only_open: bool = True, job_id: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Incident]:
        """One page of incidents, newest first; `only_open`: without those that are closed."""
        checks.check_integer("limit", limit, 1, MAX_PAGE)
        before = _FROM_THE_END if cursor is None else _read_cursor(cursor)
        job = None if job_id is None else to_job_id(job_id)
        if not self._pool.has_step(incidents.STEP):
            return Page([], None)
        found = await incidents.page(
            self._pool, tenant=self._tenant, job_id=job, only_open=only_open, before=before, limit=limit + 1
        )
        shown = found[:limit]
        return Page(shown, _cursor(shown[-1]) if len(found) > limit else None)

    async def ack(self, incident_id: str, *, by: str | None = None) -> Incident:
        """Note that somebody takes care of it. Who did so first stays; the incident stays open until it is over."""
        by = self._actor.name if by is None else checks.check_text("by", by, longest=200)
        found = _to_id(incident_id)
        incident = None
        if found is not None and self._pool.has_step(incidents.STEP):
            incident = await incidents.ack(self._pool, incident_id=found, tenant=self._tenant, by=by)
        if incident is None:
            raise NotFound(f"there is no incident {incident_id[:100]!r}")
        return incident


class WindowOperations:
    """The times in which no incident is opened for a job, or for the whole tenant."""

    def __init__(self, core: Core, tenant: str, jobs: JobOperations) -> None:
        self._pool = core.pool
        self._tenant = tenant
        self._jobs = jobs

    async def list(self) -> list[MaintenanceWindow]:
        """Those that are not over yet."""
        if not self._pool.has_step(incidents.STEP):
            return []
        return await windows.list_windows(self._pool, tenant=self._tenant, limit=MAX_WINDOWS)

    async def add(
        self,
        *,
        ends_at: datetime,
        starts_at: datetime | None = None,
        job_id: str | None = None,
        reason: str = "maintenance",
    ) -> MaintenanceWindow:
        """From `starts_at` (None: now) on nothing is opened. What is still wrong at its end is opened then."""
        start, end = checks.check_moment("starts_at", starts_at), checks.check_moment("ends_at", ends_at)
        if end is None:
            raise InvalidInput("ends_at", "is required")
        checks.check_text("reason", reason, longest=500)
        if not self._pool.has_step(incidents.STEP):
            raise StoreMismatch("the store has no maintenance windows yet; run: duly migrate")
        job = None if job_id is None else (await self._jobs.get(job_id)).job_id
        if len(await self.list()) >= MAX_WINDOWS:
            raise InvalidInput("ends_at", f"there are {MAX_WINDOWS} maintenance windows already: remove one first")
        window = await windows.add(
            self._pool,
            window_id=uuid4(),
            tenant=self._tenant,
            job_id=job,
            starts_at=start,
            ends_at=end,
            reason=reason,
        )
        if window is None:
            raise InvalidInput("ends_at", "must be after the window's start" if start else "must be in the future")
        return window

    async def remove(self, window_id: str) -> None:
        """One that goes on ends with it."""
        found = _to_id(window_id)
        exists = found is not None and self._pool.has_step(incidents.STEP)
        if not exists or found is None or not await windows.remove(self._pool, window_id=found, tenant=self._tenant):
            raise NotFound(f"there is no maintenance window {window_id[:100]!r}")


def _to_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _cursor(last: Incident) -> str:
    return f"{to_micros(last.opened_at):x}.{last.incident_id.hex}"


def _read_cursor(text: str) -> tuple[datetime, UUID]:
    moment, _, incident_id = text.partition(".")
    try:
        at, last = from_micros(int(moment, 16)), UUID(incident_id)
    except (ValueError, OverflowError) as error:
        raise InvalidInput("cursor", INVALID_CURSOR) from error
    if not checks.FIRST_MOMENT <= at <= checks.LAST_MOMENT:
        raise InvalidInput("cursor", INVALID_CURSOR)
    return at, last
