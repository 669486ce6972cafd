"""The interface between commands and the store, which is either open in this process or behind a REST API.

`Operations` is a `Backend` as it is; `Remote` is one over `duly.AsyncClient`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from duly.errors import DulyError

if TYPE_CHECKING:
    from duly.client import AsyncClient
    from duly.client.calls import Call
    from duly.model import (
        AuditEntry,
        AuditFilter,
        ClusterStatus,
        DeadLetter,
        DeadLetterFilter,
        Explanation,
        Forecast,
        Incident,
        Job,
        JobRequest,
        LogLine,
        LogPage,
        MaintenanceWindow,
        Monitor,
        MonitorDefinition,
        Occurrence,
        Page,
        PingEvent,
        Run,
        Submitted,
        SubmittedId,
        Swept,
    )

Item = TypeVar("Item")
# Items per page of a list that is shown.
PAGE = 200


class JobsBackend(Protocol):
    """`JobOperations`, as far as commands use it."""

    async def find(self, text: str) -> Job: ...

    async def page(
        self,
        *,
        status: Any = None,
        queue: str | None = None,
        name: str | None = None,
        label: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        payload: bool = True,
    ) -> Page[Job]: ...

    async def upcoming(self, job_id: str, *, count: int = 10) -> list[Occurrence]: ...

    async def pause(self, job_id: str, *, reason: str | None = None, until: datetime | None = None) -> Job: ...

    async def resume(self, job_id: str, *, reason: str | None = None) -> Job: ...

    async def cancel(self, job_id: str, *, running: bool = False, reason: str | None = None) -> Job: ...

    async def change(self, job_id: str, changes: Mapping[str, Any]) -> Job: ...

    async def trigger(self, job_id: str, *, reason: str | None = None) -> Run: ...


class RunsBackend(Protocol):
    """`RunOperations`, as far as commands use it."""

    async def page(self, job_id: str, *, cursor: str | None = None, limit: int = 100) -> Page[Run]: ...

    async def get(self, run_id: str) -> Run: ...

    async def logs(
        self,
        run_id: str,
        *,
        cursor: str | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        limit: int = 1000,
    ) -> LogPage: ...

    def follow_lines(
        self, run_id: str, *, attempt: int | None = None, tail: int | None = None
    ) -> AsyncIterator[LogLine]: ...

    async def cancel(self, run_id: str, *, reason: str | None = None) -> Run: ...


class DeadLettersBackend(Protocol):
    """`DeadLetterOperations`."""

    async def page(
        self, wanted: DeadLetterFilter, *, cursor: str | None = None, limit: int = 100, payload: bool = True
    ) -> Page[DeadLetter]: ...

    async def get(self, run_id: str) -> DeadLetter: ...

    async def count(self, wanted: DeadLetterFilter) -> int: ...

    async def redrive(self, run_id: str, *, reason: str | None = None) -> object: ...

    async def purge(self, run_id: str, *, reason: str | None = None) -> object: ...

    def redrive_all(self, wanted: DeadLetterFilter, *, reason: str | None = None) -> AsyncIterator[Swept]: ...

    def purge_all(self, wanted: DeadLetterFilter, *, reason: str | None = None) -> AsyncIterator[Swept]: ...


class MonitorsBackend(Protocol):
    """`MonitorOperations`."""

    async def set(
        self, slug: str, definition: MonitorDefinition, *, new_token: bool = False
    ) -> tuple[Monitor, bool]: ...

    async def get(self, slug: str) -> Monitor: ...

    async def page(self, *, cursor: str | None = None, limit: int = 100) -> Page[Monitor]: ...

    async def remove(self, slug: str) -> None: ...

    async def ping(
        self,
        slug: str,
        event: PingEvent = "success",
        *,
        rid: str | None = None,
        exit_status: int | None = None,
        note: str | None = None,
    ) -> None: ...


class ExplainBackend(Protocol):
    """`ExplainOperations`, as far as commands use it."""

    async def occurrence(self, job_id: str, *, at: datetime | None = None) -> Explanation: ...

    async def between(self, job_id: str, *, start: datetime, end: datetime, limit: int = 1000) -> list[Explanation]: ...


class AuditBackend(Protocol):
    """`AuditOperations`."""

    async def page(self, wanted: AuditFilter, *, cursor: str | None = None, limit: int = 100) -> Page[AuditEntry]: ...


class IncidentsBackend(Protocol):
    """`IncidentOperations`."""

    async def page(
        self, *, only_open: bool = True, job_id: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Incident]: ...

    async def ack(self, incident_id: str, *, by: str | None = None) -> Incident: ...


class WindowsBackend(Protocol):
    """`WindowOperations`."""

    async def list(self) -> list[MaintenanceWindow]: ...

    async def add(
        self,
        *,
        ends_at: datetime,
        starts_at: datetime | None = None,
        job_id: str | None = None,
        reason: str = "maintenance",
    ) -> MaintenanceWindow: ...

    async def remove(self, window_id: str) -> None: ...


class ClusterBackend(Protocol):
    """`ClusterOperations`, as far as commands use it."""

    async def status(self) -> ClusterStatus: ...


class Backend(Protocol):
    """The operations that a command may ask for, by their names and meaning in `duly.operations`."""

    @property
    def jobs(self) -> JobsBackend: ...
    @property
    def runs(self) -> RunsBackend: ...
    @property
    def dead_letters(self) -> DeadLettersBackend: ...
    @property
    def monitors(self) -> MonitorsBackend: ...
    @property
    def explain(self) -> ExplainBackend: ...
    @property
    def cluster(self) -> ClusterBackend: ...
    @property
    def audit(self) -> AuditBackend: ...
    @property
    def incidents(self) -> IncidentsBackend: ...
    @property
    def windows(self) -> WindowsBackend: ...

    def now(self) -> datetime: ...

    async def submit(self, request: JobRequest, *, allow_unknown_handler: bool = False) -> Submitted: ...

    async def submit_each(
        self, requests: Sequence[JobRequest], *, atomic: bool = False, allow_unknown_handler: bool = False
    ) -> list[SubmittedId | DulyError]: ...

    async def forecast(self, *, minutes: int = 60) -> Forecast: ...


async def read_pages(
    limit: int, page: Callable[..., Awaitable[Page[Item]]], *wanted: Any, **options: Any
) -> tuple[list[Item], bool]:
    """At most `limit` items, from as many pages as it takes, and whether there are more."""
    found: list[Item] = []
    cursor = None
    while True:
        part = await page(*wanted, cursor=cursor, limit=min(PAGE, limit - len(found)), **options)
        found += part.items
        if (cursor := part.next_cursor) is None or len(found) >= limit:
            return found, cursor is not None


class Remote:
    """A store behind its API, for the tenant of the API key. Most operations are the client's own calls."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.now, self.forecast = client.now, client.forecast
        self.jobs = _RemoteJobs(client)
        self.runs = _RemoteRuns(client)
        self.dead_letters = _RemoteDeadLetters(client)
        self.monitors = _RemoteMonitors(client)
        self.explain = _RemoteExplain(client)
        self.cluster = _RemoteCluster(client)
        self.audit = _RemoteAudit(client)
        self.incidents = _RemoteIncidents(client)
        self.windows = _RemoteWindows(client)

    async def submit(self, request: JobRequest, *, allow_unknown_handler: bool = False) -> Submitted:
        return await self.client.submit_request(request, allow_unknown_handler=allow_unknown_handler)

    async def submit_each(
        self, requests: Sequence[JobRequest], *, atomic: bool = False, allow_unknown_handler: bool = False
    ) -> list[SubmittedId | DulyError]:
        from duly.model import SubmittedId

        found: list[SubmittedId | DulyError] = []
        items = await self.client.submit_many(requests, atomic=atomic, allow_unknown_handler=allow_unknown_handler)
        for item in items:
            if item.error is not None:
                found.append(item.error)
            else:
                assert item.job_id is not None
                found.append(SubmittedId(item.job_id, item.created))
        return found


class _RemoteJobs:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.page, self.upcoming = client.jobs_page, client.upcoming
        self.pause, self.resume, self.cancel, self.trigger = client.pause, client.resume, client.cancel, client.trigger

    async def find(self, text: str) -> Job:
        from duly.model import only_match

        return only_match(text, await self._client.find_jobs(text))

    async def change(self, job_id: str, changes: Mapping[str, Any]) -> Job:
        return await self._client.change(job_id, **changes)


class _RemoteRuns:
    def __init__(self, client: AsyncClient) -> None:
        self.page, self.get, self.cancel = client.runs_page, client.get_run, client.cancel_run
        self.logs, self.follow_lines = client.run_logs_page, client.follow_run_logs


class _RemoteDeadLetters:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.page, self.get, self.count = client.dead_letters_page, client.get_dead_letter, client.count_dead_letters
        self.redrive, self.purge = client.redrive, client.purge

    def redrive_all(self, wanted: DeadLetterFilter, *, reason: str | None = None) -> AsyncIterator[Swept]:
        from duly.client.calls import redrive_some

        return self._sweep(partial(redrive_some, reason=reason), wanted)

    def purge_all(self, wanted: DeadLetterFilter, *, reason: str | None = None) -> AsyncIterator[Swept]:
        from duly.client.calls import purge_some

        return self._sweep(partial(purge_some, reason=reason), wanted)

    async def _sweep(
        self, some: Callable[[DeadLetterFilter], Call[tuple[Swept, bool]]], wanted: DeadLetterFilter
    ) -> AsyncIterator[Swept]:
        """Batch after batch of the letters that are dead now; yields the total after each."""
        from duly.client.calls import those_now

        dead_now = await self._client.call(those_now(wanted))
        done, more = 0, True
        while dead_now is not None and more:
            part, more = await self._client.call(some(dead_now))
            done += part.done
            yield replace(part, done=done)


_OUTCOMES: dict[str, Literal["start", "fail", "log"]] = {"start": "start", "failure": "fail", "note": "log"}


class _RemoteMonitors:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.page, self.get, self.remove = client.monitors_page, client.get_monitor, client.remove_monitor

    async def set(self, slug: str, definition: MonitorDefinition, *, new_token: bool = False) -> tuple[Monitor, bool]:
        monitor = await self._client.set_monitor(slug, **asdict(definition), new_token=new_token)
        return monitor, monitor.ping_path is not None and not new_token

    async def ping(
        self,
        slug: str,
        event: PingEvent = "success",
        *,
        rid: str | None = None,
        exit_status: int | None = None,
        note: str | None = None,
    ) -> None:
        if exit_status is not None:
            await self._client.ping_monitor_outcome(slug, exit_status, rid=rid, note=note)
        elif event == "success":
            await self._client.ping_monitor(slug, rid=rid, note=note)
        else:
            await self._client.ping_monitor_outcome(slug, _OUTCOMES[event], rid=rid, note=note)


class _RemoteExplain:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.occurrence = client.explain

    async def between(self, job_id: str, *, start: datetime, end: datetime, limit: int = 1000) -> list[Explanation]:
        found: list[Explanation] = []
        async for one in self._client.explanations(job_id, start=start, end=end):
            found.append(one)
            if len(found) >= limit:
                break
        return found


class _RemoteAudit:
    def __init__(self, client: AsyncClient) -> None:
        self.page = client.audit_page


class _RemoteIncidents:
    def __init__(self, client: AsyncClient) -> None:
        self.page, self.ack = client.incidents_page, client.ack_incident


class _RemoteWindows:
    def __init__(self, client: AsyncClient) -> None:
        self.list, self.add = client.maintenance_windows, client.add_maintenance_window
        self.remove = client.remove_maintenance_window


class _RemoteCluster:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def status(self) -> ClusterStatus:
        from duly.model import ClusterStatus

        cluster = await self._client.cluster()
        return ClusterStatus(
            cluster.nodes,
            cluster.shards,
            cluster.lag_seconds,
            await self._client.stats(),
            unrunnable=cluster.unrunnable,
            surveyed_at=cluster.surveyed_at,
        )
