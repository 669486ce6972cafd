"""`duly preview`: when a schedule occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.invocation import invocation_of, with_remote
from duly.cli.output import examples, moment, one_line, print_json, print_table, say

if TYPE_CHECKING:
    from duly.model import Preview

_EXAMPLES = examples(
    "duly preview '0 9 * * MON' --timezone America/New_York",
    "duly preview '30 2 * * *' --timezone America/New_York --after 2026-03-07 --dst-gap skip",
    "duly preview 'every 1h30m' --start-at 2026-01-01T00:00:00Z --count 3 --json",
)


def register(app: typer.Typer) -> None:
    app.command("preview", epilog=_EXAMPLES)(preview)


def preview(
    context: typer.Context,
    schedule: Annotated[
        str, typer.Argument(help="Cron, 'every 15m', a time or an RRULE (\\n between its lines).", metavar="EXPR")
    ],
    timezone: Annotated[str, typer.Option(help="IANA zone of the schedule.")] = "UTC",
    after: Annotated[
        str | None, typer.Option(help="ISO 8601; without an offset, in that zone. Default: now.", metavar="TIME")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of occurrences, at most 1000.", metavar="N")] = 10,
    dst_gap: Annotated[str, typer.Option(help="If DST skips the local time: shift or skip.")] = "shift",
    dst_fold: Annotated[str, typer.Option(help="If DST repeats the local time: first, second or both.")] = "first",
    start_at: Annotated[
        str | None, typer.Option(help="No occurrence before this time; intervals count from it.", metavar="TIME")
    ] = None,
    end_at: Annotated[str | None, typer.Option(help="No occurrence after this time.", metavar="TIME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The document that the API answers with.")] = False,
) -> None:
    """Show the next occurrences of a schedule. Nothing is stored, and no store is needed."""
    from duly.checks import read_moment

    times: dict[str, Any] = {
        name: None if text is None else read_moment(name, text, timezone=timezone)
        for name, text in (("after", after), ("start_at", start_at), ("end_at", end_at))
    }
    policies: dict[str, Any] = {"dst_gap": dst_gap, "dst_fold": dst_fold}
    # A shell gives a rule of several lines most easily with \n between them; no schedule holds a backslash.
    text = schedule.replace("\\n", "\n")
    options = {"timezone": timezone, "count": count, **times, **policies}
    if invocation_of(context).remote_url is not None:
        # Evaluated there, with that machine's time-zone data.
        found = with_remote(context, lambda remote: remote.client.preview(text, **options))
    else:
        from duly.operations import preview as look

        found = look(text, **options)
    if as_json:
        from duly.api.documents import preview_document

        print_json(preview_document(found))
        return
    say(f"{found.kind}  {one_line(found.canonical)}")
    if not found.occurrences:
        say("no occurrences", err=True)
        return
    _print_occurrences(found)


def _print_occurrences(found: Preview) -> None:
    print_table(
        ("UTC", "LOCAL", "DAY", "NOTE"),
        [
            (
                f"({moment(one.scheduled_at)})" if one.dropped else moment(one.scheduled_at),
                one.local.isoformat(" ", "seconds"),
                f"{one.local:%a}",
                one.note or "",
            )
            for one in found.occurrences
        ],
        whole=("UTC", "LOCAL", "DAY"),
    )
