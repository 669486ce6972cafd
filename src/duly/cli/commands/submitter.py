"""`duly submitter …`: the PostgreSQL roles that may submit by SQL, each for one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import with_store
from duly.cli.options import JsonLinesOption
from duly.cli.output import away, examples, one_line, print_json_lines, print_table, say

if TYPE_CHECKING:
    from datetime import datetime

    from duly.operations import StoreOperations
    from duly.store.submitters import Submitter

group = typer.Typer(
    help="Let PostgreSQL roles call duly.submit, each for one tenant.",
    epilog=examples(
        "duly submitter add shop --tenant shop",
        "duly submitter list",
        "duly submitter remove shop",
    ),
    no_args_is_help=True,
)

RoleArgument = Annotated[str, typer.Argument(help="Name of a PostgreSQL role.", metavar="ROLE")]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="submitter")


@group.command()
def add(
    context: typer.Context,
    role: RoleArgument,
    tenant: Annotated[
        str, typer.Option(help="Tenant that the role submits for; a submit for another tenant is refused.", metavar="T")
    ],
    commands: Annotated[
        bool,
        typer.Option(
            "--commands", help="Allow commands, which have the rights of the worker that runs them. Default: refused."
        ),
    ] = False,
) -> None:
    """Let a role submit jobs by SQL, for one tenant, and do nothing else in the store.

    The role is granted usage of the schema and the function duly.submit. A role that may write the store's tables is
    refused, because it could submit for any tenant; the message says what to revoke. Members of the role may submit
    too. For a role that is there already, the tenant and the permission for commands are changed.
    """
    with_store(context, lambda operations: operations.submitters.add(role, tenant=tenant, commands=commands))
    say(f"role {one_line(role)} submits for tenant {one_line(tenant)}{', commands too' if commands else ''}")


@group.command()
def remove(context: typer.Context, role: RoleArgument) -> None:
    """Take the permission back. Submitted jobs stay."""
    with_store(context, lambda operations: operations.submitters.remove(role))
    say(f"role {one_line(role)} may no longer submit")


@group.command("list")
def list_(
    context: typer.Context,
    as_json: JsonLinesOption = False,
) -> None:
    """List the roles that are bound to a tenant. (Roles that may write the store's tables are bound to none.)"""

    async def look(operations: StoreOperations) -> tuple[list[Submitter], datetime]:
        return await operations.submitters.all(), operations.now()

    found, now = with_store(context, look)
    if as_json:
        from duly.formats import time_text

        print_json_lines(
            {
                "role": one.role,
                "tenant": one.tenant,
                "commands": one.commands,
                "created_at": time_text(one.created_at),
            }
            for one in found
        )
    elif found:
        print_table(
            ("ROLE", "TENANT", "COMMANDS", "CREATED"),
            [(one.role, one.tenant, "yes" if one.commands else "no", away(one.created_at, now)) for one in found],
            whole=("ROLE",),
        )
    else:
        say("no role is bound to a tenant; see: duly submitter add --help", err=True)
