"""Turns exceptions and results into text that PostgreSQL always accepts.

The failure path must not fail: NUL characters, lone surrogates and huge tracebacks are cleaned and cut here.
"""

from __future__ import annotations

import asyncio.base_events
import asyncio.runners
import concurrent.futures.thread
import json
import math
import os
import traceback
from types import TracebackType
from typing import Any, TypeGuard, TypeVar

from duly.errors import Permanent, RetryAfter, Unable
from duly.masking import Mask

MAX_ERROR_BYTES = 16 * 1024
MAX_RESULT_CHARACTERS = 256 * 1024

Error = TypeVar("Error", bound=BaseException)


def clean(text: str) -> str:
    """Replaces NUL characters and lone surrogates, which PostgreSQL cannot store."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def cut(text: str, limit: int) -> str:
    """Cuts a text to `limit` bytes by leaving out the middle: the ends of a traceback say most."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return text
    mark = "\n[…]\n"
    half = (limit - len(mark.encode())) // 2
    return raw[:half].decode("utf-8", "ignore") + mark + raw[-half:].decode("utf-8", "ignore")


def error_text(kind: str, message: str, trace: str | None = None, *, mask: Mask | None = None) -> str:
    """An error as the store keeps it: JSON with type, message and traceback, cut at 16 KiB."""
    if mask is not None:  # before cutting: the mask does not recognise half a secret
        kind, message, trace = mask.text(kind), mask.text(message), None if trace is None else mask.text(trace)
    # Cut before it is cleaned, so that a 50 MB message costs no more than a short one.
    message = cut(clean(message[: 4 * MAX_ERROR_BYTES]), MAX_ERROR_BYTES // 4)
    if trace is not None:
        trace = cut(
            clean(trace[: 2 * MAX_ERROR_BYTES] + trace[2 * MAX_ERROR_BYTES :][-2 * MAX_ERROR_BYTES :]),
            MAX_ERROR_BYTES // 2,
        )
    return json.dumps({"type": clean(kind[:200]), "message": message, "traceback": trace}, ensure_ascii=False)


class RemoteError(Exception):
    """An error of another process, as that process described it: exceptions do not travel, their texts do."""

    def __init__(self, kind: str, message: str, trace: str | None = None) -> None:
        Exception.__init__(self, message)  # by name: a subclass may also inherit a signal that takes other arguments
        self.kind = kind
        self.trace = trace


class RemotePermanent(RemoteError, Permanent):
    """A `Permanent` error of another process."""


class RemoteRetryAfter(RemoteError, RetryAfter):
    """A `RetryAfter` of another process."""

    def __init__(self, seconds: float, kind: str, message: str, trace: str | None = None) -> None:
        RemoteError.__init__(self, kind, message, trace)
        self.seconds = seconds


class Elsewhere(Unable):
    """This worker cannot execute the run now, but another can, or this one in a moment: the delay is short."""


def message_of(error: BaseException, mask: Mask | None = None) -> str:
    """An error's message, whatever its class does when asked. A mask reads it whole, so that no secret is cut."""
    try:
        # By the method of `str` itself: a subclass may do anything when it is cut.
        text = str.__getitem__(str(error), slice(None, 4 * MAX_ERROR_BYTES if mask is None else None))
        return text if mask is None else mask.text(text)
    except BaseException as broken:  # noqa: BLE001 - a __str__ that raises is a bug of the handler, not a reason to lose the run
        return f"(its message could not be shown: {kind_of(broken)})"


def kind_of(error: BaseException) -> str:
    """The name of an error's class, with its module unless it is a builtin or `Permanent`."""
    kind = type(error)
    try:
        module: object = kind.__module__
        name = type.__dict__["__qualname__"].__get__(kind)
        if kind is Permanent or module == "builtins":
            return str(name)
        return f"{module}.{name}" if isinstance(module, str) else str(name)
    except BaseException:  # noqa: BLE001 - a metaclass may do anything
        return "an exception"


# Read without asking the error, whose class may override attribute access.
_TRACEBACK = BaseException.__dict__["__traceback__"]


def exception_text(error: BaseException, mask: Mask | None = None) -> str:
    """An exception as the store keeps it. Never raises, whatever the exception is."""
    if isinstance_of(error, RemoteError):
        return error_text(error.kind, message_of(error, mask), error.trace, mask=mask)
    first = _first_of_handler(_TRACEBACK.__get__(error))
    if type(error) is Permanent and _is_ours_alone(first):
        # A payload that does not fit its task: the message says all, the traceback would show our own check.
        return error_text("Permanent", message_of(error, mask))
    try:
        trace = "".join(traceback.format_exception(type(error), error, first, limit=-40))
    except BaseException as broken:  # noqa: BLE001 - notes, causes and groups may be anything
        trace = _plain_trace(error, first, broken)
    return error_text(kind_of(error), message_of(error, mask), trace, mask=mask)


def isinstance_of(error: BaseException, kind: type[Error]) -> TypeGuard[Error]:
    """As `isinstance`, but by the class alone: an object may lie about its class, or raise when asked."""
    return issubclass(type(error), kind)


def _plain_trace(error: BaseException, first: TracebackType | None, broken: BaseException) -> str:
    """A traceback of the places alone, for an error that cannot be formatted."""
    try:
        places = "".join(traceback.format_tb(first, limit=-40))
    except BaseException:  # noqa: BLE001 - source files may be odd, too
        places = ""
    rest = f"(the rest of it could not be shown: {kind_of(broken)})"
    return f"Traceback (most recent call last):\n{places}{kind_of(error)}: {message_of(error)}\n{rest}\n"


# Files between the worker and a handler: their frames are left out of a handler's traceback.
_WORKER = os.path.dirname(os.path.dirname(__file__)) + os.sep
_ON_THE_WAY = frozenset(
    {_WORKER + name for name in ("executor.py", "threads.py", os.path.join("processes", "child.py"))}
    | {module.__file__ for module in (asyncio.runners, asyncio.base_events, concurrent.futures.thread)}
)


def _first_of_handler(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames before the handler's; the whole traceback if it has no others."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename in _ON_THE_WAY:
        first = first.tb_next
    return trace if first is None else first


def _is_ours_alone(trace: TracebackType | None) -> bool:
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_WORKER):
            return False
        trace = trace.tb_next
    return True


def result_text(result: Any, mask: Mask | None = None) -> str | None:
    """A handler's result as JSON; values without a JSON form become their `repr`. Never raises: the run succeeded."""
    try:
        return _result_text(result, mask)
    except BaseException as broken:  # noqa: BLE001 - a __repr__ may raise anything
        return json.dumps(f"(a result that could not be kept: {clean(kind_of(broken))[:200]})", ensure_ascii=False)


def _result_text(result: Any, mask: Mask | None) -> str | None:
    if result is None:
        return None
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(_plain(result, 0))
    if "\\u0000" in text or "\\ud" in text:
        text = json.dumps(_plain(result, 0), ensure_ascii=False)
    if mask is not None:
        text = mask.json(text)
    if len(text) > MAX_RESULT_CHARACTERS:
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
    return clean(str.__getitem__(repr(value), slice(None, 2000)))
