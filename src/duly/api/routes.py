"""The routes under `/api/v1`. Each reads its request, calls one operation and answers with a document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from duly import checks
from duly.api.body import read_object
from duly.api.documents import job_document, run_document
from duly.api.problems import MEDIA_TYPE, PROBLEM_SCHEMA, FieldError, Problem, json_response
from duly.api.schemas import JobBody, JobDocument, JobList, RunList, read_job
from duly.errors import Conflict, InvalidInput
from duly.operations import Operations

PREFIX = "/api/v1"
_HEADER = "Idempotency-Key"
_LONGEST_KEY = 200


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}}
    return {status: {"description": "Problem", "content": content} for status in (*statuses, 503)}


def _only(*known: str, repeated: str | None = None) -> Any:
    """A misspelt filter would silently match everything, so a parameter that means nothing is refused."""

    async def check(request: Request) -> None:
        for name in request.query_params:
            if name not in known and name != repeated:
                raise InvalidInput(name, "is not a parameter of this call")
            if name != repeated and len(request.query_params.getlist(name)) > 1:
                raise InvalidInput(name, "must be given once")

    return Depends(check)


def make_router(operations: Operations, *, body_limit: int) -> APIRouter:
    router = APIRouter(prefix=PREFIX)
    router.add_api_route(
        "/jobs",
        _submit_route(operations, body_limit),
        methods=["POST"],
        operation_id="submit_job",
        summary="Submit a job",
        status_code=201,
        dependencies=[_only()],
        responses={
            201: {"model": JobDocument, "description": "The job is registered"},
            200: {"model": JobDocument, "description": "Its dedupe_key was known, with the same content"},
            **_problems(409, 413, 415, 422),
        },
        openapi_extra={
            "parameters": [
                {"name": _HEADER, "in": "header", "schema": {"type": "string"}, "description": "the same as dedupe_key"}
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": JobBody.model_json_schema()}},
            },
        },
    )

    @router.get(
        "/jobs",
        operation_id="list_jobs",
        summary="List jobs, newest first",
        dependencies=[_only("status", "queue", "name", "cursor", "limit", repeated="label")],
        responses={200: {"model": JobList}, **_problems(422)},
    )
    async def list_jobs(
        status: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        label: Annotated[list[str] | None, Query(description="key:value; several must all match")] = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Response:
        page = await operations.list_jobs(
            status=status, queue=queue, name=name, label=_read_labels(label or []), cursor=cursor, limit=limit
        )
        return json_response({"items": [job_document(job) for job in page.items], "next_cursor": page.next_cursor})

    @router.get(
        "/jobs/{job_id}",
        operation_id="get_job",
        summary="Show a job",
        dependencies=[_only()],
        responses={200: {"model": JobDocument}, **_problems(404, 422)},
    )
    async def get_job(job_id: str) -> Response:
        return json_response(job_document(await operations.get_job(job_id)))

    @router.get(
        "/jobs/{job_id}/runs",
        operation_id="list_job_runs",
        summary="List a job's runs, newest first",
        dependencies=[_only("cursor", "limit")],
        responses={200: {"model": RunList}, **_problems(404, 422)},
    )
    async def job_runs(job_id: str, cursor: str | None = None, limit: int = 100) -> Response:
        page = await operations.job_runs(job_id, cursor=_read_moment_cursor(cursor), limit=limit)
        # With `Z`, the cursor can be put into an address as it is; a `+` there would mean a space.
        following = None if page.next_cursor is None else page.next_cursor.replace("+00:00", "Z")
        return json_response({"items": [run_document(run) for run in page.items], "next_cursor": following})

    return router


def _submit_route(operations: Operations, body_limit: int) -> Callable[[Request], Awaitable[Response]]:
    async def submit_job(request: Request) -> Response:
        body = read_job(await read_object(request, limit=body_limit))
        header = _idempotency_key(request)
        if header is not None and body.dedupe_key not in (None, header):
            raise InvalidInput(_HEADER, "must not differ from dedupe_key: they mean the same")
        try:
            submitted = await operations.submit(
                body.to_request(dedupe_key=body.dedupe_key if header is None else header)
            )
        except Conflict as error:
            key = "dedupe_key" if header is None else _HEADER
            raise Problem(409, str(error), errors=[FieldError(key, str(error))]) from error
        job = await operations.get_job(str(submitted.job_id))
        return json_response(
            job_document(job),
            status=201 if submitted.created else 200,
            headers={"Location": f"{PREFIX}/jobs/{job.job_id}"},
        )

    return submit_job


def _idempotency_key(request: Request) -> str | None:
    given = request.headers.getlist(_HEADER)
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInput(_HEADER, "must be given once")
    try:
        # Servers hand headers on as Latin-1; clients that use more than ASCII mean UTF-8.
        key = given[0].encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(_HEADER, "must be ASCII or UTF-8") from error
    return checks.check_text(_HEADER, key, longest=_LONGEST_KEY)


def _read_labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, colon, value = text.partition(":")
        if not colon:
            raise InvalidInput("label", "must be key:value")
        if labels.setdefault(key, value) != value:
            raise InvalidInput("label", "must not ask for two values of one key")
    try:
        checks.check_labels(labels)
    except InvalidInput as error:
        raise InvalidInput("label", error.message) from error
    return labels


def _read_moment_cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        moment = datetime.fromisoformat(cursor)
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return moment.astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise InvalidInput("cursor", "is not one that a list gave") from error
