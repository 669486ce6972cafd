"""Everything Duly raises on purpose.

```
DulyError
├── InvalidInput          what the caller gave is wrong; names the field (HTTP 422, exit code 2)
│   ├── InvalidSchedule   the schedule cannot be read or can never fire
│   │   └── TooCostly     it takes too long to work out when the schedule fires
│   └── UnknownHandler    no worker or app knows a task of that name
├── NotFound              no such job, run or dead letter (HTTP 404, exit code 4)
├── Conflict              it contradicts what is stored (HTTP 409, exit code 5)
├── LimitReached          a tenant has as many jobs as it may have (HTTP 403, exit code 6)
├── ConfigError           a setting is missing, contradictory or unusable (exit code 2)
├── MissingExtra          an optional part of Duly is not installed (exit code 2)
├── Unauthorized          the API wants a key, or does not know this one (HTTP 401, exit code 7)
├── Forbidden             the API key may not do that (HTTP 403, exit code 7)
├── StoreUnavailable      PostgreSQL cannot be reached, or cannot do it now (HTTP 503, exit code 3)
│   ├── StoreBusy         something of the caller's own is locked, or takes too long to read (HTTP 503)
│   ├── StoreUnusable     it refuses the user or is not set up: a ConfigError as well (HTTP 503, exit code 2)
│   └── ApiUnavailable    raised by clients: the REST API cannot be reached (exit code 3)
├── DataRefused           PostgreSQL will not take these very data, however often they are sent
├── CoordinatorUnavailable   etcd or ZooKeeper cannot be reached (exit code 3)
├── StoreMismatch         the store's schema is newer or older than this Duly (exit code 3)
├── LeaseLost             this worker no longer holds the run; nothing it writes counts
├── Unable                this worker cannot run it, but another may
└── HandlerSignal         raised by handlers to steer what happens next
    ├── Permanent         do not retry: to the dead letters at once
    ├── RetryAfter        retry, but after this many seconds
    └── Snooze            run again later; does not count as an attempt
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

#: Nobody waits for more seconds than these.
LONGEST_DELAY = 10 * 365 * 86400


class DulyError(Exception):
    """Base of everything Duly raises on purpose. Its text is one sentence that a user can act on."""


class InvalidInput(DulyError):
    """What the caller gave is wrong. `field` names the part, in the words of the job's own fields."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        #: What else is wrong with the same thing.
        self.others: tuple[InvalidInput, ...] = ()

    def beside(self, others: Sequence[InvalidInput]) -> Self:
        """This one, which now speaks of the others too."""
        self.others = tuple(others)
        told: list[InvalidInput] = [self, *others]
        self.args = ("; ".join(f"{one.field}: {one.message}" for one in told),)
        return self


class InvalidSchedule(InvalidInput):
    """A schedule that cannot be read, or that can never fire. `part` says which piece of the text is wrong."""

    def __init__(self, message: str, *, part: str | None = None, field: str = "schedule") -> None:
        super().__init__(field, message)
        self.part = part


class TooCostly(InvalidSchedule):
    """When the schedule fires takes longer to work out than any question about time may cost."""

    def __init__(self) -> None:
        super().__init__("takes too long to work out: simplify it, or split it into several jobs", part="schedule")


class UnknownHandler(InvalidInput):
    """No worker or app knows a task of that name."""

    def __init__(self, message: str) -> None:
        super().__init__("handler", message)


class NotFound(DulyError):
    """No such thing, or not for this tenant."""


class Conflict(DulyError):
    """The request contradicts what is stored."""


class LimitReached(DulyError):
    """It would go past a limit of the tenant's. Nothing was stored."""


class ConfigError(DulyError):
    """A setting is missing, contradictory or unusable."""


class MissingExtra(DulyError):
    """An optional part of Duly is needed but not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an extra: pip install 'duly[{extra}]'")
        self.extra = extra


class StoreUnavailable(DulyError):
    """PostgreSQL cannot be reached, or cannot do now what it is asked: the same may be asked again later."""


class StoreBusy(StoreUnavailable):
    """What this call needs is locked by somebody's open transaction, or takes too long to read. Others are served; the
    text is for the caller."""


class StoreUnusable(StoreUnavailable, ConfigError):
    """PostgreSQL refuses the user, or has no store of ours.

    To somebody who starts, a setting is wrong. To somebody who runs already it may pass: a password that is being
    changed, a grant that is taken away and given back.
    """


class DataRefused(DulyError):
    """PostgreSQL will not take these very data (SQLSTATE classes 22 and 23). Nothing else is the fault of a job."""


class ApiUnavailable(StoreUnavailable):
    """The REST API cannot be reached, or what answers is not Duly. `sent`: the request may have been carried out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Unauthorized(DulyError):
    """The API wants a key and got none, or one that it does not know."""


class Forbidden(DulyError):
    """Who asks is known and may not do that: the key's role, or what its tenant is bound to. `field` says by what."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message if field is None else f"{field}: {message}")
        self.field = field
        self.message = message


class CoordinatorUnavailable(DulyError):
    """The server that elects shard leaders cannot be reached."""


class StoreMismatch(DulyError):
    """The store's schema is newer or older than this Duly."""


class LeaseLost(DulyError):
    """This worker no longer holds the run; nothing it writes about it counts."""


class Unable(DulyError):
    """This worker lacks what the run needs (a permission, an extra): it goes back for another; no attempt counts."""


class HandlerSignal(DulyError):
    """Base of what a handler raises to say what should happen next."""


class Permanent(HandlerSignal):
    """The handler knows that trying again is useless: the run goes to the dead letters at once."""


class RetryAfter(HandlerSignal):
    """The handler failed and knows when to try again. Counts as an attempt."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = _duration(seconds)
        super().__init__(message or f"retry after {seconds:g} s")


class Snooze(HandlerSignal):
    """Not now: run again after `seconds`. Does not count as an attempt."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = _duration(seconds)
        super().__init__(message or f"snoozed for {seconds:g} s")


def _duration(seconds: float) -> float:
    """A delay that somebody can wait for."""
    if not 0 <= seconds <= LONGEST_DELAY:
        raise ValueError(f"seconds must be 0 to {LONGEST_DELAY}, not {seconds!r}")
    return float(seconds)
