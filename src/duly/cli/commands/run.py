"""`duly run …`: show or cancel one run, and read its log."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from duly.cli.invocation import with_operations
from duly.cli.options import JsonLinesOption, JsonOption, ReasonOption, RunArgument
from duly.cli.output import (
    REPEATED,
    coloured,
    examples,
    hanging,
    moment,
    note_text,
    print_attempts,
    print_fields,
    print_json,
    print_json_lines,
    say,
)

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import LogLine, Run


group = typer.Typer(
    help="Show or cancel one run, and read its log.",
    epilog=examples("duly run show RUN", "duly run logs RUN --follow", "duly run cancel RUN"),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="run")


@group.command()
def show(context: typer.Context, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show one run: its status, its progress and every attempt."""
    _print_run(with_operations(context, lambda operations: operations.runs.get(run)), as_json)


@group.command(
    epilog=examples(
        "duly run logs RUN",
        "duly run logs RUN --follow",
        "duly run logs RUN --tail 20 --attempt 2",
        "duly run logs RUN --json | jq -r .text",
    )
)
def logs(
    context: typer.Context,
    run: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for further lines, until the run has ended.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(help="The lines of this attempt only.", min=1, max=32_767, metavar="N")
    ] = None,
    tail: Annotated[int | None, typer.Option(help="The last N lines only.", min=1, max=10_000, metavar="N")] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Show what a run's handler logged and printed, in order.

    Of a long log the beginning and the end are kept (DULY_RUN_LOG_BYTES), and a line says how much was left out. A busy
    worker keeps the lines of some runs only (DULY_RUN_LOGS).
    """
    shown = _Shown(as_json)

    async def show(backend: Backend) -> None:
        if follow:
            async for line in backend.runs.follow_lines(run, attempt=attempt, tail=tail):
                shown.line(line)
            return
        page = await backend.runs.logs(run, attempt=attempt, tail=tail)
        while True:
            for line in page.items:
                shown.line(line)
            if not page.more or tail is not None:
                return
            page = await backend.runs.logs(run, attempt=attempt, cursor=page.cursor)

    with_operations(context, show)
    if not shown.any and not as_json:
        say("no lines are kept of this run", err=True)


class _Shown:
    """Prints lines; says which attempt they are of where there are several."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.any = False
        self._attempt = 1

    def line(self, line: LogLine) -> None:
        self.any = True
        if self._as_json:
            from duly.api.documents import log_line_document

            print_json_lines([log_line_document(line)])
        else:
            if line.attempt != self._attempt:
                self._attempt = line.attempt
                say(f"--- attempt {line.attempt}")
            if line.left_out:
                say(f"… {line.left_out:,} lines were left out")
            about = line.level or line.source
            of = f" {line.source}:" if line.level is not None else ""
            say(hanging(f"{line.at.astimezone():%H:%M:%S.%f}"[:-3] + f" {about:<7}{of} {line.text}", "    "))
        sys.stdout.flush()


@group.command()
def cancel(context: typer.Context, run: RunArgument, reason: ReasonOption = None, as_json: JsonOption = False) -> None:
    """Cancel one run: a waiting run ends at once, a running one is told to stop."""
    ended = with_operations(context, lambda operations: operations.runs.cancel(run, reason=reason))
    _print_run(ended, as_json, cancelling=True)


def _print_run(run: Run, as_json: bool, *, cancelling: bool = False) -> None:
    if as_json:
        from duly.api.documents import run_document

        print_json(run_document(run))
        return
    status = coloured(run.status) + (" (told to stop)" if cancelling and run.status == "running" else "")
    progress = "" if run.progress is None else f"{run.progress.fraction:.0%}  {run.progress.note}".rstrip()
    print_fields(
        {
            "run": run.run_id,
            "job": run.job_name or str(run.job_id),
            "status": f"{status} ({REPEATED})" if run.deduplicated else status,
            "missed": "it runs late because of its missed_window policy"
            if run.missed and run.status != "missed"
            else "",
            "attempt": str(run.attempt),
            "scheduled": moment(run.scheduled_at),
            "started": moment(run.started_at),
            "finished": moment(run.finished_at),
            "next attempt": moment(run.next_attempt_at),
            "worker": run.worker or "",
            "key": run.idempotency_key or "",
            "progress": progress,
            "result": "" if run.result is None else json.dumps(run.result, ensure_ascii=False),
            "note": note_text(run),
        }
    )
    print_attempts(run.attempts, with_worker=True)
