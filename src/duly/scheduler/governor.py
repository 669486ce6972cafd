"""Limits how fast late runs are released, so that the end of one outage does not cause the next.

A token bucket over the database's clock that holds the runs of one second. On-time occurrences are not limited.
"""

from __future__ import annotations

from duly.clock import Clock
from duly.rates import TokenBucket


class Governor:
    """The one limit of a node, shared by firer and catch-up. `per_second` 0: no limit."""

    def __init__(self, clock: Clock, per_second: float) -> None:
        self._clock = clock
        self._bucket = TokenBucket(per_second) if per_second else None

    def available(self, wanted: int) -> int:
        """The number of `wanted` runs that may be released now."""
        return wanted if self._bucket is None else min(wanted, self._bucket.available(self._clock.now_us()))

    def take(self, wanted: int) -> int:
        """Takes tokens for up to `wanted` runs. Returns the number of runs that may be released now."""
        return wanted if self._bucket is None else self._bucket.take(wanted, self._clock.now_us())

    def give_back(self, unused: int) -> None:
        """Returns the tokens of runs that were not released after all."""
        if self._bucket is not None:
            self._bucket.give_back(unused)

    @property
    def pause(self) -> float:
        """Seconds until the tokens of a tenth of a second, and at least one, have come in."""
        return 0.0 if self._bucket is None else max(0.1, 1 / self._bucket.per_second)
