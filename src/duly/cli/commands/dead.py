"""`duly dead …`: dead letters, the runs that have used up their retries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.backend import read_pages
from duly.cli.invocation import with_operations
from duly.cli.options import (
    JsonLinesOption,
    JsonOption,
    LimitOption,
    ReasonOption,
    RunArgument,
    make_option,
    with_options,
)
from duly.cli.output import (
    away,
    examples,
    moment,
    print_attempts,
    print_fields,
    print_json,
    print_json_lines,
    print_table,
    say,
    say_meanwhile,
)
from duly.masking import shown_payload
from duly.targets import shown_target

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import DeadLetter, DeadLetterFilter, Swept

OptionalRun = Annotated[
    str | None, typer.Argument(help="Id of one run. Default: all dead letters that match the options.", metavar="[RUN]")
]
FILTER = [
    make_option("job", str, help="Only runs of this job: its id or name.", metavar="JOB"),
    make_option("name", str, help="Only runs of jobs with this name."),
    make_option("queue", str, help="Only runs of this queue."),
    make_option("handler", str, help="Only runs of this task; or http, or command."),
    make_option("error_type", str, help="Only runs with this type of error.", metavar="TYPE"),
    make_option("since", str, help="Only buried at this time or later.", metavar="TIME"),
    make_option("until", str, help="Only buried before this time.", metavar="TIME"),
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters, if no option restricts them.")]

group = typer.Typer(
    help="List, show, redrive and purge dead letters.",
    epilog=examples(
        "duly dead list --queue reports --since 2026-03-08",
        "duly dead show RUN",
        "duly dead redrive RUN",
        "duly dead redrive --error-type ConnectError",
        "duly dead purge --name old-report --yes",
    ),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="dead")


@group.command("list")
@with_options(FILTER, before="limit")
def list_(
    context: typer.Context, limit: LimitOption = 100, as_json: JsonLinesOption = False, **options: str | None
) -> None:
    """List dead letters, newest first."""

    async def look(operations: Backend) -> tuple[list[DeadLetter], bool, datetime]:
        wanted = await _filter(operations, options)
        found, more = await read_pages(limit, operations.dead_letters.page, wanted, payload=as_json)
        return found, more, operations.now()

    found, more, now = with_operations(context, look, is_empty=lambda answer: not answer[0])
    if as_json:
        from duly.api.documents import dead_letter_document

        print_json_lines(dead_letter_document(letter) for letter in found)
    elif found:
        print_table(
            ("RUN", "NAME", "QUEUE", "BURIED", "ATTEMPTS", "ERROR"),
            [
                (
                    letter.run_id,
                    letter.name,
                    letter.queue,
                    away(letter.buried_at, now),
                    str(letter.attempt),
                    f"{letter.error.type}: {letter.error.message}",
                )
                for letter in found
            ],
            whole=("RUN", "BURIED"),
        )
    else:
        say("no dead letters", err=True)
    if more:
        say(f"… and more than these {limit}; see --limit", err=True)


@group.command()
def show(context: typer.Context, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show one dead letter in full: its payload, and every attempt with its error."""
    letter = with_operations(context, lambda operations: operations.dead_letters.get(run))
    if as_json:
        from duly.api.documents import dead_letter_document

        print_json(dead_letter_document(letter))
        return
    handler = letter.handler if isinstance(letter.handler, str) else json.dumps(shown_target(letter.handler))
    print_fields(
        {
            "run": letter.run_id,
            "name": letter.name,
            "handler": handler,
            "queue": letter.queue,
            "scheduled": moment(letter.scheduled_at),
            "buried": moment(letter.buried_at),
            "payload": json.dumps(shown_payload(letter.payload, letter.secret_fields), ensure_ascii=False),
            "payload_ref": letter.payload_ref or "",
        }
    )
    print_attempts(letter.attempts)


@group.command()
@with_options(FILTER, before="every")
def redrive(
    context: typer.Context,
    run: OptionalRun = None,
    every: AllOption = False,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
    **options: str | None,
) -> None:
    """Run dead letters again: one, or all that match the options.

    Their attempts are counted from 1 again; the idempotency key stays the same.
    """
    _sweep(context, "redrive", run, options, every, as_json, yes=True, reason=reason)


@group.command()
@with_options(FILTER, before="every")
def purge(
    context: typer.Context,
    run: OptionalRun = None,
    every: AllOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
    **options: str | None,
) -> None:
    """Delete dead letters for good. The history still says that their runs failed."""
    _sweep(context, "purge", run, options, every, as_json, yes=yes, reason=reason)


def _sweep(
    context: typer.Context,
    what: str,
    run: str | None,
    options: Mapping[str, str | None],
    every: bool,
    as_json: bool,
    *,
    yes: bool,
    reason: str | None,
) -> None:
    narrowed = any(option is not None for option in options.values())
    if run is not None and (narrowed or every):
        raise typer.BadParameter("give either one run or options, not both")
    if run is None and not narrowed and not every:
        raise typer.BadParameter("name a run, restrict the runs by an option, or use --all")
    past = "redriven" if what == "redrive" else "purged"

    async def one(operations: Backend) -> tuple[int, int]:
        assert run is not None
        letters = operations.dead_letters
        await (letters.redrive if what == "redrive" else letters.purge)(run, reason=reason)
        return 1, 0

    async def count(operations: Backend) -> int:
        return await operations.dead_letters.count(await _filter(operations, options))

    async def many(operations: Backend) -> tuple[int, int]:
        wanted, letters = await _filter(operations, options), operations.dead_letters
        sweep = letters.redrive_all if what == "redrive" else letters.purge_all
        sweeping: AsyncIterator[Swept] = sweep(wanted, reason=reason)
        done = refused = 0
        async for swept in sweeping:
            done, refused = swept.done, swept.refused
            say_meanwhile(f"{done} {past} …")
        say_meanwhile()
        return done, refused

    if run is None and not yes:
        matched = with_operations(context, count)
        typer.confirm(f"{what} {matched} dead letters for good?", abort=True)
    done, refused = with_operations(context, one if run is not None else many)
    if as_json:
        print_json({past: done, "refused": refused})
        return
    say(f"{done} {past}")
    if refused:
        say(f"{refused} were refused: their jobs are cancelled or deleted", err=True)


async def _filter(operations: Backend, options: Mapping[str, str | None]) -> DeadLetterFilter:
    from duly.checks import read_moment
    from duly.model import DeadLetterFilter

    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "job" in fields:
        fields["job_id"] = str((await operations.jobs.find(fields.pop("job"))).job_id)
    fields.update((name, read_moment(name, fields[name])) for name in ("since", "until") if name in fields)
    return DeadLetterFilter(**fields)
