"""`duly maintenance …`: times in which no incident is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import with_operations
from duly.cli.options import JsonLinesOption, JsonOption
from duly.cli.output import examples, moment, print_json, print_json_lines, print_table, say

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import MaintenanceWindow


group = typer.Typer(
    help="Plan times in which no incident is opened.",
    epilog=examples(
        "duly maintenance add --until 2026-03-08T06:00:00Z --reason 'new disks'",
        "duly maintenance add --job nightly --from 2026-03-08T22:00:00Z --until 2026-03-09T04:00:00Z",
        "duly maintenance list",
    ),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="maintenance")


@group.command()
def add(
    context: typer.Context,
    until: Annotated[str, typer.Option(help="Its end, in UTC unless it has an offset.", metavar="TIME")],
    start: Annotated[str | None, typer.Option("--from", help="Its start. Default: now.", metavar="TIME")] = None,
    job: Annotated[
        str | None, typer.Option(help="Only this job: its id or name. Default: all jobs and monitors.", metavar="JOB")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why.", metavar="TEXT")] = "maintenance",
    as_json: JsonOption = False,
) -> None:
    """Add a window: no incident is opened in it. What is still wrong at its end is opened then."""
    from duly.checks import read_moment

    starts_at = None if start is None else read_moment("from", start)
    ends_at = read_moment("until", until)

    async def plan(operations: Backend) -> MaintenanceWindow:
        job_id = None if job is None else str((await operations.jobs.find(job)).job_id)
        return await operations.windows.add(starts_at=starts_at, ends_at=ends_at, job_id=job_id, reason=reason)

    window = with_operations(context, plan)
    if as_json:
        from duly.api.documents import window_document

        print_json(window_document(window))
    else:
        say(f"no incidents from {moment(window.starts_at)} to {moment(window.ends_at)} ({window.window_id})")


@group.command("list")
def list_(context: typer.Context, as_json: JsonLinesOption = False) -> None:
    """List the windows that are not over yet."""
    found = with_operations(context, lambda operations: operations.windows.list(), is_empty=lambda answer: not answer)
    if as_json:
        from duly.api.documents import window_document

        print_json_lines(window_document(one) for one in found)
    elif found:
        print_table(
            ("ID", "FROM", "UNTIL", "JOB", "REASON"),
            [
                (str(one.window_id), moment(one.starts_at), moment(one.ends_at), str(one.job_id or "all"), one.reason)
                for one in found
            ],
            whole=("ID", "FROM", "UNTIL"),
        )
    else:
        say("there is no maintenance window", err=True)


@group.command()
def remove(
    context: typer.Context,
    window: Annotated[str, typer.Argument(help="The window's id, as the list shows it.", metavar="ID")],
) -> None:
    """Remove a window; one that goes on ends with it."""
    with_operations(context, lambda operations: operations.windows.remove(window))
    say(f"maintenance window {window} is removed")
