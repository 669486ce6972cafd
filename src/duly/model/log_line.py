"""A line that a run's handler logged or printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    """`number` counts the lines of an attempt from 1. `text` of a logged record may have several lines."""

    attempt: int
    number: int
    at: datetime
    level: str | None
    """The record's level; None for what was printed."""
    source: str
    """The logger's name; `stdout` or `stderr` for what was printed."""
    text: str
    left_out: int = 0
    """Number of lines right before this one that were not kept."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of a run's log. `cursor` is the position after it, from which a later call goes on."""

    items: Sequence[LogLine]
    cursor: str
    more: bool
    """There may be more lines already."""
    complete: bool
    """The run has ended, and no lines follow."""
