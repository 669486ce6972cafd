"""`duly preview`, `duly explain` and `duly forecast`: when things occur, and what became of an occurrence."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.jobs import JobArgument
from duly.cli.output import (
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
from duly.cli.session import session_of, with_operations, with_remote
from duly.errors import InvalidInput

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.operations import Explanation, Preview

_PREVIEW = examples(
    "duly preview '0 9 * * MON' --timezone America/New_York",
    "duly preview '30 2 * * *' --timezone America/New_York --after 2026-03-07 --dst-gap skip",
    "duly preview 'every 1h30m' --start-at 2026-01-01T00:00:00Z --count 3 --json",
)
_EXPLAIN = examples(
    "duly explain nightly-report",
    "duly explain nightly-report 2026-03-08T02:30",
    "duly explain 0197c1f2 --from 2026-03-07 --to 2026-03-09 --json",
)
_FORECAST = examples(
    "duly forecast",
    "duly forecast --minutes 1440 --by hour --queue reports",
    "duly forecast --json | jq '.items[0]'",
)
# How a verdict is coloured: as the status that means the same.
_LIKE = {
    "fired": "succeeded", "triggered": "succeeded", "fired_late": "missed", "skipped": "skipped", "missed": "missed",
    "dst_dropped": "skipped", "paused": "paused", "parked": "dead", "cancelled": "cancelled", "overdue": "dead",
    "unrecorded": "dead", "not_due": "queued",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("preview", epilog=_PREVIEW)(preview)
    app.command("explain", epilog=_EXPLAIN)(explain)
    app.command("forecast", epilog=_FORECAST)(forecast)


def preview(
    context: typer.Context,
    schedule: Annotated[
        str, typer.Argument(help="Cron, 'every 15m', a time or an RRULE (\\n between its lines).", metavar="EXPR")
    ],
    timezone: Annotated[str, typer.Option(help="IANA zone of the schedule.")] = "UTC",
    after: Annotated[
        str | None, typer.Option(help="ISO 8601; without an offset in that zone. Now, if not given.", metavar="TIME")
    ] = None,
    count: Annotated[int, typer.Option(help="How many, at most 1000.", metavar="N")] = 10,
    dst_gap: Annotated[str, typer.Option(help="A local time that never is: shift or skip.")] = "shift",
    dst_fold: Annotated[str, typer.Option(help="A local time that is twice: first, second or both.")] = "first",
    start_at: Annotated[
        str | None, typer.Option(help="Not before this time; intervals count from it.", metavar="TIME")
    ] = None,
    end_at: Annotated[str | None, typer.Option(help="Not after this time.", metavar="TIME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The document that the API answers with.")] = False,
) -> None:
    """Show when a schedule occurs next. Nothing is stored, and no store is needed."""
    times: dict[str, Any] = {
        name: None if text is None else _read_time(name, text, timezone)
        for name, text in (("after", after), ("start_at", start_at), ("end_at", end_at))
    }
    policies: dict[str, Any] = {"dst_gap": dst_gap, "dst_fold": dst_fold}
    # A shell gives a rule of several lines most easily with \n between them; no schedule holds a backslash.
    text = schedule.replace("\\n", "\n")
    options = {"timezone": timezone, "count": count, **times, **policies}
    if session_of(context).remote_url is not None:
        # What that machine makes of it, with its own time-zone data.
        found = with_remote(context, lambda remote: remote.preview(text, **options))
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


def explain(
    context: typer.Context,
    job: JobArgument,
    time: Annotated[
        str | None, typer.Argument(help="ISO 8601; without an offset in the job's own zone.", metavar="TIME")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Every occurrence from this time …", metavar="TIME")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="… to this one; now, if not given.", metavar="TIME")] = None,
    limit: Annotated[int, typer.Option(help="With --from: at most this many.", metavar="N")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON document; with --from one a line.")] = False,
) -> None:
    """Say what became of an occurrence, and why.

    Without a time: of the last one, and what is next.
    """
    if time is not None and (from_ is not None or to is not None):
        raise InvalidInput("time", "cannot be given together with --from or --to")
    if to is not None and from_ is None:
        raise InvalidInput("to", "needs --from")
    if from_ is not None:
        _explain_range(context, job, from_, to, limit, as_json)
        return

    async def look(operations: Backend) -> Explanation:
        found = await operations.find_job(job)
        at = None if time is None else _read_time("time", time, found.timezone, found.policy.dst_fold)
        return await operations.explain(str(found.job_id), at=at)

    explanation = with_operations(context, look)
    if as_json:
        from duly.api.documents import explanation_document

        print_json(explanation_document(explanation))
        return
    _tell(explanation)
    if explanation.related is not None:
        say("")
        _tell(explanation.related)


def _explain_range(context: typer.Context, job: str, from_: str, to: str | None, limit: int, as_json: bool) -> None:
    async def look(operations: Backend) -> list[Explanation]:
        found = await operations.find_job(job)
        fold = found.policy.dst_fold
        end = operations.now() if to is None else _read_time("to", to, found.timezone, fold)
        start = _read_time("from", from_, found.timezone, fold)
        return await operations.explain_range(str(found.job_id), start=start, end=end, limit=limit)

    listed = with_operations(context, look)
    if as_json:
        from duly.api.documents import explanation_document

        print_json_lines(explanation_document(one) for one in listed)
    elif listed:
        counts = Counter(str(one.verdict) for one in listed)
        total = f"{len(listed)} occurrence{'s' if len(listed) != 1 else ''}"
        say(f"{total}: " + ", ".join(f"{count} {_words(verdict)}" for verdict, count in counts.most_common()))
        print_table(
            ("SCHEDULED", "LOCAL", "VERDICT", "WHY"),
            [
                (moment(one.scheduled_at), one.local.isoformat(" ", "seconds"), _words(one.verdict), one.sentence)
                for one in listed
            ],
            whole=("SCHEDULED", "LOCAL", "VERDICT"),
        )
    else:
        say("no occurrences", err=True)
    if len(listed) >= limit:
        say(f"there may be more than {limit}; see them with --limit, or from the last one on", err=True)


def forecast(
    context: typer.Context,
    minutes: Annotated[int, typer.Option(help="How far ahead, at most 1440.", metavar="N")] = 60,
    by: Annotated[str, typer.Option(help="minute or hour: what one line stands for.", metavar="UNIT")] = "minute",
    queue: Annotated[str | None, typer.Option(help="Only of this queue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The document that the API answers with.")] = False,
) -> None:
    """Show how many fires are coming, so that a herd is seen before it comes."""
    if by not in ("minute", "hour"):
        raise InvalidInput("by", f"must be minute or hour, not {by[:40]!r}")
    found = with_operations(context, lambda operations: operations.forecast(minutes=minutes))
    items = [item for item in found.items if queue is None or item.queue == queue]
    if as_json:
        from duly.api.documents import forecast_document

        print_json(forecast_document(replace(found, items=items)))
        return
    sums: dict[tuple[datetime, str, str], int] = {}
    for item in items:
        start = item.minute if by == "minute" else item.minute.replace(minute=0)
        place = (start, item.queue, item.handler)
        sums[place] = sums.get(place, 0) + item.fires
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
        say(f"there are too many to count: all are here up to {moment(found.complete_until)}", err=True)


def _tell(explanation: Explanation) -> None:
    verdict = str(explanation.verdict)
    when = f"{moment(explanation.scheduled_at)} ({explanation.local:%a %Y-%m-%d %H:%M:%S%z})"
    say(f"{when}  {coloured(_words(verdict), like=_LIKE.get(verdict, verdict))}")
    say(one_line(explanation.sentence, 1000))
    print_fields({f"  {name}": _fact(value) for name, value in explanation.facts.items()})


def _fact(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return one_line(str(value))


def _words(verdict: str) -> str:
    return verdict.replace("_", " ")


def _read_time(field: str, text: str, timezone: str, dst_fold: Any = "first") -> datetime:
    from duly.checks import read_moment

    return read_moment(field, text, timezone=timezone, dst_fold=dst_fold)
