"""How fast late runs may be released, so that the end of an outage is not the beginning of the next one.

A token bucket over the database's clock that holds one second's worth. On-time occurrences never ask it.
"""

from __future__ import annotations

from duly.clock import Clock


class Governor:
    """Shared by all that releases late runs on one node. `per_second` 0: no limit."""

    def __init__(self, clock: Clock, per_second: float) -> None:
        self._clock = clock
        self._per_second = per_second
        # Below one a second the bucket must still hold a whole one.
        self._most = max(1.0, per_second)
        self._tokens = self._most
        self._seen_us = clock.now_us()

    def available(self, most: int) -> int:
        """How many may be released now, up to `most`."""
        if self._per_second == 0:
            return most
        now_us = self._clock.now_us()
        # A clock that steps back gives nothing; it only begins to count from there.
        gained = max(0, now_us - self._seen_us) * self._per_second / 1e6
        self._seen_us = now_us
        self._tokens = min(self._most, self._tokens + gained)
        return min(most, int(self._tokens))

    def take(self, wanted: int) -> int:
        """How many of `wanted` may be released now; they are taken as released."""
        granted = self.available(wanted)
        if self._per_second != 0:
            self._tokens -= granted
        return granted

    def give_back(self, unused: int) -> None:
        """Some of what was taken was not released after all."""
        if self._per_second != 0:
            self._tokens = min(self._most, self._tokens + unused)

    @property
    def pause(self) -> float:
        """Seconds in which a tenth of a second's worth comes together, and at least one."""
        return 0.0 if self._per_second == 0 else max(0.1, 1 / self._per_second)
