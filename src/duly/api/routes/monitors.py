"""Monitors: what runs elsewhere tells by pings that it ran."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from duly.api.access import needs
from duly.api.body import read_object
from duly.api.documents import monitor_document
from duly.api.problems import FieldError, Problem
from duly.api.responses import json_response
from duly.api.routes.common import OPERATIONS, answers, body_limit, cursor_of, new_router, only, request_body
from duly.api.routes.jobs import Limit
from duly.api.schemas import MonitorBody, MonitorDocument, MonitorList, read_body
from duly.operations import Operations
from duly.operations.monitors import OUTCOME, RID, SLUG, outcome_of, problems_of

#: Bytes of a ping's body that are read; the beginning is kept.
MAX_BODY_BYTES = 64 * 1024
_NOTE = {
    "requestBody": {
        "required": False,
        "description": "a note, such as the end of the output; the first 500 characters are kept",
        "content": {"text/plain": {"schema": {"type": "string", "maxLength": 500}}},
    }
}
Slug = Annotated[str, Path(description="the monitor's name", json_schema_extra={"pattern": f"^{SLUG}$"})]
Outcome = Annotated[
    str,
    Path(
        description="start, fail, an exit status (0 is a success), or log: a note that changes nothing",
        json_schema_extra={"pattern": f"^{OUTCOME}$"},
    ),
]
Rid = Annotated[
    str | None,
    Query(
        description="an id of what runs, the same at its start and its end, where runs overlap",
        json_schema_extra={"pattern": f"^{RID}$"},
    ),
]

router = new_router("monitors")


@router.get(
    "/monitors",
    summary="List monitors by name",
    description="Without their pings.",
    dependencies=[only("cursor", "limit")],
    responses=answers(200, "One page", MonitorList),
)
@needs("read")
async def list_monitors(
    operations: Operations = OPERATIONS,
    cursor: Annotated[str | None, cursor_of("monitor")] = None,
    limit: Limit = 100,
) -> Response:
    page = await operations.monitors.page(cursor=cursor, limit=limit)
    return json_response({"items": [monitor_document(one) for one in page.items], "next_cursor": page.next_cursor})


@router.put(
    "/monitors/{slug}",
    summary="Make or change a monitor",
    description=(
        "A field that is left out gets its default. A new monitor comes with `ping_path`, an address below this API's "
        "that needs no key and can do nothing but ping; it is not shown again. `new_token` replaces it."
    ),
    dependencies=[only()],
    responses={
        **answers(200, "The monitor, which existed", MonitorDocument, 403, 409, 413, 415),
        201: {"description": "The new monitor", "model": MonitorDocument},
    },
    openapi_extra=request_body("MonitorBody"),
)
@needs("write")
async def set_monitor(slug: Slug, request: Request, operations: Operations = OPERATIONS) -> Response:
    body = read_body(MonitorBody, await read_object(request, limit=body_limit(request)))
    definition = body.to_definition()
    if problems := problems_of(slug, definition):
        raise Problem.invalid([FieldError(one.field, one.message) for one in problems])
    monitor, created = await operations.monitors.set(slug, definition, new_token=body.new_token)
    return json_response(monitor_document(monitor), status=201 if created else 200)


@router.get(
    "/monitors/{slug}",
    summary="Show a monitor with its last pings",
    dependencies=[only()],
    responses=answers(200, "The monitor", MonitorDocument, 404),
)
@needs("read")
async def get_monitor(slug: Slug, operations: Operations = OPERATIONS) -> Response:
    return json_response(monitor_document(await operations.monitors.get(slug)))


@router.delete(
    "/monitors/{slug}",
    summary="Remove a monitor",
    description="Its open incidents are closed.",
    status_code=204,
    dependencies=[only()],
    responses=answers(204, "The monitor is gone", None, 404),
)
@needs("write")
async def remove_monitor(slug: Slug, operations: Operations = OPERATIONS) -> Response:
    await operations.monitors.remove(slug)
    return Response(status_code=204)


@router.post(
    "/monitors/{slug}/ping",
    summary="Ping a monitor: it has succeeded",
    status_code=204,
    dependencies=[only("rid")],
    responses=answers(204, "The ping is noted", None, 404, 413),
    openapi_extra=_NOTE,
)
@needs("write")
async def ping_monitor(slug: Slug, request: Request, operations: Operations = OPERATIONS, rid: Rid = None) -> Response:
    await operations.monitors.ping(slug, rid=rid, note=await read_note(request))
    return Response(status_code=204)


@router.post(
    "/monitors/{slug}/ping/{outcome}",
    summary="Ping a monitor: it starts, has failed, or has ended with an exit status",
    status_code=204,
    dependencies=[only("rid")],
    responses=answers(204, "The ping is noted", None, 404, 413),
    openapi_extra=_NOTE,
)
@needs("write")
async def ping_monitor_outcome(
    slug: Slug, outcome: Outcome, request: Request, operations: Operations = OPERATIONS, rid: Rid = None
) -> Response:
    event, exit_status = outcome_of(outcome)
    await operations.monitors.ping(slug, event, rid=rid, exit_status=exit_status, note=await read_note(request))
    return Response(status_code=204)


async def read_note(request: Request) -> str | None:
    """The body as text, of whatever type it is called: programs send their output as it is."""
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > MAX_BODY_BYTES:
            raise Problem(413, f"the body must be at most {MAX_BODY_BYTES} bytes")
    return read.decode("utf-8", "replace") or None
