"""`duly key …` and `duly tenant …`: who may use the API, and how much."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.output import away, coloured, examples, moment, one_line, print_json, print_json_lines, print_table, say
from duly.cli.session import session_of, with_store
from duly.errors import InvalidInput, InvalidSchedule, NotFound
from duly.model import DEFAULT_TENANT

if TYPE_CHECKING:
    from duly.operations import Key, Operations
    from duly.operations.rights import Role
    from duly.operations.tenants import Tenant

JsonOption = Annotated[bool, typer.Option("--json", help="A JSON document.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]

key = typer.Typer(
    help="Make, list and revoke the keys of the API.",
    epilog=examples(
        "duly key create --tenant acme --role write --name deploys --expires 90d",
        "duly key list",
        "duly key revoke KEY_ID",
        "duly key link",
    ),
    no_args_is_help=True,
)
tenant = typer.Typer(
    help="Say how much each tenant may have and ask, and which tasks and queues it may use.",
    epilog=examples(
        "duly tenant set acme --max-jobs 10000 --requests-per-second 50",
        "duly tenant set acme --tasks 'reports.*,send_mail' --queues acme --no-commands",
        "duly tenant show acme",
    ),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(key, name="key")
    app.add_typer(tenant, name="tenant")


@key.command()
def create(
    context: typer.Context,
    role: Annotated[
        str,
        typer.Option(
            help="read: look. write: that, and submit and change jobs, but no commands. operator: commands too; they "
            "have the rights of the worker that runs them. admin: that, and the whole store's figures; for whoever "
            "runs it. monitor: those figures (/metrics, /stats) and nothing else, of no tenant.",
            metavar="read|write|operator|admin|monitor",
        ),
    ],
    of_tenant: Annotated[
        str | None, typer.Option("--tenant", help=f"Whose jobs it is for. [default: {DEFAULT_TENANT}]", metavar="T")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it is for, so that you know it again.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it works: 90d, 12h, P30D. Default: until revoked.", metavar="DURATION")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it, this one time.

    The key alone goes to stdout, so it can be piped to where it is kept. From the first key on, the API can be served
    beyond this machine. The local key of whoever started it goes on until its file is deleted.
    """
    life = None if expires is None else _duration(expires)

    async def make(operations: Operations) -> tuple[str, Key]:
        created = await operations.create_key(tenant=of_tenant, role=_role(role), name=name, expires_in=life)
        return created.text, created.key

    text, made = with_store(context, make)
    if as_json:
        print_json({"key": text, **_key_document(made)})
        return
    say(text)
    until = "until it is revoked" if made.expires_at is None else f"until {moment(made.expires_at)}"
    whose = one_line(_whose(made))
    say(f"key {made.key_id} of {whose}, role {made.role}, good {until}; it is not shown again", err=True)


@key.command("list")
def list_keys(
    context: typer.Context,
    of_tenant: Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.", metavar="T")] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """List keys, newest first, also those that were revoked or have expired."""

    async def look(operations: Operations) -> tuple[list[Key], datetime]:
        return await operations.list_keys(tenant=of_tenant), operations.now()

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
            "no keys in the store; until there is one, the API serves this machine only, and whoever started it by a "
            "local key: see duly key link",
            err=True,
        )


@key.command()
def revoke(
    context: typer.Context,
    key_id: Annotated[str, typer.Argument(help="The key's id, as the list shows it, or the key.", metavar="KEY")],
    as_json: JsonOption = False,
) -> None:
    """Revoke a key. Servers that are running refuse it within seconds."""
    revoked = with_store(context, lambda operations: operations.revoke_key(key_id))
    if as_json:
        print_json(_key_document(revoked))
    else:
        say(f"{revoked.key_id} {coloured('revoked', like='cancelled')}")


@key.command("link")
def show_links(context: typer.Context) -> None:
    """Print the links to the live pages that you serve on this machine, each with its local key.

    A link opens everything, so it is for you alone. To make links useless, delete the key's file and start again.
    """
    from duly.local_keys import links

    session_of(context).set_up_logging()
    found = links()
    for one in found:
        say(one)
    if not found:
        raise NotFound(
            "this user serves no API with a local key on this machine: start duly up or duly api, or make a key in the "
            "store (duly key create) and give it to the page"
        )


@tenant.command("set")
def set_tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tenant.", metavar="NAME")],
    max_jobs: Annotated[
        str | None, typer.Option(help="Active and paused jobs it may have; 'default': as set up.", metavar="N")
    ] = None,
    requests_per_second: Annotated[
        str | None, typer.Option(help="API requests a second and key; 'default': as set up.", metavar="N")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="The tasks that it may submit, by commas, and no others; reports.* are all whose names begin so.",
            metavar="A,B",
        ),
    ] = None,
    any_task: Annotated[bool, typer.Option("--any-task", help="It may submit any task again.")] = False,
    queues: Annotated[
        str | None,
        typer.Option(help="The queues that its jobs may use, by commas, and no others.", metavar="Q,R"),
    ] = None,
    any_queue: Annotated[bool, typer.Option("--any-queue", help="It may use any queue again.")] = False,
    commands: Annotated[
        bool | None,
        typer.Option(
            "--commands/--no-commands",
            help="Whether it may submit commands. Its keys need the role operator for that as well.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set what a tenant may have and do. What is not given stays as it is; running processes follow within seconds.

    Jobs that it has already go on as they are, whatever they use.
    """
    changes: dict[str, Any] = {}
    if tasks is not None or any_task:
        changes["tasks"] = _names("--tasks", tasks, "--any-task", lifted=any_task)
    if queues is not None or any_queue:
        changes["queues"] = _names("--queues", queues, "--any-queue", lifted=any_queue)
    if commands is not None:
        changes["commands"] = commands
    if max_jobs is not None:
        changes["max_jobs"] = None if max_jobs == "default" else _number("--max-jobs", max_jobs, int)
    if requests_per_second is not None:
        changes["requests_per_second"] = (
            None if requests_per_second == "default" else _number("--requests-per-second", requests_per_second, float)
        )
    if not changes:
        raise InvalidInput(
            "--max-jobs",
            "--requests-per-second, --tasks, --queues or --commands must be given: there is nothing to set",
        )
    _show_tenant(with_store(context, lambda operations: operations.set_tenant(name, **changes)), as_json=as_json)


@tenant.command("show")
def show_tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tenant.", metavar="NAME")],
    as_json: JsonOption = False,
) -> None:
    """Show what a tenant may have and do."""
    _show_tenant(with_store(context, lambda operations: operations.get_tenant(name)), as_json=as_json)


def _show_tenant(shown: Tenant, *, as_json: bool) -> None:
    if as_json:
        print_json(_tenant_document(shown))
        return
    rate = _limit(shown.requests_per_second)
    say(f"{one_line(shown.tenant)}: {_limit(shown.max_jobs)} jobs, {rate} requests a second")
    if (shown.tasks, shown.queues, shown.commands) != (None, None, True):
        commands = "commands" if shown.commands else "no commands"
        say(f"tasks {_listed(shown.tasks)}; queues {_listed(shown.queues)}; {commands}")


@tenant.command("list")
def list_tenants(context: typer.Context, as_json: JsonLinesOption = False) -> None:
    """List the tenants that something was set for, each with what it may have and do."""
    found = with_store(context, lambda operations: operations.list_tenants())
    if as_json:
        print_json_lines(map(_tenant_document, found))
    elif found:
        print_table(
            ("TENANT", "MAX JOBS", "REQUESTS/S", "TASKS", "QUEUES", "COMMANDS"),
            [
                (
                    one.tenant,
                    _limit(one.max_jobs),
                    _limit(one.requests_per_second),
                    _listed(one.tasks),
                    _listed(one.queues),
                    "by role" if one.commands else "none",
                )
                for one in found
            ],
            whole=("TENANT",),
        )
    else:
        say("no tenant has limits or bounds of its own; see: duly tenant set --help", err=True)


def _duration(text: str) -> timedelta:
    """As in a schedule: 90d, 1h30m, PT15M."""
    from duly.timing.interval import read_interval

    try:
        seconds, _ = read_interval(text if text.startswith("P") else f"every {text}")
    except InvalidSchedule as error:
        raise InvalidInput(
            "expires", f"{text[:40]!r} is not a length of time, use for example 90d, 12h or P30D"
        ) from error
    return timedelta(seconds=seconds)


def _role(text: str) -> Role:
    from duly.operations.rights import ROLES

    for role in ROLES:
        if text == role:
            return role
    raise InvalidInput("role", f"must be one of {', '.join(ROLES)}, not {text[:40]!r}")


def _number(option: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(option, f"must be a number or 'default', not {text[:40]!r}") from error


def _names(option: str, text: str | None, lifting: str, *, lifted: bool) -> list[str] | None:
    if text is None:
        return None
    if lifted:
        raise InvalidInput(option, f"and {lifting} say the opposite: give one of them")
    return [name.strip() for name in text.split(",")]


def _listed(names: tuple[str, ...] | None) -> str:
    return "any" if names is None else one_line(", ".join(names))


def _limit(value: float | None) -> str:
    return "unlimited" if value is None else f"{value:,.12g}"


def _whose(made: Key) -> str:
    return f"tenant {made.tenant!r}" if made.tenant else "no tenant"


def _key_document(one: Key) -> dict[str, object]:
    return {
        "key_id": one.key_id,
        "name": one.name,
        "tenant": one.tenant or None,
        "role": one.role,
        "created_at": _stamp(one.created_at),
        "last_used_at": _stamp(one.last_used_at),
        "expires_at": _stamp(one.expires_at),
        "revoked_at": _stamp(one.revoked_at),
    }


def _tenant_document(one: Tenant) -> dict[str, object]:
    return {
        "tenant": one.tenant,
        "max_jobs": one.max_jobs,
        "requests_per_second": one.requests_per_second,
        "tasks": one.tasks,
        "queues": one.queues,
        "commands": one.commands,
        "created_at": _stamp(one.created_at),
        "updated_at": _stamp(one.updated_at),
    }


def _stamp(value: datetime | None) -> str | None:
    from duly.api.documents import time_text

    return time_text(value)
