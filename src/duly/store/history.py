"""Reads runs: a job's live and ended ones, and the runs that ended last over all jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

import asyncpg

from duly.model import Attempt, ErrorInfo, Progress, Run
from duly.states import RunFlag
from duly.store import jobs
from duly.store.pool import Querier
from duly.store.reading import Reading
from duly.tracing import TraceContext, trace_id_of

# Maximum number of the store's ended runs, and of the tenant's jobs, read for its recent runs.
_MAX_RECENT_RUNS = 2_000
_MAX_RECENT_JOBS = 200


async def job_run_times(store: Querier, *, job_id: UUID, before: datetime, limit: int) -> list[datetime]:
    """The scheduled times of a job's runs, newest first, from whichever table has them."""
    return [row["scheduled_at"] for row in await store.fetch("history/job_run_times", job_id, before, limit)]


async def runs_page(store: Querier, *, job_id: UUID, moments: Sequence[datetime]) -> list[Run]:
    """These runs in this order, each with its attempts, or as many of them as fit into a page; at least one."""
    if not moments:
        return []
    return await _with_attempts(store, await store.fetch("history/runs_page", job_id, moments, jobs.PAGE_BYTES))


async def get_run(store: Querier, *, job_id: UUID, scheduled_at: datetime) -> Run | None:
    """One run, from whichever table has it."""
    rows = await store.fetch("history/runs_page", job_id, [scheduled_at], jobs.PAGE_BYTES)
    if not rows:
        return None
    return (await _with_attempts(store, rows, all_of_them=True))[0]


async def recent_runs(store: Querier, *, tenant: str, limit: int) -> list[Run]:
    """The runs that ended last, over all jobs of a tenant, without their results. If thousands of other tenants' runs
    ended in between, older runs are represented by the last run of each job."""
    rows = await store.fetch("history/recent_runs", tenant, limit, _MAX_RECENT_RUNS, _MAX_RECENT_JOBS)
    return [_to_run(row, job_name=row["job_name"]) for row in rows]


@dataclass(frozen=True, slots=True)
class Record:
    """A run, and the node whose term fired it (None: the submitter itself, or a node long forgotten)."""

    run: Run
    fired_by: str | None
    triggered: bool


async def records_between(
    store: Querier, *, job_id: UUID, shard: int, first: datetime, last: datetime, limit: int
) -> list[Record]:
    """The records of a job's occurrences in [first, last], oldest first; before them the last record before `first`,
    which may stand for missed occurrences up to and into that range."""
    rows = await store.fetch("history/records_between", job_id, first, last, limit, shard)
    runs = await _with_attempts(store, rows)
    return [
        Record(run, row["fired_by"], bool(row["flags"] & RunFlag.TRIGGERED))
        for run, row in zip(runs, rows, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Deferred:
    """Late occurrences that will run but still wait: `count` of them in [first_at, last_at]."""

    first_at: datetime
    last_at: datetime
    count: int


async def catch_ups(store: Querier, *, job_id: UUID) -> list[Deferred]:
    return [Deferred(**row) for row in await store.fetch("history/catch_ups", job_id)]


async def days_kept(store: Querier) -> frozenset[date]:
    """The days whose history has a partition of its own."""
    return frozenset(row["day"] for row in await store.fetch("history/days_kept"))


async def _with_attempts(store: Querier, rows: Sequence[asyncpg.Record], *, all_of_them: bool = False) -> list[Run]:
    """The rows as runs, with attempts and progress. Most runs of a list were tried once and succeeded."""
    tried = [row for row in rows if all_of_them or _may_have_failed(row)]
    attempts: dict[tuple[UUID, datetime], list[Attempt]] = {}
    if tried:
        for row in await store.fetch(
            "history/attempts", [run["job_id"] for run in tried], [run["scheduled_at"] for run in tried]
        ):
            attempts.setdefault((row["job_id"], row["scheduled_at"]), []).append(
                Attempt(
                    attempt=row["attempt"],
                    started_at=row["started_at"],
                    finished_at=row["finished_at"],
                    worker=row["worker"],
                    error=_to_error(row["error"]),
                )
            )
    running = [row for row in rows if row["status"] == "running"]
    far: dict[tuple[UUID, datetime], Progress] = {}
    if running:
        for row in await store.fetch(
            "progress/read",
            [run["claim_id"] for run in running],
            [run["job_id"] for run in running],
            [run["scheduled_at"] for run in running],
        ):
            far[row["job_id"], row["scheduled_at"]] = Progress(round(row["fraction"], 6), row["note"], row["at"])
    return [
        _to_run(row, attempts=[*attempts.get(key, ()), *_success(row)], progress=far.get(key), trace_id=_trace_id(row))
        for row in rows
        for key in ((row["job_id"], row["scheduled_at"]),)
    ]


def _trace_id(row: Any) -> str | None:
    """The same as `ctx.trace_id` of all of the run's attempts. None: the statement does not read it (`explain`)."""
    if "trace" not in row.keys():  # noqa: SIM118 - a record's own `in` asks for values
        return None
    context = TraceContext.from_stored(row["trace"])
    return trace_id_of(row["job_id"], row["scheduled_at"]) if context is None else context.trace_id


def _may_have_failed(row: Any) -> bool:
    """Whether duly.attempts may have rows of this run: that table holds failed attempts only."""
    if row["status"] in ("dead", "cancelled"):
        return True
    return bool(row["attempt"] > (1 if row["status"] in ("running", "succeeded") else 0))


def _success(row: Any) -> list[Attempt]:
    """The successful attempt, which history itself records. A deduplicated run ended without one."""
    if row["status"] != "succeeded" or row["flags"] & RunFlag.DEDUPLICATED:
        return []
    return [Attempt(row["attempt"], row["started_at"], row["finished_at"], _worker(row), None)]


def _worker(row: Any) -> str | None:
    return row["worker"] or (str(row["worker_id"]) if row["worker_id"] else None)


def _to_run(
    row: Any,
    *,
    attempts: Sequence[Attempt] = (),
    job_name: str | None = None,
    progress: Progress | None = None,
    trace_id: str | None = None,
) -> Run:
    error = _to_error(row["error"])
    if error is None and attempts and row["status"] in ("queued", "retrying"):
        error = attempts[-1].error
    return Run(
        job_id=row["job_id"],
        scheduled_at=row["scheduled_at"],
        status=row["status"],
        attempt=row["attempt"],
        missed=bool(row["flags"] & RunFlag.MISSED) or row["status"] == "missed",
        deduplicated=bool(row["flags"] & RunFlag.DEDUPLICATED),
        run_at=row["run_at"],
        fired_at=row["fired_at"],
        epoch=row["epoch"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        worker=_worker(row),
        error=error,
        result=Reading().json("result", row["result"], otherwise=None),
        note=Reading().json("note", row["note"], otherwise=None, kind=dict),
        attempts=tuple(attempts),
        job_name=job_name,
        progress=progress,
        trace_id=trace_id,
    )


def _to_error(text: str | None) -> ErrorInfo | None:
    if text is None:
        return None
    error = json.loads(text)
    return ErrorInfo(error["type"], error["message"], error.get("traceback"))
