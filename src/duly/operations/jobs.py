"""Jobs that are in the store: found, listed, changed, paused, resumed, triggered, cancelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly import checks
from duly.errors import Conflict, InvalidInput, NotFound
from duly.model import Actor, Job, Occurrence, Page, Run, id_range, make_run_id, only_match
from duly.operations.core import INVALID_CURSOR, MAX_PAGE, Core, check_reason, timetable_of, to_job_id
from duly.operations.revising import noted_change, revise, touches_timing
from duly.operations.rights import EVERYTHING, Rights
from duly.operations.runs import RunOperations
from duly.operations.submits import SubmitOperations
from duly.operations.upcoming import MAX_OCCURRENCES, upcoming
from duly.states import RunFlag
from duly.store import declarations, jobs
from duly.store.jobs import ChangedJob
from duly.store.pool import Querier
from duly.timing import forget_zones, plan_resume

# Jobs that a search by a person's text returns at most, and rows that each of its statements reads at most. A search
# reads to the end: a person who looks for one job waits as long as it takes.
_MAX_FOUND = 5
_MAX_ROWS_TO_FIND = 200_000
# Statements that one page may take at most, when the first ones find no job and yet do not reach the end.
_MAX_LOOKS = 5


class JobOperations:
    """One tenant's jobs."""

    def __init__(self, core: Core, tenant: str, runs: RunOperations, actor: Actor) -> None:
        self._core = core
        self._pool = core.pool
        self._tenant = tenant
        self._runs = runs
        self._actor = actor

    async def get(self, job_id: str) -> Job:
        job = await jobs.get(self._pool, job_id=to_job_id(job_id), tenant=self._tenant)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return job

    async def find(self, text: str) -> Job:
        """The one job that a person means by an id, the beginning of an id, or a name."""
        return only_match(text, await self.candidates(text))

    async def candidates(self, text: str) -> list[Job]:
        """The jobs, newest first and at most 5, that have this id, an id that begins so, or this name."""
        checks.check_text("find", text, longest=200)
        found: dict[UUID, Job] = {}
        if (ids := id_range(text)) is not None:
            low, high = ids
            found = {
                job.job_id: job for job in await jobs.with_ids(self._pool, low=low, high=high, tenant=self._tenant)
            }
        wanted = jobs.Wanted(self._tenant, name=text)
        while True:
            listed = await jobs.list_ids(self._pool, wanted, limit=_MAX_FOUND, looked_at=_MAX_ROWS_TO_FIND)
            found |= {job.job_id: job for job in await jobs.page(self._pool, listed.job_ids, tenant=self._tenant)}
            if listed.stop is None or len(found) >= _MAX_FOUND:
                return sorted(found.values(), key=lambda job: job.job_id, reverse=True)[:_MAX_FOUND]
            wanted = replace(wanted, before=listed.stop)

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
        """One page of jobs, newest first. A page ends at `limit`, at 4 MiB, or where a statement has read its maximum
        of rows: it may be empty and yet not the last. Without `payload` the payload of each job is None."""
        if status is not None and status not in ("active", "paused", "completed", "cancelled"):
            raise InvalidInput("status", f"must be active, paused, completed or cancelled, not {status[:40]!r}")
        limit = checks.check_integer("limit", limit, 1, MAX_PAGE)
        before = None if cursor is None else _read_cursor(cursor)
        for field, value in (("queue", queue), ("name", name)):
            if value is not None:
                checks.check_text(field, value, longest=200)
        if label:
            checks.check_labels(label)
        wanted = jobs.Wanted(self._tenant, status, queue, name, dict(label) if label else None, before)
        listed = await jobs.list_ids(self._pool, wanted, limit=limit + 1)
        for _ in range(_MAX_LOOKS - 1):
            if listed.job_ids or listed.stop is None:
                break
            listed = await jobs.list_ids(self._pool, replace(wanted, before=listed.stop), limit=limit + 1)
        asked = listed.job_ids[:limit]
        found = await jobs.page(self._pool, asked, tenant=self._tenant, payload=payload)
        stop = listed.stop
        if len(listed.job_ids) > limit:
            stop = asked[-1]
        if found and found[-1].job_id != asked[-1]:
            stop = found[-1].job_id
        return Page(found, None if stop is None else str(stop))

    async def upcoming(self, job_id: str, *, count: int = 10) -> list[Occurrence]:
        """A job's next occurrences, as `upcoming` lists them."""
        checks.check_integer("count", count, 1, MAX_OCCURRENCES)
        return upcoming(await self.get(job_id), count=count)

    async def change(
        self,
        job_id: str,
        changes: Mapping[str, Any],
        *,
        expected_version: int | None = None,
        rights: Rights = EVERYTHING,
        reason: str | None = None,
    ) -> Job:
        """Set the fields in `changes`, by their names in the job.

        A change of the timing (schedule, zone, bounds, DST rules, jitter) plans anew from the next future occurrence;
        `revising` says how overdue occurrences are recorded. An interval keeps its anchor unless start_at changes. Runs
        that wait in the queue follow the job's queue and priority. A paused job stays paused. With
        `expected_version`, a job that was changed since is a conflict. The job keeps its dedupe_key together with the
        content it was submitted with, so that sending the same submit again still finds it. A job that runs a command
        cannot be changed without the right to submit commands: its payload, queue and keys decide what it does and
        where, as its arguments do; nor can another job be made one. The tenant's bounds apply in the same way.
        Runs that wait have the job's handler, also a new one.
        """
        check_reason(reason)
        bounds = await self._core.bounds(self._tenant)
        if "handler" in changes:
            await SubmitOperations(self._core, self._tenant, self._actor).check_known(changes["handler"], rights)

        def revised(job: Job, now: datetime) -> ChangedJob | None:
            rights.check_handler(job.handler, doing="changing")
            handler = changes.get("handler", job.handler)
            rights.check_handler(handler)
            if bounds is not None:
                bounds.check(handler, changes.get("queue", job.queue))
            if expected_version is not None and job.version != expected_version:
                raise Conflict(f"job {job_id} was changed by others: it has version {job.version} now")
            if job.status in ("completed", "cancelled"):
                raise Conflict(f"job {job_id} cannot be changed: it is {job.status}")
            if job.unreadable is not None:
                raise Conflict(f"job {job_id} cannot be changed: {job.unreadable}; cancel it and submit it anew")
            return revise(job, changes, now=now, payload_max_bytes=self._core.settings.payload_max_bytes)

        changed, _ = await self.rewrite(
            to_job_id(job_id), revised, retimes=lambda _: touches_timing(changes), reason=reason
        )
        if changed is None:
            raise NotFound(f"there is no job {job_id}")
        return changed

    async def rewrite(
        self,
        job_id: UUID,
        revised: Callable[[Job, datetime], ChangedJob | None],
        *,
        retimes: Callable[[Job], bool],
        actor: Actor | None = None,
        reason: str | None = None,
    ) -> tuple[Job | None, bool]:
        """Replace the job by the row that `revised` makes of it. Returns the job, or None if there is none, and whether
        it changed.

        If the job is changed between the read and the write, or fired although the change plans anew, both are
        repeated. `revised` returns None if there is nothing to change; `retimes` says whether it may plan anew.
        `actor`: who does it, if it is not the caller.
        """

        async def write(within: Querier) -> tuple[Job | None, Job | None, ChangedJob | None]:
            return await self.rewrite_within(within, job_id, revised, retimes=retimes, actor=actor, reason=reason)

        for _ in range(10):
            job, changed, change = await self._pool.together(write)
            if change is None:
                return job, False
            if changed is not None and job is not None:
                if (job.queue, job.priority) != (changed.queue, changed.priority):
                    await jobs.follow(self._pool, job_id=job_id)
                return changed, True
            # The job was changed between the read and the write: read it again.
        raise Conflict(f"job {job_id} is being changed by others; try again")

    async def rewrite_within(
        self,
        within: Querier,
        job_id: UUID,
        revised: Callable[[Job, datetime], ChangedJob | None],
        *,
        retimes: Callable[[Job], bool],
        actor: Actor | None = None,
        reason: str | None = None,
    ) -> tuple[Job | None, Job | None, ChangedJob | None]:
        """One try of `rewrite` within a transaction: the job as it was read and as it is written, and the change.

        Written is None if the job was changed since it was read.
        """
        job = await jobs.get(within, job_id=job_id, tenant=self._tenant)
        now = self._pool.clock.now()
        if job is not None and retimes(job):
            # Taken back first: the new plan is made from the job without its occurrence that was fired ahead.
            await jobs.retract(within, job_id=job_id, tenant=self._tenant)
            job = await jobs.get(within, job_id=job_id, tenant=self._tenant)
            now = await self._plan_from(within, job_id)
        change = None if job is None else revised(job, now)
        if change is None:
            return job, job, None
        noted = noted_change(change, actor or self._actor, reason=reason)
        return job, await jobs.change(within, noted), change

    async def _plan_from(self, store: Querier, job_id: UUID) -> datetime:
        """Now; or, if the database's clock was set back, the latest time up to which the job's occurrences are
        recorded."""
        now = self._pool.clock.now()
        return max(now, await jobs.dealt_with_until(store, job_id=job_id) or now)

    async def pause(self, job_id: str, *, reason: str | None = None, until: datetime | None = None) -> Job:
        """Stop a job from firing until it is resumed, or until a time, at which it goes on as if it was resumed then.

        Pausing a paused job changes nothing but this time: without `until`, it no longer goes on by itself.
        """
        check_reason(reason)
        until = self._check_until(until)
        note = self._actor.note(after=None if until is None else {"paused_until": until.isoformat()})
        job = await self.get(job_id)
        if job.status == "paused":
            return await self._keep_paused(job, reason=reason, until=until, note=note)
        paused = await jobs.pause(
            self._pool, job_id=job.job_id, tenant=self._tenant, reason=reason, note=note, until=until
        )
        if paused is None:
            raise Conflict(f"job {job_id} cannot be paused: it is {job.status} and nothing more is planned for it")
        return paused

    async def _keep_paused(self, job: Job, *, reason: str | None, until: datetime | None, note: str) -> Job:
        """Make the pause of a paused job the caller's own, which ends when the caller says."""
        # A job that Duly parked would resume by itself; now it stays paused.
        kept = await jobs.keep_paused(
            self._pool, job_id=job.job_id, tenant=self._tenant, reason=reason, note=note, until=until
        )
        if kept is not None:
            return kept
        # So would one that no deploy declared, once it is declared again.
        if not await declarations.exist(self._pool) or not await declarations.keep_paused(
            self._pool, job_id=job.job_id, tenant=self._tenant, reason=reason, note=note, until=until
        ):
            await jobs.pause_again(
                self._pool, job_id=job.job_id, tenant=self._tenant, reason=reason, actor=self._actor, until=until
            )
        return await self.get(str(job.job_id))

    def _check_until(self, until: datetime | None) -> datetime | None:
        until = checks.check_moment("until", until)
        if until is None:
            return None
        if until <= self._pool.clock.now():
            raise InvalidInput("until", f"must be in the future, and {until.isoformat()} is past")
        if not self._pool.has_step(jobs.PAUSES_STEP):
            raise InvalidInput("until", "needs a store of this version: run duly migrate, or pause without it")
        return until

    async def resume(self, job_id: str, *, reason: str | None = None) -> Job:
        """Fire a paused job again, from its next future occurrence on. Occurrences during the pause are not run.

        A cancelled job stays so, unless an application's code declares it: it cannot be submitted anew.
        """
        note = self._actor.note(reason=check_reason(reason))
        for _ in range(10):
            job = await self.get(job_id)
            if job.status == "active":
                return job
            if job.status == "cancelled" and await self._restored(job, note):
                return await self.get(job_id)
            if job.status != "paused":
                raise Conflict(f"job {job_id} cannot be resumed: it is {job.status}")
            next_run_at = self._planned_resume(job, await self._plan_from(self._pool, job.job_id))
            resumed = await jobs.resume(
                self._pool,
                job_id=job.job_id,
                tenant=self._tenant,
                next_run_at=next_run_at,
                version=job.version,
                note=note,
            )
            if resumed is not None:
                return resumed
            # The job was changed between the read and the write: read it again.
        raise Conflict(f"job {job_id} is being changed by others; try again")

    async def _restored(self, job: Job, note: str) -> bool:
        """Bring back a cancelled job that an application's code declares; False if none does."""
        if not await declarations.exist(self._pool):
            return False
        next_run_at = self._planned_resume(job, await self._plan_from(self._pool, job.job_id))
        return await declarations.restore(
            self._pool,
            job_id=job.job_id,
            tenant=self._tenant,
            next_run_at=next_run_at,
            version=job.version,
            note=note,
        )

    async def resume_within(self, within: Querier, job: Job, *, actor: Actor) -> bool:
        """Resume a paused job within a transaction. False: it cannot be planned, or was changed since it was read."""
        try:
            next_run_at = self._planned_resume(job, await self._plan_from(within, job.job_id))
        except Conflict:
            return False
        resumed = await jobs.resume(
            within,
            job_id=job.job_id,
            tenant=self._tenant,
            next_run_at=next_run_at,
            version=job.version,
            note=actor.note(),
        )
        return resumed is not None

    def _planned_resume(self, job: Job, now: datetime) -> datetime:
        try:
            return self._resume_at(job, now)
        except InvalidInput:
            # The time-zone data may have the job's zone again since this process last read it.
            forget_zones()
        try:
            return self._resume_at(job, now)
        except InvalidInput as error:
            raise Conflict(f"job {job.job_id} cannot be resumed: it still cannot be planned: {error}") from error

    def _resume_at(self, job: Job, now: datetime) -> datetime:
        if job.unreadable is not None:
            raise Conflict(f"job {job.job_id} cannot be resumed: {job.unreadable}; cancel it and submit it anew")
        next_run_at = plan_resume(timetable_of(job), now=now, fired=job.last_run_at)
        if next_run_at is None:
            raise Conflict(f"job {job.job_id} has no occurrence left to resume with")
        return next_run_at

    async def trigger(self, job_id: str, *, reason: str | None = None) -> Run:
        """Start one extra run now and return it; the schedule does not move.

        Unless the job's overlap is `parallel`, the run waits for an unfinished one: a run requested by hand is not
        skipped, and two do not execute at once.
        """
        note = self._actor.note(reason=check_reason(reason), tenant=self._tenant)
        job = await self.get(job_id)
        for _ in range(10):
            fired = await jobs.trigger(
                self._pool,
                job_id=job.job_id,
                tenant=self._tenant,
                flags=int(RunFlag.TRIGGERED),
                occurrence=self._occurrence_now(job),
                note=note,
            )
            if fired is None:
                raise Conflict(f"job {job_id} cannot be triggered: it is cancelled")
            if fired.full:
                raise Conflict(f"job {job_id} cannot be triggered: {job.policy.max_queued} of its runs wait already")
            if fired.scheduled_at is not None:
                return await self._runs.get(make_run_id(job.job_id, fired.scheduled_at))
            # Another run has this microsecond as its scheduled_at: try the next one.
        raise Conflict(f"job {job_id} could not be triggered; try again")

    def _occurrence_now(self, job: Job) -> datetime | None:
        """The occurrence due at this moment, which may not have fired yet because overdue ones come first."""
        try:
            return timetable_of(job).next(self._pool.clock.now() - timedelta(milliseconds=1))
        except InvalidInput:  # its zone is gone: nothing of it fires
            return None

    async def cancel(self, job_id: str, *, running: bool = False, reason: str | None = None) -> Job:
        """Stop a job for good and cancel its waiting runs; with `running`, executing runs are told to stop as well."""
        after = {"running": "asked to stop"} if running else None
        note = self._actor.note(reason=check_reason(reason), after=after)
        job = await self.get(job_id)
        if not await jobs.cancel(self._pool, job_id=job.job_id, tenant=self._tenant, running=running, note=note):
            job = await self.get(job_id)
            raise Conflict(f"job {job_id} cannot be cancelled: it is {job.status}")
        return await self.get(job_id)


def _read_cursor(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidInput("cursor", INVALID_CURSOR) from error
