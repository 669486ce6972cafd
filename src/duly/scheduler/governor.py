"""Limits how fast late runs are released, so that the end of one outage does not cause the next.

A token bucket over the database's clock that holds the runs of one second. On-time occurrences are not limited.
"""

from __future__ import annotations

from duly.clock import Clock


class Governor:
    """The one limit of a node, shared by firer and catch-up. `per_second` 0: no limit."""

    def __init__(self, clock: Clock, per_second: float) -> None:
        self._clock = clock
        self._per_second = per_second
        # At less than one run per second the bucket must still hold a whole token.
        self._max_tokens = max(1.0, per_second)
        self._tokens = self._max_tokens
        self._seen_us = clock.now_us()

    def available(self, wanted: int) -> int:
        """The number of `wanted` runs that may be released now."""
        if self._per_second == 0:
            return wanted
        now_us = self._clock.now_us()
        # A clock that steps back gives no tokens; counting goes on from its new time.
        gained = max(0, now_us - self._seen_us) * self._per_second / 1e6
        self._seen_us = now_us
        self._tokens = min(self._max_tokens, self._tokens + gained)
        return min(wanted, int(self._tokens))

    def take(self, wanted: int) -> int:
        """Takes tokens for up to `wanted` runs. Returns the number of runs that may be released now."""
        granted = self.available(wanted)
        if self._per_second != 0:
            self._tokens -= granted
        return granted

    def give_back(self, unused: int) -> None:
        """Returns the tokens of runs that were not released after all."""
        if self._per_second != 0:
            self._tokens = min(self._max_tokens, self._tokens + unused)

    @property
    def pause(self) -> float:
        """Seconds until the tokens of a tenth of a second, and at least one, have come in."""
        return 0.0 if self._per_second == 0 else max(0.1, 1 / self._per_second)
