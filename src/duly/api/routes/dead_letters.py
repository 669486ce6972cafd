"""Dead letters: list, show, count, redrive, purge."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request
from starlette.responses import Response

from duly.api.access import needs
from duly.api.body import read_object
from duly.api.documents import dead_letter_document, run_document, without_payload
from duly.api.responses import json_response
from duly.api.routes.common import (
    OPERATIONS,
    Reason,
    WithPayload,
    answers,
    body_limit,
    cursor_of,
    new_router,
    only,
    read_query_moment,
    request_body,
)
from duly.api.routes.jobs import PAGES, Limit, Text
from duly.api.schemas import (
    MOMENT_RULES,
    CountDocument,
    DeadLetterDocument,
    DeadLetterFilterBody,
    DeadLetterList,
    PurgeDocument,
    RedriveDocument,
    RunDocument,
    read_body,
)
from duly.errors import InvalidInput
from duly.model import DeadLetterFilter, Swept
from duly.operations import Operations
from duly.turns import Turns, turn

# Maximum number of dead letters that one call redrives or purges: a few seconds' work. Clients call again for more.
MAX_SWEPT = 10_000
_FILTERS = ("job_id", "name", "queue", "handler", "error_type", "since", "until")
JobId = Annotated[str | None, Query(json_schema_extra={"format": "uuid"})]
_Time = Annotated[str | None, Query(json_schema_extra=MOMENT_RULES)]

router = new_router("dead letters")


async def _filter(
    job_id: JobId = None,
    name: Text = None,
    queue: Text = None,
    handler: Text = None,
    error_type: Text = None,
    since: _Time = None,
    until: _Time = None,
) -> DeadLetterFilter:
    return DeadLetterFilter(
        job_id, name, queue, handler, error_type, read_query_moment("since", since), read_query_moment("until", until)
    )


#: A route's parameter: the dead letters that the query asks for.
FILTER: Any = Depends(_filter)


@router.get(
    "/dead-letters",
    summary="List dead letters, newest first",
    description=PAGES,
    dependencies=[only(*_FILTERS, "cursor", "limit", "payload")],
    responses=answers(200, "One page", DeadLetterList, 404),
)
@needs("read")
async def list_dead_letters(
    operations: Operations = OPERATIONS,
    wanted: DeadLetterFilter = FILTER,
    cursor: Annotated[str | None, cursor_of("dead-letter")] = None,
    limit: Limit = 100,
    payload: WithPayload = False,
) -> Response:
    page = await operations.dead_letters.page(wanted, cursor=cursor, limit=limit, payload=payload)
    await turn()
    documents, turns = list[dict[str, Any]](), Turns()
    for letter in page.items:
        documents.append(dead_letter_document(letter))
        await turns.give()
    items = documents if payload else [without_payload(document) for document in documents]
    return json_response({"items": items, "next_cursor": page.next_cursor})


@router.post(
    "/dead-letters/redrive",
    summary="Redrive all dead letters that match",
    description=(
        f"Oldest first, at most {MAX_SWEPT:,} in one call; `more` says whether to call again. Runs "
        "start over with attempt 1 and keep their idempotency keys. Give a filter, or `all: true`."
    ),
    dependencies=[only("reason")],
    responses=answers(200, "The number of redriven runs", RedriveDocument, 404, 413, 415),
    openapi_extra=request_body("DeadLetterFilterBody"),
)
@needs("write")
async def redrive_dead_letters(
    request: Request, operations: Operations = OPERATIONS, reason: Reason = None
) -> Response:
    body = read_body(DeadLetterFilterBody, await read_object(request, limit=body_limit(request)))
    _refuse_all_by_accident(body.all, any(getattr(body, name) is not None for name in _FILTERS))
    wanted = DeadLetterFilter(**{name: getattr(body, name) for name in _FILTERS})
    swept = Swept(0, 0)
    more = False
    # Each batch is a transaction of its own, so that nothing is left open where the loop ends.
    async for swept in operations.dead_letters.redrive_all(wanted, reason=reason):
        if more := swept.done >= MAX_SWEPT:
            break
    return json_response({"redriven": swept.done, "refused": swept.refused, "more": more})


@router.delete(
    "/dead-letters",
    summary="Purge all dead letters that match",
    description=(
        f"Oldest first, at most {MAX_SWEPT:,} in one call; `more` says whether to call again. Give a "
        "filter, or `all=true`. The history still records that their runs died."
    ),
    dependencies=[only(*_FILTERS, "all", "reason")],
    responses=answers(200, "The number of purged letters", PurgeDocument, 404),
)
@needs("write")
async def purge_dead_letters(
    request: Request,
    operations: Operations = OPERATIONS,
    wanted: DeadLetterFilter = FILTER,
    all_: Annotated[bool, Query(alias="all", description="required if no filter is given")] = False,
    reason: Reason = None,
) -> Response:
    _refuse_all_by_accident(all_, any(name in request.query_params for name in _FILTERS))
    swept = Swept(0, 0)
    more = False
    async for swept in operations.dead_letters.purge_all(wanted, reason=reason):
        if more := swept.done >= MAX_SWEPT:
            break
    return json_response({"purged": swept.done, "more": more})


@router.get(
    "/dead-letters/count",
    summary="Count dead letters",
    dependencies=[only(*_FILTERS)],
    responses=answers(200, "The number of dead letters that match", CountDocument, 404),
)
@needs("read")
async def count_dead_letters(operations: Operations = OPERATIONS, wanted: DeadLetterFilter = FILTER) -> Response:
    return json_response({"count": await operations.dead_letters.count(wanted)})


@router.get(
    "/dead-letters/{run_id}",
    summary="Show a dead letter",
    dependencies=[only()],
    responses=answers(200, "The dead letter", DeadLetterDocument, 404),
)
@needs("read")
async def get_dead_letter(run_id: str, operations: Operations = OPERATIONS) -> Response:
    return json_response(dead_letter_document(await operations.dead_letters.get(run_id)))


@router.post(
    "/dead-letters/{run_id}/redrive",
    summary="Redrive a dead letter",
    dependencies=[only("reason")],
    responses=answers(200, "The run, live again", RunDocument, 404, 409),
)
@needs("write")
async def redrive_dead_letter(run_id: str, operations: Operations = OPERATIONS, reason: Reason = None) -> Response:
    await operations.dead_letters.redrive(run_id, reason=reason)
    return json_response(run_document(await operations.runs.get(run_id)))


@router.delete(
    "/dead-letters/{run_id}",
    summary="Purge a dead letter",
    description="The history still records that its run died.",
    status_code=204,
    dependencies=[only("reason")],
    responses=answers(204, "The dead letter is deleted", None, 404),
)
@needs("write")
async def purge_dead_letter(run_id: str, operations: Operations = OPERATIONS, reason: Reason = None) -> Response:
    await operations.dead_letters.purge(run_id, reason=reason)
    return Response(status_code=204)


def _refuse_all_by_accident(every: bool, narrowed: bool) -> None:
    """Refuse a call without a filter, which could be a mistake, unless all are asked for explicitly."""
    if not every and not narrowed:
        raise InvalidInput("all", f"must be true, or give a filter: one of {', '.join(_FILTERS)}")
