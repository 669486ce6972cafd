"""Submitting jobs: checked whole before anything is stored, and safe to send again.

`SubmitOperations.submit` is for one job and returns it whole, `submit_many` for many of which none may be wrong,
`submit_each` for many of which each has an answer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from duly.errors import (
    Conflict,
    DulyError,
    Forbidden,
    InvalidInput,
    LimitReached,
    NotFound,
    StoreBusy,
    StoreUnavailable,
    UnknownHandler,
)
from duly.model import Actor, JobRequest, Submitted, SubmittedId
from duly.operations.core import Core
from duly.operations.preparing import (
    NOTHING_OFFERED,
    Offered,
    Preparing,
    check_rights,
    defaults_of,
    may_refuse,
    prepare,
    problems_of,
)
from duly.operations.rights import EVERYTHING, Bounds, Rights
from duly.store import copying, ids, jobs, tenants
from duly.store.jobs import NewJob
from duly.store.pool import Querier
from duly.tracing import Submit, submitting
from duly.turns import Turns

T = TypeVar("T")

# Jobs per statement: enough to amortise the round trip, few enough for a short statement.
SUBMIT_BATCH = 2_500
# Seconds before a submit whose answer was lost is sent again: long enough for a connection to be made anew.
RESEND_SECONDS = 0.2
# Seconds that a submit of a tenant with a limit waits for other submits of the same tenant in this process.
LOCK_SECONDS = 10.0
# Batches of one call that are stored at the same time, so that one is encoded while the other is stored.
_BATCHES_AT_ONCE = 2


class BatchRefused(Exception):
    """An atomic batch in which the jobs of these indexes are wrong; nothing is stored."""

    def __init__(self, errors: dict[int, DulyError]) -> None:
        super().__init__(f"{len(errors)} of the jobs were refused")
        self.errors = errors


class SubmitOperations:
    """New jobs of one tenant."""

    def __init__(self, core: Core, tenant: str, actor: Actor) -> None:
        self._core = core
        self._actor = actor
        self._pool = core.pool
        self._settings = core.settings
        self._tenant = tenant

    async def submit(
        self, request: JobRequest, *, allow_unknown_handler: bool = False, rights: Rights = EVERYTHING
    ) -> Submitted:
        """Submit one job and return it whole. One statement, unless the tenant has a limit."""
        if await self._is_limited():
            many = await self.submit_many([request], allow_unknown_handler=allow_unknown_handler, rights=rights)
            return await self._whole_job(many[0])
        with submitting(1) as trace:
            return await self._submit_one(request, allow_unknown_handler, rights, trace)

    async def _submit_one(
        self, request: JobRequest, allow_unknown_handler: bool, rights: Rights, trace: Submit
    ) -> Submitted:
        bounds, offered, unknown = await self._facts([request], allow_unknown_handler=allow_unknown_handler)
        check_rights(request, rights, bounds, offered)
        self._refuse_unknown(unknown, rights)
        now = self._core.now()
        preparing = self._preparing(now, offered)
        try:
            row = preparing.prepare_one(self._new_id(), request)
        except InvalidInput as error:
            raise self._with_all_problems(error, request, now, offered) from error.__cause__
        trace.prepared([row])
        try:
            job = await jobs.submit_one(self._pool, row, created_at=now, trace=trace.stored, note=self._note(preparing))
            if job is not None:
                return Submitted(job, created=True)
            found = await self._results([row], set(), preparing, self._pool, trace)
        except StoreUnavailable:
            # The answer may have been lost after the commit. The id is the same, so sending it again finds it out.
            await asyncio.sleep(RESEND_SECONDS)
            found = await self._store([row], preparing, None, trace)
        return await self._whole_job(found[0])

    async def _whole_job(self, submitted: SubmittedId) -> Submitted:
        job = await jobs.get(self._pool, job_id=submitted.job_id, tenant=self._tenant)
        if job is None:
            raise NotFound(f"job {submitted.job_id} was removed at once")
        return Submitted(job, submitted.created)

    async def submit_many(
        self,
        requests: Sequence[JobRequest],
        *,
        allow_unknown_handler: bool = False,
        rights: Rights = EVERYTHING,
        within: Querier | None = None,
    ) -> list[SubmittedId]:
        """Submit jobs. All are checked before the first is stored; one that is wrong refuses them all."""
        with submitting(len(requests)) as trace:
            return await self._submit_many(requests, allow_unknown_handler, rights, within, trace)

    async def _submit_many(
        self,
        requests: Sequence[JobRequest],
        allow_unknown_handler: bool,
        rights: Rights,
        within: Querier | None,
        trace: Submit,
    ) -> list[SubmittedId]:
        bounds, offered, unknown = await self._facts(requests, allow_unknown_handler=allow_unknown_handler)
        for index, request in enumerate(requests if may_refuse(rights, bounds) else ()):
            try:
                check_rights(request, rights, bounds, offered)
            except Forbidden as error:
                if len(requests) > 1:
                    raise Forbidden(error.message, field=f"jobs[{index}].{error.field}") from error
                raise
        self._refuse_unknown(unknown, rights)
        now = self._core.now()
        job_ids = ids.new_job_ids(len(requests), self._pool.clock.now_us())
        preparing = self._preparing(now, offered)
        rows = []
        turns = Turns()
        for index, (job_id, request) in enumerate(zip(job_ids, requests, strict=True)):
            await turns.give()
            try:
                rows.append(preparing.prepare(job_id, request))
            except InvalidInput as error:
                if len(requests) > 1:
                    raise InvalidInput(f"jobs[{index}].{error.field}", error.message) from error
                raise self._with_all_problems(error, request, now, offered) from error.__cause__
        trace.prepared(rows)
        if await self._is_limited():
            return await self._store_within_limit(rows, preparing, within, trace)
        if within is not None:
            return [one for batch in _batches(rows) for one in await self._store(batch, preparing, within, trace)]
        return await self._in_batches(rows, lambda batch: self._store(batch, preparing, None, trace))

    async def submit_each(
        self,
        requests: Sequence[JobRequest],
        *,
        atomic: bool = False,
        allow_unknown_handler: bool = False,
        rights: Rights = EVERYTHING,
    ) -> list[SubmittedId | DulyError]:
        """Submit jobs, each by itself, and return an answer for each in their order.

        With `atomic` they are one transaction, and a single wrong one raises `BatchRefused`. A limit of the tenant
        refuses them all either way, because which of them fit would be chance.
        """
        with submitting(len(requests)) as trace:
            return await self._submit_each(requests, atomic, allow_unknown_handler, rights, trace)

    async def _submit_each(
        self, requests: Sequence[JobRequest], atomic: bool, allow_unknown_handler: bool, rights: Rights, trace: Submit
    ) -> list[SubmittedId | DulyError]:
        now = self._core.now()
        answers: list[SubmittedId | DulyError | None] = [None] * len(requests)
        rows: list[NewJob] = []
        indexes: list[int] = []
        bounds, offered, unknown = await self._facts(requests, allow_unknown_handler=allow_unknown_handler)
        refused = self._refusals(unknown)
        job_ids = ids.new_job_ids(len(requests), self._pool.clock.now_us())
        preparing = self._preparing(now, offered)
        turns = Turns()
        for index, (job_id, request) in enumerate(zip(job_ids, requests, strict=True)):
            await turns.give()
            try:
                check_rights(request, rights, bounds, offered)
                if isinstance(request.handler, str) and (error := refused.get(request.handler)) is not None:
                    raise error
                rows.append(preparing.prepare(job_id, request))
                indexes.append(index)
            except (InvalidInput, Forbidden) as error:
                # Without where it was raised: there may be ten thousand, and frames hold a lot.
                error.__traceback__ = error.__cause__ = error.__context__ = None
                answers[index] = error
        if atomic:
            _refuse(answers)
        trace.prepared(rows)
        limited = await self._is_limited()
        if atomic or limited:
            stored = await self._store_together(rows, preparing, trace, atomic=atomic, limited=limited)
        else:

            async def store(batch: Sequence[NewJob]) -> list[SubmittedId | DulyError]:
                created = await self._submit_surely(batch, preparing, trace)
                return await self._settle(batch, created, preparing, self._pool, trace)

            stored = await self._in_batches(rows, store)
        for index, one in zip(indexes, stored, strict=True):
            answers[index] = one
        if atomic:
            _refuse(answers)
        return [answer for answer in answers if answer is not None]

    def prepare(self, request: JobRequest, now: datetime) -> NewJob:
        """The row for one job that code declares, checked and planned. The code decides, and not what workers offer."""
        job_id = self._new_id()
        shard = ids.shard_of(job_id, self._core.shard_count)
        try:
            return prepare(job_id, request, now, tenant=self._tenant, settings=self._settings, shard=shard)
        except InvalidInput as error:
            raise self._with_all_problems(error, request, now) from error.__cause__

    def _note(self, preparing: Preparing) -> str | None:
        return self._actor.note(tenant=self._tenant) if preparing.noted else None

    def _new_id(self) -> UUID:
        return ids.new_job_ids(1, self._pool.clock.now_us())[0]

    def _preparing(self, now: datetime, offered: Offered) -> Preparing:
        return Preparing(
            now, tenant=self._tenant, settings=self._settings, shard_count=self._core.shard_count, offered=offered
        )

    def _with_all_problems(
        self, error: InvalidInput, request: JobRequest, now: datetime, offered: Offered = NOTHING_OFFERED
    ) -> InvalidInput:
        """The error together with every other wrong field, so that the caller can correct all of them at once."""
        found = problems_of(
            request,
            now=now,
            payload_max_bytes=self._settings.payload_max_bytes,
            known=error.field,
            defaults=defaults_of(request, offered),
        )
        return error.beside([one for one in found if one.field != error.field])

    # Handlers

    async def check_known(self, handler: object, rights: Rights) -> None:
        """Refuse a task that no worker has."""
        if isinstance(handler, str):
            _, _, unknown = await self._facts([JobRequest(handler)])
            self._refuse_unknown(unknown, rights)

    async def _facts(
        self, requests: Sequence[JobRequest], *, allow_unknown_handler: bool = False
    ) -> tuple[Bounds | None, Offered, set[str]]:
        """The tenant's bounds, the defaults of the workers' tasks, and the tasks to refuse, which no worker has."""
        bounds = await self._core.bounds(self._tenant)
        unknown: set[str] = set()
        if not allow_unknown_handler and (unknown := self._unknown(requests)):
            # A task that is new has its defaults from the same answer.
            await self._core.read_handlers()
            unknown = self._unknown(requests)
        return bounds, self._core.offered, unknown

    def _unknown(self, requests: Sequence[JobRequest]) -> set[str]:
        asked = {request.handler for request in requests if isinstance(request.handler, str)}
        return asked - set(self._core.local_handlers) - self._core.store_handlers

    def _refuse_unknown(self, unknown: set[str], rights: Rights) -> None:
        """Refuse a task that no worker has, while the misspelt name is still on its author's screen.

        The known tasks are named only to callers that may see the whole store.
        """
        if not unknown:
            return
        known = sorted({*self._core.local_handlers, *self._core.store_handlers})
        # A store that has never seen a worker knows no tasks: nothing can be told from that.
        if known:
            shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
            others = f" (known: {shown})" if rights.whole_store else ""
            raise UnknownHandler(
                f"no worker has a task {min(unknown)[:200]!r}{others}; start a worker that has it, or allow unknown "
                "handlers"
            )

    def _refusals(self, unknown: set[str]) -> dict[str, InvalidInput]:
        """The tasks that no worker has, each with its refusal."""
        try:
            self._refuse_unknown(unknown, EVERYTHING)
        except UnknownHandler:
            return {
                handler: UnknownHandler(f"no worker has a task {handler[:200]!r}; start a worker that has it")
                for handler in unknown
            }
        return {}

    # Storing

    async def _in_batches(
        self, rows: Sequence[NewJob], store: Callable[[Sequence[NewJob]], Awaitable[list[T]]]
    ) -> list[T]:
        at_once = asyncio.Semaphore(_BATCHES_AT_ONCE)

        async def store_one(batch: Sequence[NewJob]) -> list[T]:
            async with at_once:
                return await store(batch)

        return [one for stored in await asyncio.gather(*map(store_one, _batches(rows))) for one in stored]

    async def _store(
        self, rows: Sequence[NewJob], preparing: Preparing, within: Querier | None, trace: Submit
    ) -> list[SubmittedId]:
        now, note = preparing.now, self._note(preparing)
        if within is None:
            created = await self._submit_surely(rows, preparing, trace)
        elif copying.can_copy(within, rows):
            created = await copying.copy(within, rows, created_at=now, trace=trace.stored, note=note)
        else:
            created = await jobs.submit(within, rows, created_at=now, trace=trace.stored, note=note)
        return await self._results(rows, created, preparing, within or self._pool, trace)

    async def _submit_surely(self, rows: Sequence[NewJob], preparing: Preparing, trace: Submit) -> set[UUID]:
        """An answer that was lost says nothing about the statement; ids made here make sending it again safe."""
        now, note = preparing.now, self._note(preparing)
        try:
            if copying.can_copy(self._pool, rows):
                return await copying.copy(self._pool, rows, created_at=now, trace=trace.stored, note=note)
            return await jobs.submit(self._pool, rows, created_at=now, trace=trace.stored, note=note)
        except StoreUnavailable:
            await asyncio.sleep(RESEND_SECONDS)
            # Never by a copy: the statement skips rows that exist, and waits for a first attempt still under way.
            await jobs.submit(self._pool, rows, created_at=now, trace=trace.stored, note=note)
            plain = {row.job_id for row in rows if row.dedupe_key is None}
            keyed = [row for row in rows if row.dedupe_key is not None]
            found = await self._duplicates(keyed, self._pool)
            return plain | {row.job_id for row in keyed if found[row.dedupe_key or ""][0] == row.job_id}

    # Limits

    async def _is_limited(self) -> bool:
        """Whether the tenant's jobs are counted."""
        return self._settings.tenant_max_jobs is not None or (await self._core.known(self._tenant)).counted

    async def _store_within_limit(
        self, rows: Sequence[NewJob], preparing: Preparing, within: Querier | None, trace: Submit
    ) -> list[SubmittedId]:
        """Store all jobs or none, in one transaction."""

        async def store(within: Querier) -> list[SubmittedId]:
            await self._check_slots(within, rows)
            results = []
            for batch in _batches(rows):
                created = await jobs.submit(
                    within, batch, created_at=preparing.now, trace=trace.stored, note=self._note(preparing)
                )
                await self._take_slots(within, batch, created)
                results += await self._results(batch, created, preparing, within, trace)
            return results

        return await (store(within) if within is not None else self._transact(store, rows, limited=True))

    async def _store_together(
        self, rows: Sequence[NewJob], preparing: Preparing, trace: Submit, *, atomic: bool, limited: bool
    ) -> list[SubmittedId | DulyError]:
        """Store the jobs in one transaction; with a limit, one that holds the tenant's row while it counts."""

        async def store(within: Querier) -> list[SubmittedId | DulyError]:
            if limited:
                await self._check_slots(within, rows)
            created: set[UUID] = set()
            for batch in _batches(rows):
                created |= await jobs.submit(
                    within, batch, created_at=preparing.now, trace=trace.stored, note=self._note(preparing)
                )
            if limited:
                await self._take_slots(within, rows, created)
            settled = await self._settle(rows, created, preparing, within, trace)
            if atomic:
                # Raised inside, so that the transaction is undone.
                _refuse(settled)
            return settled

        return await self._transact(store, rows, limited=limited) if rows else []

    async def _transact(self, store: Callable[[Querier], Awaitable[T]], rows: Sequence[NewJob], *, limited: bool) -> T:
        """One transaction, sent again if its answer was lost: the ids are the same, so the second finds the first.

        Only one submit of a tenant with a limit has a connection at a time: however many wait for the tenant's row,
        other tenants are served.
        """
        if not limited:
            return await self._transact_surely(store)
        try:
            async with self._submit_lock():
                return await self._transact_surely(store)
        except LimitReached:
            # The transaction's findings about ended jobs were undone with the rest. These are kept, so that the next
            # look goes on from there, or need not be.
            with suppress(StoreUnavailable):
                await self._free_slots(self._pool, len(rows))
            raise

    async def _transact_surely(self, store: Callable[[Querier], Awaitable[T]]) -> T:
        try:
            return await self._pool.together(store)
        except StoreBusy:
            raise
        except StoreUnavailable:
            await asyncio.sleep(RESEND_SECONDS)
            return await self._pool.together(store)

    @asynccontextmanager
    async def _submit_lock(self) -> AsyncIterator[None]:
        lock = self._core.submit_lock(self._tenant)
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                await lock.acquire()
        except TimeoutError as error:
            raise tenants.busy(self._tenant) from error
        try:
            yield
        finally:
            lock.release()

    async def _free_slots(self, within: Querier, wanted: int) -> int | None:
        """How many more jobs the tenant may have; None: any number."""
        most = self._settings.tenant_max_jobs
        return await tenants.free_slots(within, tenant=self._tenant, wanted=wanted, default_max=most)

    async def _check_slots(self, within: Querier, rows: Sequence[NewJob]) -> None:
        """Refuse the jobs if they exceed the tenant's limit. Locks the tenant's row: its other submits wait."""
        free = await self._free_slots(within, len(rows))
        if free is None or len(rows) <= free:
            return
        new = await tenants.count_new(within, tenant=self._tenant, rows=rows)
        if new > free:
            raise LimitReached(
                f"tenant {self._tenant!r} may have {free} more active or paused jobs, and {new} were submitted: cancel "
                "some, or raise the limit with: duly tenant set"
            )

    async def _take_slots(self, within: Querier, rows: Sequence[NewJob], created: Collection[UUID]) -> None:
        if taking := [row.job_id for row in rows if row.job_id in created]:
            await tenants.take(within, tenant=self._tenant, job_ids=taking)

    # Duplicates

    async def _duplicates(self, rows: Sequence[NewJob], store: Querier) -> dict[str, tuple[UUID, bytes | None]]:
        """The jobs that have the dedupe_keys of these rows, with their fingerprints."""
        found = await jobs.find_duplicates(store, [(self._tenant, row.dedupe_key or "") for row in rows])
        return {key: job for (_, key), job in found.items()}

    async def _results(
        self, rows: Sequence[NewJob], created: set[UUID], preparing: Preparing, store: Querier, trace: Submit
    ) -> list[SubmittedId]:
        """The job that each row came to. A row that was not stored has a dedupe_key that is taken."""
        if len(created) == len(rows):
            return [SubmittedId(row.job_id, created=True) for row in rows]
        results = []
        for row in rows:
            if row.job_id in created or row.dedupe_key is None:
                results.append(SubmittedId(row.job_id, created=True))
                continue
            for _ in range(5):
                existing = await self._duplicates([row], store)
                if existing or await jobs.submit(
                    store, [row], created_at=preparing.now, trace=trace.stored, note=self._note(preparing)
                ):
                    break
                # The key's job was removed after the submit and before this look: submit again.
            job_id, fingerprint = existing.get(row.dedupe_key, (row.job_id, row.fingerprint))
            if job_id != row.job_id and not preparing.is_same(row, fingerprint):
                raise _taken(row, job_id)
            results.append(SubmittedId(job_id, created=job_id == row.job_id))
        return results

    async def _settle(
        self, rows: Sequence[NewJob], created: set[UUID], preparing: Preparing, store: Querier, trace: Submit
    ) -> list[SubmittedId | DulyError]:
        """`_results` with an error for each row whose dedupe_key is taken by other content. Most need one look."""
        if len(created) == len(rows):
            return [SubmittedId(row.job_id, created=True) for row in rows]
        keyed = [row for row in rows if row.job_id not in created and row.dedupe_key is not None]
        found = await self._duplicates(keyed, store) if keyed else {}
        settled: list[SubmittedId | DulyError] = []
        for row in rows:
            existing = None if row.dedupe_key is None else found.get(row.dedupe_key)
            if row.job_id in created or row.dedupe_key is None or (existing and existing[0] == row.job_id):
                settled.append(SubmittedId(row.job_id, created=True))
            elif existing is not None and preparing.is_same(row, existing[1]):
                settled.append(SubmittedId(existing[0], created=False))
            elif existing is not None:
                settled.append(_taken(row, existing[0]))
            else:
                # The key's job was removed after the submit and before this look.
                try:
                    settled += await self._results([row], set(), preparing, store, trace)
                except Conflict as error:
                    settled.append(error)
        return settled


def _batches(rows: Sequence[NewJob]) -> list[Sequence[NewJob]]:
    return [rows[start : start + SUBMIT_BATCH] for start in range(0, len(rows), SUBMIT_BATCH)]


def _taken(row: NewJob, job_id: UUID) -> Conflict:
    return Conflict(f"dedupe_key {row.dedupe_key!r} is taken by job {job_id}, whose content is different")


def _refuse(answers: Sequence[SubmittedId | DulyError | None]) -> None:
    if errors := {index: answer for index, answer in enumerate(answers) if isinstance(answer, DulyError)}:
        raise BatchRefused(errors)
