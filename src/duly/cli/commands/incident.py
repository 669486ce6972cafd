"""`duly incident …`: what is wrong with jobs that have alerts, and who takes care of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.backend import read_pages
from duly.cli.invocation import with_operations
from duly.cli.options import JsonLinesOption, JsonOption, LimitOption
from duly.cli.output import examples, moment, print_json, print_json_lines, print_table, say

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import Incident


group = typer.Typer(
    help="Show what is wrong with jobs that have alerts, or acknowledge it.",
    epilog=examples("duly incident list", "duly incident list --all --job nightly", "duly incident ack ID --by ada"),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="incident")


@group.command("list")
def list_(
    context: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all/--open", help="Also those that are over; by default only open ones.")
    ] = False,
    job: Annotated[str | None, typer.Option(help="Only those of this job: its id or name.", metavar="JOB")] = None,
    limit: LimitOption = 100,
    as_json: JsonLinesOption = False,
) -> None:
    """List incidents, newest first: an occurrence that is late, an attempt that runs too long, failures in a row."""

    async def look(operations: Backend) -> tuple[list[Incident], bool]:
        job_id = None if job is None else str((await operations.jobs.find(job)).job_id)
        return await read_pages(limit, operations.incidents.page, only_open=not everything, job_id=job_id)

    found, more = with_operations(context, look, is_empty=lambda answer: not answer[0])
    if as_json:
        from duly.api.documents import incident_document

        print_json_lines(incident_document(one) for one in found)
    elif found:
        print_table(
            ("ID", "OPENED", "CLOSED", "KIND", "OF", "MESSAGE", "ACKNOWLEDGED"),
            [
                (
                    str(one.incident_id),
                    moment(one.opened_at),
                    moment(one.closed_at),
                    one.kind,
                    one.name,
                    one.message if one.closed_why is None else f"{one.message}; over: {one.closed_why}",
                    one.acked_by or "",
                )
                for one in found
            ],
            whole=("ID", "OPENED", "KIND"),
        )
    else:
        say("nothing is wrong" if not everything else "there was no incident", err=True)
    if more:
        say(f"there are more than {limit}; see them with --limit", err=True)


@group.command()
def ack(
    context: typer.Context,
    incident: Annotated[str, typer.Argument(help="The incident's id, as a list shows it.", metavar="ID")],
    by: Annotated[
        str | None, typer.Option(help="Who takes care of it. Default: you, or the API key's name.", metavar="NAME")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Note that somebody takes care of an incident. It stays open until what is wrong is over."""
    found = with_operations(context, lambda operations: operations.incidents.ack(incident, by=by))
    if as_json:
        from duly.api.documents import incident_document

        print_json(incident_document(found))
    else:
        say(f"{found.kind} of {found.name}: acknowledged by {found.acked_by} at {moment(found.acked_at)}")
