"""Routes that declare the roles that may call them: the one place where roles are enforced.

The check comes before anything else that a route does with its request, so that a caller without the role learns
nothing from the answer. Whether a job runs a command is in the body, and `operations` checks that. Reads are bounded in
time and in the share of connections that one tenant may use.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.api.access import allowed, check_role, needed_by, principal_of
from duly.store.pool import reading
from duly.turns import turn

#: Field of the OpenAPI description with the roles that may make a call.
ROLES_FIELD = "x-duly-roles"


class DeclaredRoute(APIRoute):
    """A route of the API whose endpoint has declared its roles."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **fields: Any) -> None:
        extra = {**(fields.pop("openapi_extra", None) or {}), ROLES_FIELD: allowed(needed_by(endpoint))}
        super().__init__(path, endpoint, openapi_extra=extra, **fields)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        needed = needed_by(self.endpoint)
        handle = self.endpoint if _takes_the_request_alone(self) else super().get_route_handler()

        async def handle_allowed(request: Request) -> Response:
            who = check_role(principal_of(request), *needed)
            if request.method != "GET":
                return await handle(request)
            await turn()
            with reading(who.tenant):
                return await handle(request)

        return handle_allowed


def _takes_the_request_alone(route: APIRoute) -> bool:
    """Whether the endpoint can be called without FastAPI's dependencies, which are a tenth of a submit's time."""
    return not route.dependencies and [*inspect.signature(route.endpoint).parameters] == ["request"]


def declared_page(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route outside `/api/v1` with the same check. A route that needs no role is open to all."""
    if not (needed := needed_by(endpoint)):
        return Route(path, endpoint)

    async def call_allowed(request: Request) -> Response:
        who = check_role(principal_of(request), *needed)
        await turn()
        with reading(who.tenant):
            return await endpoint(request)

    return Route(path, call_allowed)
