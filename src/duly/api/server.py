"""The HTTP server: the app made of its parts, and uvicorn inside an event loop that Duly runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

from duly.api.binding import LISTEN_QUEUE, address_of, bind, find_address
from duly.errors import ConfigError, MissingExtra
from duly.local_keys import LocalKey
from duly.operations import StoreOperations

_EXTRA = ("fastapi", "starlette", "uvicorn", "prometheus_client")

try:
    import uvicorn
    from fastapi import FastAPI
    from starlette.routing import Route

    from duly.api import description, live, metrics, pinging, problems, routes
    from duly.api.access import Access
    from duly.api.connections import ACCEPTED_AT_ONCE, Crowd, Limits, protocol_for
    from duly.api.guard import RequestGuard
    from duly.api.requests import CountedRequests, Requests
except ModuleNotFoundError as missing:
    if missing.name is not None and missing.name.partition(".")[0] in _EXTRA:
        raise MissingExtra("the HTTP API", "api") from missing
    raise

# Bytes by which a body may exceed the largest payload: the other fields, and white space.
BODY_HEADROOM = 64 * 1024
_SHUTDOWN_SECONDS = 5


# Seconds after which a request that gets no connection to the store is answered with 503.
CONNECTION_SECONDS = 10.0
# Seconds after which a read is cancelled in the store and answered with 503. Every read is bounded to some ten
# milliseconds on an idle store.
READ_SECONDS = 2.0


def create_app(
    operations: StoreOperations, *, local_key: LocalKey | None = None, beside: metrics.Beside = dict
) -> FastAPI:
    """Everything that Duly serves over HTTP, on top of one store's operations.

    `local_key`: accepted beside the keys of the store, while only loopback is served. `beside`: figures of other
    processes, for /metrics.
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
        RequestGuard, access=access, hosts=[host.strip() for host in settings.api_hosts.split(",") if host.strip()]
    )
    requests = Requests()
    app.add_middleware(CountedRequests, requests=requests)  # the outermost: it counts what is refused as well
    app.state.body_limit = settings.payload_max_bytes + BODY_HEADROOM
    served = [
        *routes.make_routes(settings),
        *live.make_routes(operations),
        *metrics.make_routes(operations, requests, beside),
        *pinging.make_routes(operations),
    ]
    requests.pages = frozenset(route.path for route in served if isinstance(route, Route) and "{" not in route.path)
    problems.install(app, served)
    # As routes of the app itself: with a router inside it, each request's route would be searched for twice more.
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
    """Serve until `stop` is set. Raises `ConfigError` before anything is served if that is not possible.

    `listener`: a socket that already listens there. An address other than loopback is served only if the store has
    keys, and then every call needs one of those, even if all are revoked later: the local key is for users of this
    machine. `limits`: limits on connections, if not the default ones.
    """
    family, address, loopback = await find_address(host, port)
    access: Access | None = getattr(app.state, "access", None)
    # Asked at the start: a load balancer's first probe uses a public name, which is served only if there are keys.
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
        # h11 even if httptools is installed. httptools takes a fifth less time for a submit (760 instead of 950 µs,
        # measured), but with it uvicorn does not bound a request's head: any client could fill the memory without a
        # key.
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
        # Needed if this task was cancelled: then uvicorn closes nothing.
        for listening in getattr(server, "servers", ()):
            listening.close()
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn's server, which reports when it accepts connections, checks them, and does not handle signals."""

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
            # uvicorn has one number for the listen backlog and for the connections accepted at once.
            listener.listen(LISTEN_QUEUE)
        self._accepting()

    async def on_tick(self, counter: int) -> bool:
        self._crowd.look()
        return await super().on_tick(counter)


async def _exit_when(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True
