"""`duly run …`: show or cancel one run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from duly.cli.invocation import with_operations
from duly.cli.options import JsonOption, ReasonOption, RunArgument
from duly.cli.output import REPEATED, coloured, examples, moment, note_text, print_attempts, print_fields, print_json

if TYPE_CHECKING:
    from duly.model import Run


group = typer.Typer(
    help="Show or cancel one run.",
    epilog=examples("duly run show RUN", "duly run cancel RUN"),
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="run")


@group.command()
def show(context: typer.Context, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show one run: its status, its progress and every attempt."""
    _print_run(with_operations(context, lambda operations: operations.runs.get(run)), as_json)


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
