"""Looking: jobs, their runs, what comes next, and the cluster. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from duly import checks
from duly.errors import InvalidInput, NotFound
from duly.model import DEFAULT_TENANT, ClusterStatus, Job, Occurrence, Page, Run, parse_run_id
from duly.operations.base import Base, to_job_id
from duly.operations.upcoming import MAX_OCCURRENCES, upcoming
from duly.store import cluster, history, jobs, stores
from duly.store.pool import Querier
from duly.timing import render_key

_FAR = datetime(9999, 12, 31, tzinfo=UTC)
PAGE_LIMIT = 1000
# A name that could mean more jobs than these means none. Whoever looks for one has all the time it takes.
_MOST_FOUND = 5
_LOOKED_AT_TO_FIND = 200_000
# A page that would be empty though it is not the last is looked for further on, so many times in all.
_LOOKS = 5

Item = TypeVar("Item")


class Looking(Base):
    async def get_job(self, job_id: str, *, tenant: str = DEFAULT_TENANT, within: Querier | None = None) -> Job:
        """By its id."""
        job = await jobs.get(within or self._pool, job_id=to_job_id(job_id), tenant=tenant)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return job

    async def find_job(self, text: str, *, tenant: str = DEFAULT_TENANT) -> Job:
        """By its id, the beginning of it, or its name: what a person types."""
        found = await self._find(text, tenant)
        if not found:
            raise NotFound(f"there is no job with the id or name {text!r}; see: duly job list")
        if len(found) > 1:
            shown = ", ".join(str(job.job_id) for job in found)
            raise InvalidInput("job", f"{text!r} could be any of {shown}; give more of the id")
        return found[0]

    async def _find(self, text: str, tenant: str) -> list[Job]:
        found: dict[UUID, Job] = {}
        digits = text.replace("-", "").lower()
        if 4 <= len(digits) <= 32 and all(digit in "0123456789abcdef" for digit in digits):
            low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
            found = {job.job_id: job for job in await jobs.with_ids(self._pool, low=low, high=high, tenant=tenant)}
        wanted = jobs.Wanted(tenant, name=text)
        while True:
            listed = await jobs.list_ids(self._pool, wanted, limit=_MOST_FOUND, looked_at=_LOOKED_AT_TO_FIND)
            found |= {job.job_id: job for job in await jobs.page(self._pool, listed.job_ids, tenant=tenant)}
            if listed.stop is None or len(found) >= _MOST_FOUND:
                return sorted(found.values(), key=lambda job: job.job_id, reverse=True)[:_MOST_FOUND]
            wanted = replace(wanted, before=listed.stop)

    async def list_jobs(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        status: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        label: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        payload: bool = True,
    ) -> Page[Job]:
        """Newest first. A page ends at `limit`, after so many bytes or so many jobs that were looked at: it may be
        empty and yet not the last. Without `payload` the jobs have None there."""
        if status is not None and status not in ("active", "paused", "completed", "cancelled"):
            raise InvalidInput("status", f"must be active, paused, completed or cancelled, not {status[:40]!r}")
        limit = checks.check_integer("limit", limit, 1, PAGE_LIMIT)
        before = None if cursor is None else to_job_id(cursor, field="cursor")
        for field, value in (("queue", queue), ("name", name)):
            if value is not None:
                checks.check_text(field, value, longest=200)
        if label:
            checks.check_labels(label)
        wanted = jobs.Wanted(tenant, status, queue, name, dict(label) if label else None, before)
        listed = await jobs.list_ids(self._pool, wanted, limit=limit + 1)
        for _ in range(_LOOKS - 1):
            if listed.job_ids or listed.stop is None:
                break
            listed = await jobs.list_ids(self._pool, replace(wanted, before=listed.stop), limit=limit + 1)
        asked = listed.job_ids[:limit]
        found = await jobs.page(self._pool, asked, tenant=tenant, payload=payload)
        stop = listed.stop
        if len(listed.job_ids) > limit:
            stop = asked[-1]
        if found and found[-1].job_id != asked[-1]:
            stop = found[-1].job_id
        return Page(found, None if stop is None else str(stop))

    async def job_runs(
        self, job_id: str, *, tenant: str = DEFAULT_TENANT, cursor: str | None = None, limit: int = 100
    ) -> Page[Run]:
        """Live and ended runs of one job, newest first."""
        job = await self.get_job(job_id, tenant=tenant)
        limit = checks.check_integer("limit", limit, 1, PAGE_LIMIT)
        before = _FAR
        if cursor is not None:
            try:
                before = checks.check_moment("cursor", datetime.fromisoformat(cursor)) or _FAR
            except ValueError as error:
                raise InvalidInput("cursor", "is not one that a list gave") from error
        moments = await history.job_run_times(self._pool, job_id=job.job_id, before=before, limit=limit + 1)
        found = await history.runs_page(self._pool, job_id=job.job_id, moments=moments[:limit])
        items = [with_key(run, job) for run in found]
        more = bool(items) and items[-1].scheduled_at != moments[-1]
        return Page(items, items[-1].scheduled_at.isoformat() if more else None)

    async def get_run(self, run_id: str, *, tenant: str = DEFAULT_TENANT) -> Run:
        """One run with everything that was tried, live or ended."""
        parsed = parse_run_id(run_id)
        job = None if parsed is None else await jobs.get(self._pool, job_id=parsed[0], tenant=tenant)
        if parsed is not None and job is not None:
            for _ in range(3):  # a run on its way from one place to another is in neither for one look
                run = await history.get_run(self._pool, job_id=parsed[0], scheduled_at=parsed[1])
                if run is not None:
                    return with_key(run, job)
        raise NotFound(f"there is no run {run_id[:100]!r}")

    async def recent_runs(self, *, tenant: str = DEFAULT_TENANT, limit: int = 50) -> list[Run]:
        """What ended last, over all jobs."""
        return await history.recent_runs(self._pool, tenant=tenant, limit=checks.check_integer("limit", limit, 1, 500))

    async def upcoming(self, job_id: str, *, count: int = 10, tenant: str = DEFAULT_TENANT) -> list[Occurrence]:
        """A job's next occurrences, as `upcoming` lists them."""
        checks.check_integer("count", count, 1, MAX_OCCURRENCES)
        return upcoming(await self.get_job(job_id, tenant=tenant), count=count)

    async def status(self) -> ClusterStatus:
        """Who is there, who leads which shard under which epoch, what waits, and how late firing is."""
        nodes, shards, counts = await asyncio.gather(
            cluster.node_statuses(self._pool), cluster.shard_statuses(self._pool), stores.counts(self._pool)
        )
        oldest = counts.oldest_overdue_at
        lag = 0.0 if oldest is None else max(0.0, (self.now() - oldest).total_seconds())
        return ClusterStatus(nodes, shards, lag, counts)

    async def figures(self) -> stores.Figures:
        """What a monitoring system watches, of the whole store."""
        return await stores.figures(self._pool)

    async def ready(self) -> bool:
        """Whether the store answers."""
        await self._pool.query("select 1")
        return True


def with_key(run: Run, job: Job) -> Run:
    """The run with the idempotency key that its handler gets."""
    key = render_key(
        job.policy.idempotency_key_template,
        job_id=job.job_id,
        name=job.name,
        scheduled_at=run.scheduled_at,
        timezone=job.timezone,
    )
    return replace(run, idempotency_key=key, job_name=job.name)
