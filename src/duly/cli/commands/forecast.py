"""`duly forecast`: the number of coming fires, by time, queue and handler."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated

import typer

from duly.cli.invocation import with_operations
from duly.cli.output import examples, moment, print_json, print_table, say
from duly.errors import InvalidInput

_EXAMPLES = examples(
    "duly forecast",
    "duly forecast --minutes 1440 --by hour --queue reports",
    "duly forecast --json | jq '.items[0]'",
)


def register(app: typer.Typer) -> None:
    app.command("forecast", epilog=_EXAMPLES)(forecast)


def forecast(
    context: typer.Context,
    minutes: Annotated[int, typer.Option(help="How many minutes ahead, at most 1440.", metavar="N")] = 60,
    by: Annotated[str, typer.Option(help="Length of the period per line: minute or hour.", metavar="UNIT")] = "minute",
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The document that the API answers with.")] = False,
) -> None:
    """Show how many fires are coming, by minute, queue and handler."""
    if by not in ("minute", "hour"):
        raise InvalidInput("by", f"must be minute or hour, not {by[:40]!r}")
    found = with_operations(
        context, lambda operations: operations.forecast(minutes=minutes), is_empty=lambda answer: not answer.items
    )
    items = [item for item in found.items if queue is None or item.queue == queue]
    if as_json:
        from duly.api.documents import forecast_document

        print_json(forecast_document(replace(found, items=items)))
        return
    sums: dict[tuple[datetime, str, str], int] = {}
    for item in items:
        start = item.minute if by == "minute" else item.minute.replace(minute=0)
        key = (start, item.queue, item.handler)
        sums[key] = sums.get(key, 0) + item.fires
    if sums:
        most = max(sums.values())
        print_table(
            ("FROM", "QUEUE", "HANDLER", "FIRES", ""),
            [
                (moment(start), in_queue, handler, str(fires), "▇" * max(1, round(20 * fires / most)))
                for (start, in_queue, handler), fires in sums.items()
            ],
            whole=("FROM", "FIRES"),
        )
    about = "about " if found.estimated else ""
    total = sum(item.fires for item in items)
    say(f"{about}{total} fire{'' if total == 1 else 's'} until {moment(found.until)}", err=not sums)
    if found.cut:
        say(f"too many to count: the list is complete up to {moment(found.complete_until)}", err=True)
