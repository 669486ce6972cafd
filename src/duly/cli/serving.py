"""`duly api`: the REST API by itself, on a store that is there."""

from __future__ import annotations

import importlib
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.output import examples
from duly.cli.run import cancelled_by, ending_at_once, exit_code
from duly.cli.session import session_of

if TYPE_CHECKING:
    from duly.config import Settings

log = logging.getLogger("duly.cli")

_EXAMPLES = examples(
    "duly api",
    "duly --database-url postgresql://user@host/name api --port 9000",
)


def register(app: typer.Typer) -> None:
    app.command("api", epilog=_EXAMPLES)(api)


def api(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to serve on (DULY_HOST).", metavar="HOST")] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to serve on (DULY_PORT); 0: any free one.", min=0, max=65535, metavar="PORT"),
    ] = None,
) -> None:
    """Serve the REST API and the live page, and nothing else. Start as many as you like.

    Without API keys (duly key create) only this machine is served.
    """
    from duly import node

    settings = session_of(context).settings()
    chosen = port if port is not None else settings.port
    raise typer.Exit(node.run(lambda: _serve(settings, host or settings.host, chosen)))


async def _serve(settings: Settings, host: str, port: int) -> int:
    from duly.node import Signals
    from duly.operations import Operations
    from duly.store.opening import open_store

    server = importlib.import_module("duly.api.server")
    signals = Signals()
    async with ending_at_once(signals), AsyncExitStack() as stack:
        async with cancelled_by(signals):
            store = await stack.enter_async_context(open_store(settings))
            operations = await Operations.open(store.pool, settings)
        # The server lets requests that are under way finish; what follows closes the store behind them.
        await server.serve(server.create_app(operations), host=host, port=port, started=_greet, stop=signals.asked)
    return exit_code(signals)


def _greet(address: str) -> None:
    typer.echo(f"Duly's API is at {address}/api/v1, its live page at {address}/")
