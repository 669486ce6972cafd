"""The HTTP server: the app made of its parts, and a uvicorn that lives inside an event loop of ours."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator

from duly.errors import ConfigError, MissingExtra
from duly.operations import Operations

try:
    import uvicorn
    from fastapi import FastAPI

    from duly.api import live, problems, routes
    from duly.api.guard import Guard, is_loopback_address
except ModuleNotFoundError as missing:
    if missing.name is not None and missing.name.partition(".")[0] in ("fastapi", "starlette", "uvicorn"):
        raise MissingExtra("the HTTP API", "api") from missing
    raise

# A body may be this much larger than the largest payload: the other fields, and the spaces between them.
BODY_HEADROOM = 64 * 1024
_SHUTDOWN_SECONDS = 5
_BACKLOG = 2048


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
    problems.install(app)
    app.add_middleware(Guard)
    limit = operations.settings.payload_max_bytes + BODY_HEADROOM
    app.include_router(routes.make_router(operations, body_limit=limit))
    app.router.routes.extend(live.make_routes(operations))
    return app


async def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    started: Callable[[str], None] | None = None,
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set. Raises `ConfigError` before anything is served if that cannot be done here."""
    listener = await _listen(host, port)
    address, bound_port = listener.getsockname()[:2]
    url = f"http://[{address}]:{bound_port}" if ":" in address else f"http://{address}:{bound_port}"
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
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


async def _listen(host: str, port: int) -> socket.socket:
    family, address = await _loopback_address(host, port)
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


async def _loopback_address(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Where to bind. A name counts as loopback only if everything it stands for is."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port must be 0 to 65535, not {port}")
    refusal = ConfigError(
        f"without API keys Duly serves loopback only: {host!r} could be reached by others. Use 127.0.0.1, ::1 or "
        "localhost"
    )
    if not host:
        raise refusal
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} cannot be resolved: {error}") from error
    addresses = sorted({(family, str(address[0])) for family, _, _, _, address in found})
    if not addresses or not all(is_loopback_address(address) for _, address in addresses):
        raise refusal
    # AF_INET sorts first: 127.0.0.1 is what people type.
    return socket.AddressFamily(addresses[0][0]), addresses[0][1]
