"""Reads a crontab: the command job that each line becomes, and the lines that cannot be imported, with the reason.

Pure: text in, entries out. Lines mean what they mean to Debian's cron and cronie, which differ only where noted:

- Environment lines apply to the lines below them. Values are not expanded; quotes around a value are removed.
- `CRON_TZ` is the zone of the schedules below it; `TZ` only reaches the commands.
- A command runs through `SHELL` (`/bin/sh`), in `HOME` if the table sets it.
- The first `%` without a backslash ends the command; the rest is its standard input, each further `%` a line break.

Cron's day rules and its daylight saving rules are those of Duly's own cron schedules, so the five fields are carried
over as they are written.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from duly.errors import InvalidInput
from duly.targets import VARIABLE
from duly.timing import load_zone, parse_schedule
from duly.visible import CONTROLS

MAX_BYTES = 1024 * 1024
DEFAULT_SHELL = "/bin/sh"
_MAX_NAME = 100
# Pipes `$1` into command `$3` of the shell `$2`, so that nothing has to be quoted.
_WITH_INPUT = 'printf %s "$1" | exec "$2" -c "$3"'

_SETTING = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([^\s="'#][^\s="']*))[ \t]*=[ \t]*(.*)""", re.DOTALL)
_UNUSABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_CONTROL = re.compile(rf"[{CONTROLS}]+")
_SECRET = re.compile(r"PASS|SECRET|TOKEN|KEY|CREDENTIAL", re.IGNORECASE)
_MAIL = frozenset({"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"})
# Cron sets these for the account and ignores the table.
_FIXED = frozenset({"LOGNAME", "USER"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that can be imported: a command and its schedule."""

    line: int
    schedule: str
    timezone: str
    command: str
    #: The text that cron would write to the command's standard input; None if the line has none.
    stdin: str | None
    #: The account that cron runs it under; only in the system format.
    user: str | None
    shell: str
    cwd: str | None
    env: Mapping[str, str]
    secret_env: Mapping[str, str]
    jitter_seconds: int
    #: The dedupe key: equal whenever the same line is read again.
    key: str
    #: The differences from cron, as sentences.
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        flat = " ".join(_CONTROL.sub(" ", self.command).split()) or f"line {self.line}"
        return flat if len(flat) <= _MAX_NAME else flat[: _MAX_NAME - 1] + "…"

    @property
    def argv(self) -> list[str]:
        if self.stdin is None:
            return [self.shell, "-c", self.command]
        return [DEFAULT_SHELL, "-c", _WITH_INPUT, "cron", self.stdin, self.shell, self.command]

    @property
    def handler(self) -> dict[str, object]:
        """The job's handler, in the words of `duly.targets`."""
        found: dict[str, object] = {"type": "command", "argv": self.argv}
        if self.env:
            found["env"] = dict(self.env)
        if self.secret_env:
            found["secret_env"] = dict(self.secret_env)
        if self.cwd is not None:
            found["cwd"] = self.cwd
        return found


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """One line that cannot be imported."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """A crontab that was read. `notes` are remarks about environment lines, with the line number."""

    entries: tuple[Entry, ...]
    refused: tuple[RefusedLine, ...]
    notes: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class _Reader:
    system: bool
    timezone: str
    entries: list[Entry] = field(default_factory=list)
    refused: list[RefusedLine] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    jitter_seconds: int = 0
    zone: str | None = None
    seen: Counter[str] = field(default_factory=Counter)

    def read(self, number: int, line: str) -> None:
        text = line.strip(" \t")
        if not text or text.startswith("#"):
            return
        if _UNUSABLE.search(text):
            self._refuse(number, text, "it holds control characters")
        elif (setting := _SETTING.fullmatch(text)) is not None:
            self._set(number, setting[1] or setting[2] or setting[3] or "", _unquoted(setting[4]))
        else:
            self._add(number, text)

    # Environment lines

    def _set(self, number: int, name: str, value: str) -> None:
        text = f"{name}=…"  # the value may be a secret, so a refusal does not repeat it
        if name == "CRON_TZ":
            self._set_zone(number, value)
        elif name == "RANDOM_DELAY":
            self._set_delay(number, value)
        elif name in _MAIL:
            if name == "MAILTO" and value:
                self.notes.append((number, "MAILTO: output is not mailed; its last part is kept with each run"))
        elif name in _FIXED:
            self.notes.append((number, f"{name} is ignored: cron does not let a table set it either"))
        elif not VARIABLE.fullmatch(name):
            self._refuse(number, text, f"{name[:40]!r} is not the name of an environment variable")
        elif name.startswith("DULY_"):
            self._refuse(number, text, f"{name[:40]} is set by Duly itself")
        elif name == "SHELL" and not value.startswith("/"):
            self._refuse(number, text, "SHELL must be the absolute path of a program")
        else:
            self.variables[name] = value
            if name == "TZ" and self.zone is None:
                note = f"TZ reaches the commands only, as in cron: schedules stay in {self.timezone}"
                self.notes.append((number, f"{note} (CRON_TZ or --timezone changes that)"))
            if _SECRET.search(name):
                self.notes.append((number, f"{name} looks like a secret: it is stored as one and not shown again"))

    def _set_zone(self, number: int, value: str) -> None:
        # An unknown zone is kept and refuses the lines below it: using another zone silently would be worse.
        self.zone = value or None
        try:
            load_zone(value or self.timezone)
        except InvalidInput as error:
            self._refuse(number, f"CRON_TZ={value}", error.message)

    def _set_delay(self, number: int, value: str) -> None:
        if not (value.isascii() and value.isdigit() and len(value) <= 4 and int(value) <= 1440):
            self._refuse(number, f"RANDOM_DELAY={value}", "it must be a number of minutes from 0 to 1440")
            return
        self.jitter_seconds = int(value) * 60
        if self.jitter_seconds:
            self.notes.append((number, "RANDOM_DELAY: each job gets one delay within it and keeps it"))

    # Job lines

    def _add(self, number: int, text: str) -> None:
        try:
            entry = self._entry(number, text)
        except _Unreadable as error:
            self._refuse(number, text, str(error))
        else:
            self.entries.append(entry)

    def _entry(self, number: int, text: str) -> Entry:
        notes: list[str] = []
        if text.startswith("-") and not text[1:2].isspace():
            text = text[1:]  # the dash only keeps the line out of cron's log
        schedule, rest = _schedule(text)
        user = None
        if self.system:
            user, _, rest = _words(rest, 1)
            if not rest:
                raise _Unreadable("in the system format the command follows a user, and one of them is missing")
            notes.append(f"runs under the worker's account, not as {user}")
        elif rest.startswith("root "):
            notes.append("its command is `root …`: if that is the user of the system format, add --system")
        if not rest:
            raise _Unreadable("there is no command")
        timezone = self.zone or self.timezone
        command, stdin = _split_input(rest)
        if not command.strip():
            raise _Unreadable("there is no command before the %")
        _check_schedule(schedule, timezone)
        env = {name: value for name, value in self.variables.items() if not _SECRET.search(name)}
        secret = {name: value for name, value in self.variables.items() if name not in env}
        return Entry(
            line=number,
            schedule=schedule,
            timezone=timezone,
            command=command,
            stdin=stdin,
            user=user,
            shell=self.variables.get("SHELL", DEFAULT_SHELL),
            cwd=self.variables.get("HOME") or None,
            env=env,
            secret_env=secret,
            jitter_seconds=self.jitter_seconds,
            key=self._key(schedule, timezone, user, command, stdin),
            notes=tuple(notes),
        )

    def _key(self, schedule: str, timezone: str, user: str | None, command: str, stdin: str | None) -> str:
        """A hash of the line's content, not of its position, so that lines may move. Equal lines get a number."""
        content = "\0".join((schedule.upper(), timezone, user or "", command, "" if stdin is None else "%" + stdin))
        digest = hashlib.sha256(content.encode()).hexdigest()[:32]
        self.seen[digest] += 1
        count = self.seen[digest]
        return f"crontab:{digest}" + (f":{count}" if count > 1 else "")

    def _refuse(self, number: int, text: str, reason: str) -> None:
        self.refused.append(RefusedLine(number, text, reason))


class _Unreadable(Exception):
    pass


def read_crontab(text: str, *, timezone: str = "UTC", system: bool = False) -> Table:
    """Read a crontab. `timezone` is the zone of its machine; `system`: a user precedes each command."""
    load_zone(timezone)
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidInput("crontab", f"must be at most {MAX_BYTES} bytes")
    reader = _Reader(system, timezone)
    # Cron ends lines at line feeds only; `splitlines` would split at a dozen other characters.
    lines = text.removeprefix("\ufeff").split("\n")
    for number, line in enumerate(lines, 1):
        reader.read(number, line.removesuffix("\r"))
    return Table(tuple(reader.entries), tuple(reader.refused), tuple(reader.notes))


def _schedule(text: str) -> tuple[str, str]:
    """The schedule at the beginning of a line, and the rest."""
    if text.startswith("@"):
        name, _, rest = _words(text, 1)
        if name.lower() == "@reboot":
            raise _Unreadable(
                "@reboot has no time: start the program with the machine, by systemd or the container's own means"
            )
        return name.lower(), rest
    joined, count, rest = _words(text, 5)
    if count < 5:
        raise _Unreadable("it is not five fields and a command, an environment line or a comment")
    if "~" in joined:
        raise _Unreadable("~ (a random time) is not supported: choose a time, and spread jobs with jitter_seconds")
    return joined, rest


def _words(text: str, count: int) -> tuple[str, int, str]:
    """The first `count` words joined by single spaces, the number of words found, and the rest."""
    words: list[str] = []
    while len(words) < count and text:
        word, text = [*re.split(r"[ \t]+", text, maxsplit=1), ""][:2]
        words.append(word)
    return " ".join(words), len(words), text


def _check_schedule(schedule: str, timezone: str) -> None:
    try:
        parse_schedule(schedule, now=datetime.now(UTC), timezone=timezone)
    except InvalidInput as error:
        raise _Unreadable(f"{error.field}: {error.message}") from error


def _split_input(text: str) -> tuple[str, str | None]:
    """The command, and its standard input after the first `%`."""
    pieces = re.split(r"(?<!\\)%", text)
    pieces = [piece.replace("\\%", "%") for piece in pieces]
    if len(pieces) == 1:
        return pieces[0], None
    stdin = "\n".join(pieces[1:])
    return pieces[0], stdin if stdin.endswith("\n") else stdin + "\n"


def _unquoted(text: str) -> str:
    value = text.strip(" \t")
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
