"""Options and arguments that several commands have, each spelt and explained once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

JobArgument = Annotated[str, typer.Argument(help="The id of a job, the beginning of it, or its name.", metavar="JOB")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]
LimitOption = Annotated[int, typer.Option(help="Show at most this many.", min=1, metavar="N")]
RunArgument = Annotated[str, typer.Argument(help="The run's id, as a list shows it.", metavar="RUN")]
AppOption = Annotated[
    str | None, typer.Option("--app", help="The application: module:attribute of a Duly object.", metavar="MODULE:APP")
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        help="A queue to serve; repeat for several. A weight above 1 gives it a larger share of a busy worker. "
        "Without it: default and every queue of the app's tasks.",
        metavar="QUEUE[=WEIGHT]",
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(help="Runs a worker process holds at once (DULY_CONCURRENCY).", min=1, max=100_000, metavar="N"),
]
AllowCommandsOption = Annotated[
    bool,
    typer.Option(
        "--allow-commands",
        help="Run jobs whose handler is a command, as this account or the one of --command-user (DULY_ALLOW_COMMANDS).",
    ),
]
CommandUserOption = Annotated[
    str | None,
    typer.Option(
        "--command-user",
        help="The account that commands run as: names or numbers, without any further groups. Only root can do that. "
        "Without it a command has this worker's own account, and can do what that can (DULY_COMMAND_USER).",
        metavar="USER[:GROUP]",
    ),
]
PassEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-env",
        help="An environment variable of this worker's that commands get as well; repeat for several. Without it they "
        "get PATH, HOME, LANG, LC_*, TZ, USER, LOGNAME, SHELL and TMPDIR, and what their job gives them "
        "(DULY_PASS_ENV, by commas).",
        metavar="NAME",
    ),
]
HostOption = Annotated[str | None, typer.Option(help="Address to serve on (DULY_HOST).", metavar="HOST")]
PortOption = Annotated[
    int | None, typer.Option(help="Port to serve on (DULY_PORT); 0: any free one.", min=0, max=65535, metavar="PORT")
]
OpenOption = Annotated[
    bool,
    typer.Option(
        "--open",
        help="Need no key while the store has none (DULY_OPEN_API): every user of this machine, and whoever a proxy on "
        "it lets through, may then do everything but submit commands. Not together with --allow-commands.",
    ),
]


def read_labels(pairs: Sequence[str]) -> dict[str, str]:
    from duly.checks import read_label

    return dict(read_label(pair) for pair in pairs)
