"""`duly key …`: the keys of the API."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import invocation_of, with_store
from duly.cli.options import JsonLinesOption, JsonOption, ReasonOption
from duly.cli.output import away, coloured, examples, moment, one_line, print_json, print_json_lines, print_table, say
from duly.errors import InvalidInput, InvalidSchedule, NotFound

if TYPE_CHECKING:
    from duly.operations import Key, StoreOperations
    from duly.operations.rights import Role


group = typer.Typer(
    help="Create, list and revoke API keys.",
    epilog=examples(
        "duly key create --tenant acme --role write --name deploys --expires 90d",
        "duly key list",
        "duly key revoke KEY_ID",
        "duly key link",
    ),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="key")


@group.command()
def create(
    context: typer.Context,
    role: Annotated[
        str,
        typer.Option(
            help="read: read jobs and runs. write: also submit and change jobs, but no commands. operator: also "
            "commands, which have the rights of the worker that runs them. admin: also the figures of the whole store. "
            "monitor: only those figures (/metrics, /stats), without a tenant.",
            metavar="read|write|operator|admin|monitor",
        ),
    ],
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Tenant whose jobs it gives access to. Default: that of duly --tenant (DULY_TENANT), else default.",
            metavar="T",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its purpose, shown by `duly key list`.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="Lifetime, such as 90d, 12h or P30D. Default: until revoked.", metavar="DURATION")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and show it once.

    Only the key goes to stdout, so that it can be piped into a secret store. With a first key in the store, the API can
    be served beyond this machine. The local key of the user who started it stays valid until its file is deleted.
    """
    life = None if expires is None else _duration(expires)

    async def make(operations: StoreOperations) -> tuple[str, Key]:
        created = await operations.keys.create(tenant=tenant, role=_role(role), name=name, expires_in=life)
        return created.text, created.key

    text, made = with_store(context, make)
    if as_json:
        print_json({"key": text, **_key_document(made)})
        return
    say(text)
    until = "until it is revoked" if made.expires_at is None else f"until {moment(made.expires_at)}"
    whose = one_line(_whose(made))
    say(f"key {made.key_id} of {whose}, role {made.role}, valid {until}; it is not shown again", err=True)


@group.command("list")
def list_(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.", metavar="T")] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """List keys, newest first, including revoked and expired ones."""

    async def look(operations: StoreOperations) -> tuple[list[Key], datetime]:
        return await operations.keys.all(tenant=tenant), operations.now()

    found, now = with_store(context, look)
    if as_json:
        print_json_lines({**_key_document(one), "status": one.status(now)} for one in found)
    elif found:
        print_table(
            ("ID", "NAME", "TENANT", "ROLE", "STATUS", "CREATED", "LAST USED", "EXPIRES", "REVOKED"),
            [
                (
                    one.key_id,
                    one.name or "",
                    one.tenant or "-",
                    one.role,
                    one.status(now),
                    away(one.created_at, now),
                    away(one.last_used_at, now) or "never",
                    away(one.expires_at, now) or "never",
                    away(one.revoked_at, now),
                )
                for one in found
            ],
            whole=("ID", "ROLE", "STATUS"),
        )
    else:
        say(
            "no keys in the store; until there is one, the API serves this machine only, to the user who started it, "
            "by a local key: see duly key link",
            err=True,
        )


@group.command()
def revoke(
    context: typer.Context,
    key_id: Annotated[
        str, typer.Argument(help="The key's id, as `duly key list` shows it, or the key itself.", metavar="KEY")
    ],
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key. Running servers refuse it within seconds."""
    revoked = with_store(context, lambda operations: operations.keys.revoke(key_id, reason=reason))
    if as_json:
        print_json(_key_document(revoked))
    else:
        say(f"{revoked.key_id} {coloured('revoked', like='cancelled')}")


@group.command("link")
def show_links(context: typer.Context) -> None:
    """Print the links to the live pages that you serve on this machine, each with its local key.

    A link gives full access, so keep it to yourself. To revoke links, delete the key's file and restart the API.
    """
    from duly.local_keys import links

    invocation_of(context).set_up_logging()
    found = links()
    for one in found:
        say(one)
    if not found:
        raise NotFound(
            "this user serves no API with a local key on this machine: start duly up or duly api, or create a key "
            "(duly key create) and enter it on the page"
        )


def _duration(text: str) -> timedelta:
    """As in a schedule: 90d, 1h30m, PT15M."""
    from duly.timing.interval import read_interval

    try:
        seconds, _ = read_interval(text if text.startswith("P") else f"every {text}")
    except InvalidSchedule as error:
        raise InvalidInput("expires", f"{text[:40]!r} is not a duration; use for example 90d, 12h or P30D") from error
    return timedelta(seconds=seconds)


def _role(text: str) -> Role:
    from duly.operations.rights import ROLES

    for role in ROLES:
        if text == role:
            return role
    raise InvalidInput("role", f"must be one of {', '.join(ROLES)}, not {text[:40]!r}")


def _whose(made: Key) -> str:
    return f"tenant {made.tenant!r}" if made.tenant else "no tenant"


def _key_document(one: Key) -> dict[str, object]:
    from duly.formats import time_text

    return {
        "key_id": one.key_id,
        "name": one.name,
        "tenant": one.tenant or None,
        "role": one.role,
        "created_at": time_text(one.created_at),
        "last_used_at": time_text(one.last_used_at),
        "expires_at": time_text(one.expires_at),
        "revoked_at": time_text(one.revoked_at),
    }
