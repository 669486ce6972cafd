"""`duly explain`: the outcome of an occurrence, and the reason for it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import with_operations
from duly.cli.options import JobArgument
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
from duly.errors import InvalidInput

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import Explanation

_EXAMPLES = examples(
    "duly explain nightly-report",
    "duly explain nightly-report 2026-03-08T02:30",
    "duly explain 0197c1f2 --from 2026-03-07 --to 2026-03-09 --json",
)
# The status whose colour a verdict gets.
_LIKE = {
    "fired": "succeeded", "triggered": "succeeded", "fired_late": "missed", "skipped": "skipped", "missed": "missed",
    "dst_dropped": "skipped", "paused": "paused", "parked": "dead", "cancelled": "cancelled", "overdue": "dead",
    "unrecorded": "dead", "not_due": "queued",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("explain", epilog=_EXAMPLES)(explain)


def explain(
    context: typer.Context,
    job: JobArgument,
    time: Annotated[
        str | None, typer.Argument(help="ISO 8601; without an offset, in the job's own zone.", metavar="TIME")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Explain every occurrence from this time on.", metavar="TIME")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="End of that range. Default: now.", metavar="TIME")] = None,
    limit: Annotated[int, typer.Option(help="With --from: at most N occurrences.", metavar="N")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON document; with --from one per line.")] = False,
) -> None:
    """Explain the outcome of an occurrence, and the reason for it.

    Without a time, explains the last occurrence and says what comes next.
    """
    if time is not None and (from_ is not None or to is not None):
        raise InvalidInput("time", "cannot be given together with --from or --to")
    if to is not None and from_ is None:
        raise InvalidInput("to", "needs --from")
    if from_ is not None:
        _explain_range(context, job, from_, to, limit, as_json)
        return

    from duly.checks import read_moment

    async def look(operations: Backend) -> Explanation:
        found = await operations.jobs.find(job)
        at = (
            None if time is None else read_moment("time", time, timezone=found.timezone, dst_fold=found.policy.dst_fold)
        )
        return await operations.explain.occurrence(str(found.job_id), at=at)

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
    from duly.checks import read_moment

    async def look(operations: Backend) -> list[Explanation]:
        found = await operations.jobs.find(job)
        read = partial(read_moment, timezone=found.timezone, dst_fold=found.policy.dst_fold)
        end = operations.now() if to is None else read("to", to)
        start = read("from", from_)
        return await operations.explain.between(str(found.job_id), start=start, end=end, limit=limit)

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
