"""Opens and closes the incidents of jobs that have alerts.

The jobs are those in `duly.alerting`, which a submit or a change with alerts fills. The watcher keeps in memory when to
look at each again: when the bound of an alert would be passed, every few seconds while a run of the job is unfinished
or an incident is open, and once a minute otherwise. What it finds wrong is compared with the open incidents in the
store, so a new leader that remembers nothing opens nothing twice and closes what has ended meanwhile. Without any job
that has alerts, it asks one question of an empty table every five seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.maintenance.alarms import CALM, OVER, Found, found_of, next_look, reaches_back
from duly.maintenance.leader import LeaderService
from duly.model import Alerts
from duly.model.incident import Incident
from duly.store import incidents
from duly.store.incidents import NO_PAST, Closing, Opening, Past, Watched
from duly.store.pool import Pool

# Jobs per statement, and per pass: with more, the next pass goes on at once.
BATCH, MAX_LOOKS = 500, 5_000
# Open incidents that a pass reads, the oldest first.
MAX_OPEN = 20_000
# Changes of jobs that a pass looks through for jobs to look at before their time.
_CHANGES = 1_000
# Failed attempts that are counted beyond the bound of an alert.
_COUNTED = 50
# A transaction that notes a job may commit this long after the moment that it writes.
_STRAGGLING = timedelta(seconds=60)
_IDLE_SECONDS, _BUSY_SECONDS = 5.0, 2.0
_DAWN = datetime(2000, 1, 1, tzinfo=UTC)
# A job that has ended cannot succeed any more: its failures count as closed after a day.
_ENDED = timedelta(days=1)


@dataclass(slots=True)
class _Watch:
    look_at: datetime = _DAWN
    mark: str | None = None
    past: Past = NO_PAST
    past_at: datetime = _DAWN


class Watcher(LeaderService):
    """Looks at the watched jobs whose time has come."""

    interval = _BUSY_SECONDS

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._watched: dict[UUID, _Watch] = {}
        self._noted_upto = self._all_read_at = _DAWN
        self._any_open = True

    def lead(self, leading: bool) -> None:
        if leading and not self.leading:
            # What was known in an earlier term may be long past.
            self._watched.clear()
            self._noted_upto, self._any_open = _DAWN, True
        super().lead(leading)

    async def work(self) -> float | None:
        if not self._pool.has_step(incidents.STEP):
            return None
        now = self._pool.clock.now()
        await self._read_noted(now)
        if not self._watched and not self._any_open:
            return _IDLE_SECONDS
        opened: defaultdict[UUID, dict[str, Incident]] = defaultdict(dict)
        for one in await incidents.open_of_jobs(self._pool, None, limit=MAX_OPEN):
            if one.job_id is not None:
                opened[one.job_id][one.kind] = one
        self._any_open = bool(opened)
        touched = set(await incidents.touched(self._pool, limit=_CHANGES)) & self._watched.keys()
        for job_id in opened.keys() - self._watched.keys():
            self._watched[job_id] = _Watch()
        due = [job_id for job_id, watch in self._watched.items() if watch.look_at <= now or job_id in touched]
        due.sort(key=lambda job_id: self._watched[job_id].look_at)
        for start in range(0, min(len(due), MAX_LOOKS), BATCH):
            await self._look(due[start : min(start + BATCH, MAX_LOOKS)], opened)
        return 0.0 if len(due) > MAX_LOOKS else None

    async def _read_noted(self, now: datetime) -> None:
        """Learns of new watched jobs; once a minute reads them all, for those noted by a long transaction."""
        again = now - self._all_read_at >= CALM or now < self._all_read_at
        after = _DAWN if again else self._noted_upto - _STRAGGLING
        for job_id, since in await incidents.noted(self._pool, after):
            self._watched.setdefault(job_id, _Watch())
            self._noted_upto = max(self._noted_upto, since)
        if again:
            self._all_read_at = now

    async def _look(self, job_ids: Sequence[UUID], opened: Mapping[UUID, Mapping[str, Incident]]) -> None:
        jobs = {job.job_id: job for job in await incidents.look(self._pool, job_ids)}
        await self._read_past([job for job in jobs.values() if job.policy.alerts])
        openings: list[Opening] = []
        closings: list[Closing] = []
        quiet: list[UUID] = []
        for job_id in job_ids:
            job, own = jobs.get(job_id), opened.get(job_id, {})
            ended = _why_unwatched(job)
            if job is None or ended is not None or job.policy.alerts is None:
                closings += [Closing(one.incident_id, ended or "it has no alerts any more") for one in own.values()]
                self._settle(job_id, job, quiet)
                continue
            self._judge(job, job.policy.alerts, own, openings, closings, quiet)
        await incidents.open_many(self._pool, openings)
        await incidents.close_many(self._pool, closings)
        if quiet:
            for job_id in await incidents.unwatch(self._pool, quiet):
                self._watched.pop(job_id, None)

    def _judge(
        self,
        job: Watched,
        alerts: Alerts,
        own: Mapping[str, Incident],
        openings: list[Opening],
        closings: list[Closing],
        quiet: list[UUID],
    ) -> None:
        watch = self._watched[job.job_id]
        found = {one.kind: one for one in found_of(job, watch.past, alerts)}
        openings += [_opening(job, one) for kind, one in found.items() if kind not in own]
        over = job.status == "ended" and job.unfinished_at is None
        for kind, one in own.items():
            if kind not in found:
                closings.append(Closing(one.incident_id, _why(kind, alerts, over=over)))
            elif over and job.now - one.opened_at > _ENDED:
                closings.append(Closing(one.incident_id, "the job has ended"))
        if over and not found:
            self._settle(job.job_id, job, quiet)
        else:
            watch.look_at = next_look(job, watch.past, alerts, troubled=bool(found or own))

    def _settle(self, job_id: UUID, job: Watched | None, quiet: list[UUID]) -> None:
        """Nothing to watch: it is looked at again if it is noted or changed."""
        if job is None or job.status in ("ended", "cancelled") or job.policy.alerts is None:
            quiet.append(job_id)
        if job is None:
            self._watched.pop(job_id, None)
        else:
            self._watched[job_id].look_at = job.now + CALM

    async def _read_past(self, jobs: Sequence[Watched]) -> None:
        """Reads how the latest runs of those jobs have ended of which something has moved."""
        groups: defaultdict[timedelta, list[Watched]] = defaultdict(list)
        for job in jobs:
            watch, alerts = self._watched[job.job_id], job.policy.alerts
            assert alerts is not None
            moved = watch.mark != job.mark or job.unfinished_at is not None or job.now - watch.past_at >= CALM
            if moved and alerts.keys() & {"late_seconds", "failures_in_row", "no_success_for"}:
                groups[reaches_back(job, alerts)].append(job)
        for back, group in groups.items():
            most = _COUNTED + 2 * max((job.policy.alerts or Alerts()).get("failures_in_row", 0) for job in group)
            ids = [job.job_id for job in group]
            found = await incidents.past(self._pool, ids, since=group[0].now - back, most=most)
            for job in group:
                watch = self._watched[job.job_id]
                watch.past, watch.past_at, watch.mark = found.get(job.job_id, NO_PAST), job.now, job.mark


def _why_unwatched(job: Watched | None) -> str | None:
    """Why nothing of a job counts as wrong any more; None: it is watched."""
    if job is None:
        return "the job is gone"
    if job.status in ("paused", "cancelled"):
        return f"the job is {job.status}"
    return None


def _why(kind: str, alerts: Alerts, *, over: bool) -> str:
    fields = {"late": "late_seconds", "overrun": "overrun_seconds"}
    if fields.get(kind, kind) not in alerts:
        return "the job has no such alert any more"
    return "the job has ended" if over and kind == "no_success_for" else OVER.get(kind, "it is over")


def _opening(job: Watched, found: Found) -> Opening:
    return Opening(
        job.tenant, job.name, found.kind, found.message, found.cause, job_id=job.job_id, scheduled_at=found.scheduled_at
    )
