"""What all routes share: who asks, which parameters there are, and how a call is described."""

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
from duly.errors import InvalidInput
from duly.operations import Operations, Principal

PREFIX = "/api/v1"
# Every call may end so: no key, not allowed, asked too often, asked by a foreign name, no store.
_ALWAYS = (401, 403, 421, 422, 429, 503)
_PROBLEMS = {
    401: "No API key was given, or it is unknown or revoked",
    403: "The key's role does not allow this, or a limit of the tenant is reached",
    404: "There is no such thing, or not for this tenant",
    409: "It contradicts what is stored",
    412: "It was changed since the ETag in If-Match was read",
    413: "The body is too large",
    415: "The body is not of a media type that is read here",
    421: "Not a host that is served here",
    422: "Something in the request is wrong; `field` names it",
    429: "This key asks too often; Retry-After says when to try again",
    503: "The store cannot be reached at the moment",
}
# What an answer may say besides its body.
_HEADERS = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: {"Retry-After": {"schema": {"type": "string"}}},
    503: {"Retry-After": {"schema": {"type": "string"}}},
}


async def _caller(request: Request) -> Principal:
    return principal_of(request)


async def _operations(request: Request) -> Operations:
    return operations_of(request)


#: A route's parameter: the caller. That it may call is known by then.
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
    """All that a call may answer: one success and its problems, those that every call has among them."""
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
    """For calls that read their body themselves, bounded: what FastAPI would else find out from the types."""
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"requestBody": {"required": required, "content": content}}


def refuse_others(request: Request, known: Iterable[str] = (), *, repeated: str | None = None) -> None:
    """A misspelt filter would silently match everything, so a parameter that means nothing is refused."""
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
    """Opaque to clients: what a list gave, and nothing made by hand."""
    return Query(
        description="next_cursor of the page before",
        json_schema_extra={"format": f"duly-{what}-cursor", "minLength": 1},
    )


#: Lists leave out what is each item's largest part.
WithPayload = Annotated[bool, Query(description="whether each item has its payload; a single one always does")]


def read_flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(name, "must be true or false")
    return text == "true"


#: For the calls that submit: theirs is a parameter of the call, not a field of the job.
ALLOW_UNKNOWN_HANDLER = "allow_unknown_handler"


def flag(name: str, description: str) -> dict[str, Any]:
    """A parameter of a call that reads its request itself, as OpenAPI has it."""
    return {
        "name": name,
        "in": "query",
        "description": description,
        "schema": {"type": "boolean", "default": False},
    }


ALLOWS_UNKNOWN_HANDLER = flag(
    ALLOW_UNKNOWN_HANDLER, "take a job whose task no worker has yet; else it is refused, as it may be misspelt"
)


def read_moment(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return checks.check_moment(field, datetime.fromisoformat(text))
    except ValueError as error:
        # What an address calls a space was meant as a plus.
        told = "; write + as %2B in an address" if " " in text else ""
        raise InvalidInput(field, f"must be a time such as 2026-03-08T09:30:00Z{told}") from error
