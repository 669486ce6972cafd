"""The `duly` command: its list of commands, and the one place where errors become a sentence and an exit code."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from duly.addresses import without_passwords
from duly.cli.invocation import Invocation
from duly.cli.output import examples, hanging, say
from duly.errors import (
    ConfigError,
    Conflict,
    CoordinatorUnavailable,
    DulyError,
    Forbidden,
    InvalidInput,
    LimitReached,
    MissingExtra,
    NotFound,
    StoreMismatch,
    StoreUnavailable,
    Unauthorized,
)
from duly.version import VERSION

log = logging.getLogger("duly.cli")

OK, UNEXPECTED, USAGE, STORE, NOT_FOUND, CONFLICT, LIMIT, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130
_EXIT_CODES: tuple[tuple[type[DulyError], int], ...] = (
    (InvalidInput, USAGE),
    (ConfigError, USAGE),
    (MissingExtra, USAGE),
    (StoreUnavailable, STORE),
    (CoordinatorUnavailable, STORE),
    (StoreMismatch, STORE),
    (NotFound, NOT_FOUND),
    (Conflict, CONFLICT),
    (LimitReached, LIMIT),
    (Unauthorized, REFUSED),
    (Forbidden, REFUSED),
)
# Older versions of typer depend on click, newer ones contain a private copy. In both, the base class of click's errors
# about a wrong command line is reached through the bases of the one error that typer exports.
_CommandLineError: type[Exception] = typer.BadParameter.__bases__[0].__bases__[0]

app = typer.Typer(
    name="duly",
    help="Duly, a distributed job scheduler on PostgreSQL: cron at scale.",
    epilog=examples(
        "duly up --demo",
        "duly up --app myproject.jobs:app",
        "duly submit send_report --payload '{\"to\": \"ops\"}' --schedule 'every 15m'",
        "duly job list --status active",
        "duly --tenant acme job list",
        "duly doctor",
        title="Try",
    )
    + "\n\nExit codes: 0 done, 1 unexpected error, 2 wrong input or setting, 3 store or API unreachable or mismatched, "
    "4 not found, 5 conflict, 6 a limit is reached, 7 the API key is not accepted, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"duly {VERSION}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    database_url: Annotated[
        str | None,
        typer.Option(help="PostgreSQL address (DULY_DATABASE_URL). Default: an embedded PostgreSQL.", metavar="URL"),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the embedded PostgreSQL (DULY_HOME).", metavar="FOLDER")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Schema of the store (DULY_SCHEMA). Default: duly.", metavar="NAME")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Address of an API (DULY_URL; its key: DULY_API_KEY). Commands about jobs then use it.",
            metavar="URL",
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Tenant whose jobs the command is about (DULY_TENANT). Through an API the key decides, and "
            "DULY_TENANT is ignored. Default: default.",
            metavar="T",
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR (DULY_LOG_LEVEL).", metavar="LEVEL")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="text, or json: one JSON object a line (DULY_LOG_FORMAT).", metavar="FORMAT"),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = Invocation(database_url, home, log_level, url, schema, tenant, log_format)


# In the order in which the help shows them. Each is the module of its name in `commands/`.
for _name in (
    "up", "api", "scheduler", "worker", "submit", "job", "dead", "run", "monitor", "key", "tenant", "submitter",
    "preview", "explain", "forecast", "audit", "incident", "maintenance", "import_", "migrate", "status", "health",
    "monitoring", "webhook_secret", "doctor",
    "bench",
):  # fmt: skip
    import_module(f"duly.cli.commands.{_name}").register(app)


def main() -> None:
    """The entry point."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. An error is at most one sentence on stderr."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        # A character that the terminal cannot show is replaced; it must not raise.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    try:
        # Not app(): that would install typer's own traceback printer.
        code = typer.main.get_command(app).main(list(arguments), prog_name="duly", standalone_mode=False)
        sys.stdout.flush()
    except DulyError as error:
        log.debug("the command failed", exc_info=error)
        return _fail(str(error), next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), UNEXPECTED))
    except _CommandLineError as error:
        return _explain_usage(error)
    except BrokenPipeError:
        # The reader of our output is gone (`duly … | head`). The rest of the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # the last place where anything can be caught
        log.debug("unexpected error", exc_info=error)
        message = without_passwords(" ".join(f"{type(error).__name__}: {error}".split()))
        debugging = logging.getLogger("duly").isEnabledFor(logging.DEBUG)
        hint = "" if debugging else "; for the traceback repeat it with: duly --log-level DEBUG …"
        return _fail(f"unexpected error: {message}{hint}", UNEXPECTED)
    return code if isinstance(code, int) else OK


def _explain_usage(error: Exception) -> int:
    message = str(error.format_message() if hasattr(error, "format_message") else error)
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return USAGE  # the help has been shown
    path = context.command_path if context is not None else "duly"
    for option in ("--database-url", "--home", "--schema", "--log-level", "--log-format", "--tenant", "--url"):
        if option == "--tenant" and type(error).__name__ != "NoSuchOption":
            continue  # the option of that name that some commands have
        if path != "duly" and option in message:
            if (path, option) == ("duly submit", "--url"):
                return _fail(
                    "--url is the address of an API and goes before the command: duly --url … submit; for a job that "
                    "calls an HTTP endpoint use: duly submit --call URL",
                    USAGE,
                )
            return _fail(f"{option} goes before the command: duly {option} … {path.removeprefix('duly ')}", USAGE)
    # The message may quote an address in the wrong place.
    return _fail(f"{without_passwords(message.rstrip('.'))}; see: {path} --help", USAGE)


def _fail(sentence: str, code: int) -> int:
    # Further lines are quotations, such as the end of PostgreSQL's log.
    say("duly: " + hanging(sentence.rstrip("\n"), "  "), err=True)
    return code
