"""`duly migrate`: the schema of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import invocation_of
from duly.cli.output import say

if TYPE_CHECKING:
    from duly.config import Settings


def register(app: typer.Typer) -> None:
    app.command("migrate")(migrate)


def migrate(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be applied.")] = False,
) -> None:
    """Create the store's schema, or update it to this version. Safe to repeat, and while processes run.

    The embedded PostgreSQL does not need it: it is updated whenever it is opened.
    """
    from duly.process import run

    settings = invocation_of(context).settings()
    if dry_run and settings.database_url is None:
        say("nothing to do: the embedded store is updated whenever it is opened")
        return
    done = run(lambda: _migrate(settings, dry_run=dry_run))
    if not done:
        say("nothing to do: the store is up to date")
        return
    for label in done:
        say(f"{'would apply' if dry_run else 'applied'} {label}")


async def _migrate(settings: Settings, *, dry_run: bool) -> list[str]:
    from duly.store import migrate as migrations
    from duly.store.opening import open_store

    async with open_store(settings, checked=False) as store:
        if dry_run:
            return [one.what.label for one in await migrations.plan(store.pool)]
        applied = await migrations.migrate(
            store.pool, shards=settings.shards, tell=lambda message: say(message, err=True)
        )
        return [one.label for one in applied]
