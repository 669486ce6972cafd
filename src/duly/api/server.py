"""The HTTP server: the app made of its parts, and a uvicorn that lives inside an event loop of ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

from duly.api.binding import BACKLOG, address_of, bind, find_address
from duly.errors import ConfigError, MissingExtra
from duly.local_keys import LocalKey
from duly.operations import StoreOperations

_EXTRA = ("fastapi", "starlette", "uvicorn", "prometheus_client")

try:
    import uvicorn
    from fastapi import FastAPI

    from duly.api import description, live, metrics, problems, routes
    from duly.api.access import Access
    from duly.api.connections import ACCEPTED_AT_ONCE, Crowd, Limits, protocol_for
    from duly.api.guard import Guard
except ModuleNotFoundError as missing:
    if missing.name is not None and missing.name.partition(".")[0] in _EXTRA:
        raise MissingExtra("the HTTP API", "api") from missing
    raise

# A body may be this much larger than the largest payload: the other fields, and the spaces between them.
BODY_HEADROOM = 64 * 1024
_SHUTDOWN_SECONDS = 5


# A request that finds no free connection for this long is answered with 503: its client has better things to do.
CONNECTION_SECONDS = 10.0
# A question that the store has not answered by then is given up, cancelled there and answered with 503: all of them are
# bounded to some ten milliseconds of an idle one.
READ_SECONDS = 2.0


def create_app(operations: StoreOperations, *, local_key: LocalKey | None = None) -> FastAPI:
    """Everything that Duly serves over HTTP, on top of one store's operations.

    `local_key`: accepted beside the keys of the store, while only loopback is served.
    """
    app = FastAPI(
        title="Duly",
        version="1",
        description="A distributed job scheduler: jobs, their occurrences and runs.",
        openapi_url=f"{routes.PREFIX}/openapi.json",
        # FastAPI's documentation pages load their scripts from another host, which the security policy forbids.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    settings = operations.settings
    operations.bound_waiting(CONNECTION_SECONDS)
    operations.bound_reads(READ_SECONDS)
    access = app.state.access = Access(
        operations, local_key=local_key, open_to_all=settings.open_api, require_keys=settings.require_keys
    )
    description.install(app, access)
    app.add_middleware(
        Guard, access=access, hosts=[host.strip() for host in settings.api_hosts.split(",") if host.strip()]
    )
    app.state.body_limit = settings.payload_max_bytes + BODY_HEADROOM
    served = [*routes.make_routes(settings), *live.make_routes(operations), *metrics.make_routes(operations)]
    problems.install(app, served)
    # As routes of the app itself: a router within it would look for each request's route twice more.
    app.router.routes.extend(served)
    return app


async def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    started: Callable[[str], None] | None = None,
    stop: asyncio.Event,
    listener: socket.socket | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve until `stop` is set. Raises `ConfigError` before anything is served if that cannot be done here.

    `listener`: one that listens there already. Beyond loopback only with keys in the store, and then every call needs
    one of those, whatever becomes of them later: the local key is for users of this machine. `limits`: what clients may
    do to their connections, if not the usual.
    """
    family, address, loopback = await find_address(host, port)
    access: Access | None = getattr(app.state, "access", None)
    # Asked at the start: a balancer's first probe comes by a public name, which is served only where there are keys.
    keyed = access is not None and await access.has_keys()
    if not loopback:
        if access is None or not keyed:
            raise ConfigError(
                f"without API keys Duly serves loopback only: {host!r} could be reached by others. Use 127.0.0.1, ::1 "
                "or localhost; or make a key first: duly key create"
            )
        access.require_keys()
    if listener is None:
        listener = bind(family, address, port)
    url = address_of(listener)
    limits = limits or Limits()
    crowd = Crowd(limits)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        # Not whatever is installed. httptools takes a fifth less time for a submit (760 instead of 950 µs, measured),
        # but with it uvicorn puts no bound on a request's head: whoever can connect could fill the memory, key or not.
        http=protocol_for(crowd),  # type: ignore[arg-type]
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
        backlog=ACCEPTED_AT_ONCE,
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = _Server(config, crowd, lambda: started(url) if started is not None else None)
    stopping = asyncio.create_task(_exit_when(stop, server))
    try:
        await server.serve(sockets=[listener])
    finally:
        stopping.cancel()
        # Also when this was cancelled, in which case uvicorn closes nothing.
        for listening in getattr(server, "servers", ()):
            listening.close()
        listener.close()


class _Server(uvicorn.Server):
    """Says when it accepts connections, looks after them, and leaves signals to whoever runs the event loop."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd, accepting: Callable[[], None]) -> None:
        super().__init__(config)
        self._crowd = crowd
        self._accepting = accepting

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            # uvicorn has one number for how many wait in line and how many are accepted at once.
            listener.listen(BACKLOG)
        self._accepting()

    async def on_tick(self, counter: int) -> bool:
        self._crowd.look()
        return await super().on_tick(counter)


async def _exit_when(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True
