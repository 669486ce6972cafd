"""Everything Duly raises on purpose.

```
DulyError
├── InvalidInput          the caller's input is invalid; names the field (HTTP 422, exit code 2)
│   ├── InvalidSchedule   the schedule cannot be read or can never fire
│   │   └── TooCostly     the schedule takes too long to evaluate
│   └── UnknownHandler    no worker or app knows a task of that name
├── NotFound              no such job, run or dead letter (HTTP 404, exit code 4)
├── Conflict              the request contradicts the stored state (HTTP 409, exit code 5)
├── LimitReached          the tenant has its maximum number of jobs (HTTP 403, exit code 6)
├── ConfigError           a setting is missing, contradictory or unusable (exit code 2)
├── MissingExtra          an optional part of Duly is not installed (exit code 2)
├── Unauthorized          the API key is missing or unknown (HTTP 401, exit code 7)
├── Forbidden             the API key may not do that (HTTP 403, exit code 7)
├── StoreUnavailable      PostgreSQL cannot be reached, or cannot serve the request now (HTTP 503, exit code 3)
│   ├── StoreBusy         the caller's own data is locked, or takes too long to read (HTTP 503)
│   ├── StoreUnusable     PostgreSQL refuses the user or has no store; also a ConfigError (HTTP 503, exit code 2)
│   └── ApiUnavailable    a client cannot reach the REST API (exit code 3)
├── DataRefused           PostgreSQL refuses the data; sending them again does not help
├── CoordinatorUnavailable   etcd or ZooKeeper cannot be reached (exit code 3)
├── StoreMismatch         the store's schema is newer or older than this Duly (exit code 3)
├── LeaseLost             this worker no longer holds the run; nothing it writes counts
├── Unable                this worker cannot execute the run, but another may
└── HandlerSignal         a handler says what happens next
    ├── Permanent         do not retry: bury the run
    ├── RetryAfter        retry, but after this many seconds
    └── Snooze            run again later; does not count as an attempt
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

#: Longest delay of a retry or a snooze, and longest duration in a policy: ten years.
MAX_DELAY_SECONDS = 10 * 365 * 86400


class DulyError(Exception):
    """Base of everything Duly raises on purpose. Its text is one sentence that a user can act on."""


class InvalidInput(DulyError):
    """The caller's input is invalid. `field` names the invalid field of the job or request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        #: Errors in other fields of the same job or request.
        self.others: tuple[InvalidInput, ...] = ()

    def beside(self, others: Sequence[InvalidInput]) -> Self:
        """This error, with the errors in other fields in its text."""
        self.others = tuple(others)
        errors: list[InvalidInput] = [self, *others]
        self.args = ("; ".join(f"{one.field}: {one.message}" for one in errors),)
        return self


class InvalidSchedule(InvalidInput):
    """The schedule cannot be read, or can never fire. `part` names the wrong part of the schedule."""

    def __init__(self, message: str, *, part: str | None = None, field: str = "schedule") -> None:
        super().__init__(field, message)
        self.part = part


class TooCostly(InvalidSchedule):
    """Finding the schedule's occurrences takes longer than any question about time may cost."""

    def __init__(self) -> None:
        super().__init__("takes too long to work out: simplify it, or split it into several jobs", part="schedule")


class UnknownHandler(InvalidInput):
    """No worker or app knows a task of that name."""

    def __init__(self, message: str) -> None:
        super().__init__("handler", message)


class NotFound(DulyError):
    """The job, run or dead letter does not exist, or not for this tenant.

    `kind` says which of them (`job`, `run`, `dead letter`), and `sought` is the text that it was looked for by.
    """

    def __init__(self, message: str, *, kind: str | None = None, sought: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.sought = sought


class Conflict(DulyError):
    """The request contradicts the stored state."""


class LimitReached(DulyError):
    """The submit would exceed a limit of its tenant. Nothing was stored."""


class ConfigError(DulyError):
    """A setting is missing, contradictory or unusable."""


class MissingExtra(DulyError):
    """An optional part of Duly is needed but not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an extra: pip install 'duly[{extra}]'")
        self.extra = extra


class StoreUnavailable(DulyError):
    """PostgreSQL cannot be reached, or cannot serve the request now. The same request may be sent again later."""


class StoreBusy(StoreUnavailable):
    """The data that this call needs is locked by an open transaction, or takes too long to read. Others are served.
    The message is meant for the caller."""


class StoreUnusable(StoreUnavailable, ConfigError):
    """PostgreSQL refuses the user, or has no Duly store.

    For a process that starts, a setting is wrong. For a process that is running the error may pass: a password is being
    changed, or a grant was revoked and is granted again.
    """


class DataRefused(DulyError):
    """PostgreSQL refuses the data (SQLSTATE classes 22 and 23). No other database error is the fault of a job."""


class ApiUnavailable(StoreUnavailable):
    """The REST API cannot be reached, or another program answers. `sent`: the request may have been carried out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Unauthorized(DulyError):
    """The API needs a key, and the request has none or an unknown one."""


class Forbidden(DulyError):
    """The caller's role or the limits of its tenant forbid the request. `field` names the forbidden field, if any."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message if field is None else f"{field}: {message}")
        self.field = field
        self.message = message


class CoordinatorUnavailable(DulyError):
    """The server that elects shard leaders cannot be reached."""


class StoreMismatch(DulyError):
    """The store's schema is newer or older than this Duly."""


class LeaseLost(DulyError):
    """This worker no longer holds the run. The store ignores everything it writes about the run."""


class Unable(DulyError):
    """This worker lacks a permission or an extra that the run needs. The run is returned; no attempt counts."""


class HandlerSignal(DulyError):
    """Base of the exceptions by which a handler says what happens next."""


class Permanent(HandlerSignal):
    """Retries are useless: the run is buried at once."""


class RetryAfter(HandlerSignal):
    """The handler failed; retry after `seconds`. Counts as an attempt."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = _duration(seconds)
        super().__init__(message or f"retry after {seconds:g} s")


class Snooze(HandlerSignal):
    """Not now: run again after `seconds`. Does not count as an attempt."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = _duration(seconds)
        super().__init__(message or f"snoozed for {seconds:g} s")


def _duration(seconds: float) -> float:
    """Checks a delay."""
    if not 0 <= seconds <= MAX_DELAY_SECONDS:
        raise ValueError(f"seconds must be 0 to {MAX_DELAY_SECONDS}, not {seconds!r}")
    return float(seconds)
