"""`duly bench`: its arguments are passed on to `duly.bench` unread, so that no other command has to load that."""

from __future__ import annotations

import typer

from duly.cli.invocation import Invocation


def register(app: typer.Typer) -> None:
    app.command(
        "bench",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(bench)


def bench(context: typer.Context) -> None:
    """Measure Duly on this machine, each figure beside a raw-SQL loop of the same statements."""
    from duly.bench.__main__ import main

    invocation: Invocation = context.obj
    invocation.refuse_url()
    given = []
    if invocation.database_url is not None:
        given += ["--database-url", invocation.database_url]
    if invocation.home is not None:
        given += ["--home", str(invocation.home)]
    raise typer.Exit(main([*given, *context.args]))
