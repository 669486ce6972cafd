"""`duly submit --file`: many jobs, one JSON object per line, submitted as they are read."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from duly.cli.invocation import with_operations
from duly.cli.output import one_line, print_json_lines, say, say_meanwhile
from duly.errors import Conflict, DulyError, InvalidInput

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.cli.backend import Backend
    from duly.model import JobRequest

# Jobs per call: large enough to be fast, small enough to show progress.
CHUNK = 2_500
# Jobs in a file with --atomic, which is submitted in one call.
MAX_ATOMIC = 10_000


@dataclass(frozen=True, slots=True)
class Line:
    """The result of one line of the file."""

    number: int
    status: str
    job_id: str | None = None
    error: DulyError | None = None

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"line": self.number, "status": self.status, "job_id": self.job_id}
        if isinstance(self.error, InvalidInput):
            document["error"] = {"field": self.error.field, "message": self.error.message}
        elif self.error is not None:
            document["error"] = {"field": None, "message": str(self.error)}
        return document


def submit_file(
    context: typer.Context,
    file: str,
    *,
    application: Duly | None,
    atomic: bool,
    allow_unknown_handler: bool,
    as_json: bool,
) -> int:
    """Submit every line; returns the exit code. A refused line does not stop the others, unless `atomic`."""
    counts: Counter[str] = Counter()
    conflicts = 0

    def tell(line: Line) -> None:
        nonlocal conflicts
        counts[line.status] += 1
        conflicts += isinstance(line.error, Conflict)
        if as_json:
            print_json_lines([line.document])
        elif line.error is not None:
            say(f"line {line.number}: {one_line(str(line.error), 500)}", err=True)

    with _opened(file) as stream:
        read = _requests(stream, application)
        with_operations(
            context,
            lambda operations: _submit(
                operations,
                read,
                tell,
                atomic=atomic,
                allow_unknown_handler=allow_unknown_handler,
                progress=_Progress(),
            ),
            application=application,
        )
    if not as_json:
        parts = [f"{counts['created']} submitted"]
        parts += [f"{counts['existing']} were there already"] if counts["existing"] else []
        parts += [f"{counts['refused']} refused"] if counts["refused"] else []
        say(", ".join(parts))
    if not counts["refused"]:
        return 0
    return 5 if conflicts == counts["refused"] else 2


async def _submit(
    operations: Backend,
    read: Iterator[tuple[int, JobRequest | InvalidInput]],
    tell: Callable[[Line], None],
    *,
    atomic: bool,
    allow_unknown_handler: bool,
    progress: _Progress,
) -> None:
    from duly.operations import BatchRefused

    while chunk := list(islice(read, MAX_ATOMIC + 1 if atomic else CHUNK)):
        if atomic:
            _check_atomic(chunk)
        good = [(number, request) for number, request in chunk if not isinstance(request, InvalidInput)]
        try:
            found = await operations.submit_each(
                [one for _, one in good],
                atomic=atomic,
                allow_unknown_handler=allow_unknown_handler,
            )
        except BatchRefused as error:
            index, first = next(iter(error.errors.items()))
            raise _at(good[index][0], first) from error
        answers = iter(found)
        progress.clear()
        for number, request in chunk:
            answer = request if isinstance(request, InvalidInput) else next(answers)
            if isinstance(answer, DulyError):
                tell(Line(number, "refused", error=answer))
            else:
                tell(Line(number, "created" if answer.created else "existing", str(answer.job_id)))
        progress.show(chunk[-1][0])
    progress.clear()


def _check_atomic(chunk: list[tuple[int, JobRequest | InvalidInput]]) -> None:
    if len(chunk) > MAX_ATOMIC:
        raise InvalidInput("file", f"with --atomic must have at most {MAX_ATOMIC} jobs")
    for number, request in chunk:
        if isinstance(request, InvalidInput):
            raise _at(number, request)


def _at(number: int, error: DulyError) -> DulyError:
    """The error that refuses an atomic file, with the number of its line."""
    if isinstance(error, InvalidInput):
        return InvalidInput(f"line {number}: {error.field}", f"{error.message}; nothing was submitted")
    return Conflict(f"line {number}: {error}; nothing was submitted")


class _Progress:
    """Progress on the terminal."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, lines: int) -> None:
        say_meanwhile(f"{lines} lines …")
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            say_meanwhile()
            self._shown = False


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInput("file", f"{file!r} cannot be read: {error.strerror}") from error
    with stream:
        yield stream


def _requests(stream: IO[bytes], application: Duly | None) -> Iterator[tuple[int, JobRequest | InvalidInput]]:
    """Every line that is not blank, read one at a time, because a file may be larger than memory."""
    from duly.app import Duly

    app = application or Duly()
    for number, line in enumerate(stream, 1):
        if line.isspace():
            continue
        try:
            yield number, _request(app, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
        except InvalidInput as error:
            yield number, error


def _request(app: Duly, line: bytes) -> JobRequest:
    try:
        document = json.loads(line)
    except RecursionError as error:
        raise InvalidInput("line", "is nested too deeply") from error
    except ValueError as error:
        raise InvalidInput("line", f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput("line", "must be a JSON object with the fields of a job")
    # A null field counts as not given.
    given = {name: value for name, value in document.items() if value is not None}
    handler = given.pop("handler", None)
    if not isinstance(handler, str | dict):
        raise InvalidInput("handler", "is required: the name of a task, or an object")
    for field in ("start_at", "end_at"):
        if field in given:
            given[field] = _moment(field, given[field])
    for field in ("connection", "run_at", "task", "tenant"):
        if field in given:
            raise InvalidInput(field, "cannot be given in a file")
    return app.request(handler, given.pop("payload", None), schedule=given.pop("schedule", None), **given)


def _moment(field: str, value: object) -> datetime:
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value)
    except ValueError:
        pass
    raise InvalidInput(field, "must be an ISO 8601 time such as 2026-03-08T09:30:00Z")
