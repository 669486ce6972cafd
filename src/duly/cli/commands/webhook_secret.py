"""`duly webhook-secret`: what receivers of HTTP calls check signatures with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.output import say
from duly.cli.session import session_of
from duly.model import DEFAULT_TENANT

if TYPE_CHECKING:
    from duly.config import Settings


def register(app: typer.Typer) -> None:
    app.command("webhook-secret")(webhook_secret)


def webhook_secret(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(help="Whose calls it is for.", metavar="T")] = DEFAULT_TENANT,
) -> None:
    """Show the secret that a tenant's calls of HTTP endpoints are signed with.

    Give it to whoever receives the calls: with it, any Standard Webhooks library can tell that a call comes from this
    tenant and is whole and new. Each tenant has its own, and none says anything about another's. They are derived from
    a secret of the store, or from those in DULY_WEBHOOK_SECRET; then there is one for each of them, one a line.
    """
    from duly import checks
    from duly.process import run
    from duly.worker.targets.signing import show_secret, tenant_secret

    settings = session_of(context).settings()
    checks.check_text("tenant", tenant, longest=100)
    for secret in run(lambda: _secrets(settings)):
        say(show_secret(tenant_secret(secret, tenant)))


async def _secrets(settings: Settings) -> tuple[bytes, ...]:
    from duly.store import stores
    from duly.store.opening import open_store
    from duly.worker.targets.signing import parse_secrets

    if settings.webhook_secret is not None:
        return parse_secrets(settings.webhook_secret)
    async with open_store(settings) as store:
        return (await stores.webhook_secret(store.pool),)
