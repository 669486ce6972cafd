"""Changing jobs that are there: their fields, pause, resume, trigger, cancel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly.errors import Conflict, InvalidInput, NotFound
from duly.model import DEFAULT_TENANT, Job, Run, make_run_id
from duly.operations.base import timetable_of, to_job_id
from duly.operations.looking import Looking
from duly.operations.revising import revise, touches_timing
from duly.operations.rights import EVERYTHING, Rights
from duly.states import ENDED_STATES, RunFlag
from duly.store import jobs, runs
from duly.store.jobs import ChangedJob
from duly.store.pool import Querier
from duly.timing import forget_zones, plan_resume


class Changing(Looking):
    async def change(
        self,
        job_id: str,
        changes: Mapping[str, Any],
        *,
        tenant: str = DEFAULT_TENANT,
        expected_version: int | None = None,
        rights: Rights = EVERYTHING,
    ) -> Job:
        """Set the fields in `changes`; any that a client may set, by their names in the job itself.

        A change of the timing (schedule, zone, bounds, DST rules, jitter) plans anew from the next future occurrence;
        `revising` says what becomes of what was overdue. An interval keeps its anchor unless start_at changes. Runs
        that wait in the queue follow the job's queue and priority. A paused job stays paused. With
        `expected_version`, a job that somebody else has changed since is a conflict. The job keeps its dedupe_key
        together with the content it was submitted with, so that sending the same submit again still finds it. Of a job
        that runs a command nothing is changed without the right to submit one: its payload, queue and keys say what it
        does and where, as its arguments do. The same holds for what the tenant is bound to.
        """
        bounds = (await self._bounds({tenant})).get(tenant)

        def revised(job: Job, now: datetime) -> ChangedJob | None:
            rights.check_handler(job.handler, doing="changing")
            if bounds is not None:
                bounds.check(job.handler, changes.get("queue", job.queue))
            if expected_version is not None and job.version != expected_version:
                raise Conflict(f"job {job_id} was changed by others: it has version {job.version} now")
            if job.status in ("completed", "cancelled"):
                raise Conflict(f"job {job_id} cannot be changed: it is {job.status}")
            if job.unreadable is not None:
                raise Conflict(f"job {job_id} cannot be changed: {job.unreadable}; cancel it and submit it anew")
            return revise(job, changes, now=now, payload_max_bytes=self._settings.payload_max_bytes)

        changed, _ = await self._rewrite(
            to_job_id(job_id), revised, retimes=lambda _: touches_timing(changes), tenant=tenant
        )
        if changed is None:
            raise NotFound(f"there is no job {job_id}")
        return changed

    async def _rewrite(
        self,
        job_id: UUID,
        revised: Callable[[Job, datetime], ChangedJob | None],
        *,
        retimes: Callable[[Job], bool],
        tenant: str,
    ) -> tuple[Job | None, bool]:
        """Let the job become what `revised` makes of it now, and say whether that is anything else than it was.

        Nobody changes it, and if it is planned anew nobody fires it, between the look and the write: else there is
        another look. No job: there is none of this id. `revised` answers None where there is nothing to change;
        `retimes` says whether it may plan anew.
        """

        async def write(within: Querier) -> tuple[Job | None, Job | None, ChangedJob | None]:
            job = await jobs.get(within, job_id=job_id, tenant=tenant)
            now = self._pool.clock.now()
            if job is not None and retimes(job):
                # Planned by the job as it is without what was fired ahead of its time.
                await jobs.retract(within, job_id=job_id, tenant=tenant)
                job = await jobs.get(within, job_id=job_id, tenant=tenant)
                now = await self._plan_from(within, job_id)
            change = None if job is None else revised(job, now)
            if change is None:
                return job, job, None
            return job, await jobs.change(within, change), change

        for _ in range(10):
            job, changed, change = await self._pool.together(write)
            if change is None:
                return job, False
            if changed is not None and job is not None:
                if (job.queue, job.priority) != (changed.queue, changed.priority):
                    await jobs.follow(self._pool, job_id=job_id)
                return changed, True
            # Somebody changed it between the look and the write: look again.
        raise Conflict(f"job {job_id} is being changed by others; try again")

    async def _plan_from(self, store: Querier, job_id: UUID) -> datetime:
        """Now; where the database's clock has gone back, not before what the job has dealt with by the later time."""
        now = self._pool.clock.now()
        return max(now, await jobs.dealt_with_until(store, job_id=job_id) or now)

    async def pause(self, job_id: str, *, tenant: str = DEFAULT_TENANT, reason: str | None = None) -> Job:
        """No more fires until resumed. Pausing a paused job changes nothing."""
        job = await self.get_job(job_id, tenant=tenant)
        if job.status == "paused":
            # One that a leader parked would go on by itself; now it stays.
            return await jobs.keep_paused(self._pool, job_id=job.job_id, tenant=tenant, reason=reason) or job
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
            next_run_at = self._planned_resume(job, await self._plan_from(self._pool, job.job_id))
            resumed = await jobs.resume(
                self._pool, job_id=job.job_id, tenant=tenant, next_run_at=next_run_at, version=job.version
            )
            if resumed is not None:
                return resumed
            # Somebody changed it between the look and the write: look again.
        raise Conflict(f"job {job_id} is being changed by others; try again")

    def _planned_resume(self, job: Job, now: datetime) -> datetime:
        try:
            return self._resume_at(job, now)
        except InvalidInput:
            # Perhaps its zone has come back since this process looked for it.
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

    async def trigger(self, job_id: str, *, tenant: str = DEFAULT_TENANT) -> str:
        """One extra run now; the schedule does not move. Returns the run's id.

        Unless the job's overlap is `parallel`, it waits for a run that is unfinished: it was asked for by hand, so it
        is not skipped, and two do not run at once.
        """
        job = await self.get_job(job_id, tenant=tenant)
        for _ in range(10):
            fired = await jobs.trigger(
                self._pool,
                job_id=job.job_id,
                tenant=tenant,
                flags=int(RunFlag.TRIGGERED),
                occurrence=self._occurrence_now(job),
            )
            if fired is None:
                raise Conflict(f"job {job_id} cannot be triggered: it is cancelled")
            if fired.full:
                raise Conflict(f"job {job_id} cannot be triggered: {job.policy.max_queued} of its runs wait already")
            if fired.scheduled_at is not None:
                return make_run_id(job.job_id, fired.scheduled_at)
            # The very microsecond was taken: the next one is not.
        raise Conflict(f"job {job_id} could not be triggered; try again")

    def _occurrence_now(self, job: Job) -> datetime | None:
        """The occurrence of this very moment: overdue ones before it may stand between it and its fire."""
        try:
            return timetable_of(job).next(self._pool.clock.now() - timedelta(milliseconds=1))
        except InvalidInput:  # its zone is gone: nothing of it fires
            return None

    async def cancel_run(self, run_id: str, *, tenant: str = DEFAULT_TENANT) -> Run:
        """A run that waits ends here; one that is running is told to stop, and ends as its handler does."""
        run = await self.get_run(run_id, tenant=tenant)
        for _ in range(10):
            if run.status in ENDED_STATES:
                raise Conflict(f"run {run_id} cannot be cancelled: it is {run.status}")
            became = await runs.cancel(self._pool, job_id=run.job_id, scheduled_at=run.scheduled_at, tenant=tenant)
            run = await self.get_run(run_id, tenant=tenant)
            if became is not None:
                return run
            # It was claimed, retried or ended in between: look again.
        raise Conflict(f"run {run_id} could not be cancelled; try again")

    async def cancel(self, job_id: str, *, tenant: str = DEFAULT_TENANT, running: bool = False) -> Job:
        """No more fires, waiting runs cancelled; with `running` those under way are told to stop as well."""
        job = await self.get_job(job_id, tenant=tenant)
        if not await jobs.cancel(self._pool, job_id=job.job_id, tenant=tenant, running=running):
            job = await self.get_job(job_id, tenant=tenant)
            raise Conflict(f"job {job_id} cannot be cancelled: it is {job.status}")
        return await self.get_job(job_id, tenant=tenant)
