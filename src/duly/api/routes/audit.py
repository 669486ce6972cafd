"""The audit trail: who did what."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from duly.api.access import needs
from duly.api.documents import audit_document
from duly.api.responses import json_response
from duly.api.routes.common import CALLER, OPERATIONS, answers, cursor_of, new_router, only, read_query_moment
from duly.api.routes.jobs import PAGES, Limit, Text
from duly.api.schemas import MOMENT_RULES, AuditList
from duly.model import AuditFilter
from duly.operations import Operations, Principal
from duly.turns import Turns, turn

router = new_router("audit")


@router.get(
    "/audit",
    summary="List who did what, newest first",
    description=f"{PAGES} Addresses of callers are given to the role `admin` only.",
    dependencies=[only("job_id", "actor", "action", "since", "until", "cursor", "limit")],
    responses=answers(200, "One page", AuditList, 404),
)
@needs("read")
async def list_audit(
    who: Principal = CALLER,
    operations: Operations = OPERATIONS,
    job_id: Annotated[str | None, Query(json_schema_extra={"format": "uuid"})] = None,
    actor: Text = None,
    action: Text = None,
    since: Annotated[str | None, Query(json_schema_extra=MOMENT_RULES)] = None,
    until: Annotated[str | None, Query(json_schema_extra=MOMENT_RULES)] = None,
    cursor: Annotated[str | None, cursor_of("audit")] = None,
    limit: Limit = 100,
) -> Response:
    wanted = AuditFilter(job_id, actor, action, read_query_moment("since", since), read_query_moment("until", until))
    page = await operations.audit.page(wanted, cursor=cursor, limit=limit)
    await turn()
    items, turns = list[dict[str, Any]](), Turns()
    for entry in page.items:
        items.append(audit_document(entry if who.role == "admin" else replace(entry, address=None)))
        await turns.give()
    return json_response({"items": items, "next_cursor": page.next_cursor})
