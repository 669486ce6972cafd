"""Jobs that an application's code declares: submitted once, and brought up to date with the code at every deploy.

A deploy meets a job at any moment of its life. So it changes the job as a client's edit does (`JobOperations.rewrite`):
only fields that differ, the plan only if the timing differs, and nothing that a fire has decided meanwhile.

During a deploy, processes of several deploys run side by side and restart in any order. So `duly.declarations` keeps
the newest deploy that has declared each job. A declaration is compared with it and applied in one transaction, under
the lock of its row: an older deploy changes nothing, however late it wakes up. A store without that table is declared
to as before it existed, where the last process to start wins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from uuid import UUID

from duly.errors import Conflict, InvalidInput
from duly.model import Actor, Declarer, Job, JobRequest
from duly.operations.core import Core
from duly.operations.jobs import JobOperations
from duly.operations.notices import declared_but_cancelled
from duly.operations.preparing import check_rights
from duly.operations.revising import redefine
from duly.operations.rights import EVERYTHING
from duly.operations.submits import SubmitOperations
from duly.service import Service
from duly.store import declarations, jobs
from duly.store.declarations import Noted, Taken
from duly.store.jobs import ChangedJob, NewJob
from duly.store.pool import Querier

log = logging.getLogger("duly.worker")

_TRIES = 10
_MAX_NOTED = 1_000


@dataclass(frozen=True, slots=True)
class Declared:
    """The answer to a declaration.

    `older`: a newer deploy has declared the job, or no longer declares it. `foreign`: a live worker of another
    application declares it. `cancelled`: the job stays cancelled.
    """

    key: str
    job_id: UUID | None
    outcome: Literal["applied", "older", "foreign", "cancelled"] = "applied"
    message: str | None = None


class _Again(Exception):
    """The job was changed by others between the read and the write: the transaction begins anew."""


class DeclareOperations:
    """Declared jobs of one tenant."""

    def __init__(self, core: Core, tenant: str, *, jobs: JobOperations, submits: SubmitOperations) -> None:
        self._core = core
        self._pool = core.pool
        self._tenant = self.tenant = tenant
        self._jobs = jobs
        self._submits = submits

    async def declare(self, request: JobRequest) -> UUID:
        """Create the job of the request's dedupe_key, or change it to what the request says. Returns its id.

        Knows neither applications nor deploys: the last declaration wins. A paused job stays paused, a cancelled one
        stays cancelled.
        """
        row, now = await self._prepared(request)
        key = row.dedupe_key
        assert key is not None
        redefining = _Redefining(self._core, request, row, None)
        for _ in range(_TRIES):
            if await jobs.submit(self._pool, [row], created_at=now, note=self._code(None).note(tenant=self._tenant)):
                return row.job_id
            existing = await jobs.find_duplicates(self._pool, [(self._tenant, key)])
            if (found := existing.get((self._tenant, key))) is None:
                continue
            job_id, fingerprint = found
            if fingerprint == row.fingerprint:
                return job_id
            job, changed = await self._jobs.rewrite(
                job_id, redefining.revised, retimes=redefining.retimes, actor=self._code(None)
            )
            if changed or (job is not None and job.status == "cancelled"):
                return job_id
            # The job already is what the code says: an edit or another node of this deploy changed it.
            if job is not None and await jobs.agree(self._pool, job, fingerprint=row.fingerprint):
                return job_id
        raise Conflict(f"job {request.name or request.handler!r} is being redefined by others; try again")

    async def declare_all(
        self,
        requests: Sequence[JobRequest],
        by: Declarer,
        renamed_from: Mapping[str, Sequence[str]] | None = None,
    ) -> list[Declared]:
        """Declare jobs for a deploy of an application. `renamed_from`: by key, the keys that the job had before."""
        prepared = [(request, *await self._prepared(request)) for request in requests]
        if not await declarations.exist(self._pool):
            return [Declared(row.dedupe_key or "", await self.declare(request)) for request, row, _ in prepared]
        earlier = renamed_from or {}
        return [
            await self._declare(request, row, now, by, earlier.get(row.dedupe_key or "", ()))
            for request, row, now in prepared
        ]

    async def noted(self) -> list[Noted]:
        """Declared jobs that are cancelled, and jobs that no live deploy declares, active or paused for that reason."""
        if not await declarations.exist(self._pool):
            return []
        return await declarations.list_noted(self._pool, tenant=self._tenant, limit=_MAX_NOTED)

    async def astray(self, by: Declarer) -> set[str]:
        """Keys of this deploy's jobs that are not as it declared them; empty on a store without declarations."""
        if not await declarations.exist(self._pool):
            return set()
        return await declarations.astray(self._pool, tenant=self._tenant, by=by)

    async def _prepared(self, request: JobRequest) -> tuple[NewJob, datetime]:
        check_rights(request, EVERYTHING, await self._core.bounds(self._tenant))
        now = self._core.now()
        row = self._submits.prepare(request, now)
        if row.dedupe_key is None:
            raise InvalidInput("dedupe_key", "is required: a declared job is identified by it")
        if row.immediate:
            raise InvalidInput("schedule", "of a declared job must be a time or recurring, not now")
        return row, now

    async def _declare(
        self, request: JobRequest, row: NewJob, now: datetime, by: Declarer, earlier: Sequence[str]
    ) -> Declared:
        redefining = _Redefining(self._core, request, row, by)
        moved: list[UUID] = []

        async def write(within: Querier) -> Declared:
            moved.clear()
            return await self._declare_within(within, row, now, by, earlier, redefining, moved)

        for _ in range(_TRIES):
            try:
                declared = await self._pool.together(write)
            except _Again:
                continue
            for job_id in moved:
                await jobs.follow(self._pool, job_id=job_id)
            return declared
        raise Conflict(f"job {request.name or request.handler!r} is being redefined by others; try again")

    async def _declare_within(
        self,
        within: Querier,
        row: NewJob,
        now: datetime,
        by: Declarer,
        earlier: Sequence[str],
        redefining: _Redefining,
        moved: list[UUID],
    ) -> Declared:
        key = row.dedupe_key
        assert key is not None
        taken = await declarations.take(within, tenant=self._tenant, key=key, by=by)
        if taken is None:
            return await self._refused(within, key, by)
        job_id = await self._job_of(within, key, taken, by, earlier)
        if job_id is None:
            note = self._code(by).note(tenant=self._tenant, reason=by.described())
            if not await jobs.submit(within, [row], created_at=now, note=note):
                raise _Again  # a process that knows no declarations has made it meanwhile
            await self._bind(within, key, row.job_id, row)
            return Declared(key, row.job_id)
        # An edit keeps the fingerprint: where the code declares nothing new, the edit stays.
        redefining.known = await declarations.fingerprint_of(within, job_id=job_id, tenant=self._tenant)
        job, changed, change = await self._jobs.rewrite_within(
            within, job_id, redefining.revised, retimes=redefining.retimes, actor=self._code(by)
        )
        if job is None or (change is not None and changed is None):
            raise _Again
        if job.status == "cancelled":
            await self._bind(within, key, job_id, row)
            notice = declared_but_cancelled(job.name, job_id)
            return Declared(key, job_id, "cancelled", f"{notice.message}; {notice.next_step}")
        if change is None and not await jobs.agree(within, job, fingerprint=row.fingerprint):
            raise _Again
        current = changed or job
        if (job.queue, job.priority) != (current.queue, current.priority):
            moved.append(job_id)
        if taken.reason is not None and current.status == "paused" and current.status_reason == taken.reason:
            await self._jobs.resume_within(within, current, actor=self._code(by))
        await self._bind(within, key, job_id, row)
        return Declared(key, job_id)

    def _code(self, by: Declarer | None) -> Actor:
        """The application whose code declares, or the process if it has no name."""
        return replace(self._core.actor, via="code", name=(by.owner if by else "") or self._core.actor.name)

    async def _bind(self, within: Querier, key: str, job_id: UUID, row: NewJob) -> None:
        await declarations.bind(within, tenant=self._tenant, key=key, job_id=job_id, fingerprint=row.fingerprint)

    async def _job_of(
        self, within: Querier, key: str, taken: Taken, by: Declarer, earlier: Sequence[str]
    ) -> UUID | None:
        """The job that a key stands for: its own, or that of the name it had before; None if there is none yet."""
        if taken.renamed_to is not None and taken.job_id is not None:
            if taken.renamed_to in by.keys:
                # The renamed job is declared as well: the old name is another job's now.
                await declarations.pass_key(
                    within, tenant=self._tenant, job_id=taken.job_id, key=key, new_key=taken.renamed_to
                )
                return None
            # The rename was taken back, and the job with it.
            await self._take_over(within, taken.renamed_to, key, by)
            return taken.job_id
        if taken.job_id is not None and await jobs.get(within, job_id=taken.job_id, tenant=self._tenant) is not None:
            return taken.job_id
        found = await self._keyed(within, key)
        for old_key in () if found is not None else earlier:
            found = found or await self._take_over(within, old_key, key, by)
        return found

    async def _take_over(self, within: Querier, old_key: str, key: str, by: Declarer) -> UUID | None:
        """Note that the job of `old_key` is now that of `key`, so that an older deploy makes it anew under neither."""
        if old_key in by.keys:
            return None
        old = await declarations.take(within, tenant=self._tenant, key=old_key, by=by)
        if old is None or old.renamed_to not in (None, key):
            return None
        job_id = old.job_id or await self._keyed(within, old_key)
        await declarations.rename(within, tenant=self._tenant, key=old_key, job_id=job_id, renamed_to=key)
        return job_id

    async def _keyed(self, within: Querier, key: str) -> UUID | None:
        found = (await jobs.find_duplicates(within, [(self._tenant, key)])).get((self._tenant, key))
        return None if found is None else found[0]

    async def _refused(self, within: Querier, key: str, by: Declarer) -> Declared:
        newer = await declarations.get(within, tenant=self._tenant, key=key)
        if newer is None:
            raise _Again
        if newer.rank <= by.rank:
            return Declared(
                key,
                newer.job_id,
                "foreign",
                f"{key} is declared by live workers of app {newer.owner!r}, so this app's declaration is not applied; "
                "give the task another name",
            )
        what = "no longer declares it" if newer.undeclared_at else "has declared it"
        if newer.renamed_to is not None:
            what = f"has renamed it to {newer.renamed_to}"
        return Declared(
            key,
            newer.job_id,
            "older",
            f"{key} is not applied: this is {by.described()}, and deploy {newer.deploy} {what}; "
            "to go back on purpose, start with a newer DULY_DEPLOY",
        )


class _Redefining:
    """What a declaration makes of a stored job."""

    def __init__(self, core: Core, request: JobRequest, row: NewJob, by: Declarer | None) -> None:
        self._core = core
        self._request = request
        self._row = row
        self._by = by
        #: The fingerprint of what the job was last declared as.
        self.known: bytes | None = None

    def revised(self, job: Job, now: datetime) -> ChangedJob | None:
        if job.status == "cancelled" or self.known == self._row.fingerprint:
            return None
        return redefine(job, self._request, self._row, now=now, by=self._by)

    def retimes(self, job: Job) -> bool:
        change = self.revised(job, self._core.now())
        return change is not None and change.planned_anew


class DeclarationKeeper(Service):
    """Declares again what an old node has redefined: nodes of Duly 0.1 know no deploys, and the last to start wins.

    Also declares again what an asynchronous standby lacked when it was promoted, and records the declarations of this
    process when the store gets the table for them.
    """

    interval = 20.0

    def __init__(
        self,
        operations: DeclareOperations,
        requests: Sequence[JobRequest],
        by: Declarer,
        renamed_from: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__()
        self._operations = operations
        self._requests = requests
        self._by = by
        self._renamed_from = renamed_from

    async def run_once(self) -> float | None:
        astray = await self._operations.astray(self._by)
        again = [request for request in self._requests if request.dedupe_key in astray]
        if again:
            for declared in await self._operations.declare_all(again, self._by, self._renamed_from):
                if declared.outcome == "applied":
                    log.warning("%s was not as %s declares it (redefined by a node of Duly 0.1, or forgotten by a "
                                "promoted standby), and is again", declared.key, self._by.described())  # fmt: skip
        return None
