"""Jobs: submit, read, change. Every function filters by tenant, so that no caller can forget to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from duly.model import DEFAULT_POLICY, DEFAULT_TENANT, Actor, Job, ScheduleKind
from duly.store.incidents import STEP as INCIDENTS_STEP
from duly.store.pool import LARGE, Querier
from duly.store.reading import Reading


class NewJob(NamedTuple):
    """A checked and planned job on its way into the store.

    A tuple, because a bulk submit creates tens of thousands per second. The first fields are each job's own; the
    others, its shape, are the same for most jobs of a batch and are sent once.
    """

    job_id: UUID
    shard: int
    name: str
    payload: str
    payload_ref: str | None
    dedupe_key: str | None
    fingerprint: bytes | None
    next_run_at: datetime | None
    schedule: str
    tenant: str
    handler: str
    target: str | None
    kind: ScheduleKind
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    queue: str
    priority: int
    policy: str | None
    labels: str | None
    immediate: bool


#: The step of the migrations that brought pauses which end by themselves. Without it, a pause lasts until a person ends
#: it.
PAUSES_STEP = 10
# The number of a job's own fields. The schedule is among them: a one-off's time is its schedule.
OWN_FIELDS = 9


#: The step that brings the column `trace`. On an older store a traced submit leaves no context.
TRACE_STEP = 7


def keeps_trace(store: Querier, trace: str | None) -> bool:
    return trace is not None and store.has_step(TRACE_STEP)


@dataclass(frozen=True, slots=True)
class TimingRow:
    """The columns of a job that decide when it occurs, in the order in which statements begin their rows."""

    job_id: UUID
    kind: ScheduleKind
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    policy: str | None
    created_at: datetime


async def submit(
    store: Querier, jobs: Sequence[NewJob], *, created_at: datetime, trace: str | None = None, note: str | None = None
) -> set[UUID]:
    """Inserts jobs in one statement. Returns the new ids; the other jobs, or their dedupe_keys, existed already.

    `trace`: the context of a submit that is traced. `note`: who submits (`Actor.note`), if one of the jobs `is_noted`.
    """
    fetch = store.fetch_planned if len(jobs) >= LARGE else store.fetch
    if keeps_trace(store, trace):
        rows = await fetch("jobs/submit_traced", *submit_columns(jobs), created_at, trace, note)
    else:
        rows = await fetch("jobs/submit", *submit_columns(jobs), created_at, note)
    return {row["job_id"] for row in rows}


def is_noted(job: NewJob) -> bool:
    """Whether the job's submit is noted in the audit trail: a recurring job, or one that runs a command. Other one-offs
    are traffic."""
    return job.kind != "once" or (job.handler == "command" and job.target is not None)


async def submit_one(
    store: Querier, job: NewJob, *, created_at: datetime, trace: str | None = None, note: str | None = None
) -> Job | None:
    """Inserts one job and returns it without reading it back; None if it, or its dedupe_key, existed already."""
    if keeps_trace(store, trace):
        row = await store.row("jobs/submit_traced", *submit_columns([job]), created_at, trace, note)
    else:
        row = await store.row("jobs/submit", *submit_columns([job]), created_at, note)
    if row is None:
        return None
    # A job that runs now has ended, and its run is unfinished: readers see it as `active`.
    new = {"status": "active", "status_reason": None, "run_count": int(job.immediate), "version": 1}
    return to_job(
        {**job._asdict(), **new, "last_run_at": row["last_run_at"], "created_at": created_at, "updated_at": created_at}
    )


def submit_columns(jobs: Sequence[NewJob]) -> list[Sequence[object]]:
    """The arrays that `jobs/submit.sql` takes."""
    shapes: dict[tuple[object, ...], int] = {}
    shape_of = [shapes.setdefault(job[OWN_FIELDS:], len(shapes) + 1) for job in jobs]
    own = zip(*(job[:OWN_FIELDS] for job in jobs), strict=True)
    return [*own, shape_of, *zip(*shapes, strict=True)]


async def find_duplicates(
    store: Querier, keys: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[UUID, bytes | None]]:
    """The jobs that hold these (tenant, dedupe_key) pairs."""
    rows = await store.fetch("jobs/find_duplicates", [key[0] for key in keys], [key[1] for key in keys])
    return {(row["tenant"], row["dedupe_key"]): (row["job_id"], row["fingerprint"]) for row in rows}


async def get(store: Querier, *, job_id: UUID, tenant: str) -> Job | None:
    row = await store.row("jobs/get", job_id, tenant)
    return None if row is None else (await _with_ends(store, [to_job(row)]))[0]


async def _with_ends(store: Querier, found: list[Job]) -> list[Job]:
    """These jobs, with the times at which their pauses end by themselves."""
    paused = [job.job_id for job in found if job.status == "paused"]
    if not paused or not store.has_step(PAUSES_STEP):
        return found
    ends = {row["job_id"]: row["until"] for row in await store.fetch("pauses/of_jobs", paused)}
    return [replace(job, paused_until=ends[job.job_id]) if job.job_id in ends else job for job in found]


async def with_ids(store: Querier, *, low: UUID, high: UUID, tenant: str) -> list[Job]:
    """The newest five jobs whose ids lie between these."""
    return await _with_ends(store, [to_job(row) for row in await store.fetch("jobs/with_ids", tenant, low, high)])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filter of a list; None: any. `before`: the last id of the page before."""

    tenant: str
    status: str | None = None
    queue: str | None = None
    name: str | None = None
    label: dict[str, str] | None = None
    before: UUID | None = None

    @property
    def labels(self) -> str | None:
        return json.dumps(self.label) if self.label else None


@dataclass(frozen=True, slots=True)
class ListedJobs:
    """Ids of a list, newest first: all matches from its start down to `stop`; None: to its end."""

    job_ids: list[UUID]
    stop: UUID | None

    def reaches_below(self, other: ListedJobs) -> bool:
        return other.stop is not None and (self.stop is None or self.stop < other.stop)


#: Rows that a list reads for one page; if too few of them match, the page ends early. Takes some ten milliseconds.
MAX_ROWS_READ = 20_000
# The same for completed jobs: asking whether an ended job's last run is over costs more than all else.
_MAX_ENDED_READ = 5_000
# Rows read first where most jobs are active, and active jobs have no index.
_FIRST_READ = 2_000


async def list_ids(store: Querier, wanted: Wanted, *, limit: int, looked_at: int | None = None) -> ListedJobs:
    """The ids of one page and of one job more. The cost is bounded, whatever the filter and however few match: either
    an index serves it, or the page ends after a number of rows, and the next page continues there."""
    default = wanted.tenant == DEFAULT_TENANT
    most = MAX_ROWS_READ if looked_at is None else looked_at
    if wanted.label and wanted.status not in ("paused", "cancelled"):
        return await _walk(store, "jobs/list_labelled", wanted, limit, most)
    if wanted.status == "active":
        return await _list_active(store, wanted, limit, most)
    if wanted.status is None:
        return await _walk(store, "jobs/list" if default else "jobs/list_of_tenant", wanted, limit, most)
    if not default:
        return await _walk(store, "jobs/list_by_status", wanted, limit, most)
    listing = "jobs/list" if wanted.status == "completed" else "jobs/list_set_aside"
    return await _walk(store, listing, wanted, limit, most)


async def _walk(store: Querier, listing: str, wanted: Wanted, limit: int, most: int) -> ListedJobs:
    if wanted.status == "completed":
        most = min(most, _MAX_ENDED_READ)
    rows = await store.fetch(
        listing, wanted.tenant, wanted.status, wanted.queue, wanted.name, wanted.labels, wanted.before, limit, most
    )
    stop = rows[-1]["job_id"] if rows and rows[-1]["stop"] else None
    return ListedJobs([row["job_id"] for row in rows if row["matches"]], stop)


async def _list_active(store: Querier, wanted: Wanted, limit: int, most: int) -> ListedJobs:
    """Active jobs are those with a next occurrence, and ended ones with an unfinished run. Among millions of completed
    jobs both are found through other indexes; if that is too much, by a walk over all jobs."""
    default = wanted.tenant == DEFAULT_TENANT
    walking = "jobs/list" if default else "jobs/list_of_tenant"
    if default:
        first = await _walk(store, walking, wanted, limit, min(most, _FIRST_READ))
        if first.stop is None or len(first.job_ids) >= limit:
            return first
    going_on = await (_planned(store, wanted, limit, most) if default else
                      _walk(store, "jobs/list_by_status", wanted, limit, most))  # fmt: skip
    best = None if going_on is None else _both(going_on, await _with_live_runs(store, wanted, limit, most), limit)
    if best is not None and (best.stop is None or len(best.job_ids) >= limit):
        return best
    walked = await _walk(store, walking, wanted, limit, most)
    return best if best is not None and best.reaches_below(walked) else walked


async def _planned(store: Querier, wanted: Wanted, limit: int, most: int) -> ListedJobs | None:
    """Active jobs of the default tenant; None if there are too many to read all."""
    row = await store.row(
        "jobs/list_planned", wanted.tenant, wanted.queue, wanted.name, wanted.labels, wanted.before, limit, most
    )
    assert row is not None
    return _cut(row["job_ids"], None, limit) if row["complete"] else None


async def _with_live_runs(store: Querier, wanted: Wanted, limit: int, most: int) -> ListedJobs:
    row = await store.row(
        "jobs/list_live", wanted.tenant, wanted.queue, wanted.name, wanted.labels, wanted.before, limit, most
    )
    assert row is not None
    return _cut(row["job_ids"], row["stop"], limit)


def _cut(job_ids: list[UUID], stop: UUID | None, limit: int) -> ListedJobs:
    """A full page ends the list: the ids after it are unknown."""
    return ListedJobs(job_ids, job_ids[-1] if len(job_ids) >= limit else stop)


def _both(one: ListedJobs, other: ListedJobs, limit: int) -> ListedJobs:
    stops = [_cut(listed.job_ids, listed.stop, limit).stop for listed in (one, other)]
    stop = max((stop for stop in stops if stop is not None), default=None)
    job_ids = sorted({*one.job_ids, *other.job_ids}, reverse=True)
    return ListedJobs([job_id for job_id in job_ids if stop is None or job_id >= stop][:limit], stop)


#: Bytes after which a page ends; the item that exceeds it is the last.
PAGE_BYTES = 4 * 1024 * 1024


async def page(store: Querier, job_ids: Sequence[UUID], *, tenant: str, payload: bool = True) -> list[Job]:
    """These jobs in this order, or as many of them as fit into a page; at least one. Without `payload` theirs is
    None."""
    if not job_ids:
        return []
    rows = await store.fetch("jobs/page", job_ids, PAGE_BYTES, payload, tenant)
    return await _with_ends(store, [to_job(row) for row in rows])


async def retract(within: Querier, *, job_id: UUID, tenant: str) -> None:
    """Locks a job and takes back runs fired ahead of time, as the first step of a transaction that changes it."""
    if not await lock(within, job_ids=[job_id], tenant=tenant):
        return  # another tenant's, or unknown
    taken = [row["scheduled_at"] for row in await within.fetch("jobs/retract", [job_id])]
    if taken:
        await within.fetch("jobs/put_back", [job_id], [min(taken)], [len(taken)])


async def pause(
    store: Querier,
    *,
    job_id: UUID,
    tenant: str,
    reason: str | None,
    note: str | None,
    until: datetime | None = None,
) -> Job | None:
    """`note`, here and below: who acts (`Actor.note`). `until`: when the pause ends by itself."""

    async def write(within: Querier) -> Job | None:
        await retract(within, job_id=job_id, tenant=tenant)
        row = await within.row("jobs/pause", job_id, tenant, reason, note)
        return None if row is None else await _paused(within, to_job(row), until)

    return await store.together(write)


async def _paused(within: Querier, job: Job, until: datetime | None) -> Job:
    """The job, whose pause this transaction has written. A pause without an end needs nothing: it voids the end of an
    earlier one."""
    if until is not None:
        await within.row("pauses/set", job.job_id, until)
    return replace(job, paused_until=until)


async def keep_paused(
    store: Querier,
    *,
    job_id: UUID,
    tenant: str,
    reason: str | None,
    note: str | None,
    until: datetime | None = None,
) -> Job | None:
    """Pauses a job that is only parked; None if it is not."""

    async def write(within: Querier) -> Job | None:
        row = await within.row("jobs/keep_paused", job_id, tenant, reason, note)
        return None if row is None else await _paused(within, to_job(row), until)

    return await store.together(write)


async def pause_again(
    store: Querier, *, job_id: UUID, tenant: str, reason: str | None, actor: Actor, until: datetime | None
) -> Job | None:
    """Lets the pause of a paused job end at another time. Changes nothing if it ends at that time already, or the job
    is not paused."""

    async def write(within: Querier) -> Job | None:
        await lock(within, job_ids=[job_id], tenant=tenant)
        job = await get(within, job_id=job_id, tenant=tenant)
        if job is None or job.status != "paused" or job.paused_until == until:
            return job
        note = actor.note(before={"paused_until": job.paused_until}, after={"paused_until": until})
        if await within.row("pauses/again", job_id, tenant, reason, note) is not None:
            await within.row("pauses/set", job_id, until)
        return await get(within, job_id=job_id, tenant=tenant)

    return await store.together(write)


class ChangedJob(NamedTuple):
    """A job's new columns. Field order is the parameter order of `jobs/change.sql`."""

    job_id: UUID
    tenant: str
    version: int
    planned_anew: bool
    expected: datetime | None
    next_run_at: datetime | None
    detail: str
    lost_first: datetime | None
    lost_last: datetime | None
    lost_count: int
    what: str
    handler: str | None
    target: str | None
    fingerprint: bytes | None
    # The columns that a change writes: the last fields, so that a new one is the last parameter.
    name: str
    payload: str
    payload_ref: str | None
    kind: ScheduleKind
    schedule: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    queue: str
    priority: int
    policy: str | None
    labels: str | None


async def change(store: Querier, changed: ChangedJob) -> Job | None:
    """Writes a change; None if the job has changed since the change was computed."""
    if changed.policy is not None and '"alerts"' in changed.policy and store.has_step(INCIDENTS_STEP):
        await store.fetch("incidents/watch", changed.job_id)
    row = await store.row("jobs/change", *changed)
    if row is not None and row["status"] == "ended":
        # The view derives whether readers see it as `active` or `completed`.
        return await get(store, job_id=changed.job_id, tenant=changed.tenant)
    return None if row is None else to_job(row)


async def follow(store: Querier, *, job_id: UUID) -> None:
    """Moves runs of a job to the queue and priority that it now has."""
    await store.fetch("jobs/follow", job_id)


async def agree(store: Querier, job: Job, *, fingerprint: bytes | None) -> bool:
    """Notes that the job is what the code declares; False if it has changed since it was read."""
    return await store.row("jobs/agree", job.job_id, job.version, fingerprint) is not None


async def dealt_with_until(store: Querier, *, job_id: UUID) -> datetime | None:
    """The latest occurrence that was fired, skipped, missed or put off. A new plan continues after it."""
    row = await store.row("jobs/dealt_with_until", job_id)
    assert row is not None
    until: datetime | None = row["until"]
    return until


async def resume(
    store: Querier, *, job_id: UUID, tenant: str, next_run_at: datetime, version: int, note: str | None
) -> Job | None:
    row = await store.row("jobs/resume", job_id, tenant, next_run_at, version, note)
    return None if row is None else to_job(row)


async def lock(store: Querier, *, job_ids: Sequence[UUID], tenant: str) -> dict[UUID, str]:
    """Locks jobs until the transaction ends. Returns those that exist, with their stored status."""
    return {row["job_id"]: row["status"] for row in await store.fetch("jobs/lock", sorted(set(job_ids)), tenant)}


async def lock_available(store: Querier, *, job_ids: Iterable[UUID]) -> list[UUID]:
    """Locks jobs until the transaction ends, skipping those that another transaction has locked."""
    return [row["job_id"] for row in await store.fetch("jobs/lock_available", sorted(set(job_ids)))]


async def put_in_order(store: Querier, *, job_ids: Sequence[UUID], whole: bool = True) -> None:
    """Releases the first run of each line if no run before it is unfinished. This transaction has locked the jobs.

    Not `whole`: only ends of runs have happened since. A long line then costs no more than a short one.
    """
    await store.fetch("jobs/put_in_order", job_ids, whole)


@dataclass(frozen=True, slots=True)
class Triggered:
    """`scheduled_at` is None if nothing was fired: the line is `full`, or every timestamp tried is taken."""

    scheduled_at: datetime | None
    full: bool


async def trigger(
    store: Querier, *, job_id: UUID, tenant: str, flags: int, occurrence: datetime | None, note: str | None
) -> Triggered | None:
    """Adds one run, at the end of the job's line unless its runs may overlap. None: no such job can be triggered.

    The run does not take the time of `occurrence`, which may still have to be fired.
    """

    async def fire(within: Querier) -> Triggered | None:
        if (await lock(within, job_ids=[job_id], tenant=tenant)).get(job_id, "cancelled") == "cancelled":
            return None
        row = await within.row("jobs/trigger", job_id, flags, DEFAULT_POLICY.max_queued, occurrence, note)
        assert row is not None
        if row["scheduled_at"] is not None:
            await put_in_order(within, job_ids=[job_id])
        return Triggered(row["scheduled_at"], row["full"])

    return await store.together(fire)


async def cancel(store: Querier, *, job_id: UUID, tenant: str, running: bool, note: str | None) -> bool:
    """Cancels a job. Returns whether it is cancelled now, which it may have been before."""

    async def write(within: Querier) -> None:
        await retract(within, job_id=job_id, tenant=tenant)
        if await within.row("jobs/cancel", job_id, tenant, note) is not None:
            await within.row("jobs/end_runs", job_id, tenant, running)

    await store.together(write)
    return await store.row("jobs/end_runs", job_id, tenant, running) is not None


def to_job(row: Any) -> Job:
    """Reads a row as a job, whatever a manual write put there: unreadable fields are reported and left out."""
    reading = Reading()
    target = row["target"]
    handler: Any = row["handler"]
    if target is not None:
        handler = reading.json("handler", target, otherwise=handler, kind=dict)
    payload = None if row["payload"] is None else reading.json("payload", row["payload"], otherwise=None)
    labels = reading.json("labels", row["labels"], otherwise={}, kind=dict) if row["labels"] else {}
    policy = reading.policy(row["policy"])
    if reading.said is not None and "secret_fields" in (row["policy"] or ""):
        payload = None  # the unreadable field may be the one that names the secrets
    return Job(
        **{name: row[name] for name in _PLAIN_COLUMNS},
        handler=handler,
        payload=payload,
        policy=policy,
        labels=labels,
        status=row.get("shown_status") or row["status"],
        status_reason=row["status_reason"] or reading.said,
        unreadable=reading.said,
    )


# The columns that are the job's fields as they stand in the row.
_PLAIN_COLUMNS = tuple(
    field.name
    for field in fields(Job)
    if field.name
    not in ("handler", "payload", "policy", "labels", "status", "status_reason", "unreadable", "paused_until")
)
