"""Reading runs: a job's live and ended ones, and what ended last over all jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from duly.model import Attempt, ErrorInfo, Run
from duly.states import RunFlag
from duly.store.pool import Executor


async def job_runs(store: Executor, *, job_id: UUID, before: datetime, limit: int) -> list[Run]:
    """A job's runs newest first, wherever their rows are, each with its failed attempts."""
    rows = await store.fetch("history/job_runs", job_id, before, limit)
    return await _with_attempts(store, rows)


async def recent_runs(store: Executor, *, tenant: str, limit: int) -> list[Run]:
    """What ended last, over all jobs of a tenant."""
    rows = await store.fetch("history/recent", tenant, limit)
    return [_to_run(row, job_name=row["job_name"]) for row in rows]


async def _with_attempts(store: Executor, rows: Sequence[asyncpg.Record]) -> list[Run]:
    tried = [row for row in rows if row["attempt"] > 1 or row["status"] in ("retrying", "dead")]
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
    return [_to_run(row, attempts=attempts.get((row["job_id"], row["scheduled_at"]), ())) for row in rows]


def _to_run(row: Any, *, attempts: Sequence[Attempt] = (), job_name: str | None = None) -> Run:
    return Run(
        job_id=row["job_id"],
        scheduled_at=row["scheduled_at"],
        status=row["status"],
        attempt=row["attempt"],
        missed=bool(row["flags"] & RunFlag.MISSED),
        deduplicated=bool(row["flags"] & RunFlag.DEDUPLICATED),
        run_at=row["run_at"],
        fired_at=row["fired_at"],
        epoch=row["epoch"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        worker=row["worker"] or (str(row["worker_id"]) if row["worker_id"] else None),
        error=_to_error(row["error"]),
        result=json.loads(row["result"]) if row["result"] is not None else None,
        note=json.loads(row["note"]) if row["note"] is not None else None,
        attempts=tuple(attempts),
        job_name=job_name,
    )


def _to_error(text: str | None) -> ErrorInfo | None:
    if text is None:
        return None
    error = json.loads(text)
    return ErrorInfo(error["type"], error["message"], error.get("traceback"))
