"""Turning exceptions and results into text that PostgreSQL will always take.

The failure path must not fail: NUL characters, lone surrogates and huge tracebacks are cleaned and cut here.
"""

from __future__ import annotations

import json
import math
import traceback
from typing import Any

from duly.errors import Permanent, RetryAfter

ERROR_LIMIT = 16 * 1024
RESULT_LIMIT = 256 * 1024


def clean(text: str) -> str:
    """Without NUL characters and lone surrogates, which PostgreSQL cannot hold."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes; the middle is left out, because the ends of a traceback say most."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return text
    mark = "\n[…]\n"
    half = (limit - len(mark.encode())) // 2
    return raw[:half].decode("utf-8", "ignore") + mark + raw[-half:].decode("utf-8", "ignore")


def error_text(kind: str, message: str, trace: str | None = None) -> str:
    """An error as the store keeps it: JSON with type, message and traceback, cut at 16 KiB."""
    # Bounded before it is cleaned: a 50 MB message costs no more than a short one.
    message = cut(clean(message[: 4 * ERROR_LIMIT]), ERROR_LIMIT // 4)
    if trace is not None:
        trace = cut(clean(trace[: 2 * ERROR_LIMIT] + trace[2 * ERROR_LIMIT :][-2 * ERROR_LIMIT :]), ERROR_LIMIT // 2)
    return json.dumps({"type": clean(kind[:200]), "message": message, "traceback": trace}, ensure_ascii=False)


class RemoteError(Exception):
    """An error of another process, in that process's own words: exceptions do not travel, their texts do."""

    def __init__(self, kind: str, message: str, trace: str | None = None) -> None:
        Exception.__init__(self, message)  # by name: beside it there may be a signal with other arguments
        self.kind = kind
        self.trace = trace


class RemotePermanent(RemoteError, Permanent):
    """It was a `Permanent` there, and is one here."""


class RemoteRetryAfter(RemoteError, RetryAfter):
    """It was a `RetryAfter` there, and is one here."""

    def __init__(self, seconds: float, kind: str, message: str, trace: str | None = None) -> None:
        RemoteError.__init__(self, kind, message, trace)
        self.seconds = seconds


def exception_text(error: BaseException) -> str:
    """An exception as the store keeps it."""
    if isinstance(error, RemoteError):
        return error_text(error.kind, str(error), error.trace)
    kind = type(error).__name__ if type(error).__module__ == "builtins" else _qualified(type(error))
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 - a __str__ that raises is somebody's bug, not a reason to lose the run
        message = f"(its message could not be shown: {type(broken).__name__})"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-40))
    return error_text(kind, message, trace)


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def result_text(result: Any) -> str | None:
    """A handler's result as JSON; what JSON cannot say is kept as its text."""
    if result is None:
        return None
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(_plain(result, 0))
    if "\\u0000" in text or "\\ud" in text:
        text = json.dumps(_plain(result, 0), ensure_ascii=False)
    if len(text) > RESULT_LIMIT:
        return json.dumps({"truncated": True, "size": len(text), "head": cut(clean(text[:4096]), 2048)})
    return text


def _plain(value: Any, depth: int) -> Any:
    if depth > 50:
        return "[…]"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int):
        return value if value.bit_length() < 10_000 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {clean(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return clean(repr(value)[:2000])
