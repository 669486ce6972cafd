"""`duly submit`: submit a job, or a file of jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duly.cli.invocation import invocation_of, with_operations
from duly.cli.job_options import read_job_options, read_time, with_job_options
from duly.cli.options import AppOption
from duly.cli.output import away, examples, moment, one_line, print_json, say
from duly.errors import InvalidInput

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import Job

_EXAMPLES = examples(
    'duly submit send_report --payload \'{"kind": "weekly"}\'',
    "duly submit send_report --payload @report.json --schedule '0 9 * * MON' --timezone America/New_York",
    "duly submit clean_up --schedule 'every 15m' --overlap queue --dedupe-key clean-up",
    'echo \'{"to": "ops"}\' | duly submit notify --payload - --run-at 2030-01-01T09:30:00Z --json',
    "duly submit --call https://example.org/hook --secret-header 'Authorization: Bearer …' --schedule @hourly",
    "duly submit --command --cwd /srv --schedule @daily -- backup --all",
    "duly submit --file jobs.ndjson",
)
_TARGET = "Target"
_MANY = "Many jobs"


def register(app: typer.Typer) -> None:
    app.command("submit", epilog=_EXAMPLES)(submit)


@with_job_options(before="file")
def submit(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Name of a task; with --command: a program and its arguments, after --.",
            metavar="HANDLER",
            show_default=False,
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(help="Call this HTTP endpoint instead of a task.", metavar="URL", rich_help_panel=_TARGET),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="POST (the default), PUT, PATCH, GET or DELETE.", rich_help_panel=_TARGET),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="Header of the call; repeat for several.", metavar="'NAME: VALUE'", rich_help_panel=_TARGET),
    ] = None,
    secret_header: Annotated[
        list[str] | None,
        typer.Option(help="Header whose value is never shown.", metavar="'NAME: VALUE'", rich_help_panel=_TARGET),
    ] = None,
    command: Annotated[
        bool,
        typer.Option(
            "--command",
            help="Run a program instead of a task, without a shell, on workers that allow it.",
            rich_help_panel=_TARGET,
        ),
    ] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="Variable of the program; repeat for several.", metavar="NAME=VALUE", rich_help_panel=_TARGET
        ),
    ] = None,
    secret_env: Annotated[
        list[str] | None,
        typer.Option(help="Variable whose value is never shown.", metavar="NAME=VALUE", rich_help_panel=_TARGET),
    ] = None,
    cwd: Annotated[
        str | None, typer.Option(help="Folder that the program runs in.", metavar="FOLDER", rich_help_panel=_TARGET)
    ] = None,
    payload: Annotated[
        str | None, typer.Option(help="JSON, @file, or - for standard input.", metavar="JSON|@FILE|-")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(help="Run once, at this ISO 8601 time.", metavar="TIME", rich_help_panel="Timing")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="Submit many jobs: one JSON object with a job's fields per line.",
            metavar="FILE|-",
            rich_help_panel=_MANY,
        ),
    ] = None,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="Submit the whole file, or nothing.", rich_help_panel=_MANY)
    ] = False,
    app: AppOption = None,
    allow_unknown_handler: Annotated[
        bool, typer.Option("--allow-unknown-handler", help="Accept a task that no worker has offered yet.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The job as a JSON document.")] = False,
    **fields: Any,
) -> None:
    """Submit a job that calls a task, an HTTP endpoint or a program, and show its id and next occurrence.

    What is not given comes from the task's own defaults (queue, priority, retries), as its workers offer them or, with
    --app, as that application's code says.
    """
    from duly.app import Duly
    from duly.cli.loading import load_app

    if file is not None:
        _refuse_all_but(context, "file", "atomic", "app", "allow_unknown_handler", "as_json")
    elif atomic:
        raise InvalidInput("--atomic", "is for --file")

    invocation_of(context).set_up_logging()  # first, because an import may log
    application = load_app(app) if app is not None else None
    if file is not None:
        from duly.cli.bulk import submit_file

        raise typer.Exit(
            submit_file(
                context,
                file,
                application=application,
                atomic=atomic,
                allow_unknown_handler=allow_unknown_handler,
                as_json=as_json,
            )
        )
    handler = read_handler(
        words or (),
        url=call,
        http={"--method": method, "--header": header, "--secret-header": secret_header},
        is_command=command,
        command={"--env": env, "--secret-env": secret_env, "--cwd": cwd},
    )
    given = read_job_options(fields)
    if run_at is not None:
        if "schedule" in given:
            raise InvalidInput("run_at", "cannot be given together with schedule")
        read_time("run_at", run_at)
        # As a schedule, because then a time without an offset is in the job's own zone.
        given["schedule"] = run_at
    request = (application or Duly()).request(handler, read_payload(payload), **given)

    async def send(operations: Backend) -> tuple[Job, bool, datetime]:
        submitted = await operations.submit(request, allow_unknown_handler=allow_unknown_handler)
        return submitted.job, submitted.created, operations.now()

    job, created, now = with_operations(context, send, application=application)
    if as_json:
        from duly.api.documents import job_document

        print_json(job_document(job))
        return
    # The id comes first, so that `cut -d' ' -f1` finds it.
    if job.next_run_at is not None:
        when = f"next {moment(job.next_run_at)} ({away(job.next_run_at, now)})"
    else:
        when = "to run now" if created else one_line(job.status)
    say(f"{job.job_id}  {one_line(job.name)}  {when}" + ("" if created else "  (was there already)"))


def _refuse_all_but(context: typer.Context, *allowed: str) -> None:
    """A file holds whole jobs: an option beside it would seem to apply to all of them."""
    for parameter in context.command.params:
        if parameter.name not in allowed and parameter.name and context.params.get(parameter.name):
            raise InvalidInput("--file", f"cannot be given together with {parameter.opts[0]}: it holds whole jobs")


def read_handler(
    words: Sequence[str], *, url: str | None, http: Mapping[str, Any], is_command: bool, command: Mapping[str, Any]
) -> str | dict[str, Any]:
    """The job's handler, from the given options: exactly one of a task, a URL and a command."""
    if url is not None and is_command:
        raise InvalidInput("handler", "give --call or --command, not both")
    for options, owner, is_owner in ((http, "--call", url is not None), (command, "--command", is_command)):
        if not is_owner and (stray := [option for option, value in options.items() if value]):
            raise InvalidInput(stray[0], f"is for {owner}")
    handler: dict[str, Any]
    if is_command:
        if not words:
            raise InvalidInput("handler", "--command needs a program after --, as in: duly submit --command -- backup")
        handler = {
            "type": "command",
            "argv": list(words),
            "env": read_variables(command["--env"] or (), "--env"),
            "secret_env": read_variables(command["--secret-env"] or (), "--secret-env"),
            "cwd": command["--cwd"],
        }
    elif url is not None:
        if words:
            raise InvalidInput("handler", f"give --call or the name of a task, not both: {words[0][:100]!r}")
        handler = {
            "type": "http",
            "url": url,
            "method": http["--method"] or "POST",
            "headers": read_headers(http["--header"] or (), "--header"),
            "secret_headers": read_headers(http["--secret-header"] or (), "--secret-header"),
        }
    else:
        if len(words) != 1:
            what = f"got several: {' '.join(words)[:100]!r}" if words else "nothing to call was given"
            raise InvalidInput("handler", f"must be the name of one task, or use --call or --command; {what}")
        return words[0]
    return handler


def read_headers(lines: Sequence[str], option: str) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            # The value may be a secret, so the message does not repeat it.
            raise InvalidInput(option, "must be 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def read_variables(pairs: Sequence[str], option: str) -> dict[str, str]:
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(option, "must be NAME=VALUE")
        variables[name] = value
    return variables


def read_payload(text: str | None) -> Any:
    """The payload behind `--payload`: JSON itself, a file that holds it, or standard input."""
    if text is None:
        return None
    try:
        if text == "-":
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        elif text.startswith("@"):
            text = Path(text[1:]).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput("payload", f"cannot be read from {text[1:]!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput("payload", "must be JSON in UTF-8") from error
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidInput("payload", "is nested too deeply") from error
    except ValueError as error:
        hint = "" if text.strip()[:1] in ("{", "[", '"') else "; a string needs quotes of its own: '\"text\"'"
        raise InvalidInput("payload", f"is not JSON: {error}{hint}") from error
