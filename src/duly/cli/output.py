"""All printing of commands: tables that fit the terminal for people, JSON for programs.

Every command prints through `say` and `print_…`, which spell out control characters, because text may come from
elsewhere. Only the styles of `coloured` and `styled` reach a terminal as control sequences.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from duly.formats import rough_span
from duly.masking import shown_ping_url
from duly.visible import visible, visible_json, visible_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from duly.model import Attempt, Run

# Stands for "\x1b[" in a string on its way to `say`. It is random, so no text from elsewhere can contain a style.
_STYLE = f"\x1b{os.urandom(8).hex()}["
#: The text for a run that called no handler.
REPEATED = "deduplicated: a run with its idempotency key had completed before"
_INDENT = "    "
_BREAKS = re.compile(r"(?:\r\n|[ \t\n])+")
_COLOURS = {
    "succeeded": "green", "active": "green", "ok": "green", "alive": "green", "up": "green",
    "running": "cyan", "queued": "cyan",
    "retrying": "yellow", "waiting": "yellow", "paused": "yellow", "warn": "yellow", "missed": "yellow",
    "late": "yellow", "skipped": "yellow", "snoozed": "yellow", "returned": "yellow",
    "dead": "red", "cancelled": "red", "fail": "red", "lost": "red", "down": "red",
    "completed": "bright_black", "stopped": "bright_black",
}  # fmt: skip


def examples(*commands: str, title: str = "Examples") -> str:
    """An epilog of commands to copy, one per line."""
    # Typer joins lines within a paragraph, and reads square brackets as markup.
    return "\n\n".join([f"{title}:", *(command.replace("[", r"\[") for command in commands)])


def say(text: str = "", *, err: bool = False) -> None:
    """Print a string that may come from elsewhere. Line breaks stay; other control characters are spelt out."""
    typer.echo("\x1b[".join(visible_lines(part) for part in text.split(_STYLE)), err=err)


def say_meanwhile(text: str = "") -> None:
    """Show progress on stderr if that is a terminal. Each text replaces the last one; an empty one clears it."""
    if sys.stderr.isatty():
        typer.echo(f"\r\x1b[K{visible(text)}", err=True, nl=False)


def one_line(text: str, longest: int = 200) -> str:
    """A string from elsewhere, made safe to show within a line."""
    flat = visible(" ".join(_BREAKS.split(text[: 4 * longest])).strip())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def many_lines(text: str, indent: str = _INDENT) -> str:
    """A string from elsewhere, made safe to show on lines of its own: the indent tells them from Duly's own."""
    return "\n".join(indent + line for line in visible_lines(text).split("\n"))


def hanging(text: str, indent: str = _INDENT) -> str:
    """As `many_lines`, but the first line follows words of Duly's own and is not indented."""
    return many_lines(text, indent).removeprefix(indent)


def coloured(word: str, *, like: str | None = None) -> str:
    """A status word in its colour, which `say` drops if the output is not a terminal."""
    colour = _COLOURS.get(like or word)
    return styled(word, fg=colour) if colour else one_line(word)


def styled(text: str, **style: Any) -> str:
    """Words in one of typer's styles, for `say`."""
    return typer.style(visible(text), **style).replace("\x1b[", _STYLE)


def moment(value: datetime | None) -> str:
    """A time to the second, in UTC."""
    return "" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def away(value: datetime | None, now: datetime) -> str:
    """The distance of a time from now: `in 5 min`, `2 h ago`."""
    if value is None:
        return ""
    seconds = (value - now).total_seconds()
    return f"in {rough_span(seconds)}" if seconds >= 0 else f"{rough_span(-seconds)} ago"


def note_text(run: Run) -> str:
    """Why a run was skipped, missed or cancelled, in one line."""
    note = run.note or {}
    reason = str(note.get("reason") or "")
    if run.status == "missed" and (count := note.get("count") or 1) > 1:
        first, last = (datetime.fromisoformat(note[name]) for name in ("first", "last"))
        return f"{count} occurrences from {moment(first)} to {moment(last)}: {reason}"
    if run.status == "missed" and reason == "expired":
        return f"expired: no worker started it within {note.get('start_within_seconds')} s"
    if run.status == "skipped" and note.get("unfinished"):
        earlier = datetime.fromisoformat(note["unfinished"])
        return f"{reason} {note.get('overlap')}: the run of {moment(earlier)} was unfinished"
    return reason


def print_json(document: object) -> None:
    """Print one document, indented."""
    typer.echo(_json_text(document, indent=2))


def print_json_lines(documents: Iterable[object]) -> None:
    """Print one document per line."""
    for document in documents:
        typer.echo(_json_text(document))


def _json_text(document: object, *, indent: int | None = None) -> str:
    text = visible_json(json.dumps(document, indent=indent, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # A replacement character would make it another document, so everything beyond ASCII is escaped.
        return json.dumps(document, indent=indent)
    return text


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one name and value per line, without empty values. Further lines of a value stand below its first."""
    width = max((len(name) for name, value in fields.items() if value), default=0)
    for name, value in fields.items():
        if value:
            say(f"{styled(name.ljust(width), bold=True)}  {_below(value, width + 2)}")


def _below(value: str, width: int) -> str:
    return value.replace("\r\n", "\n").replace("\n", "\n" + " " * width)


def print_attempts(attempts: Sequence[Attempt], *, with_worker: bool = False) -> None:
    """Print each attempt of a run with its error."""
    for attempt in attempts:
        error = attempt.error
        said = "" if error is None else hanging(f"{error.type}: {error.message}")
        worker = f"{one_line(attempt.worker or '')}  " if with_worker else ""
        say(f"\nattempt {attempt.attempt}  {moment(attempt.finished_at)}  {worker}{said}")
        if error is not None and error.traceback:
            say(many_lines(error.traceback.rstrip()))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, whole: Sequence[str] = ()) -> None:
    """Print a table, cut to the width of the terminal, or uncut into a file or pipe.

    A column whose name is in `whole` is never cut; a cell that is a status word gets its colour.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    cells = [[one_line(text) for text in row] for row in rows]
    for position, column in enumerate(columns):
        least = max([len(column), *(len(row[position]) for row in cells)]) if column in whole else 4
        # Columns may shrink but cells may not wrap, so rich cuts the cells.
        table.add_column(Text(column, no_wrap=True), no_wrap=column in whole, min_width=least)
    for row in cells:
        table.add_row(*(_cell(text) for text in row))
    _console().print(table)


def _cell(text: str) -> Text:
    from rich.text import Text

    return Text(text, style=_COLOURS.get(text, ""), no_wrap=True, overflow="ellipsis")


def _console() -> Console:
    from rich.console import Console

    # rich takes a pipe for a terminal of 80 columns and would cut the output that a program is to read.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=10_000)


def policy_changes(policy: Any, default: Any) -> dict[str, str]:
    """The policy fields of a job that differ from the defaults."""
    shown = replace(policy, ping_url=shown_ping_url(policy.ping_url))
    return {
        name: ", ".join(value) if isinstance(value := getattr(shown, name), tuple) else str(value)
        for name in policy.__dataclass_fields__
        if getattr(policy, name) != getattr(default, name)
    }
