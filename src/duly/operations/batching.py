"""Registering for those who want an answer to each job: one with its job whole, or many of which some may be wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from duly.errors import Conflict, DulyError, Forbidden, InvalidInput, NotFound, StoreUnavailable, UnknownHandler
from duly.model import Job, JobRequest
from duly.operations.rights import EVERYTHING, Rights
from duly.operations.submitting import RESEND_SECONDS, SUBMIT_BATCH, Submitted, Submitting, check_rights
from duly.store import ids, jobs
from duly.store.jobs import NewJob
from duly.store.pool import Querier
from duly.turns import Turns


class Refused(Exception):
    """An atomic batch of which these were wrong; nothing is stored."""

    def __init__(self, errors: dict[int, DulyError]) -> None:
        super().__init__(f"{len(errors)} of the jobs were refused")
        self.errors = errors


class Batching(Submitting):
    async def register(
        self, request: JobRequest, *, allow_unknown_handler: bool = False, rights: Rights = EVERYTHING
    ) -> tuple[Job, bool]:
        """Submit one job and return it whole, and whether it is new. One statement, where nothing is in the way."""
        if await self._limited({request.tenant}):
            submitted = await self.submit(request, allow_unknown_handler=allow_unknown_handler, rights=rights)
            return await self._found(submitted, request.tenant)
        check_rights(request, rights, await self._bounds({request.tenant}))
        if not allow_unknown_handler:
            await self._check_handlers([request], rights)
        now = self._pool.clock.now()
        row = self._prepare(ids.new_job_ids(1, self._pool.clock.now_us())[0], request, now)
        try:
            job = await jobs.submit_one(self._pool, row, created_at=now)
            if job is not None:
                return job, True
            found = await self._results([row], set(), now, self._pool)
        except StoreUnavailable:
            # The answer may have been lost after the commit. The id is the same, so sending it again finds it out.
            await asyncio.sleep(RESEND_SECONDS)
            found = await self._store([row], now, None)
        return await self._found(found[0], request.tenant)

    async def _found(self, submitted: Submitted, tenant: str) -> tuple[Job, bool]:
        job = await jobs.get(self._pool, job_id=submitted.job_id, tenant=tenant)
        if job is None:
            raise NotFound(f"job {submitted.job_id} was removed at once")
        return job, submitted.created

    async def submit_each(
        self,
        requests: Sequence[JobRequest],
        *,
        tenant: str,
        atomic: bool = False,
        allow_unknown_handler: bool = False,
        rights: Rights = EVERYTHING,
    ) -> list[Submitted | DulyError]:
        """Register jobs, each by itself: what became of it, in their order.

        With `atomic` they are one transaction, and a single wrong one raises `Refused`. A limit of the tenant refuses
        them all either way, because which of them fit would be chance.
        """
        now = self._pool.clock.now()
        answers: list[Submitted | DulyError | None] = [None] * len(requests)
        rows: list[NewJob] = []
        places: list[int] = []
        bounds = await self._bounds({request.tenant for request in requests})
        unknown = {} if allow_unknown_handler else await self._unknown_handlers(requests)
        job_ids = ids.new_job_ids(len(requests), self._pool.clock.now_us())
        preparing = self._preparing(now)
        turns = Turns()
        for index, (job_id, request) in enumerate(zip(job_ids, requests, strict=True)):
            await turns.give()
            try:
                check_rights(request, rights, bounds)
                if isinstance(request.handler, str) and (error := unknown.get(request.handler)) is not None:
                    raise error
                rows.append(preparing.prepare(job_id, request))
                places.append(index)
            except (InvalidInput, Forbidden) as error:
                # Without where it was raised: there may be ten thousand, and frames hold a lot.
                error.__traceback__ = error.__cause__ = error.__context__ = None
                answers[index] = error
        if atomic:
            _refuse(answers)
        limited = await self._limited({tenant})
        if atomic or limited:
            stored = await self._store_together(rows, now, atomic=atomic, limited=limited)
        else:
            batches = [rows[start : start + SUBMIT_BATCH] for start in range(0, len(rows), SUBMIT_BATCH)]
            room = asyncio.Semaphore(2)

            async def store(batch: Sequence[NewJob]) -> list[Submitted | DulyError]:
                async with room:
                    created = await self._submit_surely(batch, now)
                    return await self._settle(batch, created, now, self._pool)

            stored = [one for found in await asyncio.gather(*map(store, batches)) for one in found]
        for place, one in zip(places, stored, strict=True):
            answers[place] = one
        if atomic:
            _refuse(answers)
        return [answer for answer in answers if answer is not None]

    async def _store_together(
        self, rows: Sequence[NewJob], now: datetime, *, atomic: bool, limited: Collection[str]
    ) -> list[Submitted | DulyError]:
        """In one transaction; with a limit, one that holds the tenant's row while it counts."""

        async def store(within: Querier) -> list[Submitted | DulyError]:
            if limited:
                await self._check_room(within, rows, limited)
            created: set[UUID] = set()
            for start in range(0, len(rows), SUBMIT_BATCH):
                created |= await jobs.submit(within, rows[start : start + SUBMIT_BATCH], created_at=now)
            if limited:
                await self._take_places(within, rows, created, limited)
            settled = await self._settle(rows, created, now, within)
            if atomic:
                # Raised inside, so that the transaction is undone.
                _refuse(settled)
            return settled

        if not rows:
            return []
        return await self._together(store, rows, limited)

    async def _settle(
        self, rows: Sequence[NewJob], created: set[UUID], now: datetime, store: Querier
    ) -> list[Submitted | DulyError]:
        """What each row came to. Those not stored have a dedupe_key that is taken; most are found in one look."""
        if len(created) == len(rows):
            return [Submitted(row.job_id, created=True) for row in rows]
        keyed = [row for row in rows if row.job_id not in created and row.dedupe_key is not None]
        found = (
            await jobs.find_duplicates(store, [(row.tenant, row.dedupe_key or "") for row in keyed]) if keyed else {}
        )
        settled: list[Submitted | DulyError] = []
        for row in rows:
            existing = None if row.dedupe_key is None else found.get((row.tenant, row.dedupe_key))
            if row.job_id in created or row.dedupe_key is None or (existing and existing[0] == row.job_id):
                settled.append(Submitted(row.job_id, created=True))
            elif existing is not None and existing[1] == row.fingerprint:
                settled.append(Submitted(existing[0], created=False))
            elif existing is not None:
                taken = f"dedupe_key {row.dedupe_key!r} is taken by job {existing[0]}, whose content is different"
                settled.append(Conflict(taken))
            else:
                # It was there and is gone.
                try:
                    settled += await self._resolve_duplicates([row], created, now, store)
                except Conflict as error:
                    settled.append(error)
        return settled

    async def _unknown_handlers(self, requests: Sequence[JobRequest]) -> dict[str, InvalidInput]:
        """The tasks that nobody has, each with its refusal."""
        try:
            await self._check_handlers(requests, EVERYTHING)
        except UnknownHandler:
            asked = {request.handler for request in requests if isinstance(request.handler, str)}
            return {
                handler: UnknownHandler(f"no worker has a task {handler[:200]!r}; start a worker that has it")
                for handler in asked - set(self._local_handlers) - self._store_handlers
            }
        return {}


def _refuse(answers: Sequence[Submitted | DulyError | None]) -> None:
    if errors := {index: answer for index, answer in enumerate(answers) if isinstance(answer, DulyError)}:
        raise Refused(errors)
