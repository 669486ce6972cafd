"""Bulk submit: thousands of jobs in one request, as a JSON array or one JSON object per line.

The whole body is read before anything is stored: a connection that breaks while sending leaves nothing behind. The
models are not on this path. Most jobs of a batch use few fields, and reading those by hand costs a third of a model;
unusual jobs are read by the models, which also word all refusals.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from duly.api.access import needs, operations_of, principal_of
from duly.api.body import JSON, NDJSON, Read, read_array, read_bytes, read_lines
from duly.api.problems import FieldError, Problem
from duly.api.responses import json_response
from duly.api.routes.common import (
    ALLOW_UNKNOWN_HANDLER,
    ALLOWS_UNKNOWN_HANDLER,
    answers,
    body_limit,
    flag,
    new_router,
    read_flag,
    refuse_others,
)
from duly.api.routes.jobs import IDEMPOTENCY_KEY
from duly.api.schemas import BatchResult, JobBody, read_body
from duly.errors import Conflict, DulyError, InvalidInput
from duly.model import DEFAULT_POLICY, JOB_RULES, POLICY_RULES, JobRequest, Rule, SubmittedId, policy_with
from duly.operations import BatchRefused
from duly.tracing import incoming
from duly.turns import Turns, turn

MAX_JOBS = 10_000
_MAX_NAMED = 50
# An answer names up to 3 invalid fields for each of the first 100 invalid jobs, and one for each other job.
_MAX_WITH_ERRORS = 100
_MAX_ERRORS_EACH = 3
# Requests of one tenant in each phase at the same time; the next ones wait. An arriving body takes its size in memory,
# one that is being read several times that. A batch that is being stored takes a connection: the tenant's reads may
# take half of all, and one must be left for others.
_MAX_ARRIVING = 4
_MAX_READ = 2
_MAX_STORED = 1


def make_router(*, batch_limit: int) -> APIRouter:
    router = new_router("jobs")
    arriving, worked_on, stored = _PerTenant(_MAX_ARRIVING), _PerTenant(_MAX_READ), _PerTenant(_MAX_STORED)

    @needs("write")
    async def submit_batch(request: Request) -> Response:
        principal = principal_of(request)
        refuse_others(request, ("atomic", ALLOW_UNKNOWN_HANDLER))
        atomic = read_flag(request, "atomic")
        allow_unknown_handler = read_flag(request, ALLOW_UNKNOWN_HANDLER)
        if IDEMPOTENCY_KEY in request.headers:
            raise InvalidInput(IDEMPOTENCY_KEY, "is for one job: give each job of a batch a dedupe_key of its own")
        async with arriving.one_for(principal.tenant):
            media_type, body = await read_bytes(request, limit=batch_limit, media_types=(*JSON, *NDJSON))
            async with worked_on.one_for(principal.tenant):
                await turn()
                read = await (read_array if media_type in JSON else read_lines)(
                    body, most=MAX_JOBS, each=body_limit(request)
                )
                del body
                requests, refused = await _to_requests(read)
                del read
                if atomic and refused:
                    raise _whole(refused)
                try:
                    async with stored.one_for(principal.tenant):
                        with incoming(request.headers):
                            submitted = await operations_of(request).submit_each(
                                requests,
                                atomic=atomic,
                                allow_unknown_handler=allow_unknown_handler,
                                rights=principal.rights,
                            )
                except BatchRefused as error:
                    raise _whole({index: _problem(one) for index, one in error.errors.items()}) from error
                return await _answer(submitted, refused)

    router.add_api_route(
        "/jobs/batch",
        submit_batch,
        methods=["POST"],
        operation_id="submit_jobs",
        summary=f"Submit up to {MAX_JOBS:,} jobs",
        description=(
            "A JSON array, or NDJSON: one job per line. Every job has its own answer, in order; with `atomic=true` all "
            "are stored or none. A batch past a limit of the tenant is refused as a whole. The body is read whole "
            "before anything is stored: a connection that breaks while it is sent leaves nothing behind."
        ),
        responses=answers(200, "The outcome of each job", BatchResult, 409, 413, 415),
        openapi_extra={
            "parameters": [
                flag("atomic", "all or nothing: if one is wrong, nothing is stored and the answer is a problem"),
                ALLOWS_UNKNOWN_HANDLER,
            ],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "array",
                            "maxItems": MAX_JOBS,
                            "items": {"$ref": "#/components/schemas/JobBody"},
                        }
                    },
                    "application/x-ndjson": {
                        "schema": {"type": "string", "description": "one JobBody per line", "format": "duly-ndjson"}
                    },
                },
            },
        },
    )
    return router


class _PerTenant:
    """At most `most` requests of each tenant at the same time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._wanted: Counter[str] = Counter()

    @asynccontextmanager
    async def one_for(self, tenant: str) -> AsyncIterator[None]:
        semaphore = self._semaphores.setdefault(tenant, asyncio.Semaphore(self._most))
        self._wanted[tenant] += 1
        try:
            async with semaphore:
                yield
        finally:
            self._wanted[tenant] -= 1
            if not self._wanted[tenant]:
                del self._wanted[tenant], self._semaphores[tenant]


async def _to_requests(read: Sequence[Read]) -> tuple[list[JobRequest], dict[int, Problem]]:
    requests: list[JobRequest] = []
    refused: dict[int, Problem] = {}
    turns = Turns()
    for index, document in enumerate(read):
        await turns.give()
        try:
            if isinstance(document, Problem):
                raise document
            request = _quickly(document)
            if request is None:
                body = read_body(JobBody, document)
                request = body.to_request(dedupe_key=body.dedupe_key)
            requests.append(request)
        except Problem as problem:
            refused[index] = problem.bare(most=_MAX_NAMED if len(refused) < _MAX_WITH_ERRORS else 1)
    return requests, refused


def _is_labels(value: object) -> bool:
    return type(value) is dict and all(type(one) is str for one in value.values())


def _is_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


# Fields whose type one comparison can tell. The models judge all others.
_PLAIN: dict[str, Callable[[Any], bool]] = {
    **{rule.name: _is_of(rule.kind) for rule in JOB_RULES.values() if rule.kind in (str, int)},
    "handler": _is_of(str),
    "payload": lambda value: True,
    "labels": _is_labels,
}


_NONE: frozenset[str] = frozenset()


def _quickly(document: dict[str, Any]) -> JobRequest | None:
    """The request, if all of its fields are of the plain kinds; else None."""
    if "name" not in document or "handler" not in document:
        return None
    fields: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    for field, value in document.items():
        if (fits := _PLAIN.get(field)) is not None and fits(value):
            fields[field] = value
        elif (rule := POLICY_RULES.get(field)) is not None and _fits(rule, value):
            # As the models read it: 60.0 means 60.
            chosen[field] = int(value) if type(value) is float and value.is_integer() else value
        else:
            return None
    policy = policy_with(DEFAULT_POLICY, chosen) if chosen else DEFAULT_POLICY
    return JobRequest(policy=policy, chosen=frozenset(chosen) if chosen else _NONE, **fields)


def _fits(rule: Rule, value: Any) -> bool:
    if rule.kind is str:
        return value in rule.choices if rule.choices else type(value) is str
    is_number = type(value) is int or (type(value) is float and (rule.kind is float or value.is_integer()))
    return rule.kind in (int, float) and is_number and rule.minimum <= value <= rule.maximum


def _problem(error: DulyError) -> Problem:
    if isinstance(error, Conflict):
        return Problem(409, str(error), errors=[FieldError("dedupe_key", str(error))])
    return Problem.of(error)


def _whole(refused: dict[int, Problem]) -> Problem:
    """The refusal of a whole batch: it names the invalid jobs, at most 50."""
    first = next(iter(refused.values()))
    errors = [
        FieldError(f"jobs[{index}].{error.field}", error.message)
        for index, problem in list(refused.items())[:_MAX_NAMED]
        for error in problem.errors[:_MAX_NAMED]
    ]
    omitted = sum(len(problem.errors) + problem.omitted for problem in refused.values()) - len(errors)
    problem = Problem.invalid(errors, omitted=omitted)
    return Problem(first.status, f"nothing was stored: {problem.detail}", errors=errors)


async def _answer(submitted: Sequence[SubmittedId | DulyError], refused: dict[int, Problem]) -> Response:
    items: list[str] = []
    others = iter(submitted)
    turns = Turns()
    wrong = 0
    for index in range(len(submitted) + len(refused)):
        one = refused.get(index) or next(others)
        if isinstance(one, SubmittedId):
            # Written without an encoder: there are thousands of these, each an id and a number.
            items.append(f'{{"status":{201 if one.created else 200},"job_id":"{one.job_id}"}}')
        else:
            wrong += 1
            problem = one if isinstance(one, Problem) else _problem(one)
            document = problem.document(most=_MAX_ERRORS_EACH if wrong <= _MAX_WITH_ERRORS else 1)
            items.append(json_response({"status": problem.status, "error": document}).body.decode())  # type: ignore[union-attr]
        await turns.give()
    return Response('{"items":[' + ",".join(items) + "]}", media_type="application/json")
