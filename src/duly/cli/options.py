"""Options and arguments that several commands have, each spelt and explained once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., None])
JobArgument = Annotated[str, typer.Argument(help="A job's id, the beginning of it, or its name.", metavar="JOB")]
JsonOption = Annotated[bool, typer.Option("--json", help="A JSON document.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="One JSON document per line.")]
LimitOption = Annotated[int, typer.Option(help="Show at most N.", min=1, metavar="N")]
ReasonOption = Annotated[str | None, typer.Option(help="Why; shown by `duly audit`.", metavar="TEXT")]
RunArgument = Annotated[str, typer.Argument(help="The run's id, as a list shows it.", metavar="RUN")]
AppOption = Annotated[
    str | None, typer.Option("--app", help="The application: module:attribute of a Duly object.", metavar="MODULE:APP")
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        help="A queue to serve; repeat for several. A weight above 1 gives it a larger share of a busy worker. "
        "Default: default and every queue of the app's tasks.",
        metavar="QUEUE[=WEIGHT]",
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of runs that a worker process holds at once (DULY_CONCURRENCY).",
        min=1,
        max=100_000,
        metavar="N",
    ),
]
AllowCommandsOption = Annotated[
    bool,
    typer.Option(
        "--allow-commands",
        help="Run jobs whose handler is a command, as this account or the one of --command-user "
        "(DULY_ALLOW_COMMANDS=true).",
    ),
]
AllowCommandOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-command",
        help="Run only commands that start this program; repeat for several. A name (backup) is compared with that of "
        "the command, a path (/usr/bin/rsync) with the absolute path that it leads to; a * at the end stands for any "
        "ending (DULY_ALLOW_COMMANDS, separated by commas). A shell or an interpreter among them allows everything.",
        metavar="PROGRAM",
    ),
]
CommandUserOption = Annotated[
    str | None,
    typer.Option(
        "--command-user",
        help="Account that commands run as: names or numbers, without supplementary groups; needs root. "
        "Default: the worker's own account, with all its rights (DULY_COMMAND_USER).",
        metavar="USER[:GROUP]",
    ),
]
PassEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-env",
        help="Environment variable of this worker that commands get too; repeat for several. They always get PATH, "
        "HOME, LANG, LC_*, TZ, USER, LOGNAME, SHELL, TMPDIR and the variables of their job "
        "(DULY_PASS_ENV, separated by commas).",
        metavar="NAME",
    ),
]
MaxRunsOption = Annotated[
    int | None,
    typer.Option(
        "--max-runs",
        help="Replace a worker process after about N runs, and an isolated child of it after N. Its successor runs "
        "before it claims no more; its runs have the grace of a shutdown to end (DULY_WORKER_MAX_RUNS).",
        min=1,
        metavar="N",
    ),
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        help="Replace a worker process, or an isolated child of it, whose resident memory is above SIZE, such as 512MB "
        "or 1.5GiB; each is measured by itself (Linux; DULY_WORKER_MAX_MEMORY).",
        metavar="SIZE",
    ),
]
HostOption = Annotated[str | None, typer.Option(help="Address to serve on (DULY_HOST).", metavar="HOST")]
PortOption = Annotated[
    int | None, typer.Option(help="Port to serve on (DULY_PORT); 0: any free port.", min=0, max=65535, metavar="PORT")
]
HealthPortOption = Annotated[
    int | None,
    typer.Option(
        "--health-port",
        help="Serve /livez, /readyz, /startupz and /metrics on this port; 0: any free port (DULY_HEALTH_PORT).",
        min=0,
        max=65535,
        metavar="PORT",
    ),
]
HealthHostOption = Annotated[
    str | None,
    typer.Option(
        "--health-host",
        help="Address of --health-port. Default: 127.0.0.1; 0.0.0.0 for probes of Kubernetes, or a Prometheus on "
        "another machine (DULY_HEALTH_HOST).",
        metavar="HOST",
    ),
]
OpenOption = Annotated[
    bool,
    typer.Option(
        "--open",
        help="Need no key while the store has none (DULY_OPEN_API): every user of this machine, and every caller that "
        "a proxy on it lets through, may then do everything but submit commands. Excludes --allow-commands.",
    ),
]


def with_options(options: Sequence[inspect.Parameter], *, before: str) -> Callable[[Command], Command]:
    """Replaces a command's parameter `**…` by these options, in front of its option `before`."""

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        index = [one.name for one in parameters].index(before)
        parameters[index:index] = options
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return add


def make_option(name: str, kind: Any, *names: str, **attributes: Any) -> inspect.Parameter:
    """An option for `with_options`, with the keywords of `typer.Option`. An option that is not given is None."""
    annotation: Any = Annotated[kind | None, typer.Option(*names, **attributes)]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def read_labels(pairs: Sequence[str]) -> dict[str, str]:
    from duly.checks import read_label

    return dict(read_label(pair) for pair in pairs)
