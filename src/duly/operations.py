"""What API, CLI, dashboard and SDK all call. None of them speaks SQL; this layer speaks neither HTTP nor terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID

from duly import checks
from duly.config import Settings
from duly.errors import Conflict, InvalidInput, NotFound, StoreUnavailable, UnknownHandler
from duly.model import DEFAULT_TENANT, Job, JobRequest, Run, make_run_id
from duly.states import RunFlag
from duly.store import cluster, history, ids, jobs, stores
from duly.store.jobs import NewJob
from duly.store.pool import Executor, Pool
from duly.timing import Timetable, make_timetable, parse_schedule, render_key

_FAR = datetime(9999, 12, 31, tzinfo=UTC)
PAGE_LIMIT = 1000
# One statement's worth of new jobs: large enough to amortise the round trip, small enough to stay short.
SUBMIT_BATCH = 5_000

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job a submit came to. `created` is False when its dedupe_key named an existing job with the same content."""

    job_id: UUID
    created: bool


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    nodes: list[cluster.NodeStatus]
    shards: list[cluster.ShardStatus]
    counts: stores.Counts


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list; `next_cursor` asks for the next one, None at the end."""

    items: list[Item]
    next_cursor: str | None


class Operations:
    """Everything a client can do with the jobs of one store."""

    def __init__(
        self, pool: Pool, settings: Settings, *, shard_count: int, local_handlers: Collection[str] = ()
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._shard_count = shard_count
        self._local_handlers = local_handlers
        self._store_handlers: frozenset[str] = frozenset()

    @classmethod
    async def open(cls, pool: Pool, settings: Settings, *, local_handlers: Collection[str] = ()) -> Operations:
        """For a store that is there and of this version."""
        return cls(pool, settings, shard_count=await stores.shard_count(pool), local_handlers=local_handlers)

    @property
    def settings(self) -> Settings:
        return self._settings

    # Submit

    async def submit(self, request: JobRequest, *, allow_unknown_handler: bool = False) -> Submitted:
        return (await self.submit_many([request], allow_unknown_handler=allow_unknown_handler))[0]

    async def submit_many(
        self,
        requests: Sequence[JobRequest],
        *,
        allow_unknown_handler: bool = False,
        within: Executor | None = None,
    ) -> list[Submitted]:
        """Register jobs. All are checked before the first is stored; one that is wrong refuses them all."""
        if not allow_unknown_handler:
            await self._check_handlers(requests)
        now = self._pool.clock.now()
        job_ids = ids.new_job_ids(len(requests), self._pool.clock.now_us())
        rows = []
        for index, (job_id, request) in enumerate(zip(job_ids, requests, strict=True)):
            try:
                rows.append(self._prepare(job_id, request, now))
            except InvalidInput as error:
                if len(requests) > 1:
                    raise InvalidInput(f"jobs[{index}].{error.field}", error.message) from error
                raise
        submitted = []
        for start in range(0, len(rows), SUBMIT_BATCH):
            submitted += await self._store(rows[start : start + SUBMIT_BATCH], now, within)
        return submitted

    async def _store(self, rows: Sequence[NewJob], now: datetime, within: Executor | None) -> list[Submitted]:
        if within is not None:
            created = await jobs.submit(within, rows, created_at=now)
        else:
            created = await self._submit_surely(rows, now)
        if len(created) == len(rows):
            return [Submitted(row.job_id, created=True) for row in rows]
        return await self._resolve_duplicates(rows, created, now, within or self._pool)

    async def _submit_surely(self, rows: Sequence[NewJob], now: datetime) -> set[UUID]:
        """An answer that was lost says nothing about the statement; ids made here make sending it again safe."""
        try:
            return await jobs.submit(self._pool, rows, created_at=now)
        except StoreUnavailable:
            await asyncio.sleep(0.2)
            await jobs.submit(self._pool, rows, created_at=now)
            plain = {row.job_id for row in rows if row.dedupe_key is None}
            keyed = [row for row in rows if row.dedupe_key is not None]
            found = await jobs.find_duplicates(self._pool, [(row.tenant, row.dedupe_key or "") for row in keyed])
            return plain | {row.job_id for row in keyed if found[row.tenant, row.dedupe_key or ""][0] == row.job_id}

    async def _resolve_duplicates(
        self, rows: Sequence[NewJob], created: set[UUID], now: datetime, store: Executor
    ) -> list[Submitted]:
        """What the rows that were not stored came to: the job that has their dedupe_key, if its content is the same."""
        results = []
        for row in rows:
            if row.job_id in created or row.dedupe_key is None:
                results.append(Submitted(row.job_id, created=True))
                continue
            for _ in range(5):
                existing = await jobs.find_duplicates(store, [(row.tenant, row.dedupe_key)])
                if existing or await jobs.submit(store, [row], created_at=now):
                    break
                # It was there, then it was removed, then there was another: look again.
            job_id, fingerprint = existing.get((row.tenant, row.dedupe_key), (row.job_id, row.fingerprint))
            if job_id != row.job_id and fingerprint != row.fingerprint:
                raise Conflict(f"dedupe_key {row.dedupe_key!r} is taken by job {job_id}, whose content is different")
            results.append(Submitted(job_id, created=job_id == row.job_id))
        return results

    async def declare(self, request: JobRequest) -> UUID:
        """Make the job behind the request's dedupe_key be what the request says: new, unchanged or redefined."""
        now = self._pool.clock.now()
        row = self._prepare(ids.new_job_ids(1, self._pool.clock.now_us())[0], request, now)
        assert row.dedupe_key is not None
        for _ in range(10):
            if await jobs.submit(self._pool, [row], created_at=now):
                return row.job_id
            existing = await jobs.find_duplicates(self._pool, [(row.tenant, row.dedupe_key)])
            if (found := existing.get((row.tenant, row.dedupe_key))) is None:
                continue
            job_id, fingerprint = found
            if fingerprint == row.fingerprint:
                return job_id
            job = await self.get_job(str(job_id), tenant=row.tenant)
            if job.status == "cancelled":
                return job_id
            # Planned as the job it is: its own jitter, and for an interval its own creation to count from.
            redefined = self._prepare(job_id, request, now, anchor=job.created_at)
            if await jobs.redefine(self._pool, redefined, old_fingerprint=fingerprint) is not None:
                return job_id
            # Another node of the same deploy was faster: look again.
        raise Conflict(f"job {request.name or request.handler!r} is being redefined by others; try again")

    def _prepare(self, job_id: UUID, request: JobRequest, now: datetime, *, anchor: datetime | None = None) -> NewJob:
        handler = request.handler
        if isinstance(handler, Mapping):
            raise InvalidInput("handler", "must be the name of a Python task: other targets cannot be called yet")
        checks.check_text("handler", handler, longest=200)
        name = handler if request.name is None else checks.check_text("name", request.name, longest=200)
        payload = checks.payload_text(request.payload, limit=self._settings.payload_max_bytes)
        if request.payload_ref is not None:
            checks.check_text("payload_ref", request.payload_ref, longest=2048)
        checks.check_text("queue", request.queue, longest=100)
        checks.check_text("tenant", request.tenant, longest=100)
        checks.check_integer("priority", request.priority, 0, 9)
        if request.max_runs is not None:
            checks.check_integer("max_runs", request.max_runs, 1, 2**31 - 1)
        policy = checks.check_policy(request.policy)
        labels = checks.check_labels(request.labels) if request.labels else None
        if request.start_at is not None or request.end_at is not None:
            start_at = checks.check_moment("start_at", request.start_at)
            end_at = checks.check_moment("end_at", request.end_at)
            if start_at is not None and end_at is not None and end_at <= start_at:
                raise InvalidInput("end_at", "must be after start_at")
            request = replace(request, start_at=start_at, end_at=end_at)
        plan = checks.plan_schedule(request, now=now, job_id=job_id, anchor=anchor or now)
        fingerprint = None
        if request.dedupe_key is not None:
            checks.check_text("dedupe_key", request.dedupe_key, longest=200)
            fingerprint = checks.fingerprint(request, payload, labels, plan.canonical)
        return NewJob(
            job_id,
            ids.shard_of(job_id, self._shard_count),
            request.tenant,
            name,
            handler,
            None,
            payload,
            request.payload_ref,
            plan.kind,
            plan.canonical,
            request.timezone,
            request.start_at,
            request.end_at,
            request.max_runs,
            request.queue,
            request.priority,
            policy.to_stored(),
            labels,
            request.dedupe_key,
            fingerprint,
            plan.first,
            plan.first is None,
        )

    async def _check_handlers(self, requests: Sequence[JobRequest]) -> None:
        """A misspelt task is refused while it is still on the screen of whoever misspelt it."""
        asked = {request.handler for request in requests if isinstance(request.handler, str)}
        unknown = asked - set(self._local_handlers) - self._store_handlers
        if unknown:
            self._store_handlers = frozenset(await cluster.known_handlers(self._pool))
            unknown -= self._store_handlers
        known = sorted({*self._local_handlers, *self._store_handlers})
        # A store that has never seen a worker knows no tasks: nothing can be told from that.
        if unknown and known:
            shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
            raise UnknownHandler(
                f"no worker has a task {min(unknown)!r} (known: {shown}); "
                "start a worker that has it, or allow unknown handlers"
            )

    # Look

    async def get_job(self, job_id: str, *, tenant: str = DEFAULT_TENANT) -> Job:
        """By its id."""
        job = await jobs.get(self._pool, job_id=_to_job_id(job_id), tenant=tenant)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return job

    async def find_job(self, text: str, *, tenant: str = DEFAULT_TENANT) -> Job:
        """By its id, the beginning of it, or its name: what a person types."""
        found = await jobs.find(self._pool, text=text, tenant=tenant)
        if not found:
            raise NotFound(f"there is no job with the id or name {text!r}; see: duly job list")
        if len(found) > 1:
            shown = ", ".join(str(job.job_id) for job in found)
            raise InvalidInput("job", f"{text!r} could be any of {shown}; give more of the id")
        return found[0]

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
    ) -> Page[Job]:
        """Newest first."""
        if status is not None and status not in ("active", "paused", "completed", "cancelled"):
            raise InvalidInput("status", f"must be active, paused, completed or cancelled, not {status[:40]!r}")
        limit = checks.check_integer("limit", limit, 1, PAGE_LIMIT)
        before = None if cursor is None else _to_job_id(cursor, field="cursor")
        for field, value in (("queue", queue), ("name", name)):
            if value is not None:
                checks.check_text(field, value, longest=200)
        if label:
            checks.check_labels(label)
        found = await jobs.list_jobs(
            self._pool,
            tenant=tenant,
            status=status,
            queue=queue,
            name=name,
            label=dict(label) if label else None,
            before=before,
            limit=limit + 1,
        )
        more = len(found) > limit
        return Page(found[:limit], str(found[limit - 1].job_id) if more else None)

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
        found = await history.job_runs(self._pool, job_id=job.job_id, before=before, limit=limit + 1)
        more = len(found) > limit
        items = [_with_key(run, job) for run in found[:limit]]
        return Page(items, items[-1].scheduled_at.isoformat() if more else None)

    async def recent_runs(self, *, tenant: str = DEFAULT_TENANT, limit: int = 50) -> list[Run]:
        """What ended last, over all jobs."""
        return await history.recent_runs(self._pool, tenant=tenant, limit=checks.check_integer("limit", limit, 1, 500))

    def upcoming(self, job: Job, *, count: int) -> list[datetime]:
        """The next occurrences of a job, as they are planned now."""
        found: list[datetime] = []
        moment = job.next_run_at
        if moment is None:
            return found
        timetable = _timetable(job) if job.kind != "once" else None
        while moment is not None and len(found) < count:
            found.append(moment)
            moment = timetable.next(moment) if timetable is not None else None
        return found

    # Change

    async def pause(self, job_id: str, *, tenant: str = DEFAULT_TENANT, reason: str | None = None) -> Job:
        """No more fires until resumed. Pausing a paused job changes nothing."""
        job = await self.get_job(job_id, tenant=tenant)
        if job.status == "paused":
            return job
        paused = await jobs.pause(self._pool, job_id=job.job_id, tenant=tenant, reason=reason)
        if paused is None:
            raise Conflict(f"job {job_id} cannot be paused: it is {job.status} and nothing more is planned for it")
        return paused

    async def resume(self, job_id: str, *, tenant: str = DEFAULT_TENANT) -> Job:
        """From the next future occurrence on; what fell into the pause is not made up for."""
        for _ in range(10):
            job = await self.get_job(job_id, tenant=tenant)
            if job.status == "active":
                return job
            if job.status != "paused":
                raise Conflict(f"job {job_id} cannot be resumed: it is {job.status}")
            next_run_at = self._resume_at(job)
            resumed = await jobs.resume(
                self._pool, job_id=job.job_id, tenant=tenant, next_run_at=next_run_at, version=job.version
            )
            if resumed is not None:
                return resumed
            # Somebody changed it between the look and the write: look again.
        raise Conflict(f"job {job_id} is being changed by others; try again")

    def _resume_at(self, job: Job) -> datetime:
        now = self._pool.clock.now()
        if job.kind == "once":
            # The schedule of a one-off that never fired still says when; if that is past, it is due now.
            parsed = parse_schedule(
                job.schedule, now=now, timezone=job.timezone, dst_gap=job.policy.dst_gap, dst_fold=job.policy.dst_fold
            )
            return parsed.next(now) or now
        next_run_at = _timetable(job).next(now)
        if next_run_at is None:
            raise Conflict(f"job {job.job_id} has no occurrence left to resume with")
        return next_run_at

    async def trigger(self, job_id: str, *, tenant: str = DEFAULT_TENANT) -> str:
        """One extra run now; the schedule does not move. Returns the run's id."""
        job = await self.get_job(job_id, tenant=tenant)
        for _ in range(10):
            fired = await jobs.trigger(self._pool, job_id=job.job_id, tenant=tenant, flags=int(RunFlag.TRIGGERED))
            if fired is not None:
                return make_run_id(*fired)
            job = await self.get_job(job_id, tenant=tenant)
            if job.status == "cancelled":
                raise Conflict(f"job {job_id} cannot be triggered: it is cancelled")
            # The very microsecond was taken: the next one is not.
        raise Conflict(f"job {job_id} could not be triggered; try again")

    async def cancel(self, job_id: str, *, tenant: str = DEFAULT_TENANT, running: bool = False) -> Job:
        """No more fires, waiting runs cancelled; with `running` those under way are told to stop as well."""
        job = await self.get_job(job_id, tenant=tenant)
        if await jobs.cancel(self._pool, job_id=job.job_id, tenant=tenant, running=running) is None:
            job = await self.get_job(job_id, tenant=tenant)
            if job.status != "cancelled":
                raise Conflict(f"job {job_id} cannot be cancelled: it is {job.status}")
        return await self.get_job(job_id, tenant=tenant)

    # The cluster

    async def status(self) -> ClusterStatus:
        nodes, shards, counts = await asyncio.gather(
            cluster.node_statuses(self._pool), cluster.shard_statuses(self._pool), stores.counts(self._pool)
        )
        return ClusterStatus(nodes, shards, counts)

    async def ready(self) -> bool:
        """Whether the store answers."""
        await self._pool.query("select 1")
        return True

    def now(self) -> datetime:
        """The database's time, as well as it is known here."""
        return self._pool.clock.now()


def _timetable(job: Job) -> Timetable:
    return make_timetable(
        kind=job.kind,
        schedule=job.schedule,
        timezone=job.timezone,
        anchor=job.start_at or job.created_at,
        start_at=job.start_at,
        end_at=job.end_at,
        policy=job.policy,
        job_id=job.job_id,
    )


def _with_key(run: Run, job: Job) -> Run:
    key = render_key(
        job.policy.idempotency_key_template,
        job_id=job.job_id,
        name=job.name,
        scheduled_at=run.scheduled_at,
        timezone=job.timezone,
    )
    return replace(run, idempotency_key=key, job_name=job.name)


def _to_job_id(text: str, *, field: str = "job_id") -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        if field == "job_id":
            raise NotFound(f"there is no job {text[:100]!r}") from error
        raise InvalidInput(field, "is not one that a list gave") from error
