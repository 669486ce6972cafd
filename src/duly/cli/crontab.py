"""Reading a crontab: what each of its lines comes to as a command job, and what cannot be carried over and why.

Pure: text in, entries out. The meaning is that of Debian's cron and of cronie, which differ only where noted:

- Environment lines hold for the lines below them. Nothing in them is expanded, quotes around a value are taken off.
- `CRON_TZ` is the zone of the schedules below it; `TZ` only reaches the commands.
- A command runs through `SHELL` (`/bin/sh`), in `HOME` if the table sets it.
- The first `%` that has no backslash ends the command; what follows is its standard input, each further `%` a new line.

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
from duly.timing import load_zone, parse_schedule

MAX_BYTES = 1024 * 1024
DEFAULT_SHELL = "/bin/sh"
_LONGEST_NAME = 100
# `$1` to the shell `$2` as the input of the command `$3`: nothing has to be quoted, whatever it holds.
_WITH_INPUT = 'printf %s "$1" | exec "$2" -c "$3"'

_SETTING = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([^\s="'#][^\s="']*))[ \t]*=[ \t]*(.*)""", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_UNUSABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_SECRET = re.compile(r"PASS|SECRET|TOKEN|KEY|CREDENTIAL", re.IGNORECASE)
_MAIL = frozenset({"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"})
# What cron itself sets for the account, whatever the table says.
_FIXED = frozenset({"LOGNAME", "USER"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that can be carried over: a command and when it runs."""

    line: int
    schedule: str
    timezone: str
    command: str
    #: What cron would write to the command's standard input; None where the line has none.
    stdin: str | None
    #: In the system format: whose account cron runs it under.
    user: str | None
    shell: str
    cwd: str | None
    env: Mapping[str, str]
    secret_env: Mapping[str, str]
    jitter_seconds: int
    #: The same for the same line of the same table, however often it is read.
    key: str
    #: What is different from cron, in whole sentences.
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        flat = " ".join(_CONTROL.sub(" ", self.command).split()) or f"line {self.line}"
        return flat if len(flat) <= _LONGEST_NAME else flat[: _LONGEST_NAME - 1] + "…"

    @property
    def argv(self) -> list[str]:
        if self.stdin is None:
            return [self.shell, "-c", self.command]
        return [DEFAULT_SHELL, "-c", _WITH_INPUT, "cron", self.stdin, self.shell, self.command]

    @property
    def handler(self) -> dict[str, object]:
        """The job's handler, in the words of `duly.handlers`."""
        found: dict[str, object] = {"type": "command", "argv": self.argv}
        if self.env:
            found["env"] = dict(self.env)
        if self.secret_env:
            found["secret_env"] = dict(self.secret_env)
        if self.cwd is not None:
            found["cwd"] = self.cwd
        return found


@dataclass(frozen=True, slots=True)
class Refused:
    """One line that cannot be carried over."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """A crontab, read. `notes` are about the table as a whole, each with the line it is about."""

    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...]
    notes: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class _Reader:
    system: bool
    timezone: str
    entries: list[Entry] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
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
        text = f"{name}=…"  # a value may be a secret, so one that is refused is not repeated
        if name == "CRON_TZ":
            self._set_zone(number, value)
        elif name == "RANDOM_DELAY":
            self._set_delay(number, value)
        elif name in _MAIL:
            if name == "MAILTO" and value:
                self.notes.append((number, "MAILTO: output is not mailed; the end of it is kept with each run"))
        elif name in _FIXED:
            self.notes.append((number, f"{name} is not carried over: cron does not let a table set it either"))
        elif not _VARIABLE.fullmatch(name):
            self._refuse(number, text, f"{name[:40]!r} is not the name of an environment variable")
        elif name.startswith("DULY_"):
            self._refuse(number, text, f"{name[:40]} is set by Duly itself")
        elif name == "SHELL" and not value.startswith("/"):
            self._refuse(number, text, "SHELL must be the whole path of a program")
        else:
            self.variables[name] = value
            if name == "TZ" and self.zone is None:
                told = f"TZ reaches the commands only, as in cron: schedules stay in {self.timezone}"
                self.notes.append((number, f"{told} (CRON_TZ or --timezone changes that)"))
            if _SECRET.search(name):
                self.notes.append((number, f"{name} looks like a secret: it is stored as one and not shown again"))

    def _set_zone(self, number: int, value: str) -> None:
        # One that cannot be used stays, and refuses the lines below it: silently another one would be worse.
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
            text = text[1:]  # only keeps the line out of cron's own log
        schedule, rest = _schedule(text)
        user = None
        if self.system:
            user, _, rest = _words(rest, 1)
            if not rest:
                raise _Unreadable("in the system format a user stands before the command, and one of them is missing")
            notes.append(f"runs under the worker's account, not as {user}")
        elif rest.startswith("root "):
            notes.append("its command is `root …`: in the system format, which --system reads, that is the user")
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
        """By what the line says and not by where it stands, so that lines may move. Equal lines are told by count."""
        content = "\0".join((schedule.upper(), timezone, user or "", command, "" if stdin is None else "%" + stdin))
        digest = hashlib.sha256(content.encode()).hexdigest()[:32]
        self.seen[digest] += 1
        count = self.seen[digest]
        return f"crontab:{digest}" + (f":{count}" if count > 1 else "")

    def _refuse(self, number: int, text: str, reason: str) -> None:
        self.refused.append(Refused(number, text, reason))


class _Unreadable(Exception):
    pass


def read_crontab(text: str, *, timezone: str = "UTC", system: bool = False) -> Table:
    """What a crontab says. `timezone` is the zone of its machine; `system`: with a user before each command."""
    load_zone(timezone)
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidInput("crontab", f"must be at most {MAX_BYTES} bytes")
    reader = _Reader(system, timezone)
    # Only line feeds end a line for cron; `splitlines` knows a dozen others.
    lines = text.removeprefix("\ufeff").split("\n")
    for number, line in enumerate(lines, 1):
        reader.read(number, line.removesuffix("\r"))
    return Table(tuple(reader.entries), tuple(reader.refused), tuple(reader.notes))


def _schedule(text: str) -> tuple[str, str]:
    """The schedule at the beginning of a line, and the rest."""
    if text.startswith("@"):
        name, _, rest = _words(text, 1)
        if name.lower() == "@reboot":
            raise _Unreadable("@reboot has no time: start it with the machine, by systemd or the container's own means")
        return name.lower(), rest
    joined, count, rest = _words(text, 5)
    if count < 5:
        raise _Unreadable("it is neither five fields and a command, nor an environment line, nor a comment")
    if "~" in joined:
        raise _Unreadable("~ (a random time) is not known: choose a time, and spread jobs with jitter_seconds")
    return joined, rest


def _words(text: str, count: int) -> tuple[str, int, str]:
    """The first `count` words with one space between them, how many there were, and what follows."""
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
    """The command, and what stands after its first `%`."""
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
