"""`duly health`: asks the schedulers and workers of this machine how they are, for probes that run a command."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from duly.cli.options import JsonOption
from duly.cli.output import examples, say

#: Time that a process has to answer. One that was stopped does not.
ANSWER_SECONDS = 3.0
HEALTHY, UNHEALTHY = 0, 1

_EXAMPLES = examples(
    "duly health",
    "duly health --kind worker --check ready",
    "duly health --pid 1 --check started --json",
)


def register(app: typer.Typer) -> None:
    app.command("health", epilog=_EXAMPLES)(health)


def health(
    kind: Annotated[
        Literal["scheduler", "worker"] | None, typer.Option(help="Ask only schedulers, or only workers.")
    ] = None,
    check: Annotated[
        Literal["alive", "ready", "started"],
        typer.Option(
            help="The question. alive: does the event loop turn; for livenessProbe, because PostgreSQL is not asked. "
            "ready: does it claim, or do its heartbeats come through. started: is the start over."
        ),
    ] = "alive",
    pid: Annotated[int | None, typer.Option(help="Ask only the process with this id.", min=1, metavar="N")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the schedulers and workers that run here how they are. Exit code 0: all are well; 1: one is not, or none is.

    For probes that run a command, where a process has no --health-port. It asks each process through a socket in a
    folder of this user's below the temporary one (TMPDIR, else /tmp), which each process makes at its start: so the
    probe must run in the same container, as the same user and with the same TMPDIR. A read-only file system needs a
    writable /tmp, such as an emptyDir. The database is never asked.

    With --processes the supervisor answers for all of its processes.
    """
    from duly.cli.health_server import sockets, sockets_folder

    found = [_ask(name, number, path) for name, number, path in sockets(kind) if pid in (None, number)]
    answers = [answer for answer in found if answer is not None]
    if as_json:
        say(json.dumps({"check": check, "healthy": _healthy(answers, check), "processes": answers}))
    elif not answers:
        what = kind or "scheduler or worker"
        which = "" if pid is None else f" with the id {pid}"
        say(f"no {what}{which} runs here as this user, as far as {sockets_folder()} tells", err=True)
    else:
        for answer in answers:
            wrong = answer["wrong"][check]
            said = check if wrong is None else f"not {check}: {wrong}"
            say(f"{answer['kind']} {answer['pid']} is {said}", err=wrong is not None)
    raise typer.Exit(HEALTHY if _healthy(answers, check) else UNHEALTHY)


def _healthy(answers: list[dict[str, Any]], check: str) -> bool:
    return bool(answers) and all(answer["wrong"][check] is None for answer in answers)


def _ask(kind: str, pid: int, path: Path) -> dict[str, Any] | None:
    """What the process answers; None if it has ended and left its socket behind."""
    try:
        wrong = _answer(path)
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return None
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = f"it does not answer within {ANSWER_SECONDS:g} s: it hangs, or was stopped"
        wrong = dict.fromkeys(("alive", "ready", "started"), said if isinstance(error, TimeoutError) else str(error))
    return {"kind": kind, "pid": pid, "wrong": wrong}


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_SECONDS)
        self.sock.connect(str(self._path))


def _answer(path: Path) -> dict[str, str | None]:
    connection = _Connection(path)
    try:
        connection.request("GET", "/health")
        answer: dict[str, str | None] = json.loads(connection.getresponse().read())
        return {question: answer[question] for question in ("alive", "ready", "started")}
    except KeyError as error:
        raise ValueError(f"it answers without {error}: is it of another version?") from error
    finally:
        connection.close()
