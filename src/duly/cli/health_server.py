"""`/livez`, `/readyz`, `/startupz` and `/metrics` of a scheduler, of a worker, or of the supervisor of several.

Served by threads of its own: when the event loop hangs, the answer says so instead of failing to come. Without a port
the same answers are given on a Unix socket to `duly health`, for probes that run a command inside the container.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import stat
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from duly.errors import MissingExtra
from duly.exposition import MEDIA_TYPE, text_of
from duly.figures import Snapshot
from duly.vitals import ALIVE, READY, STARTED

if TYPE_CHECKING:
    from duly.config import Settings

log = logging.getLogger("duly.health")

PROBES = {"/livez": ALIVE, "/readyz": READY, "/startupz": STARTED}
_PLAIN = "text/plain; charset=utf-8"
# A caller that takes longer is cut off, and no more than this many are served at once: probes are few and short.
CALLER_SECONDS = 5.0
MAX_CALLERS = 16
_SUFFIX = ".sock"


class Watched(Protocol):
    """What is asked about: the process itself, or the processes that it supervises. Called from other threads."""

    @property
    def kind(self) -> str: ...

    def wrong(self) -> Mapping[str, str | None]:
        """What is wrong, by question; None: nothing."""

    def snapshots(self) -> Mapping[str, Snapshot]:
        """The figures, by what runs here."""


class _Handler(BaseHTTPRequestHandler):
    """One request. A HEAD is answered as a GET, without its body."""

    timeout = CALLER_SECONDS
    server: _Server
    server_version = "duly"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in PROBES:
            wrong = self.server.watched.wrong()[PROBES[path]]
            self._answer(200 if wrong is None else 503, _PLAIN, ("ok" if wrong is None else wrong).encode() + b"\n")
        elif path == "/metrics":
            self._answer(*self.server.metrics())
        elif path == "/health":
            self._answer(200, "application/json", json.dumps(dict(self.server.watched.wrong())).encode())
        else:
            self._answer(404, _PLAIN, f"there are {', '.join(PROBES)} and /metrics here\n".encode())

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _answer(self, status: int, media_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in http.server
        log.debug(format, *args)

    def address_string(self) -> str:
        return "a caller"  # of a Unix socket it has none


class _Server(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """Serves a socket that listens already, each caller in a thread of its own."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listener: socket.socket, watched: Watched, metrics: Callable[[], tuple[int, str, bytes]]
    ) -> None:
        super().__init__(listener.getsockname(), _Handler)
        self.socket = listener
        self.watched = watched
        self.metrics = metrics
        self._callers = threading.BoundedSemaphore(MAX_CALLERS)

    def fileno(self) -> int:
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        return self.socket.accept()

    def server_close(self) -> None:
        self.socket.close()

    def shutdown_request(self, request: Any) -> None:
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
        request.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._callers.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._callers.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a caller was not answered", exc_info=True)


@asynccontextmanager
async def answering(watched: Watched, settings: Settings) -> AsyncIterator[None]:
    """Answers on the port of the settings, if there is one, and on the socket of `duly health`."""
    from duly.api.binding import address_of, bind, find_address

    metrics = _metrics(watched)
    async with AsyncExitStack() as stack:
        if settings.health_port is not None:
            family, address, _ = await find_address(settings.health_host, settings.health_port)
            listener = bind(family, address, settings.health_port)
            stack.callback(_serve(listener, watched, metrics))
            log.info("probes and metrics of this process: %s", address_of(listener))
        if (found := _listen_locally(watched.kind)) is not None:
            local, path = found
            stack.callback(path.unlink, missing_ok=True)
            stack.callback(_serve(local, watched, metrics))
        yield


def _metrics(watched: Watched) -> Callable[[], tuple[int, str, bytes]]:
    try:
        text = text_of(watched.snapshots)
    except MissingExtra as missing:
        message = f"{missing}\n".encode()
        return lambda: (501, _PLAIN, message)
    return lambda: (200, MEDIA_TYPE, text())


def _serve(
    listener: socket.socket, watched: Watched, metrics: Callable[[], tuple[int, str, bytes]]
) -> Callable[[], None]:
    """Starts serving; returns what ends it."""
    server = _Server(listener, watched, metrics)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="duly-health", daemon=True
    )
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    return end


def sockets_folder() -> Path:
    """Where the processes of this user, on this machine or in this container, are asked by `duly health`."""
    return Path(tempfile.gettempdir()) / f"duly-health-{os.geteuid()}"


def sockets(kind: str | None = None) -> list[tuple[str, int, Path]]:
    """The kind and the process id of each process that may be asked, and its socket."""
    found = []
    folder = sockets_folder()
    if not _is_ours(folder):
        return []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        name, _, pid = path.name.removesuffix(_SUFFIX).rpartition("-")
        if pid.isdigit() and kind in (None, name):
            found.append((name, int(pid), path))
    return found


def _is_ours(folder: Path) -> bool:
    try:
        about = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def _sweep() -> None:
    """Removes the sockets of processes that were killed: nobody listens on them any more."""
    for _, _, path in sockets():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.setblocking(False)
            try:
                caller.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.debug("%s is left as it is: %s", path, error)


def _listen_locally(kind: str) -> tuple[socket.socket, Path] | None:
    """This process's socket and its path; None, with a log line, where none can be made."""
    folder = sockets_folder()
    path = folder / f"{kind}-{os.getpid()}{_SUFFIX}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(folder):
            raise OSError(f"{folder} belongs to somebody else, or others may write to it")
        path.unlink(missing_ok=True)  # of a process before this one that had the same id
        _sweep()
        listener.bind(str(path))
        listener.listen(MAX_CALLERS)
    except OSError as error:
        listener.close()
        log.info("duly health will not find this process: %s", error)
        return None
    return listener, path
