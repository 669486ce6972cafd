"""Runs: show, cancel, read the log."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from duly.api.access import needs
from duly.api.documents import log_document, run_document
from duly.api.log_stream import stream_of
from duly.api.responses import json_response
from duly.api.routes.common import OPERATIONS, Reason, answers, cursor_of, new_router, only, read_query_moment
from duly.api.schemas import MOMENT_RULES, LogDocument, RunDocument
from duly.operations import Operations
from duly.operations.runs import MAX_LOG_PAGE
from duly.turns import turn

router = new_router("runs")


@router.get(
    "/runs/{run_id}",
    summary="Show a run with its attempts",
    dependencies=[only()],
    responses=answers(200, "The run", RunDocument, 404),
)
@needs("read")
async def get_run(run_id: str, operations: Operations = OPERATIONS) -> Response:
    return json_response(run_document(await operations.runs.get(run_id)))


@router.get(
    "/runs/{run_id}/logs",
    summary="Read what a run's handler logged and printed",
    description="Lines in order: from a cursor on, or the last ones. With `Accept: text/event-stream` the answer is a "
    "stream of server-sent events instead, which goes on until the run has ended: `line` with one line each, its `id` "
    "a cursor (also taken from `Last-Event-ID`), and at the end `end`.",
    dependencies=[only("cursor", "attempt", "tail", "since", "limit")],
    responses=answers(200, "One page", LogDocument, 404),
)
@needs("read")
async def read_run_logs(
    request: Request,
    run_id: str,
    operations: Operations = OPERATIONS,
    cursor: Annotated[str | None, cursor_of("log")] = None,
    attempt: Annotated[int | None, Query(json_schema_extra={"minimum": 1, "maximum": 32_767})] = None,
    tail: Annotated[
        int | None,
        Query(
            description="the last lines only; with a cursor, that decides",
            json_schema_extra={"minimum": 1, "maximum": MAX_LOG_PAGE},
        ),
    ] = None,
    since: Annotated[str | None, Query(description="no lines before this time", json_schema_extra=MOMENT_RULES)] = None,
    limit: Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_LOG_PAGE})] = 1000,
) -> Response:
    if "text/event-stream" in request.headers.get("accept", ""):
        cursor = cursor or request.headers.get("last-event-id") or None
        return await stream_of(operations, run_id, cursor=cursor, attempt=attempt, tail=tail)
    page = await operations.runs.logs(
        run_id, cursor=cursor, attempt=attempt, tail=tail, since=read_query_moment("since", since), limit=limit
    )
    await turn()
    return json_response(log_document(page))


@router.post(
    "/runs/{run_id}/cancel",
    summary="Cancel a run",
    description="A waiting run ends at once; an executing one is told to stop within a second.",
    dependencies=[only("reason")],
    responses=answers(200, "The run", RunDocument, 404, 409),
)
@needs("write")
async def cancel_run(run_id: str, operations: Operations = OPERATIONS, reason: Reason = None) -> Response:
    return json_response(run_document(await operations.runs.cancel(run_id, reason=reason)))
