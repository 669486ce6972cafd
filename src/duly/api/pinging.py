"""`/ping/TOKEN`: the address at which a monitor is pinged without a key, by GET or POST, from a crontab's line.

The token says which monitor, and allows nothing but pings of it. So a GET may change something here: a page of another
site cannot know the address.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.api.guard import PINGS
from duly.api.routes.common import refuse_others
from duly.api.routes.monitors import read_note
from duly.operations import StoreOperations
from duly.operations.monitors import outcome_of


def make_routes(operations: StoreOperations) -> list[Route]:
    async def ping(request: Request) -> Response:
        refuse_others(request, ("rid",))
        outcome = request.path_params.get("outcome")
        event, exit_status = ("success", None) if outcome is None else outcome_of(outcome)
        await operations.ping_door.ping(
            request.path_params["token"],
            event,
            rid=request.query_params.get("rid"),
            exit_status=exit_status,
            note=await read_note(request),
        )
        return Response("OK\n", media_type="text/plain")

    methods = ["GET", "POST"]
    return [
        Route(PINGS + "{token}", ping, methods=methods),
        Route(PINGS + "{token}/{outcome}", ping, methods=methods),
    ]
