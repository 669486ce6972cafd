"""`duly tenant …`: the limits of each tenant, and the tasks and queues that it may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.invocation import with_store
from duly.cli.options import JsonLinesOption, JsonOption, ReasonOption
from duly.cli.output import examples, one_line, print_json, print_json_lines, print_table, say
from duly.errors import InvalidInput

if TYPE_CHECKING:
    from duly.operations.tenants import Tenant


group = typer.Typer(
    help="Set per-tenant limits (jobs, request rate) and the tasks and queues that a tenant may use.",
    epilog=examples(
        "duly tenant set acme --max-jobs 10000 --requests-per-second 50",
        "duly tenant set acme --tasks 'reports.*,send_mail' --queues acme --no-commands",
        "duly tenant show acme",
    ),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="tenant")


@group.command("set")
def set_(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tenant.", metavar="NAME")],
    max_jobs: Annotated[
        str | None,
        typer.Option(help="Maximum number of active and paused jobs; 'default': as configured.", metavar="N"),
    ] = None,
    requests_per_second: Annotated[
        str | None, typer.Option(help="API requests per second, per key; 'default': as configured.", metavar="N")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Only tasks that it may submit, separated by commas; reports.* means all that begin with reports.",
            metavar="A,B",
        ),
    ] = None,
    any_task: Annotated[bool, typer.Option("--any-task", help="Let it submit any task again.")] = False,
    queues: Annotated[
        str | None,
        typer.Option(help="Only queues that its jobs may use, separated by commas.", metavar="Q,R"),
    ] = None,
    any_queue: Annotated[bool, typer.Option("--any-queue", help="Let it use any queue again.")] = False,
    commands: Annotated[
        bool | None,
        typer.Option(
            "--commands/--no-commands",
            help="Whether it may submit commands, with keys of the role operator.",
        ),
    ] = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a tenant's limits and permissions. Options that are not given stay as they are.

    Running processes follow within seconds. Existing jobs are not affected.
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
            "--requests-per-second, --tasks, --queues or --commands is required: there is nothing to set",
        )
    _show_tenant(
        with_store(context, lambda operations: operations.tenants.set(name, reason=reason, **changes)), as_json=as_json
    )


@group.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tenant.", metavar="NAME")],
    as_json: JsonOption = False,
) -> None:
    """Show a tenant's limits and permissions."""
    _show_tenant(with_store(context, lambda operations: operations.tenants.get(name)), as_json=as_json)


def _show_tenant(shown: Tenant, *, as_json: bool) -> None:
    if as_json:
        print_json(_tenant_document(shown))
        return
    rate = _limit(shown.requests_per_second)
    say(f"{one_line(shown.tenant)}: {_limit(shown.max_jobs)} jobs, {rate} requests per second")
    if (shown.tasks, shown.queues, shown.commands) != (None, None, True):
        commands = "commands" if shown.commands else "no commands"
        say(f"tasks {_listed(shown.tasks)}; queues {_listed(shown.queues)}; {commands}")


@group.command("list")
def list_(context: typer.Context, as_json: JsonLinesOption = False) -> None:
    """List the tenants that have limits or permissions of their own."""
    found = with_store(context, lambda operations: operations.tenants.all())
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
        say("no tenant has limits or permissions of its own; see: duly tenant set --help", err=True)


def _number(option: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(option, f"must be a number or 'default', not {text[:40]!r}") from error


def _names(option: str, text: str | None, lifting: str, *, lifted: bool) -> list[str] | None:
    if text is None:
        return None
    if lifted:
        raise InvalidInput(option, f"and {lifting} contradict each other: give one of them")
    return [name.strip() for name in text.split(",")]


def _listed(names: tuple[str, ...] | None) -> str:
    return "any" if names is None else one_line(", ".join(names))


def _limit(value: float | None) -> str:
    return "unlimited" if value is None else f"{value:,.12g}"


def _tenant_document(one: Tenant) -> dict[str, object]:
    from duly.formats import time_text

    return {
        "tenant": one.tenant,
        "max_jobs": one.max_jobs,
        "requests_per_second": one.requests_per_second,
        "tasks": one.tasks,
        "queues": one.queues,
        "commands": one.commands,
        "created_at": time_text(one.created_at),
        "updated_at": time_text(one.updated_at),
    }
