"""`duly api`: the REST API by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from duly.cli.invocation import invocation_of
from duly.cli.options import HostOption, OpenOption, PortOption
from duly.cli.output import examples, say

if TYPE_CHECKING:
    from duly.cli.api_process import Served

_EXAMPLES = examples(
    "duly api",
    "duly --database-url postgresql://user@host/name api --port 9000",
)


def register(app: typer.Typer) -> None:
    app.command("api", epilog=_EXAMPLES)(api)


def api(
    context: typer.Context,
    host: HostOption = None,
    port: PortOption = None,
    open_to_all: OpenOption = False,
) -> None:
    """Serve the REST API and the live page, and nothing else. Start as many as you like.

    Every call needs a key (duly key create). While the store has none, this command makes a local key for its user: the
    printed link opens the page with it, duly --url and the SDK find it, and only this machine is served.
    """
    from duly.cli.api_process import serve
    from duly.process import conceal, run

    conceal()
    settings = invocation_of(context).settings().changed(open_api=open_to_all or None)
    chosen = port if port is not None else settings.port
    raise typer.Exit(run(lambda: serve(settings, host=host or settings.host, port=chosen, started=_greet)))


def _greet(served: Served) -> None:
    say(f"Duly's API is at {served.address}/api/v1, its live page at {served.link}")
