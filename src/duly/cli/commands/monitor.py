"""`duly monitor …`: what runs elsewhere and is watched by its pings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.backend import read_pages
from duly.cli.invocation import invocation_of, with_operations
from duly.cli.options import JsonLinesOption, JsonOption, LimitOption
from duly.cli.output import (
    away,
    coloured,
    examples,
    moment,
    one_line,
    print_fields,
    print_json,
    print_json_lines,
    print_table,
    say,
)
from duly.errors import InvalidInput
from duly.formats import rough_span

if TYPE_CHECKING:
    from datetime import datetime

    from duly.cli.backend import Backend
    from duly.model import Monitor, Ping

SlugArgument = Annotated[str, typer.Argument(help="The monitor's name, such as nightly-backup.", metavar="NAME")]

group = typer.Typer(
    help="Watch what runs elsewhere: crontab lines and other schedulers ping, and a missing ping opens an incident.",
    epilog=examples(
        "duly monitor set nightly-backup --schedule '0 3 * * *' --timezone Europe/Berlin --grace 900",
        "duly monitor list",
        "duly monitor show nightly-backup",
        "duly monitor ping nightly-backup --exit-status 1",
    )
    + "\n\n`set` prints the address that the crontab line pings: 0 3 * * * backup && curl -fsS -m 10 ADDRESS",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="monitor")


@group.command("set")
def set_(
    context: typer.Context,
    name: SlugArgument,
    schedule: Annotated[
        str,
        typer.Option(help="When pings are expected: cron, an interval (every 15m) or an RRULE.", metavar="SCHEDULE"),
    ],
    timezone: Annotated[str, typer.Option(help="IANA time zone of the schedule.", metavar="ZONE")] = "UTC",
    grace: Annotated[int, typer.Option(help="How late a ping may be, in seconds.", metavar="SECONDS")] = 300,
    max_runtime: Annotated[
        int | None,
        typer.Option(
            help="Longest time from a start ping to its end. Default: starts expect nothing.", metavar="SECONDS"
        ),
    ] = None,
    description: Annotated[str | None, typer.Option(help="What it is, for people.", metavar="TEXT")] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Replace its ping address: the old one works no more.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a monitor, or change it: an option that is left out gets its default.

    A new one is printed with its ping address, which needs no key and can do nothing but ping. It is not shown again.
    """
    from duly.model import MonitorDefinition

    definition = MonitorDefinition(schedule, timezone, grace, max_runtime, description)

    async def store(operations: Backend) -> tuple[Monitor, bool]:
        return await operations.monitors.set(name, definition, new_token=new_token)

    monitor, created = with_operations(context, store)
    if as_json:
        from duly.api.documents import monitor_document

        print_json(monitor_document(monitor))
        return
    say(f"{'made' if created else 'changed'} {monitor.slug}: {_when(monitor)}")
    if monitor.ping_path is not None:
        base = invocation_of(context).remote_url or "$DULY_URL"
        say(f"ping it at {base.rstrip('/')}{monitor.ping_path}")
        say("(also with /start, /fail or an exit status at its end; not shown again)", err=True)


@group.command("list")
def list_(context: typer.Context, limit: LimitOption = 100, as_json: JsonLinesOption = False) -> None:
    """List monitors by name."""

    async def look(operations: Backend) -> tuple[list[Monitor], bool, datetime]:
        found, more = await read_pages(limit, operations.monitors.page)
        return found, more, operations.now()

    found, more, now = with_operations(context, look, is_empty=lambda answer: not answer[0])
    if as_json:
        from duly.api.documents import monitor_document

        print_json_lines(monitor_document(monitor) for monitor in found)
    elif found:
        print_table(
            ("NAME", "STATE", "SCHEDULE", "LAST SUCCESS", "EXPECTED", "WHY"),
            [
                (
                    one.slug,
                    coloured(one.state),
                    _when(one),
                    away(one.last_success_at, now),
                    away(one.expected_at, now),
                    one_line(one.why or ""),
                )
                for one in found
            ],
            whole=("NAME", "STATE"),
        )
    else:
        say("no monitors", err=True)
    if more:
        say(f"… and more than these {limit}; see --limit", err=True)


@group.command()
def show(context: typer.Context, name: SlugArgument, as_json: JsonOption = False) -> None:
    """Show a monitor with its last pings."""

    async def look(operations: Backend) -> tuple[Monitor, datetime]:
        return await operations.monitors.get(name), operations.now()

    monitor, now = with_operations(context, look)
    if as_json:
        from duly.api.documents import monitor_document

        print_json(monitor_document(monitor))
        return
    definition = monitor.definition
    longest = definition.max_runtime_seconds
    print_fields(
        {
            "monitor": monitor.slug,
            "description": definition.description or "",
            "state": coloured(monitor.state) + (f" ({one_line(monitor.why)})" if monitor.why else ""),
            "schedule": _when(monitor),
            "grace": rough_span(definition.grace_seconds),
            "max_runtime": "" if longest is None else rough_span(longest),
            "expected": f"{moment(monitor.expected_at)} ({away(monitor.expected_at, now)})"
            if monitor.expected_at
            else "",
            "running": str(monitor.running) if monitor.running else "",
        }
    )
    if monitor.pings:
        print_table(
            ("PINGED", "EVENT", "ID", "TOOK", "NOTE"), [_ping_row(one) for one in monitor.pings], whole=("PINGED",)
        )


@group.command()
def remove(context: typer.Context, name: SlugArgument) -> None:
    """Remove a monitor, and close its open incidents."""
    with_operations(context, lambda operations: operations.monitors.remove(name))
    say(f"removed {name}")


@group.command()
def ping(
    context: typer.Context,
    name: SlugArgument,
    start: Annotated[bool, typer.Option("--start", help="It starts.")] = False,
    fail: Annotated[bool, typer.Option("--fail", help="It has failed.")] = False,
    exit_status: Annotated[
        int | None, typer.Option(help="It has ended with this status; 0 is a success.", min=0, max=255, metavar="N")
    ] = None,
    rid: Annotated[
        str | None,
        typer.Option(help="An id of what runs, the same at start and end, where runs overlap.", metavar="ID"),
    ] = None,
    note: Annotated[str | None, typer.Option(help="Kept with the ping: 500 characters.", metavar="TEXT")] = None,
) -> None:
    """Ping a monitor. Without an option: it has succeeded."""
    from duly.operations.monitors import outcome_of

    if start + fail + (exit_status is not None) > 1:
        raise InvalidInput("--start", "give one of --start, --fail and --exit-status")
    said = "start" if start else "fail" if fail else None if exit_status is None else str(exit_status)
    event, status = ("success", None) if said is None else outcome_of(said)

    async def send(operations: Backend) -> None:
        await operations.monitors.ping(name, event, rid=rid, exit_status=status, note=note)

    with_operations(context, send)
    say(f"pinged {name}: {event}")


def _when(monitor: Monitor) -> str:
    return f"{monitor.definition.schedule} {monitor.definition.timezone}"


def _ping_row(one: Ping) -> tuple[str, ...]:
    status = "" if one.exit_status is None else f" ({one.exit_status})"
    took = "" if one.seconds is None else rough_span(one.seconds)
    return moment(one.at), f"{one.event}{status}", one.rid or "", took, one_line(one.note or "")
