"""The HTTP server: the app made of its parts, and a uvicorn that lives inside an event loop of ours."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator

from duly.errors import ConfigError, MissingExtra
from duly.operations import Operations

_EXTRA = ("fastapi", "starlette", "uvicorn", "prometheus_client")

try:
    import uvicorn
    from fastapi import FastAPI

    from duly.api import description, live, metrics, problems, routes
    from duly.api.access import Access
    from duly.api.guard import Guard, is_loopback_address
except ModuleNotFoundError as missing:
    if missing.name is not None and missing.name.partition(".")[0] in _EXTRA:
        raise MissingExtra("the HTTP API", "api") from missing
    raise

# A body may be this much larger than the largest payload: the other fields, and the spaces between them.
BODY_HEADROOM = 64 * 1024
_HEAD_BYTES = 64 * 1024
_SHUTDOWN_SECONDS = 5
_BACKLOG = 2048


# A request that finds no free connection for this long is answered with 503: its client has better things to do.
CONNECTION_SECONDS = 10.0


def create_app(operations: Operations) -> FastAPI:
    """Everything that Duly serves over HTTP, on top of one store's operations."""
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
    access = app.state.access = Access(operations, require_keys=settings.require_keys)
    description.install(app, access)
    app.add_middleware(
        Guard, access=access, hosts=[host.strip() for host in settings.api_hosts.split(",") if host.strip()]
    )
    limit = settings.payload_max_bytes + BODY_HEADROOM
    router = routes.make_router(operations, body_limit=limit)
    pages = [*live.make_routes(operations), *metrics.make_routes(operations)]
    problems.install(app, [*router.routes, *pages])
    app.include_router(router)
    app.router.routes.extend(pages)
    return app


async def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    started: Callable[[str], None] | None = None,
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set. Raises `ConfigError` before anything is served if that cannot be done here.

    Beyond loopback only with keys, and then every call needs one, whatever becomes of the keys later.
    """
    family, address, loopback = await _find_address(host, port)
    if not loopback:
        access: Access = app.state.access
        if not (access.known_to_be_needed or await access.is_needed()):
            raise ConfigError(
                f"without API keys Duly serves loopback only: {host!r} could be reached by others. Use 127.0.0.1, ::1 "
                "or localhost; or make a key first: duly key create"
            )
        access.require_keys()
    listener = _listen(family, address, port)
    address, bound_port = listener.getsockname()[:2]
    url = f"http://[{address}]:{bound_port}" if ":" in address else f"http://{address}:{bound_port}"
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        # Not whatever is installed. httptools takes a fifth less time for a submit (760 instead of 950 µs, measured),
        # but with it uvicorn puts no bound on a request's head: whoever can connect could fill the memory, key or not.
        http="h11",
        h11_max_incomplete_event_size=_HEAD_BYTES,
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = _Server(config, lambda: started(url) if started is not None else None)
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
    """Says when it accepts connections, and leaves signals to whoever runs the event loop."""

    def __init__(self, config: uvicorn.Config, accepting: Callable[[], None]) -> None:
        super().__init__(config)
        self._accepting = accepting

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._accepting()


async def _exit_when(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        # At once: two programs may bind a port under SO_REUSEADDR, but only one can listen on it.
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {address} is taken by another program: choose another, or 0 for any free one"
            ) from error
        raise ConfigError(f"cannot listen on {address} port {port}: {error}") from error
    return listener


async def _find_address(host: str, port: int) -> tuple[socket.AddressFamily, str, bool]:
    """Where to bind, and whether only this machine reaches that: a name counts so only if all it stands for does."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port must be 0 to 65535, not {port}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} cannot be resolved: {error}") from error
    addresses = sorted({(family, str(address[0])) for family, _, _, _, address in found})
    if not addresses:
        raise ConfigError(f"host {host!r} cannot be resolved: it stands for no address")
    # AF_INET sorts first: 127.0.0.1 is what people type.
    family, address = addresses[0]
    return socket.AddressFamily(family), address, all(is_loopback_address(one) for _, one in addresses)
