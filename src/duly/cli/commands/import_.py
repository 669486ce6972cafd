"""`duly import crontab`: the lines of a crontab as jobs."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.invocation import with_operations
from duly.cli.output import coloured, examples, hanging, moment, one_line, print_json, print_table, say
from duly.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.cli.crontab import Entry, Table
    from duly.model import JobRequest, Occurrence

# Number of occurrences among which a line affected by DST is searched for.
_OCCURRENCES = 400
_SHOWN_NEXT = 3
# Cron has no timeout, but a job must have one: a day, in seconds.
_DAY = 86_400.0

group = typer.Typer(help="Import the jobs of another scheduler.", no_args_is_help=True)
_EXAMPLES = examples(
    "crontab -l | duly import crontab - --dry-run",
    "duly import crontab my.crontab --timezone Europe/Berlin --queue cron",
    "duly import crontab /etc/crontab --system --skip-unknown --yes",
)


def register(app: typer.Typer) -> None:
    group.command("crontab", epilog=_EXAMPLES)(crontab)
    app.add_typer(group, name="import")


def crontab(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="A crontab, or - for standard input.", metavar="FILE|-")],
    system: Annotated[
        bool, typer.Option("--system", help="Read the format of /etc/crontab, with a user before each command.")
    ] = False,
    timezone: Annotated[
        str | None, typer.Option(help="Zone of lines without a CRON_TZ. Default: this machine's.", metavar="ZONE")
    ] = None,
    queue: Annotated[str, typer.Option(help="Queue of the jobs.")] = "default",
    overlap: Annotated[str, typer.Option(help="skip, queue or parallel (as cron does).", metavar="RULE")] = "parallel",
    missed_window: Annotated[
        str, typer.Option(help="SKIP (as cron does), RUN_ONCE or RUN_ALL.", metavar="RULE")
    ] = "SKIP",
    max_retries: Annotated[int, typer.Option(help="Maximum number of retries; cron has none.", metavar="N")] = 0,
    timeout_seconds: Annotated[float, typer.Option(help="Timeout of an attempt; cron has none.", metavar="S")] = _DAY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be submitted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Import the other lines if some cannot be imported.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The jobs and refused lines as a JSON document.")] = False,
) -> None:
    """Submit a command job for each line of a crontab, after showing each job and its next run.

    Importing the same table again changes nothing. An edited line becomes another job: cancel the old one. The jobs
    need a worker that was started with --allow-commands.
    """
    from duly.cli.crontab import read_crontab
    from duly.model import Policy

    zone, guessed = (timezone, False) if timezone is not None else local_zone()
    table = read_crontab(_read(file), timezone=zone, system=system)
    policy: dict[str, Any] = {
        "overlap": overlap, "missed_window": missed_window.upper(), "max_retries": max_retries,
        "timeout_seconds": timeout_seconds,
    }  # fmt: skip
    requests = [
        _request(entry, queue, Policy(**policy, jitter_seconds=entry.jitter_seconds)) for entry in table.entries
    ]
    coming = [_next(entry) for entry in table.entries]
    if not as_json:
        _show(table, coming, zone if guessed else None)
    short = bool(table.refused) and not skip_unknown
    results: list[tuple[str | None, str]] = [(None, "not submitted")] * len(requests)
    if not dry_run and not short and requests:
        if not yes:
            _ask(file, len(requests), as_json)
        results = with_operations(context, lambda operations: _submit(operations, requests))
    if as_json:
        print_json(_document(table, coming, results))
    else:
        _tell(table, results, dry_run=dry_run, short=short)
    if short:
        raise typer.Exit(2)
    if any(status == "conflict" for _, status in results):
        raise typer.Exit(5)


def local_zone() -> tuple[str, bool]:
    """The name of this machine's zone, and whether that is only a guess."""
    for name in (os.environ.get("TZ", "").removeprefix(":"), _zone_of_link(), _zone_of_file()):
        if name and _is_zone(name):
            return name, False
    return "UTC", True


def _zone_of_link() -> str:
    try:
        return str(Path("/etc/localtime").readlink()).partition("zoneinfo/")[2]
    except OSError:
        return ""


def _zone_of_file() -> str:
    try:
        return Path("/etc/timezone").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_zone(name: str) -> bool:
    from duly.timing import load_zone

    try:
        load_zone(name)
    except InvalidInput:
        return False
    return True


def _read(file: str) -> str:
    from duly.cli.crontab import MAX_BYTES

    try:
        if file == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput("file", f"{file!r} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise InvalidInput("file", f"must be at most {MAX_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInput("file", f"must be UTF-8; line {line} is not") from error


def _request(entry: Entry, queue: str, policy: Any) -> JobRequest:
    from duly.model import JobRequest

    labels = {"imported": "crontab"} | ({"user": entry.user} if entry.user is not None else {})
    return JobRequest(
        handler=entry.handler,
        name=entry.name,
        schedule=entry.schedule,
        timezone=entry.timezone,
        queue=queue,
        policy=policy,
        dedupe_key=entry.key,
        labels=labels,
    )


def _next(entry: Entry) -> list[Occurrence]:
    """The next occurrences, and after them the first that DST affects."""
    from duly.operations import preview

    found = preview(entry.schedule, timezone=entry.timezone, count=_OCCURRENCES).occurrences
    touched = next((one for one in found[_SHOWN_NEXT:] if one.note is not None), None)
    return found[:_SHOWN_NEXT] + ([touched] if touched is not None else [])


async def _submit(operations: Backend, requests: list[JobRequest]) -> list[tuple[str | None, str]]:
    """Submit one by one: a line that conflicts must not stop the others, and is reported by itself."""
    results: list[tuple[str | None, str]] = []
    for request in requests:
        try:
            submitted = await operations.submit(request)
        except Conflict as error:
            say(hanging(f"{one_line(request.name or '')}: {error}"), err=True)
            results.append((None, "conflict"))
        else:
            results.append((str(submitted.job_id), "created" if submitted.created else "was there already"))
    return results


def _ask(file: str, count: int, as_json: bool) -> None:
    if file == "-" or as_json or not sys.stdin.isatty():
        raise InvalidInput(
            "yes", "the input is not a terminal, so nobody can confirm: use --yes to submit, or --dry-run to look only"
        )
    typer.confirm(f"submit {count} job{'s' if count != 1 else ''}?", abort=True)


def _show(table: Table, coming: list[list[Occurrence]], guessed_zone: str | None) -> None:
    if table.entries:
        print_table(
            ("LINE", "SCHEDULE", "ZONE", "NEXT LOCAL", "NEXT UTC", "COMMAND"),
            [
                (
                    str(entry.line),
                    entry.schedule,
                    entry.timezone,
                    _local(occurrences[0].local) if occurrences else "",
                    moment(occurrences[0].scheduled_at) if occurrences else "",
                    entry.command,
                )
                for entry, occurrences in zip(table.entries, coming, strict=True)
            ],
            whole=("LINE", "NEXT LOCAL", "NEXT UTC"),
        )
    else:
        say("no line is a job", err=True)
    notes = [*table.notes, *((entry.line, note) for entry in table.entries for note in entry.notes)]
    for entry, occurrences in zip(table.entries, coming, strict=True):
        notes += [(entry.line, f"on {one.local:%Y-%m-%d}: {one.note}") for one in occurrences if one.note is not None]
    if guessed_zone is not None:
        say(f"this machine has no time zone set; lines without one are in {guessed_zone} (--timezone)", err=True)
    for line, note in sorted(notes):
        say(f"line {line}: {one_line(note)}", err=True)
    for refused in table.refused:
        say(
            f"line {refused.line}: {coloured('cannot be imported', like='fail')}: {one_line(refused.reason)}"
            f"\n    {one_line(refused.text)}",
            err=True,
        )


def _tell(table: Table, results: list[tuple[str | None, str]], *, dry_run: bool, short: bool) -> None:
    for entry, (job_id, status) in zip(table.entries, results, strict=True):
        if job_id is not None:
            say(f"{job_id}  {one_line(entry.name)}" + ("" if status == "created" else f"  ({status})"))
    if short:
        count = len(table.refused)
        lines = "one line" if count == 1 else f"{count} lines"
        say(
            f"duly: {lines} cannot be imported, so nothing was submitted; use --skip-unknown to import the others",
            err=True,
        )
    elif dry_run:
        say("nothing was submitted", err=True)


def _document(table: Table, coming: list[list[Occurrence]], results: list[tuple[str | None, str]]) -> dict[str, Any]:
    from duly.api.documents import occurrence_document
    from duly.targets import shown_target

    return {
        "jobs": [
            {
                "line": entry.line,
                "name": entry.name,
                "schedule": entry.schedule,
                "timezone": entry.timezone,
                "user": entry.user,
                "handler": shown_target(entry.handler),
                "dedupe_key": entry.key,
                "next": [occurrence_document(one) for one in occurrences[:_SHOWN_NEXT]],
                "notes": list(entry.notes),
                "job_id": job_id,
                "status": status,
            }
            for entry, occurrences, (job_id, status) in zip(table.entries, coming, results, strict=True)
        ],
        "refused": [{"line": one.line, "text": one.text, "reason": one.reason} for one in table.refused],
        "notes": [{"line": line, "note": note} for line, note in table.notes],
    }


def _local(value: datetime) -> str:
    return f"{value:%a %Y-%m-%d %H:%M%z}"
