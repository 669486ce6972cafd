"""Errors as RFC 9457 problem documents. Every refusal of the API is made here, so that all of them read alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duly.api.responses import json_response
from duly.errors import (
    Conflict,
    DulyError,
    Forbidden,
    InvalidInput,
    LimitReached,
    NotFound,
    StoreBusy,
    StoreUnavailable,
)

log = logging.getLogger("duly.api")

MEDIA_TYPE = "application/problem+json"
# Characters of a field's name, and number of errors, that a document shows at most: a client may send a million names
# of a megabyte each.
_MAX_NAME = 200
MAX_ERRORS = 50

_TITLES = {
    400: ("bad-request", "The request cannot be read"),
    401: ("unauthenticated", "An API key is needed"),
    403: ("forbidden", "Not allowed"),
    404: ("not-found", "Not found"),
    405: ("method-not-allowed", "Method not allowed"),
    408: ("timeout", "The request came too slowly"),
    409: ("conflict", "Conflict with the stored state"),
    412: ("precondition-failed", "Changed since it was read"),
    413: ("too-large", "Request body too large"),
    415: ("unsupported-media-type", "Unsupported media type"),
    421: ("misdirected", "Not a host that is served here"),
    422: ("invalid-input", "Invalid input"),
    429: ("too-many-requests", "Too many requests"),
    431: ("head-too-large", "The request's head is too large"),
    500: ("internal", "Internal error"),
    503: ("store-unavailable", "The store cannot be reached"),
}

# Kinds of problems that share a status, so that a client can tell them apart.
_KINDS = {
    "cross-site": "Cross-site request refused",
    "limit-reached": "A limit of this tenant is reached",
}

# Messages for pydantic's error types.
_TYPE_MESSAGES = {
    "missing": "is required",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number, and not that large",
    "float_type": "must be a number",
    "dict_type": "must be an object",
    "bool_parsing": "must be true or false",
    "datetime_type": "must be a time such as 2026-03-08T09:30:00Z",
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """An invalid field of a request, and why it is invalid."""

    field: str
    message: str


class Problem(Exception):
    """An error in HTTP's terms, including those that `operations` does not know: body too large, wrong media type, …"""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        kind: str | None = None,
        omitted: int = 0,
    ) -> None:
        """`omitted`: the number of invalid fields besides those in `errors`."""
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = errors
        self.headers = headers
        self.omitted = omitted

    def bare(self, *, most: int = MAX_ERRORS) -> Problem:
        """Keep at most `most` of the invalid fields, and no traceback: a batch keeps thousands of problems, which must
        not keep everything that the client sent, nor stack frames."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        self.omitted += max(0, len(self.errors) - most)
        self.errors = self.errors[:most]
        return self

    @classmethod
    def invalid(cls, errors: Sequence[FieldError], *, omitted: int = 0) -> Problem:
        """422 for one or more fields."""
        first = f"{errors[0].field[:_MAX_NAME]}: {errors[0].message}"
        others = len(errors) - 1 + omitted
        more = f" (and {others} more)" if others else ""
        return cls(422, first + more, errors=errors, omitted=omitted)

    @classmethod
    def of(cls, error: DulyError) -> Problem:
        """The problem for an error of Duly's own."""
        if isinstance(error, InvalidInput):
            return cls.invalid([FieldError(one.field, one.message) for one in (error, *error.others)])
        if isinstance(error, NotFound):
            return cls(404, str(error))
        if isinstance(error, Conflict):
            return cls(409, str(error))
        if isinstance(error, Forbidden):
            return cls(403, str(error), errors=[FieldError(error.field, error.message)] if error.field else ())
        if isinstance(error, LimitReached):
            # Not 429: that means "later", and clients obey. This limit stays until jobs are removed or it is raised.
            return cls(403, str(error), kind="limit-reached")
        if isinstance(error, StoreBusy):
            return cls(503, str(error), headers={"Retry-After": "5"})
        if isinstance(error, StoreUnavailable):
            # The error's text names the database's address, which is for the log and not for the client. At level info:
            # nodes warn of it themselves, and a page that polls would repeat it every second.
            log.info("%s", error)
            return cls(503, "the store cannot be reached at the moment; try again", headers={"Retry-After": "5"})
        log.error("a request failed: %s", error, exc_info=error)
        return cls(500, "the request failed for a reason on this side; the server's log says which")

    def document(self, *, most: int = MAX_ERRORS) -> dict[str, Any]:
        """The document, with at most `most` of the invalid fields; `detail` says how many there are."""
        kind, title = _TITLES.get(self.status) or (str(self.status), HTTPStatus(self.status).phrase)
        if self.kind is not None:
            kind, title = self.kind, _KINDS[self.kind]
        document: dict[str, Any] = {
            "type": f"urn:duly:problem:{kind}",
            "title": title,
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            document["field"] = self.errors[0].field[:_MAX_NAME]
            document["errors"] = [
                {"field": error.field[:_MAX_NAME], "message": error.message} for error in self.errors[:most]
            ]
        return document

    def response(self) -> Response:
        return json_response(self.document(), status=self.status, headers=self.headers, media_type=MEDIA_TYPE)


def type_message(kind: str, message: str) -> str:
    """pydantic's message, as the rest of a sentence that begins with the field."""
    known = _TYPE_MESSAGES.get(kind)
    return known or message.removeprefix("Value error, ").replace("Input should be", "must be")


async def _handle_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _handle_duly_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, DulyError)
    return Problem.of(error).response()


async def _handle_validation(_: Request, error: Exception) -> Response:
    """Answer errors of FastAPI's own checks: query parameters of the wrong type."""
    assert isinstance(error, RequestValidationError)
    return Problem.invalid(
        [
            FieldError(
                ".".join(str(part) for part in found["loc"][1:]) or str(found["loc"][0]),
                type_message(found["type"], found["msg"]),
            )
            for found in error.errors()
        ]
    ).response()


async def _handle_http(request: Request, error: Exception) -> Response:
    """Answer errors of the router: no such path, no such method."""
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    headers = error.headers
    if error.status_code == 404:
        path = request.scope["path"]
        detail = f"there is nothing at {path[:_MAX_NAME]}"
        if path.endswith("/") and _routes_at(request, path.rstrip("/")):
            detail += "; leave out the slash at its end"
    elif error.status_code == 405:
        detail = f"{request.method[:_MAX_NAME]} is not possible here"
        headers = {"Allow": ", ".join(sorted(_allowed(request)))}
    return Problem(error.status_code, detail, headers=headers).response()


def _allowed(request: Request) -> set[str]:
    """The methods of all routes at this path; the router itself names only the first route's.

    A literal path goes before a path with a parameter in the same position.
    """
    methods = {method for route in _routes_at(request, request.scope["path"]) for method in route.methods or ()}
    return methods | {"HEAD"} if "GET" in methods else methods


def _routes_at(request: Request, path: str) -> list[Route]:
    routes: Sequence[Route] = request.app.state.routes
    return [route for route in routes if route.path == path] or [
        route for route in routes if route.path_regex.match(path)
    ]


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Install the error handlers. `routes`: all routes of the app."""
    app.state.routes = [route for route in routes if isinstance(route, Route)]
    app.add_exception_handler(Problem, _handle_problem)
    app.add_exception_handler(DulyError, _handle_duly_error)
    app.add_exception_handler(RequestValidationError, _handle_validation)
    app.add_exception_handler(HTTPException, _handle_http)
