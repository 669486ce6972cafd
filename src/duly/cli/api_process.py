"""A process that serves the API: `duly api`, and the child that `duly up` keeps alive for it (`supervised.py`).

The child is started first of all, imports its modules while PostgreSQL starts, and then waits for its orders. Orders
come over its standard input, a socket whose other end only the parent holds: however the parent ends, the kernel closes
that end, and the child ends too. The settings come the same way, because they hold a password, and so does the
listening socket, which stays the parent's, so that a restarted child serves on the same port.

This file imports nothing that the child does not need, because `duly up` waits for these imports.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.cli.ending import cancelled_by, ending_at_once, exit_code, take_lifeline, watch_lifeline
from duly.errors import ConfigError, DulyError, StoreMismatch, StoreUnavailable, StoreUnusable
from duly.figures import Snapshot
from duly.logs import log_to_stderr, set_up_logging
from duly.process import conceal, run

if TYPE_CHECKING:
    from duly.config import Settings
    from duly.local_keys import LocalKey
    from duly.operations import StoreOperations
    from duly.store.opening import OpenStore

log = logging.getLogger("duly.cli")

# The types as which the child's errors are raised in its parent; the first that fits.
_ERRORS: tuple[type[DulyError], ...] = (StoreUnusable, StoreUnavailable, StoreMismatch, ConfigError)


@dataclass(frozen=True, slots=True)
class Served:
    """The address of the API, and the file with the local key of the user who started it, if it accepts one."""

    address: str
    key_file: Path | None = None

    @property
    def link(self) -> str:
        """The address of the live page, with the local key if there is one. Never logged, because it holds that key."""
        from duly.local_keys import link, read_key

        key = read_key(self.key_file) if self.key_file is not None else None
        return link(self.address, key) if key is not None else f"{self.address}/"


async def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    started: Callable[[Served], None],
    handlers: Collection[str] = (),
    listener: socket.socket | None = None,
    lifeline: int | None = None,
) -> int:
    """Serve the API until a signal. `handlers`: tasks that may be submitted before a worker offers them.

    `lifeline`: to the parent, which says what its scheduler and its worker have counted.
    """
    from duly.local_keys import announced
    from duly.model import Actor, os_user
    from duly.operations import StoreOperations
    from duly.process import Signals
    from duly.store.opening import open_store

    server = importlib.import_module("duly.api.server")
    signals = Signals()
    beside = Beside()
    async with ending_at_once(signals), AsyncExitStack() as stack:
        if lifeline is not None:
            watch_lifeline(lifeline, signals, beside.receive)
        async with cancelled_by(signals):
            store = await stack.enter_async_context(open_store(settings))
            operations = await StoreOperations.open(
                store.pool, settings, local_handlers=handlers, actor=Actor("api", os_user())
            )
            local_key = await _local_key(operations, store, host=host, port=port)

        def accepting(address: str) -> None:
            served = Served(address, local_key.path if local_key is not None else None)
            if lifeline is None:  # else the parent owns the listening socket and announces it
                stack.enter_context(announced(served.address, served.key_file))
            # All objects made so far live as long as the process: scanning them in every collection delays answers.
            gc.freeze()
            started(served)

        # The server lets requests in progress finish; the store is closed after that.
        app = server.create_app(operations, local_key=local_key, beside=lambda: beside.snapshots)
        await server.serve(app, host=host, port=port, started=accepting, stop=signals.asked, listener=listener)
    return exit_code(signals)


async def _local_key(operations: StoreOperations, store: OpenStore, *, host: str, port: int) -> LocalKey | None:
    """Makes a local key if the store has no keys; an existing one stays valid beside them. Only on loopback."""
    from duly.api.binding import find_address
    from duly.homes import default_home
    from duly.local_keys import LocalKey, key_file, obtain_key
    from duly.store import stores

    settings = operations.settings
    loopback = (await find_address(host, port))[2]
    if settings.require_keys or not loopback:
        return None
    keyed = await operations.keys.exist()
    if settings.open_api:
        if keyed:
            log.warning("the API is not open: the store has keys, so every call needs one")
        else:
            log.warning(
                "the API is open: every user of this machine, and every caller behind a proxy on it, may use it"
            )
        return None
    home = settings.home or default_home()
    path = key_file(home, None if store.embedded else (await stores.facts(store.pool)).store_id)
    if keyed and not os.path.lexists(path):
        return None
    obtain_key(path)
    return LocalKey(path)


class Beside:
    """What the parent says of the figures of the processes beside this one: one JSON document per line."""

    def __init__(self) -> None:
        self.snapshots: dict[str, Snapshot] = {}
        self._received = b""

    @staticmethod
    def line(snapshots: Mapping[str, Snapshot]) -> bytes:
        return json.dumps({kind: one.document() for kind, one in snapshots.items()}).encode() + b"\n"

    def receive(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            try:
                self.snapshots = {kind: Snapshot.read(document) for kind, document in json.loads(line).items()}
            except (ValueError, TypeError, KeyError, AttributeError):
                # The rest of a line of which the beginning was read together with the orders.
                log.debug("what the parent says is not understood: %r", line[:200])


@dataclass(frozen=True, slots=True)
class Orders:
    """The child's orders; the socket to serve on is sent beside them."""

    settings: Settings
    host: str
    handlers: Collection[str]

    def line(self) -> bytes:
        """The orders as one line of JSON."""
        said = {
            "settings": self.settings.model_dump(mode="json"),
            "host": self.host,
            "handlers": list(self.handlers),
        }
        return json.dumps(said).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Orders:
        from duly.config import Settings

        said = json.loads(line)
        return cls(Settings(**said["settings"]), said["host"], said["handlers"])


def answered(line: bytes) -> Served:
    """The address that the child serves; raises the error that it ended with."""
    said: dict[str, str] = json.loads(line)
    if "address" in said:
        return Served(said["address"], Path(said["key_file"]) if said["key_file"] else None)
    raise next((kind for kind in _ERRORS if kind.__name__ == said["error"]), DulyError)(said["message"])


def main() -> int:
    """The child process, from start to end."""
    # Until an event loop handles signals they simply end the process: there is nothing yet to close in order.
    conceal()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log_to_stderr()  # until the orders set the level
    lifeline = take_lifeline()
    try:
        # The slow imports, before the orders come.
        for name in ("duly.api.server", "duly.operations", "duly.store.opening"):
            importlib.import_module(name)
        found = _orders(lifeline)
        if found is None:
            return 0
        return _obey(*found, lifeline)
    except DulyError as error:
        kind = next((kind for kind in _ERRORS if isinstance(error, kind)), ConfigError)
        _tell(lifeline, error=kind.__name__, message=str(error))
    except Exception as error:
        log.exception("the API ended unexpectedly")
        _tell(lifeline, error="", message=f"the API could not start: {type(error).__name__}")
    return 1


def _orders(lifeline: int) -> tuple[Orders, socket.socket] | None:
    """None if the parent ended before it sent orders."""
    with socket.socket(fileno=os.dup(lifeline)) as channel:
        first, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not first or not descriptors:
            return None
        listener = socket.socket(fileno=descriptors[0])
        with channel.makefile("rb") as lines:
            line = lines.readline()
    return (Orders.read(line), listener) if line.endswith(b"\n") else None


def _obey(orders: Orders, listener: socket.socket, lifeline: int) -> int:
    set_up_logging(orders.settings.log_level, orders.settings.log_format)
    return run(
        lambda: serve(
            orders.settings,
            host=orders.host,
            port=listener.getsockname()[1],
            started=lambda served: _tell(
                lifeline, address=served.address, key_file=str(served.key_file) if served.key_file else None
            ),
            handlers=orders.handlers,
            listener=listener,
            lifeline=lifeline,
        )
    )


def _tell(lifeline: int, **said: Any) -> None:
    try:
        os.write(lifeline, json.dumps(said).encode() + b"\n")
    except OSError:
        log.debug("the parent has ended")


if __name__ == "__main__":
    sys.exit(main())
