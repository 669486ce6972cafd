"""Turns an HTTP endpoint's answer into the run's result or error. Pure."""

from __future__ import annotations

import codecs
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from duly.errors import Permanent
from duly.masking import Mask
from duly.worker.handler.errors import RemoteError, RemoteRetryAfter

# Bytes of a response kept with the run, and bytes of a failed one kept in the error.
KEPT_BYTES = 16 * 1024
ERROR_BYTES = 2 * 1024
MAX_RETRY_AFTER_SECONDS = 86_400.0
# 4xx that a retry can fix: request timeout, too early, too many requests.
_RETRIED = frozenset({408, 425, 429})
_MOVED_AND_CHANGED = frozenset({301, 302, 303})
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


class CallFailed(RemoteError):
    """The endpoint was not reached, or could not serve the call now. A retry may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__("CallFailed", message)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    #: By name in lower case; the first of several with the same name.
    headers: dict[str, str]
    #: The beginning of the body, a little more than is stored of it.
    body: bytes
    #: Whether `body` is the whole body.
    whole: bool


def judge(answer: HttpAnswer, called: str, *, mask: Mask | None, now: datetime) -> dict[str, Any]:
    """Returns the run's result, or raises its error. `called` names the call in errors."""
    status = answer.status
    text = _text(answer, mask)
    if 200 <= status < 300:
        return _result(answer, text)
    message = f"{called} answered {status}"
    if status in _MOVED_AND_CHANGED:
        raise Permanent(
            f"{message} and points to {short_url(answer.headers.get('location', ''))!r}, which would not be asked with "
            "the same method and body: put that address into the job's handler, or let the endpoint answer 307 or 308"
        )
    if text:
        message += f": {_first(text, ERROR_BYTES)[0]}"
    if status not in _RETRIED and status < 500:
        raise Permanent(message)
    seconds = retry_after(answer.headers.get("retry-after"), answer.headers.get("date"), now=now)
    if seconds is None:
        raise CallFailed(message)
    raise RemoteRetryAfter(seconds, "RetryAfter", message)


def retry_after(value: str | None, date: str | None, *, now: datetime) -> float | None:
    """Seconds that `Retry-After` asks for, at most 24 h; None if it cannot be parsed."""
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    elif (moment := _http_date(value)) is not None:
        # Relative to the endpoint's own clock if it sent one: the two clocks may be far apart.
        seconds = (moment - (_http_date(date or "") or now)).total_seconds()
    else:
        return None
    return min(MAX_RETRY_AFTER_SECONDS, max(0.0, seconds))


def short_url(url: str) -> str:
    """The URL without its query, which may hold a signature or a token, cut to the length of an error."""
    path, question, _ = url.partition("?")
    return (path[:300] + ("…" if len(path) > 300 else "")) + ("?…" if question else "")


def _first(text: str, limit: int) -> tuple[str, bool]:
    """The first `limit` bytes of the text, and whether it was longer."""
    raw = text.encode("utf-8", "replace")
    return (text, False) if len(raw) <= limit else (raw[:limit].decode("utf-8", "ignore"), True)


def _result(answer: HttpAnswer, text: str) -> dict[str, Any]:
    kept = {name: answer.headers[name] for name in ("content-type", "content-encoding") if name in answer.headers}
    body: Any
    body, was_cut = _first(text, KEPT_BYTES)
    result: dict[str, Any] = {"status": answer.status, "headers": kept, "body": body}
    if was_cut or not answer.whole:
        result["truncated"] = True
        return result
    with suppress(ValueError, RecursionError):  # then the body is kept as a string
        result["body"] = json.loads(body, parse_constant=_refuse_constant)
    return result


def _text(answer: HttpAnswer, mask: Mask | None) -> str:
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        # Compression was not requested, and a kilobyte of it may decompress to a gigabyte: the body is not kept.
        return f"[{len(answer.body)}{'' if answer.whole else ' or more'} bytes, compressed: {encoding[:40]}]"
    # A character that the cut splits is left out.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(answer.body, final=answer.whole)
    # An endpoint that echoes its request must not make a secret visible.
    return text if mask is None else mask.text(text, ends_amid=not answer.whole)


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
