"""How a job is fired, retried and timed out: `Policy`, the limits of its fields, and its stored form."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from duly.errors import InvalidInput

MissedWindow = Literal["SKIP", "RUN_ONCE", "RUN_ALL"]
Overlap = Literal["skip", "queue", "parallel"]
RetryBackoff = Literal["immediate", "linear", "exponential"]
DstGap = Literal["shift", "skip"]
DstFold = Literal["first", "second", "both"]

DEFAULT_KEY_TEMPLATE = "{{job_id}}:{{scheduled_at_unix}}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a job that only Python reads: never a column, so that a job's row stays narrow.

    The store keeps just what differs from these defaults, as one JSON text, and NULL when nothing does. Scheduler and
    worker turn that text back into a `Policy` through a cache keyed by the text itself.
    """

    missed_window: MissedWindow = "RUN_ONCE"
    catch_up_window_seconds: int | None = None
    max_missed: int = 100
    overlap: Overlap = "skip"
    max_queued: int = 100
    max_retries: int = 3
    retry_backoff: RetryBackoff = "exponential"
    retry_delay_seconds: float = 30
    retry_max_delay_seconds: float = 1800
    timeout_seconds: float = 300
    jitter_seconds: int = 0
    dst_gap: DstGap = "shift"
    dst_fold: DstFold = "first"
    idempotency_key_template: str = DEFAULT_KEY_TEMPLATE
    #: Paths to what of the payload is never shown; `masking` says how they are read.
    secret_fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: Any = self.secret_fields
        if given != () and isinstance(given, list | tuple | set | frozenset):
            # One spelling for the same paths. What is no path is left to be refused.
            texts = all(isinstance(path, str) for path in given)
            object.__setattr__(self, "secret_fields", tuple(sorted(set(given)) if texts else given))

    def to_stored(self) -> str | None:
        """The JSON text of what differs from the defaults, in field order; None when nothing does."""
        if self is DEFAULT_POLICY or self == DEFAULT_POLICY:
            return None
        changed = {
            # One spelling per value: 60 and 60.0 seconds are the same policy.
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, default in _POLICY_DEFAULTS.items()
            if (value := getattr(self, name)) != default or type(value) is bool
        }
        return json.dumps(changed, separators=(",", ":"))


DEFAULT_POLICY = Policy()
_POLICY_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Policy)}
POLICY_FIELDS = frozenset(_POLICY_DEFAULTS)


# The rules of a policy's fields: what they may be, or from where to where they go.
MAX_SECONDS = 10 * 365 * 86400
POLICY_CHOICES: dict[str, tuple[str, ...]] = {
    "missed_window": get_args(MissedWindow),
    "overlap": get_args(Overlap),
    "retry_backoff": get_args(RetryBackoff),
    "dst_gap": get_args(DstGap),
    "dst_fold": get_args(DstFold),
}
POLICY_INTEGERS: dict[str, tuple[int, int]] = {
    "catch_up_window_seconds": (0, MAX_SECONDS),
    "max_missed": (0, 100_000),
    "max_queued": (0, 100_000),
    "max_retries": (0, 10_000),
    "jitter_seconds": (0, 86_400),
}
POLICY_NUMBERS: dict[str, tuple[float, float]] = {
    "retry_delay_seconds": (0, MAX_SECONDS),
    "retry_max_delay_seconds": (0, MAX_SECONDS),
    "timeout_seconds": (0.001, MAX_SECONDS),
}


@lru_cache(maxsize=4096)
def policy_from_stored(text: str | None) -> Policy:
    """The policy behind a stored text; `InvalidInput` if that is none, as somebody else's SQL may have left it.

    A key this version does not know is ignored: a newer node wrote it.
    """
    if text is None:
        return DEFAULT_POLICY
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("policy", f"cannot be read: {str(error)[:100]}") from error
    if not isinstance(stored, dict):
        raise InvalidInput("policy", "is not an object")
    return Policy(**{name: _stored_value(name, value) for name, value in stored.items() if name in POLICY_FIELDS})


def _stored_value(name: str, value: Any) -> Any:
    if name in POLICY_CHOICES:
        fits = value in POLICY_CHOICES[name] if isinstance(value, str) else False
    elif name in POLICY_INTEGERS or name in POLICY_NUMBERS:
        low, high = POLICY_INTEGERS.get(name) or POLICY_NUMBERS[name]
        if name in POLICY_INTEGERS and isinstance(value, float) and value.is_integer():
            value = int(value)  # 3.0, as only a hand writes it
        kinds = (int,) if name in POLICY_INTEGERS else (int, float)
        fits = type(value) in kinds and low <= value <= high
        fits = fits or (value is None and name == "catch_up_window_seconds")
    elif name == "secret_fields":
        fits = isinstance(value, list) and all(isinstance(path, str) for path in value)
    else:
        fits = isinstance(value, str)
    if not fits:
        raise InvalidInput(f"policy.{name}", f"is {str(value)[:40]!r} in the store, which it cannot be")
    return value
