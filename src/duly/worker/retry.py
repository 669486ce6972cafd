"""What becomes of a run whose attempt failed. Pure: a policy and an error in, a decision out."""

from __future__ import annotations

import random

from duly.errors import Permanent, RetryAfter
from duly.model import Policy
from duly.worker.handler.errors import isinstance_of

JITTER = 0.25


# Who was told when to come back comes at most so much later than that.
MOST_LATER_SECONDS = 60.0


def _spread(delay: float, spread: float | None = None) -> float:
    """What to add to a delay, so that a crowd that was sent away together does not come back together."""
    return delay * JITTER * (random.random() if spread is None else spread)  # noqa: S311


def retry_delay(policy: Policy, attempt: int, *, spread: float | None = None) -> float:
    """Seconds until the next attempt after attempt number `attempt` failed; up to 25 % jitter spreads a crowd."""
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
    """Seconds until the next attempt, or None: no more attempts, to the dead letters."""
    # By the class alone, as `except` does: an error may lie about itself.
    if issubclass(type(error), Permanent) or attempt > policy.max_retries:
        return None
    if error is not None and isinstance_of(error, RetryAfter):
        asked = max(0.0, error.seconds)
        return asked + min(_spread(asked), MOST_LATER_SECONDS * random.random())  # noqa: S311
    return retry_delay(policy, attempt)
