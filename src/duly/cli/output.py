"""How results look: tables that fit the terminal for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from duly.model import Run

# What a handler's error message could do to a terminal: move the cursor, change its title, or worse.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_COLOURS = {
    "succeeded": "green", "active": "green", "ok": "green", "alive": "green",
    "running": "cyan", "queued": "cyan",
    "retrying": "yellow", "waiting": "yellow", "paused": "yellow", "warn": "yellow", "missed": "yellow",
    "skipped": "yellow", "snoozed": "yellow", "returned": "yellow",
    "dead": "red", "cancelled": "red", "fail": "red", "lost": "red",
    "completed": "bright_black", "stopped": "bright_black",
}  # fmt: skip


def examples(*commands: str, title: str = "Examples") -> str:
    """An epilog of commands to copy, each on a line of its own."""
    # Typer joins lines within a paragraph, and reads square brackets as markup.
    return "\n\n".join([f"{title}:", *(command.replace("[", r"\[") for command in commands)])


def one_line(text: str, longest: int = 200) -> str:
    """Text from elsewhere, made safe to show within a line."""
    flat = " ".join(_CONTROL.sub(" ", text[: 4 * longest]).split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def coloured(word: str, *, like: str | None = None) -> str:
    """A status word in its colour; `typer.echo` takes the colour out again where the output is not a terminal."""
    colour = _COLOURS.get(like or word)
    return typer.style(word, fg=colour) if colour else word


def span(seconds: float) -> str:
    """A length of time in the unit that a person would use."""
    if seconds < 0:
        return "-" + span(-seconds)
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < (100 if unit == "s" else 100 * size if unit == "min" else 48 * 3600):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def moment(value: datetime | None) -> str:
    """A time to the second, in UTC."""
    return "" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def away(value: datetime | None, now: datetime) -> str:
    """How far a time is from now."""
    if value is None:
        return ""
    seconds = (value - now).total_seconds()
    return f"in {span(seconds)}" if seconds >= 0 else f"{span(-seconds)} ago"


def note_text(run: Run) -> str:
    """Why a run was skipped, missed or cancelled, in one line."""
    note = run.note or {}
    reason = str(note.get("reason") or "")
    if run.status == "missed" and (count := note.get("count") or 1) > 1:
        first, last = (datetime.fromisoformat(note[name]) for name in ("first", "last"))
        return f"{count} occurrences from {moment(first)} to {moment(last)}: {reason}"
    if run.status == "skipped" and note.get("unfinished"):
        earlier = datetime.fromisoformat(note["unfinished"])
        return f"{reason} {note.get('overlap')}: the run of {moment(earlier)} was unfinished"
    return reason


def print_json(document: object) -> None:
    """One document, for people to read and programs to parse."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_lines(documents: Iterable[object]) -> None:
    """One document a line."""
    for document in documents:
        typer.echo(json.dumps(document, ensure_ascii=False))


def print_fields(fields: Mapping[str, str]) -> None:
    """Names and values, one pair a line; what is empty is left out."""
    width = max((len(name) for name, value in fields.items() if value), default=0)
    for name, value in fields.items():
        if value:
            typer.echo(f"{typer.style(name.ljust(width), bold=True)}  {value}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, whole: Sequence[str] = ()) -> None:
    """A table as wide as the terminal allows, or as wide as it likes when it goes to a file or pipe.

    A column whose name is in `whole` is never cut; a cell that is a status word gets its colour.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        least = max([len(column), *(len(row[position]) for row in rows)]) if column in whole else 4
        # The column may shrink, its cells may not wrap: so they are cut.
        table.add_column(Text(column, no_wrap=True), no_wrap=column in whole, min_width=least)
    for row in rows:
        table.add_row(*(_cell(text) for text in row))
    _console().print(table)


def _cell(text: str) -> Text:
    from rich.text import Text

    return Text(one_line(text), style=_COLOURS.get(text, ""), no_wrap=True, overflow="ellipsis")


def _console() -> Console:
    from rich.console import Console

    # rich takes a pipe for a terminal of 80 columns and would cut what a program is to read.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=10_000)


def policy_changes(policy: Any, default: Any) -> dict[str, str]:
    """The policy fields of a job that are not what every job has."""
    return {
        name: str(getattr(policy, name))
        for name in policy.__dataclass_fields__
        if getattr(policy, name) != getattr(default, name)
    }
