"""The interface between commands and the store, which is either open in this process or behind a REST API.

`Operations` is a `Backend` as it is; `Remote` is one over `duly.AsyncClient`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import UUID

from duly.errors import DulyError, InvalidInput, NotFound

if TYPE_CHECKING:
    from duly.client import AsyncClient
    from duly.model import (
        ClusterStatus,
        DeadLetter,
        DeadLetterFilter,
        DstFold,
        DstGap,
        Explanation,
        Forecast,
        Job,
        JobRequest,
        Occurrence,
        Page,
        Preview,
        Run,
        Swept,
    )
    from duly.operations import Submitted, SubmittedId

_PAGE = 500


class Jobs(Protocol):
    """`JobOperations`, as far as commands use it."""

    async def get(self, job_id: str) -> Job: ...

    async def find(self, text: str) -> Job: ...

    async def page(
        self,
        *,
        status: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        label: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        payload: bool = True,
    ) -> Page[Job]: ...

    async def upcoming(self, job_id: str, *, count: int = 10) -> list[Occurrence]: ...

    async def pause(self, job_id: str, *, reason: str | None = None) -> Job: ...

    async def resume(self, job_id: str) -> Job: ...

    async def cancel(self, job_id: str, *, running: bool = False) -> Job: ...

    async def trigger(self, job_id: str) -> Run: ...


class Runs(Protocol):
    """`RunOperations`, as far as commands use it."""

    async def page(self, job_id: str, *, cursor: str | None = None, limit: int = 100) -> Page[Run]: ...

    async def get(self, run_id: str) -> Run: ...

    async def cancel(self, run_id: str) -> Run: ...


class DeadLetters(Protocol):
    """`DeadLetterOperations`."""

    async def page(
        self, wanted: DeadLetterFilter = ..., *, cursor: str | None = None, limit: int = 100, payload: bool = True
    ) -> Page[DeadLetter]: ...

    async def get(self, run_id: str) -> DeadLetter: ...

    async def count(self, wanted: DeadLetterFilter = ...) -> int: ...

    async def redrive(self, run_id: str) -> None: ...

    async def purge(self, run_id: str) -> None: ...

    def redrive_all(self, wanted: DeadLetterFilter = ...) -> AsyncIterator[Swept]: ...

    def purge_all(self, wanted: DeadLetterFilter = ...) -> AsyncIterator[Swept]: ...


class Explain(Protocol):
    """`ExplainOperations`, as far as commands use it."""

    async def occurrence(self, job_id: str, *, at: datetime | None = None) -> Explanation: ...

    async def between(self, job_id: str, *, start: datetime, end: datetime, limit: int = 1000) -> list[Explanation]: ...


class Cluster(Protocol):
    """`ClusterOperations`, as far as commands use it."""

    async def status(self) -> ClusterStatus: ...


class Backend(Protocol):
    """The operations that a command may ask for, by their names and meaning in `duly.operations`."""

    @property
    def jobs(self) -> Jobs: ...
    @property
    def runs(self) -> Runs: ...
    @property
    def dead_letters(self) -> DeadLetters: ...
    @property
    def explain(self) -> Explain: ...
    @property
    def cluster(self) -> Cluster: ...

    def now(self) -> datetime: ...

    async def submit(self, request: JobRequest, *, allow_unknown_handler: bool = False) -> Submitted: ...

    async def submit_each(
        self, requests: Sequence[JobRequest], *, atomic: bool = False, allow_unknown_handler: bool = False
    ) -> list[SubmittedId | DulyError]: ...

    async def forecast(self, *, minutes: int = 60) -> Forecast: ...


class Remote:
    """A store behind its API, for the tenant that the API key belongs to."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.jobs = _RemoteJobs(client)
        self.runs = _RemoteRuns(client)
        self.dead_letters = _RemoteDeadLetters(client)
        self.explain = _RemoteExplain(client)
        self.cluster = _RemoteCluster(client)

    def now(self) -> datetime:
        return self._client.now()

    async def submit(self, request: JobRequest, *, allow_unknown_handler: bool = False) -> Submitted:
        from duly.operations import Submitted

        submitted = await self._client.submit_request(request, allow_unknown_handler=allow_unknown_handler)
        return Submitted(submitted.job, submitted.created)

    async def submit_each(
        self, requests: Sequence[JobRequest], *, atomic: bool = False, allow_unknown_handler: bool = False
    ) -> list[SubmittedId | DulyError]:
        from duly.operations import SubmittedId

        found: list[SubmittedId | DulyError] = []
        items = await self._client.submit_many(requests, atomic=atomic, allow_unknown_handler=allow_unknown_handler)
        for item in items:
            if item.error is not None:
                found.append(item.error)
            else:
                assert item.job_id is not None
                found.append(SubmittedId(item.job_id, item.created))
        return found

    async def forecast(self, *, minutes: int = 60) -> Forecast:
        return await self._client.forecast(minutes=minutes)

    async def preview(
        self,
        schedule: str | None,
        *,
        timezone: str = "UTC",
        dst_gap: DstGap = "shift",
        dst_fold: DstFold = "first",
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        after: datetime | None = None,
        count: int = 10,
    ) -> Preview:
        return await self._client.preview(
            schedule,
            timezone=timezone,
            dst_gap=dst_gap,
            dst_fold=dst_fold,
            start_at=start_at,
            end_at=end_at,
            after=after,
            count=count,
        )


class _RemoteJobs:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, job_id: str) -> Job:
        return await self._client.get_job(job_id)

    async def find(self, text: str) -> Job:
        """By its id, the beginning of it, or its name, as on a store of one's own."""
        found = {job.job_id: job for job in await self._by_id(text)}
        cursor = None
        while len(found) < 2:
            # Names are looked for from page to page: one may be empty and not the last.
            page = await self._client.jobs_page(name=text, cursor=cursor, limit=5)
            found |= {job.job_id: job for job in page.items}
            if (cursor := page.next_cursor) is None:
                break
        if not found:
            raise NotFound(f"there is no job with the id or name {text!r}; see: duly job list")
        if len(found) > 1:
            shown = ", ".join(str(job_id) for job_id in sorted(found, reverse=True))
            raise InvalidInput("job", f"{text!r} could be any of {shown}; give more of the id")
        return next(iter(found.values()))

    async def _by_id(self, text: str) -> list[Job]:
        digits = text.replace("-", "").lower()
        if not (4 <= len(digits) <= 32 and all(digit in "0123456789abcdef" for digit in digits)):
            return []
        if len(digits) == 32:
            try:
                return [await self._client.get_job(str(UUID(digits)))]
            except NotFound:
                return []
        # Jobs are listed by their ids, and a list goes on below the id that its cursor is.
        low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        page = await self._client.jobs_page(cursor=str(high), limit=5)
        return [job for job in page.items if low <= job.job_id <= high]

    async def page(
        self,
        *,
        status: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        label: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        payload: bool = True,
    ) -> Page[Job]:
        return await self._client.jobs_page(
            status=cast("Any", status),
            queue=queue,
            name=name,
            label=label,
            cursor=cursor,
            limit=limit,
            payload=payload,
        )

    async def upcoming(self, job_id: str, *, count: int = 10) -> list[Occurrence]:
        return await self._client.upcoming(job_id, count=count)

    async def pause(self, job_id: str, *, reason: str | None = None) -> Job:
        return await self._client.pause(job_id, reason=reason)

    async def resume(self, job_id: str) -> Job:
        return await self._client.resume(job_id)

    async def cancel(self, job_id: str, *, running: bool = False) -> Job:
        return await self._client.cancel(job_id, running=running)

    async def trigger(self, job_id: str) -> Run:
        return await self._client.trigger(job_id)


class _RemoteRuns:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def page(self, job_id: str, *, cursor: str | None = None, limit: int = 100) -> Page[Run]:
        return await self._client.runs_page(job_id, cursor=cursor, limit=limit)

    async def get(self, run_id: str) -> Run:
        return await self._client.get_run(run_id)

    async def cancel(self, run_id: str) -> Run:
        return await self._client.cancel_run(run_id)


class _RemoteDeadLetters:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def page(
        self,
        wanted: DeadLetterFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        payload: bool = True,
    ) -> Page[DeadLetter]:
        return await self._client.dead_letters_page(_given(wanted), cursor=cursor, limit=limit, payload=payload)

    async def get(self, run_id: str) -> DeadLetter:
        return await self._client.get_dead_letter(run_id)

    async def count(self, wanted: DeadLetterFilter | None = None) -> int:
        """Page by page, because the API does not count."""
        count = 0
        cursor = None
        while True:
            page = await self._client.dead_letters_page(_given(wanted), cursor=cursor, limit=_PAGE, payload=False)
            count += len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return count

    async def redrive(self, run_id: str) -> None:
        await self._client.redrive(run_id)

    async def purge(self, run_id: str) -> None:
        await self._client.purge(run_id)

    async def redrive_all(self, wanted: DeadLetterFilter | None = None) -> AsyncIterator[Swept]:
        from duly.client import calls
        from duly.model import Swept

        dead_now = await self._client.call(calls.those_now(_given(wanted)))
        done = 0
        more = dead_now is not None
        while more and dead_now is not None:
            part, more = await self._client.call(calls.redrive_some(dead_now))
            done += part.done
            yield Swept(done, part.refused)

    async def purge_all(self, wanted: DeadLetterFilter | None = None) -> AsyncIterator[Swept]:
        from duly.client import calls
        from duly.model import Swept

        dead_now = await self._client.call(calls.those_now(_given(wanted)))
        done = 0
        more = dead_now is not None
        while more and dead_now is not None:
            part, more = await self._client.call(calls.purge_some(dead_now))
            done += part.done
            yield Swept(done, 0)


class _RemoteExplain:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def occurrence(self, job_id: str, *, at: datetime | None = None) -> Explanation:
        return await self._client.explain(job_id, at=at)

    async def between(self, job_id: str, *, start: datetime, end: datetime, limit: int = 1000) -> list[Explanation]:
        found: list[Explanation] = []
        async for one in self._client.explanations(job_id, start=start, end=end):
            found.append(one)
            if len(found) >= limit:
                break
        return found


class _RemoteCluster:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def status(self) -> ClusterStatus:
        from duly.model import ClusterStatus

        cluster = await self._client.cluster()
        return ClusterStatus(cluster.nodes, cluster.shards, cluster.lag_seconds, await self._client.stats())


def _given(wanted: DeadLetterFilter | None) -> DeadLetterFilter:
    from duly.model import DeadLetterFilter

    return wanted if wanted is not None else DeadLetterFilter()
