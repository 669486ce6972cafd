"""Retries of failed calls, and the translation of the API's refusals into Duly's own errors. No I/O.

A call that certainly had no effect (no connection, 429) is always retried. A call that may have had one (connection
cut, no response, 502, 503, 504) is retried only if it is repeatable: sent twice, it has the effect of once.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx

from duly.errors import (
    ApiUnavailable,
    Conflict,
    DulyError,
    Forbidden,
    InvalidInput,
    InvalidSchedule,
    LimitReached,
    NotFound,
    StoreUnavailable,
    Unauthorized,
)

# The pause before the first retry, doubled for each further one. It is drawn from the upper half of that value, so that
# many clients do not retry together.
BASE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 3.0
# Time for which a call is retried by default: longer than an API takes to restart during a deploy.
PATIENCE_SECONDS = 30.0
# After this time without an answer, a message says that the client waits.
SILENT_SECONDS = 2.0
# If a server asks (Retry-After) for a longer pause than this, the caller gets the error instead of waiting.
MAX_RETRY_AFTER_SECONDS = 60.0

log = logging.getLogger("duly.client")

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.ProxyError)
_PASSING = frozenset({429, 502, 503, 504})
_DIGITS = re.compile(r"[0-9]{1,6}")


class Attempts:
    """Counts the attempts of one call and decides whether and when another one follows."""

    def __init__(self, what: str, *, repeatable: bool, patience: float, retries: int | None) -> None:
        """`patience`: seconds from the first failure after which no attempt begins; `retries`: None for no bound."""
        self._what = what
        self._repeatable = repeatable
        self._patience = patience
        self._retries = retries
        self._made = 0
        self._failing_since: float | None = None
        self._silent = True

    def after_error(self, error: httpx.RequestError) -> float:
        """The seconds to wait before the next attempt. Raises `ApiUnavailable` if none follows."""
        sent = not isinstance(error, _UNSENT)
        reason = str(error) or type(error).__name__
        if (self._repeatable or not sent) and (pause := self._pause(0.0, reason)) is not None:
            return pause
        message = f"{self._what}: no response ({reason})" if sent else f"{self._what}: no connection ({reason})"
        if sent and not self._repeatable:
            message += "; it is not known whether it took effect"
        raise ApiUnavailable(message, sent=sent) from error

    def after_answer(self, response: httpx.Response) -> float | None:
        """The seconds to wait before the next attempt; None if the response is to be read as it is."""
        status = response.status_code
        if self._awaits_local_key(response):
            return self._pause(0.0, f"HTTP {status}")
        if status not in _PASSING or not (self._repeatable or status == 429):
            return None
        wish = retry_after(response.headers)
        return None if wish > MAX_RETRY_AFTER_SECONDS else self._pause(wish, f"HTTP {status}")

    def _awaits_local_key(self, response: httpx.Response) -> bool:
        """Whether this user's own server has just started again and has not announced its local key yet."""
        unkeyed = "authorization" not in response.request.headers
        return response.status_code == 401 and unkeyed and self._failing_since is not None

    def _pause(self, wish: float, reason: str) -> float | None:
        """The seconds to wait before the next attempt; None if the patience or the retries are used up."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        # A power of 2 that stays below the maximum for all numbers that matter.
        longest = min(MAX_PAUSE_SECONDS, BASE_SECONDS * 2 ** min(self._made, 10))
        pause = wish + random.uniform(longest / 2, longest)  # noqa: S311 - spreads clients, keeps no secret
        left = self._failing_since + self._patience - now
        if left < pause or (self._retries is not None and self._made >= self._retries):
            return None
        if self._silent and now + pause - self._failing_since > SILENT_SECONDS:
            self._silent = False
            log.warning("%s: no answer yet (%s); trying for %.0f s more", self._what, reason, left)
        self._made += 1
        return pause


# Field errors taken from a response that lists many.
_MAX_ERRORS = 20


def retry_after(headers: Mapping[str, str]) -> float:
    """The header's seconds; 0 if it is missing or a date, which only proxies send."""
    value = headers.get("retry-after", "").strip()
    return float(value) if _DIGITS.fullmatch(value) else 0.0


def refusal(what: str, status: int, problem: Mapping[str, Any] | None) -> DulyError:
    """The error for an unsuccessful response. `problem` is its problem document, if it has one."""
    if problem is None:
        return ApiUnavailable(f"{what}: HTTP {status}, and not from Duly's API; check the address", sent=True)
    detail = str(problem.get("detail") or problem.get("title") or f"HTTP {status}")
    kind = str(problem.get("type", "")).rpartition(":")[2]
    if kind == "limit-reached" or status == 429:
        return LimitReached(detail)
    if status == 401:
        return Unauthorized(detail)
    if status == 403:
        return Forbidden(detail)
    if status in (404, 405):
        return NotFound(detail)
    if status in (409, 412):
        return Conflict(detail)
    if status == 503:
        return StoreUnavailable(detail)
    if 400 <= status < 500:
        return _invalid(problem, detail)
    return DulyError(f"{what}: HTTP {status}: {detail}")


def _invalid(problem: Mapping[str, Any], detail: str) -> InvalidInput:
    errors = problem.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else {}
    field = str(first.get("field") or problem.get("field") or "request")
    message = str(first.get("message") or detail.removeprefix(f"{field}: "))
    error = InvalidSchedule(message) if field == "schedule" else InvalidInput(field, message)
    more = errors[1:_MAX_ERRORS] if isinstance(errors, list) else []
    return error.beside([InvalidInput(str(one.get("field")), str(one.get("message"))) for one in more])
