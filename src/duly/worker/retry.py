"""Decides between a retry and the dead letters after a failed attempt. Pure: a policy and an error in, a delay out."""

from __future__ import annotations

import random

from duly.errors import Permanent, RetryAfter
from duly.model import Policy
from duly.worker.handler.errors import isinstance_of

# Fraction of a delay that is added at random.
MAX_JITTER = 0.25
# `RetryAfter` names the delay itself: jitter adds at most this.
MAX_EXTRA_SECONDS = 60.0


def _spread(delay: float, spread: float | None = None) -> float:
    """Random seconds to add to a delay, so that runs which failed together are not retried together."""
    return delay * MAX_JITTER * (random.random() if spread is None else spread)  # noqa: S311


def retry_delay(policy: Policy, attempt: int, *, spread: float | None = None) -> float:
    """Seconds from the failure of attempt number `attempt` to the next one, including up to 25 % jitter."""
    match policy.retry_backoff:
        case "immediate":
            return 0.0
        case "linear":
            delay = policy.retry_delay_seconds * attempt
        case "exponential":
            delay = policy.retry_delay_seconds * 2.0 ** min(attempt - 1, 60)
    delay = min(delay, policy.retry_max_delay_seconds)
    return delay + _spread(delay, spread)


def next_attempt_in(policy: Policy, attempt: int, error: BaseException | None) -> float | None:
    """Seconds until the next attempt, or None if there is none left and the run goes to the dead letters."""
    # By the class alone, as `except` does: an error may lie about itself.
    if issubclass(type(error), Permanent) or attempt > policy.max_retries:
        return None
    if error is not None and isinstance_of(error, RetryAfter):
        asked = max(0.0, error.seconds)
        return asked + min(_spread(asked), MAX_EXTRA_SECONDS * random.random())  # noqa: S311
    return retry_delay(policy, attempt)
