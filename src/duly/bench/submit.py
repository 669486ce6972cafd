"""Bulk submit through the SDK, beside COPY of the same rows and the statement for jobs that cannot be copied."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from duly.bench.figures import Bar, Figure
from duly.bench.lab import SUBMIT_CHUNK, Lab, application, database_clock, submit_all
from duly.bench.processes import BenchFailed
from duly.bench.raw import fetch_as_store
from duly.bench.server import Store, connect
from duly.model import DEFAULT_PRIORITY, DEFAULT_QUEUE, DEFAULT_TENANT
from duly.store.ids import new_job_ids, shard_of
from duly.store.jobs import NewJob, submit_columns
from duly.store.migrate import DEFAULT_SHARDS
from duly.store.statements import statement

JOBS = 100_000

# A one-off that runs now, as `jobs/submit.sql` leaves it: the statement's own columns without its last, and a few more.
_JOB_COLUMNS = [
    *NewJob._fields[:-1], "last_run_at", "run_count", "status", "created_at", "updated_at",
]  # fmt: skip
_RUN_COLUMNS = ["job_id", "scheduled_at", "run_at", "fired_at", "shard", "priority", "flags", "state", "queue"]


async def measure(lab: Lab) -> list[Figure]:
    jobs = lab.scaled(JOBS)
    by_copy = Figure("submit", "bulk submit (raw: COPY)", "/s", bar=Bar(25_000), goal=Bar(40_000, 0.3))
    by_statement = Figure("submit", "bulk submit (raw: its INSERT)", "/s", bar=Bar(25_000), goal=Bar(40_000))
    passes = {
        "Duly": partial(_duly, lab, jobs, [by_copy, by_statement]),
        "raw COPY": partial(_copy, lab, jobs, by_copy),
        "raw statement": partial(_statement, lab, jobs, by_statement),
    }
    await lab.in_rounds("submit", passes)
    return [by_copy, by_statement]


async def _duly(lab: Lab, jobs: int, figures: Sequence[Figure]) -> None:
    async with lab.server.store() as store:
        async with application(store) as app:
            await lab.server.settle()
            began = time.perf_counter()
            await submit_all(app, (app.request("noop", {"n": n}) for n in range(jobs)))
            rate = jobs / (time.perf_counter() - began)
        await _verify(store, jobs)
    for figure in figures:
        figure.duly.append(rate)


async def _copy(lab: Lab, jobs: int, figure: Figure) -> None:
    async with lab.server.store() as store:
        now = (await database_clock(store)).now()
        chunks = [
            ([_job_row(job, now) for job in chunk], [_run_row(job, now) for job in chunk])
            for chunk in _new_jobs(jobs, now)
        ]
        connection = await connect(store.url)
        try:
            await lab.server.settle()
            began = time.perf_counter()
            for job_rows, run_rows in chunks:
                async with connection.transaction():
                    await connection.copy_records_to_table(
                        "jobs", schema_name="duly", columns=_JOB_COLUMNS, records=job_rows
                    )
                    await connection.copy_records_to_table(
                        "runs", schema_name="duly", columns=_RUN_COLUMNS, records=run_rows
                    )
            figure.raw.append(jobs / (time.perf_counter() - began))
        finally:
            await connection.close()
        await _verify(store, jobs)


async def _statement(lab: Lab, jobs: int, figure: Figure) -> None:
    async with lab.server.store() as store:
        now = (await database_clock(store)).now()
        chunks = [submit_columns(chunk) for chunk in _new_jobs(jobs, now)]
        connection = await connect(store.url)
        try:
            await lab.server.settle()
            began = time.perf_counter()
            for columns in chunks:
                await fetch_as_store(connection, len(columns[0]), statement("jobs/submit"), *columns, now)
            figure.raw.append(jobs / (time.perf_counter() - began))
        finally:
            await connection.close()
        await _verify(store, jobs)


def _new_jobs(count: int, now: datetime) -> list[list[NewJob]]:
    """The rows that the SDK would make, in chunks."""
    ids = new_job_ids(count, int(now.timestamp() * 1e6))
    jobs = [
        NewJob(
            job_id, shard_of(job_id, DEFAULT_SHARDS), "noop", f'{{"n":{n}}}', None, None, None, None, "now",
            DEFAULT_TENANT, "noop", None, "once", "UTC", None, None, None, DEFAULT_QUEUE, DEFAULT_PRIORITY, None,
            None, True,
        )
        for n, job_id in enumerate(ids)
    ]  # fmt: skip
    return [jobs[start : start + SUBMIT_CHUNK] for start in range(0, count, SUBMIT_CHUNK)]


def _job_row(job: NewJob, now: datetime) -> tuple[object, ...]:
    return (*job[:-1], now, 1, "ended", now, now)


def _run_row(job: NewJob, now: datetime) -> tuple[object, ...]:
    return (job.job_id, now, now, now, job.shard, job.priority, 0, "queued", job.queue)


async def _verify(store: Store, jobs: int) -> None:
    outcome = await store.outcome()
    if (outcome.jobs, outcome.queued) != (jobs, jobs):
        raise BenchFailed(f"{jobs:,} jobs with a run each should be there; the store has {outcome}")
