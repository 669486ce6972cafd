"""`duly audit`: who did what, when, through which door, before and after, and why."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.backend import read_pages
from duly.cli.invocation import with_operations
from duly.cli.options import JsonLinesOption, LimitOption
from duly.cli.output import examples, moment, one_line, print_json_lines, print_table, say

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import AuditEntry


def register(app: typer.Typer) -> None:
    app.command(
        "audit",
        epilog=examples(
            "duly audit --job nightly-report",
            "duly audit --actor ci --action cancel --since 2026-03-08",
            "duly audit --json | jq -c 'select(.via == \"api\")'",
        ),
    )(audit)


def audit(
    context: typer.Context,
    job: Annotated[
        str | None, typer.Option(help="Only changes of this job and its runs: its id or name.", metavar="JOB")
    ] = None,
    actor: Annotated[
        str | None, typer.Option(help="Only changes by this user or key (its name or id).", metavar="A")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            help="Only this action: submit, change, redefine, pause, resume, cancel, trigger, park, unpark, redrive, "
            "purge, create, revoke, set, allow or disallow.",
            metavar="A",
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only changes at this time or later.", metavar="TIME")] = None,
    until: Annotated[str | None, typer.Option(help="Only changes before this time.", metavar="TIME")] = None,
    limit: LimitOption = 100,
    as_json: JsonLinesOption = False,
) -> None:
    """Show who changed which job, run, dead letter, key or tenant, and why; newest first.

    BY says who did it and through which door: api, cli, sdk, sql, code (a deploy declared it) or scheduler (Duly
    itself). A user is shown as USER@HOST, a key by its name.
    """
    from duly.checks import read_moment
    from duly.model import AuditFilter

    start = None if since is None else read_moment("since", since)
    end = None if until is None else read_moment("until", until)

    async def look(operations: Backend) -> tuple[list[AuditEntry], bool]:
        job_id = None if job is None else str((await operations.jobs.find(job)).job_id)
        return await read_pages(limit, operations.audit.page, AuditFilter(job_id, actor, action, start, end))

    found, more = with_operations(context, look, is_empty=lambda answer: not answer[0])
    if as_json:
        from duly.api.documents import audit_document

        print_json_lines(audit_document(entry) for entry in found)
    elif found:
        print_table(
            ("AT", "BY", "ACTION", "OBJECT", "BEFORE", "AFTER", "REASON"),
            [
                (
                    moment(entry.at),
                    f"{entry.actor} ({entry.via})",
                    f"{entry.action} {entry.kind}",
                    entry.object or "",
                    _shown(entry.before),
                    _shown(entry.after),
                    one_line(entry.reason or ""),
                )
                for entry in found
            ],
            whole=("AT", "ACTION", "OBJECT"),
        )
    else:
        say("nothing has been changed", err=True)
    if more:
        say(f"there are more than {limit}; see them with --limit", err=True)


def _shown(fields: dict[str, Any] | None) -> str:
    """The fields as NAME=VALUE; moments without what does not matter here."""
    return " ".join(f"{name}={_value(value)}" for name, value in (fields or {}).items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, str):
        try:
            return moment(datetime.fromisoformat(value)).replace(" ", "T")
        except ValueError:
            return one_line(value)
    return one_line(json.dumps(value, ensure_ascii=False))
