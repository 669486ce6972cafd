"""Registering jobs: checked whole before anything is stored, and safe to send again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from duly import checks
from duly.config import Settings
from duly.errors import Conflict, Forbidden, InvalidInput, LimitReached, StoreBusy, StoreUnavailable, UnknownHandler
from duly.handlers import check_handler
from duly.model import DEFAULT_POLICY, POLICY_FIELDS, JobRequest, Policy
from duly.operations.base import Base
from duly.operations.rights import EVERYTHING, Bounds, Rights
from duly.store import cluster, copying, ids, jobs, tenants
from duly.store.jobs import OWN_FIELDS, NewJob
from duly.store.pool import Querier
from duly.timing import load_zone
from duly.turns import Turns

T = TypeVar("T")

# One statement's worth of new jobs: large enough to amortise the round trip, small enough to stay short.
SUBMIT_BATCH = 2_500
# Before a submit whose answer was lost is sent again: long enough for a connection to be made anew.
RESEND_SECONDS = 0.2
# How long a submit of a tenant with a limit waits for others of the same tenant in this process.
TURN_SECONDS = 10.0


class Submitted(NamedTuple):
    """The job a submit came to. `created` is False when its dedupe_key named an existing job with the same content."""

    job_id: UUID
    created: bool


class Submitting(Base):
    async def submit(
        self, request: JobRequest, *, allow_unknown_handler: bool = False, rights: Rights = EVERYTHING
    ) -> Submitted:
        return (await self.submit_many([request], allow_unknown_handler=allow_unknown_handler, rights=rights))[0]

    async def submit_many(
        self,
        requests: Sequence[JobRequest],
        *,
        allow_unknown_handler: bool = False,
        rights: Rights = EVERYTHING,
        within: Querier | None = None,
    ) -> list[Submitted]:
        """Register jobs. All are checked before the first is stored; one that is wrong refuses them all."""
        bounds = await self._bounds({request.tenant for request in requests})
        for index, request in enumerate(requests):
            try:
                check_rights(request, rights, bounds)
            except Forbidden as error:
                if len(requests) > 1:
                    raise Forbidden(error.message, field=f"jobs[{index}].{error.field}") from error
                raise
        if not allow_unknown_handler:
            await self._check_handlers(requests, rights)
        now = self._pool.clock.now()
        job_ids = ids.new_job_ids(len(requests), self._pool.clock.now_us())
        preparing = self._preparing(now)
        rows = []
        turns = Turns()
        for index, (job_id, request) in enumerate(zip(job_ids, requests, strict=True)):
            await turns.give()
            try:
                rows.append(preparing.prepare(job_id, request))
            except InvalidInput as error:
                if len(requests) > 1:
                    raise InvalidInput(f"jobs[{index}].{error.field}", error.message) from error
                raise self._whole(error, request, now) from error.__cause__
        batches = [rows[start : start + SUBMIT_BATCH] for start in range(0, len(rows), SUBMIT_BATCH)]
        if limited := await self._limited({row.tenant for row in rows}):
            return await self._store_within_limits(batches, now, within, limited)
        if within is not None:
            return [one for batch in batches for one in await self._store(batch, now, within)]
        # Two at a time, so that one is encoded while the other is stored.
        room = asyncio.Semaphore(2)

        async def store(batch: Sequence[NewJob]) -> list[Submitted]:
            async with room:
                return await self._store(batch, now, None)

        return [one for stored in await asyncio.gather(*map(store, batches)) for one in stored]

    async def _store(self, rows: Sequence[NewJob], now: datetime, within: Querier | None) -> list[Submitted]:
        if within is None:
            created = await self._submit_surely(rows, now)
        elif copying.can_copy(within, rows):
            created = await copying.copy(within, rows, created_at=now)
        else:
            created = await jobs.submit(within, rows, created_at=now)
        return await self._results(rows, created, now, within or self._pool)

    async def _results(
        self, rows: Sequence[NewJob], created: set[UUID], now: datetime, store: Querier
    ) -> list[Submitted]:
        if len(created) == len(rows):
            return [Submitted(row.job_id, created=True) for row in rows]
        return await self._resolve_duplicates(rows, created, now, store)

    async def _limited(self, asked: Collection[str]) -> set[str]:
        """Those of these tenants whose jobs are counted."""
        if self._settings.tenant_max_jobs is not None:
            return set(asked)
        return {tenant for tenant, known in (await self._known(asked)).items() if known.counted}

    async def _store_within_limits(
        self, batches: Sequence[Sequence[NewJob]], now: datetime, within: Querier | None, limited: Collection[str]
    ) -> list[Submitted]:
        """All of it or nothing, in one transaction."""

        async def store(within: Querier) -> list[Submitted]:
            await self._check_room(within, [row for batch in batches for row in batch], limited)
            results = []
            for batch in batches:
                created = await jobs.submit(within, batch, created_at=now)
                await self._take_places(within, batch, created, limited)
                results += await self._results(batch, created, now, within)
            return results

        if within is not None:
            return await store(within)
        return await self._together(store, [row for batch in batches for row in batch], limited)

    async def _together(
        self, store: Callable[[Querier], Awaitable[T]], rows: Sequence[NewJob], limited: Collection[str]
    ) -> T:
        """One transaction, sent again if its answer was lost: the ids are the same, so the second finds the first.

        Of one tenant only one at a time has a connection: however many wait for the tenant, the others are served.
        """
        try:
            async with self._turn(limited):
                try:
                    return await self._pool.together(store)
                except StoreBusy:
                    raise
                except StoreUnavailable:
                    await asyncio.sleep(RESEND_SECONDS)
                    return await self._pool.together(store)
        except LimitReached:
            # What it found out about ended jobs was undone with the rest. This is kept, so that the next look goes on
            # from there, or need not be.
            for tenant in sorted(limited):
                wanted = sum(row.tenant == tenant for row in rows)
                most = self._settings.tenant_max_jobs
                with suppress(StoreUnavailable):
                    await tenants.room(self._pool, tenant=tenant, wanted=wanted, default_max=most)
            raise

    @asynccontextmanager
    async def _turn(self, limited: Collection[str]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for tenant in sorted(limited):
                turn = self._turns.get(tenant) or self._turns.setdefault(tenant, asyncio.Lock())
                try:
                    async with asyncio.timeout(TURN_SECONDS):
                        await stack.enter_async_context(turn)
                except TimeoutError as error:
                    raise tenants.busy(tenant) from error
            yield

    async def _check_room(self, within: Querier, rows: Sequence[NewJob], limited: Collection[str]) -> None:
        """Refuse the jobs if they are more than their tenants may have. Locks those tenants: others of theirs wait."""
        # In one order, so that two such submits never wait for each other.
        for tenant in sorted(limited):
            wanted = [row for row in rows if row.tenant == tenant]
            most = self._settings.tenant_max_jobs
            room = await tenants.room(within, tenant=tenant, wanted=len(wanted), default_max=most)
            if room is None or len(wanted) <= room:
                continue
            new = await tenants.count_new(within, tenant=tenant, rows=wanted)
            if new > room:
                raise LimitReached(
                    f"tenant {tenant!r} may have {room} more active or paused jobs, and {new} were submitted: cancel "
                    "some, or raise the limit with: duly tenant set"
                )

    async def _take_places(
        self, within: Querier, rows: Sequence[NewJob], created: Collection[UUID], limited: Collection[str]
    ) -> None:
        for tenant in sorted(limited):
            if taking := [row.job_id for row in rows if row.tenant == tenant and row.job_id in created]:
                await tenants.take(within, tenant=tenant, job_ids=taking)

    async def _submit_surely(self, rows: Sequence[NewJob], now: datetime) -> set[UUID]:
        """An answer that was lost says nothing about the statement; ids made here make sending it again safe."""
        try:
            if copying.can_copy(self._pool, rows):
                return await copying.copy(self._pool, rows, created_at=now)
            return await jobs.submit(self._pool, rows, created_at=now)
        except StoreUnavailable:
            await asyncio.sleep(RESEND_SECONDS)
            # Never by a copy: this leaves alone what is there, and waits for a first that is still under way.
            await jobs.submit(self._pool, rows, created_at=now)
            plain = {row.job_id for row in rows if row.dedupe_key is None}
            keyed = [row for row in rows if row.dedupe_key is not None]
            found = await jobs.find_duplicates(self._pool, [(row.tenant, row.dedupe_key or "") for row in keyed])
            return plain | {row.job_id for row in keyed if found[row.tenant, row.dedupe_key or ""][0] == row.job_id}

    async def _resolve_duplicates(
        self, rows: Sequence[NewJob], created: set[UUID], now: datetime, store: Querier
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

    def _whole(self, error: InvalidInput, request: JobRequest, now: datetime) -> InvalidInput:
        """The error, with what else is wrong with the request: whoever mends it need not come twice."""
        found = problems_of(request, now=now, payload_max_bytes=self._settings.payload_max_bytes, known=error.field)
        return error.beside([one for one in found if one.field != error.field])

    def _preparing(self, now: datetime) -> Preparing:
        return Preparing(now, settings=self._settings, shard_count=self._shard_count)

    def _prepare(self, job_id: UUID, request: JobRequest, now: datetime) -> NewJob:
        shard = ids.shard_of(job_id, self._shard_count)
        try:
            return prepare(job_id, request, now, settings=self._settings, shard=shard)
        except InvalidInput as error:
            raise self._whole(error, request, now) from error.__cause__

    async def _check_handlers(self, requests: Sequence[JobRequest], rights: Rights) -> None:
        """A misspelt task is refused while it is still on the screen of whoever misspelt it.

        Which tasks there are is told to those only who may know what all apps of the store have.
        """
        asked = {request.handler for request in requests if isinstance(request.handler, str)}
        unknown = asked - set(self._local_handlers) - self._store_handlers
        if unknown:
            self._store_handlers = frozenset(await cluster.known_handlers(self._pool))
            unknown -= self._store_handlers
        known = sorted({*self._local_handlers, *self._store_handlers})
        # A store that has never seen a worker knows no tasks: nothing can be told from that.
        if unknown and known:
            shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
            others = f" (known: {shown})" if rights.whole_store else ""
            raise UnknownHandler(
                f"no worker has a task {min(unknown)[:200]!r}{others}; start a worker that has it, or allow unknown "
                "handlers"
            )


def check_rights(request: JobRequest, rights: Rights, bounds: Mapping[str, Bounds]) -> None:
    """Refuse what whoever asks may not submit, or nobody of that tenant."""
    rights.check_handler(request.handler)
    if bounds and (bound := bounds.get(request.tenant)) is not None:
        bound.check(request.handler, request.queue)


class _Shape(NamedTuple):
    """What was found out for one job and holds for every other that asks for the same."""

    default_name: str
    first: datetime | None
    canonical: str
    common: tuple[Any, ...]
    labels: str | None


class Preparing:
    """Prepares the jobs of one call. What they have in common is checked and planned once: most of the cost."""

    def __init__(self, now: datetime, *, settings: Settings, shard_count: int) -> None:
        self._now = now
        self._settings = settings
        self._shard_count = shard_count
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        # By identity, and kept, so that the identity stays theirs.
        self._policies: dict[int, tuple[Policy, str | None]] = {}

    def prepare(self, job_id: UUID, request: JobRequest) -> NewJob:
        """What `prepare` says, by a shorter way where there is one."""
        shard = ids.shard_of(job_id, self._shard_count)
        try:
            key = self._shape_key(request)
            shape = None if key is None else self._shapes.get(key)
        except (AttributeError, TypeError, ValueError, OverflowError):
            # What cannot even be compared or written is wrong, and `prepare` says what it is.
            key = shape = None
        if shape is not None:
            return self._shaped(job_id, shard, request, shape)
        row = prepare(job_id, request, self._now, settings=self._settings, shard=shard)
        # Jitter is a job's own, and so is the time that follows from it.
        is_own = request.policy.jitter_seconds and not row.immediate and not isinstance(request.schedule, datetime)
        if key is not None and not is_own:
            default_name = request.handler if isinstance(request.handler, str) else row.name
            self._shapes[key] = _Shape(default_name, row.next_run_at, row.schedule, row[OWN_FIELDS:], row.labels)
        return row

    def _shaped(self, job_id: UUID, shard: int, request: JobRequest, shape: _Shape) -> NewJob:
        """The fields that are this job's own, in the order of `prepare`."""
        default_name, first, canonical, common, labels = shape
        name = default_name if request.name is None else checks.check_text("name", request.name, longest=200)
        payload = checks.payload_text(request.payload, limit=self._settings.payload_max_bytes)
        if request.policy.secret_fields:
            checks.check_secrets(request.payload, request.policy)
        if request.payload_ref is not None:
            checks.check_text("payload_ref", request.payload_ref, longest=2048)
        if isinstance(request.schedule, datetime):
            jitter = request.policy.jitter_seconds
            first, canonical = checks.plan_moment(request.schedule, job_id=job_id, jitter_seconds=jitter)
        fingerprint = None
        if request.dedupe_key is not None:
            checks.check_text("dedupe_key", request.dedupe_key, longest=200)
            fingerprint = checks.fingerprint(request, payload, labels, canonical)
        own = (job_id, shard, name, payload, request.payload_ref, request.dedupe_key, fingerprint, first, canonical)
        return NewJob._make(own + common)

    def _shape_key(self, request: JobRequest) -> tuple[object, ...] | None:
        """Jobs with equal keys differ in nothing but fields of their own. None: a rare kind, looked at by itself.

        Equal must mean the same. `True` is equal to 1, and the two moments of a doubled hour are equal to each other:
        such values are not compared.
        """
        priority, max_runs, schedule = request.priority, request.max_runs, request.schedule
        when: object = schedule
        if schedule is not None and type(schedule) is not str:
            if not isinstance(schedule, datetime):
                return None
            when = datetime
        if (
            type(request.handler) is not str
            or type(priority) is not int
            or (max_runs is not None and type(max_runs) is not int)
            or request.start_at is not None
            or request.end_at is not None
        ):
            return None
        policy = None if request.policy is DEFAULT_POLICY else self._policy_text(request.policy)
        labels = tuple(request.labels.items()) if request.labels else None
        return (
            request.handler,
            when,
            request.timezone,
            request.queue,
            request.tenant,
            priority,
            max_runs,
            policy,
            labels,
        )

    def _policy_text(self, policy: Policy) -> str | None:
        known = self._policies.get(id(policy))
        if known is None:
            known = self._policies[id(policy)] = (policy, policy.to_stored())
        return known[1]


def problems_of(
    request: JobRequest, *, now: datetime, payload_max_bytes: int | None = None, known: str | None = None
) -> list[InvalidInput]:
    """Every field that is wrong, each judged by itself. Only asked where something is: it does the work again.

    `known` is a field that is known to be wrong: a schedule that took too long is not worked out once more.
    """
    found: dict[str, InvalidInput] = {}

    def judge(check: Callable[[], object]) -> bool:
        try:
            check()
        except InvalidInput as error:
            found.setdefault(error.field, error)
            return False
        return True

    if isinstance(request.handler, Mapping):
        judge(partial(check_handler, request.handler))
    else:
        judge(partial(checks.check_text, "handler", request.handler, longest=200))
    texts = (("name", 200), ("payload_ref", 2048), ("queue", 100), ("tenant", 100), ("dedupe_key", 200))
    for name, longest in texts:
        value = getattr(request, name)
        if value is not None or name in ("queue", "tenant"):
            judge(partial(checks.check_text, name, value, longest=longest))
    if payload_max_bytes is not None:
        judge(partial(checks.payload_text, request.payload, limit=payload_max_bytes))
    judge(partial(checks.check_integer, "priority", request.priority, 0, 9))
    if request.max_runs is not None:
        judge(partial(checks.check_integer, "max_runs", request.max_runs, 1, 2**31 - 1))
    if request.labels:
        judge(partial(checks.check_labels, request.labels))
    chosen: dict[str, Any] = {name: getattr(request.policy, name) for name in POLICY_FIELDS}
    right = {
        name: value
        for name, value in chosen.items()
        if judge(partial(checks.check_policy, replace(DEFAULT_POLICY, **{name: value})))
    }
    if "secret_fields" in right:
        judge(partial(checks.check_secrets, request.payload, request.policy))
    zoned = judge(partial(load_zone, request.timezone))
    bounds = {name: getattr(request, name) for name in ("start_at", "end_at")}
    bounds = {name: value for name, value in bounds.items() if judge(partial(checks.check_moment, name, value))}
    if len(bounds) == 2 and None not in bounds.values() and bounds["end_at"] <= bounds["start_at"]:
        found.setdefault("end_at", InvalidInput("end_at", "must be after start_at"))
        bounds = {}
    # The schedule, with what of its surroundings is right.
    timing = replace(
        request,
        timezone=request.timezone if zoned else "UTC",
        policy=replace(DEFAULT_POLICY, **right),
        start_at=bounds.get("start_at"),
        end_at=bounds.get("end_at"),
    )
    if known != "schedule":
        judge(partial(checks.plan_schedule, timing, now=now, job_id=UUID(int=0), created_at=now))
    return list(found.values())


def prepare(job_id: UUID, request: JobRequest, now: datetime, *, settings: Settings, shard: int) -> NewJob:
    """Check every field and plan the first occurrence."""
    handler = request.handler
    target = None
    if isinstance(handler, Mapping):
        handler, target, default_name = check_handler(handler)
    else:
        default_name = checks.check_text("handler", handler, longest=200)
    name = default_name if request.name is None else checks.check_text("name", request.name, longest=200)
    payload = checks.payload_text(request.payload, limit=settings.payload_max_bytes)
    if request.payload_ref is not None:
        checks.check_text("payload_ref", request.payload_ref, longest=2048)
    checks.check_text("queue", request.queue, longest=100)
    checks.check_text("tenant", request.tenant, longest=100)
    checks.check_integer("priority", request.priority, 0, 9)
    if request.max_runs is not None:
        checks.check_integer("max_runs", request.max_runs, 1, 2**31 - 1)
    policy = checks.check_policy(request.policy)
    checks.check_secrets(request.payload, policy)
    labels = checks.check_labels(request.labels) if request.labels else None
    if request.start_at is not None or request.end_at is not None:
        start_at = checks.check_moment("start_at", request.start_at)
        end_at = checks.check_moment("end_at", request.end_at)
        if start_at is not None and end_at is not None and end_at <= start_at:
            raise InvalidInput("end_at", "must be after start_at")
        request = replace(request, start_at=start_at, end_at=end_at)
    plan = checks.plan_schedule(request, now=now, job_id=job_id, created_at=now)
    fingerprint = None
    if request.dedupe_key is not None:
        checks.check_text("dedupe_key", request.dedupe_key, longest=200)
        fingerprint = checks.fingerprint(request, payload, labels, plan.canonical)
    return NewJob(
        job_id,
        shard,
        name,
        payload,
        request.payload_ref,
        request.dedupe_key,
        fingerprint,
        plan.first,
        plan.canonical,
        request.tenant,
        handler,
        target,
        plan.kind,
        request.timezone,
        request.start_at,
        request.end_at,
        request.max_runs,
        request.queue,
        request.priority,
        policy.to_stored(),
        labels,
        plan.first is None,
    )
