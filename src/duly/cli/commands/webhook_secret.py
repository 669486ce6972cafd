"""`duly webhook-secret`: the secret with which receivers check the signatures of HTTP calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import invocation_of
from duly.cli.output import say

if TYPE_CHECKING:
    from duly.config import Settings


def register(app: typer.Typer) -> None:
    app.command("webhook-secret")(webhook_secret)


def webhook_secret(
    context: typer.Context,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Tenant whose calls are signed with it. Default: that of duly --tenant (DULY_TENANT), else default.",
            metavar="T",
        ),
    ] = None,
) -> None:
    """Show the secret that signs a tenant's calls of HTTP endpoints.

    Give it to the receiver of the calls: with it, any Standard Webhooks library can verify that a call comes from this
    tenant, is unaltered and is recent. Each tenant has its own secret, which reveals nothing about another tenant's. It
    is derived from a secret of the store, or from DULY_WEBHOOK_SECRET; if that holds several, one is printed for each.
    """
    from duly import checks
    from duly.process import run
    from duly.signing import show_secret, tenant_secret

    settings = invocation_of(context).settings()
    tenant = settings.tenant if tenant is None else tenant
    checks.check_text("tenant", tenant, longest=100)
    for secret in run(lambda: _secrets(settings)):
        say(show_secret(tenant_secret(secret, tenant)))


async def _secrets(settings: Settings) -> tuple[bytes, ...]:
    from duly.signing import parse_secrets
    from duly.store import stores
    from duly.store.opening import open_store

    if settings.webhook_secret is not None:
        return parse_secrets(settings.webhook_secret)
    async with open_store(settings) as store:
        return (await stores.webhook_secret(store.pool),)
