"""`duly api`: the REST API by itself, on a store that is there."""

from __future__ import annotations

from typing import Annotated

import typer

from duly.cli.output import examples
from duly.cli.session import session_of

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
    from duly.cli.api_process import serve
    from duly.process import conceal, run

    conceal()
    settings = session_of(context).settings()
    chosen = port if port is not None else settings.port
    raise typer.Exit(run(lambda: serve(settings, host=host or settings.host, port=chosen, started=_greet)))


def _greet(address: str) -> None:
    typer.echo(f"Duly's API is at {address}/api/v1, its live page at {address}/")
