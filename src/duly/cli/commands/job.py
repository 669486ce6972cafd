"""`duly job …`: list, show and change jobs, and list their runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.backend import read_pages
from duly.cli.invocation import with_operations
from duly.cli.options import JobArgument, JsonLinesOption, LimitOption, ReasonOption, read_labels
from duly.cli.output import (
    REPEATED,
    away,
    coloured,
    examples,
    moment,
    note_text,
    one_line,
    policy_changes,
    print_fields,
    print_json,
    print_json_lines,
    print_table,
    say,
)
from duly.errors import Conflict, InvalidInput, InvalidSchedule
from duly.formats import rough_span
from duly.masking import shown_payload
from duly.targets import shown_target

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import Job, Run

JsonOption = Annotated[bool, typer.Option("--json", help="The job as a JSON document.")]

UPCOMING = 5

group = typer.Typer(
    help="List and show jobs and their runs; pause, resume, trigger or cancel jobs.",
    epilog=examples(
        "duly job list --status active --queue reports",
        "duly job runs nightly-report --json | head -3",
        "duly job pause 0197c1f2 --reason 'supplier is down' --until +2h",
        "duly job trigger nightly-report",
    ),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="job")


@group.command("list")
def list_(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(help="active, paused, completed or cancelled.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs with this name.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Only jobs with this label; repeat for several.", metavar="K=V")
    ] = None,
    limit: LimitOption = 100,
    as_json: JsonLinesOption = False,
) -> None:
    """List jobs, newest first."""
    labels = read_labels(label or ())

    async def look(operations: Backend) -> tuple[list[Job], bool, datetime]:
        found, more = await read_pages(
            limit, operations.jobs.page, status=status, queue=queue, name=name, label=labels or None, payload=as_json
        )
        return found, more, operations.now()

    found, more, now = with_operations(context, look, is_empty=lambda answer: not answer[0])
    if as_json:
        from duly.api.documents import job_document

        print_json_lines(job_document(job) for job in found)
    elif found:
        print_table(
            ("ID", "NAME", "STATUS", "SCHEDULE", "QUEUE", "NEXT"),
            [
                (
                    str(job.job_id),
                    job.name,
                    job.status,
                    "once" if job.kind == "once" else _schedule(job),  # its time is in the last column
                    job.queue,
                    away(job.next_run_at, now),
                )
                for job in found
            ],
            whole=("ID", "STATUS", "NEXT"),
        )
    else:
        say("no jobs", err=True)
    _tell_more(more, limit)


@group.command()
def show(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Show one job with its next occurrences."""

    async def look(operations: Backend) -> tuple[Job, list[datetime], str, datetime]:
        found = await operations.jobs.find(job)
        try:
            coming = await operations.jobs.upcoming(str(found.job_id), count=UPCOMING)
        except (Conflict, InvalidInput) as error:
            # The time-zone data has lost its zone. The job itself can still be shown.
            return found, [], str(error), operations.now()
        return found, [one.scheduled_at for one in coming if not one.dropped], "", operations.now()

    found, upcoming, unplanned, now = with_operations(context, look)
    from duly.api.documents import job_document

    if as_json:
        print_json(job_document(found))
        return
    import json

    from duly.model import DEFAULT_POLICY, JOB_RULES

    print_fields(
        {
            "job": str(found.job_id),
            "name": found.name,
            "status": coloured(found.status) + (f" ({one_line(found.status_reason)})" if found.status_reason else ""),
            "until": f"{moment(found.paused_until)} ({away(found.paused_until, now)})" if found.paused_until else "",
            "handler": found.handler if isinstance(found.handler, str) else json.dumps(shown_target(found.handler)),
            "payload": one_line(
                json.dumps(shown_payload(found.payload, found.policy.secret_fields), ensure_ascii=False), 1000
            ),
            "schedule": _schedule(found),
            **{name: _shown(getattr(found, name)) for name in JOB_RULES if name not in _SHOWN_TOGETHER},
            "queue": f"{found.queue}, priority {found.priority}",
            **policy_changes(found.policy, DEFAULT_POLICY),
            "labels": ", ".join(f"{key}={value}" for key, value in found.labels.items()),
            "created": f"{moment(found.created_at)} ({away(found.created_at, now)})",
            "last": f"{moment(found.last_run_at)} ({away(found.last_run_at, now)})" if found.last_run_at else "",
            "runs": str(found.run_count),
            "next": unplanned or ", ".join(f"{moment(at)} ({away(at, now)})" for at in upcoming[:1]),
            "then": ", ".join(moment(at) for at in upcoming[1:]),
        }
    )


@group.command()
def runs(context: typer.Context, job: JobArgument, limit: LimitOption = 20, as_json: JsonLinesOption = False) -> None:
    """List a job's runs, live and ended, newest first."""

    async def look(operations: Backend) -> tuple[list[Run], bool]:
        found = await operations.jobs.find(job)
        return await read_pages(limit, operations.runs.page, str(found.job_id))

    listed, more = with_operations(context, look)
    if as_json:
        from duly.api.documents import run_document

        print_json_lines(run_document(run) for run in listed)
    elif listed:
        print_table(
            ("SCHEDULED", "STATUS", "ATTEMPT", "LAG", "TOOK", "ERROR OR RESULT"),
            [_run_row(run) for run in listed],
            whole=("SCHEDULED", "STATUS", "LAG", "TOOK"),
        )
    else:
        say("no runs yet", err=True)
    _tell_more(more, limit)


@group.command()
def pause(
    context: typer.Context,
    job: JobArgument,
    reason: Annotated[str | None, typer.Option(help="Reason, shown by `duly job show`.", metavar="TEXT")] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="When it goes on by itself: a time, such as '2026-12-01 09:00' (UTC, or with an offset), or a span "
            "from now, such as +2h. Default: when it is resumed.",
            metavar="TIME",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a job: it does not fire until it is resumed, or until a given time.

    Occurrences during the pause are not run. Pausing a paused job again changes only its --until.
    """
    from duly.checks import read_moment

    span = moment_given = None
    if until is not None and until.startswith("+"):
        span = _read_span(until[1:])
    elif until is not None:
        moment_given = read_moment("until", until)

    def stop(operations: Backend, job_id: str) -> Awaitable[Job]:
        ends = moment_given if span is None else operations.now() + span
        return operations.jobs.pause(job_id, reason=reason, until=ends)

    _change(context, job, stop, as_json)


def _read_span(text: str) -> timedelta:
    from duly.timing.interval import read_interval

    try:
        return timedelta(seconds=read_interval(f"every {text}")[0])
    except InvalidSchedule as error:
        raise InvalidInput("until", f"+{text[:40]}: a span is like +2h or +1h30m") from error


@group.command()
def resume(context: typer.Context, job: JobArgument, reason: ReasonOption = None, as_json: JsonOption = False) -> None:
    """Resume a paused job, from its next future occurrence on."""
    _change(context, job, lambda operations, job_id: operations.jobs.resume(job_id, reason=reason), as_json)


@group.command()
def cancel(
    context: typer.Context,
    job: JobArgument,
    running: Annotated[bool, typer.Option("--running", help="Also stop runs that are executing.")] = False,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a job for good: it never fires again, and its waiting runs are cancelled."""

    def stop(operations: Backend, job_id: str) -> Awaitable[Job]:
        return operations.jobs.cancel(job_id, running=running, reason=reason)

    _change(context, job, stop, as_json)


@group.command()
def trigger(
    context: typer.Context,
    job: JobArgument,
    reason: ReasonOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="job_id and run_id as a JSON document.")] = False,
) -> None:
    """Run a job now, in addition to its schedule."""

    async def fire(operations: Backend) -> tuple[Job, str, str]:
        found = await operations.jobs.find(job)
        run = await operations.jobs.trigger(str(found.job_id), reason=reason)
        return found, run.run_id, run.status

    found, run_id, status = with_operations(context, fire)
    if as_json:
        print_json({"job_id": str(found.job_id), "run_id": run_id, "status": status})
    else:
        behind = "  (for the end of the run before it)" if status == "waiting" else ""
        say(f"{run_id}  {one_line(found.name)}  {coloured(status)}{behind}")


def _change(context: typer.Context, text: str, change: Callable[[Backend, str], Awaitable[Job]], as_json: bool) -> None:
    async def find_and_change(operations: Backend) -> tuple[Job, datetime]:
        found = await operations.jobs.find(text)
        return await change(operations, str(found.job_id)), operations.now()

    job, now = with_operations(context, find_and_change)
    if as_json:
        from duly.api.documents import job_document

        print_json(job_document(job))
    else:
        planned = f"  next {moment(job.next_run_at)} ({away(job.next_run_at, now)})" if job.next_run_at else ""
        if job.paused_until is not None:
            planned = f"  until {moment(job.paused_until)} ({away(job.paused_until, now)})"
        say(f"{job.job_id}  {one_line(job.name)}  {coloured(job.status)}{planned}")


# Fields that `show` words in a way of its own.
_SHOWN_TOGETHER = ("name", "schedule", "timezone", "queue", "priority", "labels")


def _shown(value: object) -> str:
    return moment(value) if isinstance(value, datetime) else "" if value is None else str(value)


def _schedule(job: Job) -> str:
    return job.schedule if job.kind in ("once", "interval") else f"{job.schedule} {job.timezone}"


def _run_row(run: Run) -> tuple[str, ...]:
    said = ""
    if run.error is not None:
        said = f"{run.error.type}: {run.error.message}"
    elif run.result is not None:
        import json

        said = json.dumps(run.result, ensure_ascii=False)
    elif run.note:
        said = note_text(run)
    lag = rough_span((run.started_at - run.scheduled_at).total_seconds()) if run.started_at else ""
    took = rough_span((run.finished_at - run.started_at).total_seconds()) if run.started_at and run.finished_at else ""
    if run.deduplicated:
        said = REPEATED
    if run.status == "retrying" and run.next_attempt_at is not None:
        said = f"again at {moment(run.next_attempt_at)}; {said}"
    if run.missed and run.status != "missed":
        lag = f"{lag} missed".lstrip()
    return moment(run.scheduled_at), run.status, str(run.attempt), lag, took, said


def _tell_more(more: bool, limit: int) -> None:
    if more:
        say(f"there are more than {limit}; see them with --limit", err=True)
