"""A token bucket: the one home of limits per second. Pure: callers pass the time."""

from __future__ import annotations


class TokenBucket:
    """Holds the tokens of one second, and at least one. Times are microseconds of the caller's clock."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        # At a rate below one per second the bucket must still hold a whole token.
        self._max_tokens = max(1.0, per_second)
        self._tokens = self._max_tokens
        self._seen_us: int | None = None

    def available(self, now_us: int) -> int:
        """Whole tokens at this time. A clock that steps back gives none; counting goes on from its new time."""
        if self._seen_us is not None:
            gained = max(0, now_us - self._seen_us) * self.per_second / 1e6
            self._tokens = min(self._max_tokens, self._tokens + gained)
        self._seen_us = now_us
        return int(self._tokens)

    def take(self, wanted: int, now_us: int) -> int:
        """Takes up to `wanted` tokens, and returns how many it took."""
        granted = min(wanted, self.available(now_us))
        self._tokens -= granted
        return granted

    def give_back(self, unused: int) -> None:
        self._tokens = min(self._max_tokens, self._tokens + unused)

    @property
    def seconds_to_next(self) -> float:
        """Seconds from the last look until a whole token is there; an hour if none ever comes."""
        return max(0.0, 1 - self._tokens) / self.per_second if self.per_second > 0 else 3600.0
