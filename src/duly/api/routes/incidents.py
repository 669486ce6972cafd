"""Incidents and maintenance windows."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from duly.api.access import needs
from duly.api.body import read_object
from duly.api.documents import incident_document, window_document
from duly.api.responses import json_response
from duly.api.routes.common import OPERATIONS, answers, body_limit, cursor_of, new_router, only, request_body
from duly.api.routes.jobs import Limit, Text
from duly.api.schemas import IncidentDocument, IncidentList, WindowBody, WindowDocument, WindowList, read_body
from duly.operations import Operations

router = new_router("incidents")


@router.get(
    "/incidents",
    summary="List incidents, newest first",
    description="What is wrong with jobs that have `alerts`, and with monitors.",
    dependencies=[only("job_id", "all", "cursor", "limit")],
    responses=answers(200, "One page", IncidentList, 404),
)
@needs("read")
async def list_incidents(
    operations: Operations = OPERATIONS,
    job_id: Annotated[str | None, Query(json_schema_extra={"format": "uuid"})] = None,
    all_: Annotated[bool, Query(alias="all", description="also those that are closed")] = False,
    cursor: Annotated[str | None, cursor_of("incident")] = None,
    limit: Limit = 100,
) -> Response:
    page = await operations.incidents.page(only_open=not all_, job_id=job_id, cursor=cursor, limit=limit)
    return json_response({"items": [incident_document(one) for one in page.items], "next_cursor": page.next_cursor})


@router.post(
    "/incidents/{incident_id}/ack",
    summary="Acknowledge an incident",
    description="Notes who takes care of it; who did so first stays. The incident stays open until it is over.",
    dependencies=[only("by")],
    responses=answers(200, "The incident", IncidentDocument, 404),
)
@needs("write")
async def ack_incident(incident_id: str, operations: Operations = OPERATIONS, by: Text = None) -> Response:
    return json_response(incident_document(await operations.incidents.ack(incident_id, by=by)))


@router.get(
    "/maintenance-windows",
    summary="List maintenance windows that are not over yet",
    dependencies=[only()],
    responses=answers(200, "All of them", WindowList),
)
@needs("read")
async def list_maintenance_windows(operations: Operations = OPERATIONS) -> Response:
    return json_response({"items": [window_document(one) for one in await operations.windows.list()]})


@router.post(
    "/maintenance-windows",
    summary="Add a maintenance window",
    description="No incident is opened in it, for one job or for all. What is still wrong at its end is opened then.",
    status_code=201,
    dependencies=[only()],
    responses=answers(201, "The window", WindowDocument, 404, 413, 415),
    openapi_extra=request_body("WindowBody"),
)
@needs("write")
async def add_maintenance_window(request: Request, operations: Operations = OPERATIONS) -> Response:
    body = read_body(WindowBody, await read_object(request, limit=body_limit(request)))
    window = await operations.windows.add(**{name: getattr(body, name) for name in WindowBody.model_fields})
    return json_response(window_document(window), status=201)


@router.delete(
    "/maintenance-windows/{window_id}",
    summary="Remove a maintenance window",
    description="One that goes on ends with it.",
    status_code=204,
    dependencies=[only()],
    responses=answers(204, "The window is removed", None, 404),
)
@needs("write")
async def remove_maintenance_window(window_id: str, operations: Operations = OPERATIONS) -> Response:
    await operations.windows.remove(window_id)
    return Response(status_code=204)
