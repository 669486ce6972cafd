"""Idempotency keys, which keep an occurrence from taking effect twice.

A key names the occurrence and not the attempt, so it is made from the job and `scheduled_at` alone. Dates are in the
job's own zone, and each placeholder names its year, so that `{{week}}` alone never repeats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from duly.errors import InvalidInput
from duly.model import DEFAULT_KEY_TEMPLATE, to_micros

from .zones import load_zone

_MAX_CHARS = 255
_PLACEHOLDER = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


def _hour(local: datetime) -> str:
    # The second pass of a doubled hour is another hour, and must not get the key of the first.
    return local.strftime("%Y-%m-%dT%H%z") if local.fold else f"{local:%Y-%m-%dT%H}"


def _week(local: datetime) -> str:
    year, week, _ = local.isocalendar()
    return f"{year:04}-W{week:02}"


_LOCAL: dict[str, Callable[[datetime], str]] = {
    "date": lambda local: local.date().isoformat(),
    "week": _week,
    "month": lambda local: local.date().isoformat()[:7],
    "year": lambda local: local.date().isoformat()[:4],
    "hour": _hour,
}
_KNOWN = ("job_id", "scheduled_at_unix", "name", *_LOCAL)


def check_template(text: str) -> None:
    """Raises `InvalidInput` on `idempotency_key_template` unless every placeholder is known."""
    _compile(text)


def render_key(template: str, *, job_id: UUID | str, name: str, scheduled_at: datetime, timezone: str) -> str:
    """The key of one occurrence."""
    if template == DEFAULT_KEY_TEMPLATE:  # almost all keys
        return f"{job_id}:{_unix(scheduled_at)}"
    local: datetime | None = None
    pieces: list[str] = []
    for literal, placeholder in _compile(template):
        pieces.append(literal)
        if placeholder == "job_id":
            pieces.append(str(job_id))
        elif placeholder == "scheduled_at_unix":
            pieces.append(_unix(scheduled_at))
        elif placeholder == "name":
            pieces.append(name)
        elif placeholder is not None:
            local = local or scheduled_at.astimezone(load_zone(timezone))
            pieces.append(_LOCAL[placeholder](local))
    return "".join(pieces)


@lru_cache(maxsize=1024)
def _compile(text: str) -> tuple[tuple[str, str | None], ...]:
    """The template as (literal, placeholder after it) pairs."""
    if not text or len(text) > _MAX_CHARS or not text.isprintable():
        raise _error(f"use 1 to {_MAX_CHARS} printable characters")
    pieces: list[tuple[str, str | None]] = []
    end = 0
    for found in _PLACEHOLDER.finditer(text):
        if found[1] not in _KNOWN:
            known = " ".join("{{" + name + "}}" for name in _KNOWN)
            raise _error(f"{{{{{found[1][:40]}}}}} is not known, use {known}")
        pieces.append((text[end : found.start()], found[1]))
        end = found.end()
    pieces.append((text[end:], None))
    if any("{{" in literal or "}}" in literal for literal, _ in pieces):
        raise _error("a {{ or }} without its other half")
    return tuple(pieces)


def _unix(moment: datetime) -> str:
    """Seconds since 1970, with the fraction if there is one, so that no two occurrences share a key."""
    seconds, micros = divmod(to_micros(moment), 1_000_000)
    return f"{seconds}.{micros:06}" if micros else str(seconds)


def _error(message: str) -> InvalidInput:
    return InvalidInput("idempotency_key_template", message)
