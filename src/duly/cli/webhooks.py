"""`duly webhook-secret`: what receivers of HTTP calls check signatures with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from duly.cli.session import session_of

if TYPE_CHECKING:
    from duly.config import Settings


def register(app: typer.Typer) -> None:
    app.command("webhook-secret")(webhook_secret)


def webhook_secret(context: typer.Context) -> None:
    """Show the secret that calls of HTTP endpoints are signed with.

    Give it to whoever receives the calls: with it, any Standard Webhooks library can tell that a call comes from here
    and is whole and new. It is the store's own, made with it, unless DULY_WEBHOOK_SECRET is set; then those are shown,
    one a line.
    """
    from duly import node
    from duly.worker.targets.signing import show_secret

    settings = session_of(context).settings()
    for secret in node.run(lambda: _secrets(settings)):
        typer.echo(show_secret(secret))


async def _secrets(settings: Settings) -> tuple[bytes, ...]:
    from duly.store import stores
    from duly.store.opening import open_store
    from duly.worker.targets.signing import parse_secrets

    if settings.webhook_secret is not None:
        return parse_secrets(settings.webhook_secret)
    async with open_store(settings) as store:
        return (await stores.webhook_secret(store.pool),)
