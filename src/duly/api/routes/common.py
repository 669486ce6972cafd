"""Shared by all routes: the caller, parameters, and the description of a call."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel

from duly import checks
from duly.api.access import operations_of, principal_of
from duly.api.declared import DeclaredRoute
from duly.api.problems import MEDIA_TYPE
from duly.api.schemas import text_rules
from duly.errors import InvalidInput
from duly.operations import Operations, Principal
from duly.operations.core import MAX_REASON

PREFIX = "/api/v1"
# Problems of every call: no key, not allowed, wrong host, invalid parameter, too many requests, no store.
_ALWAYS = (401, 403, 421, 422, 429, 503)
_PROBLEMS = {
    401: "No API key was given, or it is unknown or revoked",
    403: "The key's role does not allow this, or a limit of the tenant is reached",
    404: "Not found, or not of this tenant",
    409: "Conflict with the stored state",
    412: "The job was changed since the ETag in If-Match was read",
    413: "The body is too large",
    415: "The media type of the body is not supported",
    421: "This host name is not served",
    422: "A part of the request is invalid; `field` names it",
    429: "Too many requests with this key; Retry-After says when to try again",
    503: "The store cannot be reached at the moment",
}
# Headers of an answer, by status.
_HEADERS = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: {"Retry-After": {"schema": {"type": "string"}}},
    503: {"Retry-After": {"schema": {"type": "string"}}},
}


async def _caller(request: Request) -> Principal:
    return principal_of(request)


async def _operations(request: Request) -> Operations:
    return operations_of(request)


#: A route's parameter: the caller, whose role has been checked.
CALLER: Any = Depends(_caller)
#: A route's parameter: the operations of the caller's tenant, which nothing else in the request chooses.
OPERATIONS: Any = Depends(_operations)


def new_router(*tags: str) -> APIRouter:
    """A router for the endpoints of one file. The name of an endpoint is its operationId in the description."""
    return APIRouter(
        prefix=PREFIX, tags=[*tags], route_class=DeclaredRoute, generate_unique_id_function=lambda route: route.name
    )


def body_limit(request: Request) -> int:
    """Maximum size of the body of one job, in bytes."""
    return int(request.app.state.body_limit)


def answers(
    status: int,
    description: str,
    model: type[BaseModel] | None = None,
    *problems: int,
    headers: dict[str, str] | None = None,
) -> dict[int | str, dict[str, Any]]:
    """All answers of a call: one success, its own problems, and those of every call."""
    success: dict[str, Any] = {"description": description}
    if model is not None:
        success["model"] = model
    if headers:
        success["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
        }
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {
        status: success,
        **{
            number: {
                "description": _PROBLEMS[number],
                "content": content,
                **({"headers": _HEADERS[number]} if number in _HEADERS else {}),
            }
            for number in sorted({*problems, *_ALWAYS})
        },
    }


def request_body(name: str, *, required: bool = True, media_type: str = "application/json") -> dict[str, Any]:
    """Describes the body of a call that reads it itself, with bounds; else FastAPI would describe it from the types."""
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"requestBody": {"required": required, "content": content}}


def refuse_others(request: Request, known: Iterable[str] = (), *, repeated: str | None = None) -> None:
    """Refuse unknown parameters: a misspelt filter would silently match everything."""
    for name in request.query_params:
        if name not in known and name != repeated:
            raise InvalidInput(name, "is not a parameter of this call")
        if name != repeated and len(request.query_params.getlist(name)) > 1:
            raise InvalidInput(name, "must be given once")


def only(*known: str, repeated: str | None = None) -> Any:
    async def check(request: Request) -> None:
        refuse_others(request, known, repeated=repeated)

    return Depends(check)


def cursor_of(what: str) -> Any:
    """A cursor parameter. Cursors are opaque: clients send the one that the previous page gave."""
    return Query(
        description="next_cursor of the previous page",
        json_schema_extra={"format": f"duly-{what}-cursor", "minLength": 1},
    )


#: Why something is done, for the audit trail.
Reason = Annotated[
    str | None, Query(description="why; kept in the audit trail", json_schema_extra=text_rules(MAX_REASON))
]

#: Lists leave out the payloads, usually the largest part of an item, unless they are asked for.
WithPayload = Annotated[bool, Query(description="whether items have their payload")]


def read_flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(name, "must be true or false")
    return text == "true"


#: A parameter of the calls that submit, not a field of a job.
ALLOW_UNKNOWN_HANDLER = "allow_unknown_handler"


def flag(name: str, description: str) -> dict[str, Any]:
    """The OpenAPI description of a flag, for a call that reads its request itself."""
    return {
        "name": name,
        "in": "query",
        "description": description,
        "schema": {"type": "boolean", "default": False},
    }


ALLOWS_UNKNOWN_HANDLER = flag(
    ALLOW_UNKNOWN_HANDLER,
    "accept a job whose task no worker has yet; else it is refused as possibly misspelt",
)


def read_query_moment(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return checks.check_moment(field, datetime.fromisoformat(text))
    except ValueError as error:
        # In a query a + means a space: the client meant a plus sign.
        hint = "; write + as %2B in an address" if " " in text else ""
        raise InvalidInput(field, f"must be a time such as 2026-03-08T09:30:00Z{hint}") from error
