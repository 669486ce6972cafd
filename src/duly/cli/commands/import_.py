"""`duly import crontab`: the lines of a crontab as jobs."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.backend import PAGE
from duly.cli.invocation import with_operations
from duly.cli.output import coloured, examples, hanging, moment, one_line, print_json, print_table, say
from duly.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.cli.crontab import Entry, Table
    from duly.cli.pruning import Plan
    from duly.model import Job, JobRequest, Occurrence

# Number of occurrences among which a line affected by DST is searched for.
_OCCURRENCES = 400
_SHOWN_NEXT = 3
# Cron has no timeout, but a job must have one: a day, in seconds.
_DAY = 86_400.0
# Longest name of a source: it is the value of a label.
_MAX_SOURCE = 255

group = typer.Typer(help="Import the jobs of another scheduler.", no_args_is_help=True)
_EXAMPLES = examples(
    "crontab -l | duly import crontab - --dry-run",
    "duly import crontab my.crontab --timezone Europe/Berlin --queue cron",
    "duly import crontab /etc/crontab --system --skip-unknown --yes",
    "duly import crontab my.crontab --prune",
    "crontab -l | duly import crontab - --source web1:root --prune --yes --max-cancel 20",
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
    source: Annotated[
        str | None,
        typer.Option(
            help="Name of this table, by which --prune knows its jobs. Default: HOST:FILE; none for standard input.",
            metavar="NAME",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Cancel the jobs of earlier imports of this table whose line is gone or edited, after "
            "submitting the new ones. Jobs made by hand, or by another table, stay.",
        ),
    ] = False,
    max_cancel: Annotated[
        int | None,
        typer.Option(
            help="With --prune: cancel at most N jobs, else nothing is done. Needed where nobody can confirm and more "
            "than 5 and than a fifth of the table's jobs would go.",
            min=0,
            metavar="N",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be submitted and cancelled.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Import the other lines if some cannot be imported.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The jobs and refused lines as a JSON document.")] = False,
) -> None:
    """Submit a command job for each line of a crontab, after showing each job and its next run.

    Importing the same table again changes nothing. An edited line becomes another job; --prune cancels the old one. The
    jobs need a worker that was started with --allow-commands. They run in its folder, unless the table sets HOME.
    """
    from duly.cli.crontab import read_crontab
    from duly.cli.pruning import make_plan
    from duly.model import Policy

    source = _source(file, source)
    if prune and source is None:
        raise InvalidInput("source", "is required with --prune for standard input: --source NAME, such as web1:root")
    if max_cancel is not None and not prune:
        raise InvalidInput("max_cancel", "needs --prune")
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
    if prune and not requests:
        raise InvalidInput(
            "file",
            "has no line that is a job, and --prune would cancel all jobs of the table: to do so, duly job cancel",
        )
    if not as_json:
        _show(table, coming, zone if guessed else None)
    short = bool(table.refused) and not skip_unknown
    results: list[tuple[str | None, str]] = [(None, "not submitted")] * len(requests)
    plan = None
    working = not dry_run and not short and bool(requests)
    if working or prune:
        known = with_operations(context, _imported)
        requests = _keyed(requests, known)
        if prune and source is not None:
            keys = [request.dedupe_key or "" for request in requests]
            plan = make_plan(known.values(), source=source, keys=keys, entries=table.entries, refused=table.refused)
            if not as_json:
                _show_plan(plan, source)
    if working:
        _check_limit(plan, max_cancel, asking=not yes)
        if not yes:
            _ask(file, len(requests), 0 if plan is None else len(plan.cancelled), as_json)
        results = with_operations(context, lambda operations: _carry_out(operations, requests, source, plan))
    if as_json:
        print_json(_document(table, coming, results) | _pruned(source, plan, done=working))
    else:
        _tell(table, results, dry_run=dry_run, short=short)
        if plan is not None and working:
            for gone in plan.cancelled:
                say(f"{gone.job.job_id}  {one_line(gone.job.name)}  (cancelled)")
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
    from duly.cli.pruning import IMPORTED
    from duly.model import JobRequest

    labels = IMPORTED | ({"user": entry.user} if entry.user is not None else {})
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


def _source(file: str, given: str | None) -> str | None:
    """The name of the table: the one that was given, else the machine and the file; None for standard input."""
    from duly.checks import check_text

    if given is not None:
        return check_text("source", given, longest=_MAX_SOURCE)
    if file == "-":
        return None
    name = f"{socket.gethostname()}:{Path(file).absolute()}"
    return name if len(name) <= _MAX_SOURCE and name.isprintable() else None


async def _imported(operations: Backend) -> dict[str, Job]:
    """All jobs that imports have made, by dedupe key, also those that are cancelled."""
    from duly.cli.pruning import IMPORTED, is_imported

    found: dict[str, Job] = {}
    cursor = None
    while True:
        page = await operations.jobs.page(label=IMPORTED, cursor=cursor, limit=PAGE, payload=False)
        found |= {job.dedupe_key or "": job for job in page.items if is_imported(job)}
        if (cursor := page.next_cursor) is None:
            return found


def _keyed(requests: list[JobRequest], known: dict[str, Job]) -> list[JobRequest]:
    from duly.cli.pruning import key_for

    return [replace(request, dedupe_key=key_for(request.dedupe_key or "", known)) for request in requests]


async def _carry_out(
    operations: Backend, requests: list[JobRequest], source: str | None, plan: Plan | None
) -> list[tuple[str | None, str]]:
    """Submit first and cancel afterwards: whoever is interrupted between has both, and the next import goes on."""
    from duly.cli.pruning import PRUNED, without_source

    results = await _submit(operations, requests, source)
    if plan is None or source is None:
        return results
    for gone in plan.cancelled:
        await _relabel(operations, gone.job, lambda labels: {**labels, PRUNED: "true"})
        await operations.jobs.cancel(str(gone.job.job_id))
    for job in plan.shared:
        await _relabel(operations, job, lambda labels: without_source(labels, source))
    return results


async def _relabel(operations: Backend, job: Job, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    try:
        await operations.jobs.change(str(job.job_id), {"labels": change(job.labels)})
    except Conflict as error:
        # Such as a job that was cancelled meanwhile, or that cannot be read. The next import tries again.
        say(hanging(f"{one_line(job.name)}: {error}"), err=True)


def _check_limit(plan: Plan | None, max_cancel: int | None, *, asking: bool) -> None:
    if plan is None:
        return
    count = len(plan.cancelled)
    if max_cancel is not None and count > max_cancel:
        raise InvalidInput("max_cancel", f"{count} jobs would be cancelled; nothing was done")
    if max_cancel is None and plan.needs_limit and not (asking and sys.stdin.isatty()):
        raise InvalidInput(
            "max_cancel",
            f"{count} of the {plan.total} jobs of this table would be cancelled: is the table complete? Then repeat it "
            f"with --max-cancel {count}; nothing was done",
        )


def _show_plan(plan: Plan, source: str) -> None:
    for gone in plan.cancelled:
        job, entry = gone.job, gone.edited
        old = f"{job.schedule} {job.timezone}  {one_line(job.name)}"
        if entry is None:
            say(f"{coloured('cancel', like='cancelled')}  {job.job_id}  {old}")
        else:
            new = f"{entry.schedule} {entry.timezone}  {one_line(entry.name)}"
            say(f"{coloured('edited', like='warn')}  {job.job_id}  line {entry.line}: {old} → {new}")
    for job in plan.shared:
        others = ", ".join(sorted(_other_sources(job, source)))
        say(f"kept    {job.job_id}  {one_line(job.name)}: also a line of {one_line(others)}", err=True)
    for job in plan.kept:
        say(f"kept    {job.job_id}  {one_line(job.name)}: its command is in a line that cannot be imported", err=True)
    for job in plan.unnamed:
        say(
            f"kept    {job.job_id}  {one_line(job.name)}: imported without a source, so its table is unknown; "
            f"to end it: duly job cancel {job.job_id}",
            err=True,
        )


def _other_sources(job: Job, source: str) -> set[str]:
    from duly.cli.pruning import sources_of

    return sources_of(job.labels) - {source}


def _pruned(source: str | None, plan: Plan | None, *, done: bool) -> dict[str, Any]:
    if plan is None:
        return {"source": source}

    def document(job: Job) -> dict[str, Any]:
        return {"job_id": str(job.job_id), "name": job.name, "schedule": job.schedule, "timezone": job.timezone}

    status = "cancelled" if done else "not cancelled"
    return {
        "source": source,
        "pruned": [
            {**document(gone.job), "edited_line": None if gone.edited is None else gone.edited.line, "status": status}
            for gone in plan.cancelled
        ],
        "kept": [
            {**document(job), "reason": reason}
            for reason, jobs in (
                ("in another table", plan.shared), ("in a refused line", plan.kept), ("without a source", plan.unnamed),
            )
            for job in jobs
        ],
    }  # fmt: skip


async def _submit(operations: Backend, requests: list[JobRequest], source: str | None) -> list[tuple[str | None, str]]:
    """Submit one by one: a line that conflicts must not stop the others, and is reported by itself.

    The source is noted afterwards, because it is not part of a job's content: other tables may have the same line.
    """
    from duly.cli.pruning import has_source, is_live, with_source

    results: list[tuple[str | None, str]] = []
    for request in requests:
        try:
            submitted = await operations.submit(request)
        except Conflict as error:
            say(hanging(f"{one_line(request.name or '')}: {error}"), err=True)
            results.append((None, "conflict"))
        else:
            results.append((str(submitted.job_id), "created" if submitted.created else "was there already"))
            job = submitted.job
            if source is not None and is_live(job) and not has_source(job.labels, source):
                await _relabel(operations, job, lambda labels: with_source(labels, source))
    return results


def _ask(file: str, count: int, cancelled: int, as_json: bool) -> None:
    if file == "-" or as_json or not sys.stdin.isatty():
        raise InvalidInput(
            "yes", "the input is not a terminal, so nobody can confirm: use --yes to submit, or --dry-run to look only"
        )
    also = f", and cancel {cancelled}" if cancelled else ""
    typer.confirm(f"submit {count} job{'s' if count != 1 else ''}{also}?", abort=True)


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
