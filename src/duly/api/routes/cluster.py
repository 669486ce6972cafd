"""The cluster, its figures, forecasts, and previews of schedules."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from duly.api.access import needs
from duly.api.body import read_object
from duly.api.documents import cluster_document, forecast_document, preview_document, stats_document
from duly.api.responses import json_response
from duly.api.routes.common import CALLER, OPERATIONS, answers, body_limit, new_router, only, request_body
from duly.api.schemas import (
    ClusterDocument,
    ForecastDocument,
    PreviewBody,
    PreviewDocument,
    StatsDocument,
    read_body,
)
from duly.operations import Operations, Principal, preview
from duly.operations.forecast import MAX_MINUTES
from duly.operations.rights import holds
from duly.turns import turn

router = new_router()


@router.get(
    "/forecast",
    summary="Forecast how many fires are coming",
    description="By minute, queue and handler, as planned now. Overdue occurrences count for the current minute.",
    tags=["schedules"],
    dependencies=[only("minutes")],
    responses=answers(200, "The forecast", ForecastDocument),
)
@needs("read")
async def forecast(
    operations: Operations = OPERATIONS,
    minutes: Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_MINUTES})] = 60,
) -> Response:
    return json_response(forecast_document(await operations.forecast(minutes=minutes)))


@router.post(
    "/schedules/preview",
    summary="Preview the next occurrences of a schedule",
    description="Nothing is stored. Occurrences that DST drops are listed, marked, and do not count towards `count`.",
    tags=["schedules"],
    dependencies=[only()],
    responses=answers(200, "The schedule as Duly reads it", PreviewDocument, 413, 415),
    openapi_extra=request_body("PreviewBody"),
)
@needs("read")
async def preview_schedule(request: Request, operations: Operations = OPERATIONS) -> Response:
    body = read_body(PreviewBody, await read_object(request, limit=body_limit(request)))
    fields = {name: getattr(body, name) for name in PreviewBody.model_fields}
    fields["after"] = fields["after"] or operations.now()
    await turn()
    return json_response(preview_document(preview(fields.pop("schedule"), **fields)))


@router.get(
    "/cluster",
    summary="Show nodes, shards and their leaders",
    tags=["cluster"],
    dependencies=[only()],
    responses=answers(200, "The cluster", ClusterDocument),
)
@needs("read")
async def get_cluster(who: Principal = CALLER, operations: Operations = OPERATIONS) -> Response:
    # Other tenants are named to admins only.
    named = None if who.rights.whole_store else who.tenant
    return json_response(cluster_document(await operations.cluster.status(), tenant=named, jobs_of=who.tenant))


@router.get(
    "/stats",
    summary="Show counts of jobs and runs",
    description="Of the whole store for the roles `admin` and `monitor`, else of the key's own tenant.",
    tags=["cluster"],
    dependencies=[only()],
    responses=answers(200, "The figures", StatsDocument),
)
@needs("read", "monitor")
async def get_stats(who: Principal = CALLER, operations: Operations = OPERATIONS) -> Response:
    scope = None if holds(who.role, "monitor") else who.tenant
    counts = await (operations.cluster.counts() if scope is None else operations.counts())
    return json_response(stats_document(counts, who.tenant or None, scope=scope))
