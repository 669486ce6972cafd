"""Routes that say who may call them, and are called by nobody else: the one place where roles are enforced.

The check stands before everything else that a route does with its request, so that who may not call it learns nothing
from how it answers. What needs commands is in the body, and `operations` judges that. Whatever is only read is bounded:
in time, and in how much of the store one tenant's questions may have.
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

#: In the description: the roles that may make this call.
ROLES_FIELD = "x-duly-roles"


class DeclaredRoute(APIRoute):
    """A route of the API whose endpoint has said what it needs."""

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
    """Whether FastAPI has nothing to work out before the endpoint is called, which is a tenth of a submit's time."""
    return not route.dependencies and [*inspect.signature(route.endpoint).parameters] == ["request"]


def declared_page(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route beside the API, for which the same holds. One that needs no role is for all."""
    if not (needed := needed_by(endpoint)):
        return Route(path, endpoint)

    async def call_allowed(request: Request) -> Response:
        who = check_role(principal_of(request), *needed)
        await turn()
        with reading(who.tenant):
            return await endpoint(request)

    return Route(path, call_allowed)
