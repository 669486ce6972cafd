"""`duly migrate`: the schema of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import invocation_of
from duly.cli.output import say

if TYPE_CHECKING:
    from duly.config import Settings
    from duly.store.migrate import Migration


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
    for migration in done:
        say(f"{'would apply' if dry_run else 'applied'} {migration.version:04d}_{migration.name}")


async def _migrate(settings: Settings, *, dry_run: bool) -> list[Migration]:
    from duly.store import migrate as migrations
    from duly.store.opening import open_store

    async with open_store(settings, checked=False) as store:
        if not dry_run:
            return await migrations.migrate(
                store.pool, shards=settings.shards, tell=lambda message: say(message, err=True)
            )
        pending = await migrations.pending_migrations(store.pool)
        if not pending:
            await migrations.check_version(store.pool)  # refuses a store that is newer
        return pending
