"""Jobs: submit, list, show, change, cancel, and explain their occurrences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from duly import checks
from duly.api.access import needs, operations_of, principal_of
from duly.api.body import read_object, read_optional_object
from duly.api.documents import (
    explanation_document,
    job_document,
    occurrence_document,
    run_document,
    without_payload,
)
from duly.api.problems import FieldError, Problem
from duly.api.responses import json_response
from duly.api.routes.common import (
    ALLOW_UNKNOWN_HANDLER,
    ALLOWS_UNKNOWN_HANDLER,
    CALLER,
    OPERATIONS,
    PREFIX,
    Reason,
    WithPayload,
    answers,
    body_limit,
    cursor_of,
    new_router,
    only,
    read_flag,
    read_query_moment,
    refuse_others,
    request_body,
)
from duly.api.schemas import (
    MOMENT_RULES,
    ExplanationAnswer,
    JobDocument,
    JobList,
    OccurrenceList,
    PauseBody,
    RunDocument,
    RunList,
    read_body,
    read_change,
    read_job,
    text_rules,
)
from duly.errors import Conflict, InvalidInput
from duly.model import Job, JobStatus, Page
from duly.operations import Operations, Principal
from duly.operations.core import INVALID_CURSOR, MAX_PAGE
from duly.operations.upcoming import MAX_OCCURRENCES
from duly.tracing import incoming
from duly.turns import Turns, turn
from duly.visible import CONTROLS

IDEMPOTENCY_KEY = "Idempotency-Key"
_MAX_KEY = 200
_MAX_TAGS = 100
_ETAG = re.compile(r'\s*(?:W/)?("?)([0-9]{1,9})\1\s*')

# Accepts strong, weak and unquoted ETags.
_IF_MATCH = r'^(\*|(W/)?("[0-9]{1,9}"|[0-9]{1,9}))$'
_LABEL = rf"^[^{CONTROLS}=]{{1,63}}=[^{CONTROLS}]{{0,255}}$"

Text = Annotated[str | None, Query(json_schema_extra=text_rules(200))]
PAGES = (
    "A page ends at `limit` items, at about 4 MiB, or after reading too many items that do not match: it may have "
    "fewer items than asked for, or none. `next_cursor` is null on the last page only."
)
Limit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_PAGE})]

router = new_router("jobs")


# Takes the request alone, so that FastAPI resolves no dependencies: this is the most frequent call.


@needs("write")
async def submit_job(request: Request) -> Response:
    """The body is a job as in section 2 of the specification; only `name` and `handler` are required."""
    principal = principal_of(request)
    refuse_others(request, (ALLOW_UNKNOWN_HANDLER,))
    allow_unknown_handler = read_flag(request, ALLOW_UNKNOWN_HANDLER)
    body = read_job(await read_object(request, limit=body_limit(request)))
    header = _idempotency_key(request)
    if header is not None and body.dedupe_key not in (None, header):
        raise InvalidInput(IDEMPOTENCY_KEY, "must not differ from dedupe_key: both have the same meaning")
    if body.schedule is not None:
        await turn()  # a schedule is parsed and planned without giving others a turn
    try:
        with incoming(request.headers):
            job, created = await operations_of(request).submit(
                body.to_request(dedupe_key=body.dedupe_key if header is None else header),
                allow_unknown_handler=allow_unknown_handler,
                rights=principal.rights,
            )
    except Conflict as error:
        key = "dedupe_key" if header is None else IDEMPOTENCY_KEY
        raise Problem(409, str(error), errors=[FieldError(key, str(error))]) from error
    return _answer(job, status=201 if created else 200, headers={"Location": f"{PREFIX}/jobs/{job.job_id}"})


located = {"Location": "address of the job", "ETag": "its version, for If-Match"}
known = answers(200, "A job with this dedupe_key and the same content exists", JobDocument, headers=located)
router.add_api_route(
    "/jobs",
    submit_job,
    methods=["POST"],
    summary="Submit a job",
    description="The body is a job; only `name` and `handler` are required. A command needs the role `operator`.",
    status_code=201,
    responses={
        **answers(201, "The new job", JobDocument, 409, 413, 415, headers=located),
        200: known[200],
    },
    openapi_extra={
        "parameters": [
            {
                "name": IDEMPOTENCY_KEY,
                "in": "header",
                "description": "the same as dedupe_key",
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": _MAX_KEY,
                    "pattern": "^[!-~]([ -~]*[!-~])?$",
                },
            },
            ALLOWS_UNKNOWN_HANDLER,
        ],
        **request_body("JobBody"),
    },
)


@router.get(
    "/jobs",
    summary="List jobs, newest first",
    description=PAGES,
    dependencies=[only("find", "status", "queue", "name", "cursor", "limit", "payload", repeated="label")],
    responses=answers(200, "One page", JobList),
)
@needs("read")
async def list_jobs(
    request: Request,
    operations: Operations = OPERATIONS,
    find: Annotated[
        str | None,
        Query(
            description="an id, the beginning of an id, or a name: the jobs that it may mean, at most 5; "
            "not together with other filters",
            json_schema_extra=text_rules(200),
        ),
    ] = None,
    status: Annotated[str | None, Query(json_schema_extra={"enum": [*JobStatus.__args__, None]})] = None,
    queue: Text = None,
    name: Text = None,
    label: Annotated[
        list[Annotated[str, Field(json_schema_extra={"pattern": _LABEL})]] | None,
        Query(
            description="key=value; several must all match",
            json_schema_extra={"maxItems": checks.MAX_LABELS},
        ),
    ] = None,
    cursor: Annotated[str | None, cursor_of("job")] = None,
    limit: Limit = 100,
    payload: WithPayload = False,
) -> Response:
    if find is not None:
        if others := request.query_params.keys() & {"status", "queue", "name", "label", "cursor", "limit"}:
            raise InvalidInput(min(others), "cannot be given together with find")
        page = Page(await operations.jobs.candidates(find), None)
    else:
        labels = _read_labels(label or [])
        page = await operations.jobs.page(
            status=status, queue=queue, name=name, label=labels, cursor=cursor, limit=limit, payload=payload
        )
    await turn()
    items, turns = list[dict[str, Any]](), Turns()
    for job in page.items:
        items.append(job_document(job) if payload else without_payload(job_document(job)))
        await turns.give()
    return json_response({"items": items, "next_cursor": page.next_cursor})


@router.get(
    "/jobs/{job_id}",
    summary="Show a job",
    dependencies=[only()],
    responses=answers(200, "The job", JobDocument, 404, headers={"ETag": "its version, for If-Match"}),
)
@needs("read")
async def get_job(job_id: str, operations: Operations = OPERATIONS) -> Response:
    return _answer(await operations.jobs.get(job_id))


@router.get(
    "/jobs/{job_id}/runs",
    summary="List a job's runs, newest first",
    description=PAGES,
    dependencies=[only("cursor", "limit")],
    responses=answers(200, "One page", RunList, 404),
)
@needs("read")
async def list_job_runs(
    job_id: str,
    operations: Operations = OPERATIONS,
    cursor: Annotated[str | None, cursor_of("run")] = None,
    limit: Limit = 100,
) -> Response:
    page = await operations.runs.page(job_id, cursor=_read_moment_cursor(cursor), limit=limit)
    await turn()
    items = [run_document(run) for run in page.items]
    return json_response({"items": items, "next_cursor": _in_address(page.next_cursor)})


@router.get(
    "/jobs/{job_id}/upcoming",
    summary="List a job's next occurrences",
    dependencies=[only("count")],
    responses=answers(200, "The next occurrences; empty if the job is paused or has ended", OccurrenceList, 404, 409),
)
@needs("read")
async def list_upcoming(
    job_id: str,
    operations: Operations = OPERATIONS,
    count: Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_OCCURRENCES})] = 10,
) -> Response:
    try:
        found = await operations.jobs.upcoming(job_id, count=count)
    except InvalidInput as error:
        if error.field == "count":
            raise
        # The time-zone data no longer has the job's zone: the request itself is valid.
        raise Conflict(f"job {job_id} cannot be planned at the moment: {error}") from error
    return json_response({"items": [occurrence_document(one) for one in found], "next_cursor": None})


@router.get(
    "/jobs/{job_id}/explain",
    summary="Explain one occurrence, or all in a range",
    description=(
        "Without `from`: explains the occurrence at `at`, or the last expected one. With `from`: lists every "
        "occurrence from then to `to`, and every other run, oldest first. `to` and `cursor` are for a range only."
    ),
    dependencies=[only("at", "from", "to", "cursor", "limit")],
    responses=answers(200, "The explanation; with `from` a page of explanations", ExplanationAnswer, 404),
)
@needs("read")
async def explain_occurrence(
    request: Request,
    job_id: str,
    operations: Operations = OPERATIONS,
    at: Annotated[
        str | None,
        Query(description="default: the last expected occurrence; not with `from`", json_schema_extra=MOMENT_RULES),
    ] = None,
    from_: Annotated[str | None, Query(alias="from", json_schema_extra=MOMENT_RULES)] = None,
    to: Annotated[str | None, Query(description="default: now", json_schema_extra=MOMENT_RULES)] = None,
    cursor: Annotated[str | None, cursor_of("run")] = None,
    limit: Limit = 100,
) -> Response:
    moment, start, end = read_query_moment("at", at), read_query_moment("from", from_), read_query_moment("to", to)
    checks.check_integer("limit", limit, 1, MAX_PAGE)
    if start is None:
        for field in ("to", "cursor"):
            if field in request.query_params:
                raise InvalidInput(field, "is for a range only: give from as well")
        return json_response(explanation_document(await operations.explain.occurrence(job_id, at=moment)))
    if moment is not None:
        raise InvalidInput("at", "cannot be given together with from")
    page = await operations.explain.page(job_id, start=start, end=end, cursor=_read_moment_cursor(cursor), limit=limit)
    items = [explanation_document(one) for one in page.items]
    return json_response({"items": items, "next_cursor": _in_address(page.next_cursor)})


@router.patch(
    "/jobs/{job_id}",
    summary="Change a job",
    description=(
        "Fields that are left out keep their values. A changed schedule is planned anew. Only the role `operator` may "
        "change a job that runs a command."
    ),
    dependencies=[only("reason")],
    responses=answers(
        200,
        "The job as it is now",
        JobDocument,
        404,
        409,
        412,
        413,
        415,
        headers={"ETag": "its version, for If-Match"},
    ),
    openapi_extra={
        "parameters": [
            {
                "name": "If-Match",
                "in": "header",
                "description": "an ETag: change the job only if it has not changed since",
                "schema": {"type": "string", "pattern": _IF_MATCH},
            }
        ],
        **request_body("JobChange"),
    },
)
@needs("write")
async def change_job(
    job_id: str,
    request: Request,
    who: Principal = CALLER,
    operations: Operations = OPERATIONS,
    reason: Reason = None,
) -> Response:
    versions = _read_if_match(request)
    changes = read_change(await read_object(request, limit=body_limit(request)))
    version = None
    if versions is not None:
        job = await operations.jobs.get(job_id)
        _check_version(job, versions)
        version = job.version
    await turn()
    try:
        changed = await operations.jobs.change(
            job_id, changes, expected_version=version, rights=who.rights, reason=reason
        )
        return _answer(changed)
    except Conflict:
        if versions is not None:
            # The job may have been changed since it was read.
            _check_version(await operations.jobs.get(job_id), versions)
        raise


@router.delete(
    "/jobs/{job_id}",
    summary="Cancel a job",
    description="The job never fires again; waiting runs are cancelled. Executing runs go on unless `running=cancel`.",
    dependencies=[only("running", "reason")],
    responses=answers(200, "The job, cancelled", JobDocument, 404, 409),
)
@needs("write")
async def cancel_job(
    job_id: str,
    operations: Operations = OPERATIONS,
    running: Annotated[
        Literal["keep", "cancel"], Query(description="`keep`: executing runs go on; `cancel`: they are told to stop")
    ] = "keep",
    reason: Reason = None,
) -> Response:
    return _answer(await operations.jobs.cancel(job_id, running=running == "cancel", reason=reason))


@router.post(
    "/jobs/{job_id}/pause",
    summary="Pause a job",
    description=(
        "The job does not fire until it is resumed, or until the time `until`, at which it goes on by itself. Pausing "
        "a paused job changes nothing but this time."
    ),
    dependencies=[only()],
    responses=answers(200, "The job", JobDocument, 404, 409, 413, 415),
    openapi_extra=request_body("PauseBody", required=False),
)
@needs("write")
async def pause_job(job_id: str, request: Request, operations: Operations = OPERATIONS) -> Response:
    body = read_body(PauseBody, await read_optional_object(request, limit=body_limit(request)))
    until = None if body.until is None else checks.read_moment("until", body.until)
    return _answer(await operations.jobs.pause(job_id, reason=body.reason, until=until))


@router.post(
    "/jobs/{job_id}/resume",
    summary="Resume a job",
    description="The job fires again from its next future occurrence on. Occurrences during the pause are not run.",
    dependencies=[only("reason")],
    responses=answers(200, "The job", JobDocument, 404, 409),
)
@needs("write")
async def resume_job(job_id: str, operations: Operations = OPERATIONS, reason: Reason = None) -> Response:
    return _answer(await operations.jobs.resume(job_id, reason=reason))


@router.post(
    "/jobs/{job_id}/trigger",
    summary="Start one extra run now",
    status_code=201,
    dependencies=[only("reason")],
    responses=answers(201, "The run", RunDocument, 404, 409, headers={"Location": "address of the run"}),
)
@needs("write")
async def trigger_job(job_id: str, operations: Operations = OPERATIONS, reason: Reason = None) -> Response:
    run = await operations.jobs.trigger(job_id, reason=reason)
    return json_response(run_document(run), status=201, headers={"Location": f"{PREFIX}/runs/{run.run_id}"})


def _answer(job: Job, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return json_response(job_document(job), status=status, headers={**(headers or {}), "ETag": f'"{job.version}"'})


def _read_if_match(request: Request) -> list[str] | None:
    """The versions that the job may have; None: any. A cache may have made a tag weak; it means the same here."""
    if "if-match" not in request.headers:
        return None
    given = ",".join(request.headers.getlist("if-match"))
    if given.strip() == "*":
        return None
    tags = [_ETAG.fullmatch(part) for part in given.split(",", _MAX_TAGS)]
    if len(tags) > _MAX_TAGS or any(tag is None for tag in tags):
        raise InvalidInput("If-Match", 'must be an ETag of this job, such as "3"')
    return [tag[2] for tag in tags if tag is not None]


def _check_version(job: Job, versions: list[str]) -> None:
    if str(job.version) not in versions:
        raise Problem(
            412,
            f"job {job.job_id} was changed since: its ETag is now {job.version}",
            errors=[FieldError("If-Match", "is no longer the job's ETag: read the job again")],
            headers={"ETag": f'"{job.version}"'},
        )


def _idempotency_key(request: Request) -> str | None:
    given = request.headers.getlist(IDEMPOTENCY_KEY)
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInput(IDEMPOTENCY_KEY, "must be given once")
    try:
        # Servers pass headers on as Latin-1; clients that send more than ASCII mean UTF-8.
        key = given[0].encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(IDEMPOTENCY_KEY, "must be ASCII or UTF-8") from error
    return checks.check_text(IDEMPOTENCY_KEY, key, longest=_MAX_KEY)


def _read_labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, value = checks.read_label(text)
        if labels.setdefault(key, value) != value:
            raise InvalidInput("label", "must not ask for two values of one key")
    try:
        checks.check_labels(labels)
    except InvalidInput as error:
        raise InvalidInput("label", error.message) from error
    return labels


def _in_address(cursor: str | None) -> str | None:
    """The cursor with `Z`, which needs no quoting in an address; a `+` there would mean a space."""
    return None if cursor is None else cursor.replace("+00:00", "Z")


def _read_moment_cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        moment = datetime.fromisoformat(cursor)
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return moment.astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise InvalidInput("cursor", INVALID_CURSOR) from error
