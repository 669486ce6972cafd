"""Time as the rest of Duly sees it: the database's clock, carried between measurements by this machine's monotonic one.

A node's own wall clock is never asked: it may be minutes off, or step. What may be off is the estimate of the
difference, by at most half the round trip of the best measurement.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from duly.model import from_micros, to_micros


class Clock(Protocol):
    """Answers what the database's clock says now."""

    def now(self) -> datetime: ...

    def now_us(self) -> int: ...


class DatabaseClock:
    """The database's clock, from measurements that callers bring as they talk to it anyway."""

    # A measurement's weight fades: after this long a worse but younger one replaces it, because clocks drift apart.
    _FADE_US_PER_S = 50

    def __init__(self) -> None:
        self._offset_us = to_micros(datetime.now(UTC)) - time.monotonic_ns() // 1000
        self._error_us = float("inf")
        self._measured_at = time.monotonic()

    def observe(self, database_now: datetime, sent: float, received: float) -> None:
        """Take in one measurement: what the database said between `sent` and `received` (monotonic seconds)."""
        error_us = (received - sent) * 500_000
        faded = self._error_us + (received - self._measured_at) * self._FADE_US_PER_S
        offset_us = to_micros(database_now) - int((sent + received) * 500_000)
        # A measurement that cannot agree with the old one means that the database's clock is another one now.
        if error_us <= faded or abs(offset_us - self._offset_us) > error_us + faded:
            self._offset_us = offset_us
            self._error_us = error_us
            self._measured_at = received
        else:
            # A worse measurement still tells what is impossible: the database did not say it before it was asked, nor
            # after it had answered. So what it calls due is due by this clock too, once its answer is here.
            earliest = to_micros(database_now) - int(received * 1e6)
            latest = to_micros(database_now) - int(sent * 1e6)
            self._offset_us = min(max(self._offset_us, earliest), latest)

    @property
    def error_us(self) -> float:
        """How far off the estimate can be, without drift."""
        return self._error_us

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset_us

    def now(self) -> datetime:
        return from_micros(self.now_us())


class ManualClock:
    """A clock that stands still until it is moved: for tests, beside the database's own frozen clock."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def set(self, moment: datetime) -> None:
        self._now = moment

    def advance(self, **delta: float) -> datetime:
        self._now += timedelta(**delta)
        return self._now

    def now(self) -> datetime:
        return self._now

    def now_us(self) -> int:
        return to_micros(self._now)
