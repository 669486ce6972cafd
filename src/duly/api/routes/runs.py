"""Runs: show, cancel."""

from __future__ import annotations

from starlette.responses import Response

from duly.api.access import needs
from duly.api.documents import run_document
from duly.api.responses import json_response
from duly.api.routes.common import OPERATIONS, Reason, answers, new_router, only
from duly.api.schemas import RunDocument
from duly.operations import Operations

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
