"""The database's clock, carried on between measurements by this machine's monotonic clock.

No node reads its own wall clock: it may be minutes off, or step. The estimate of the database's time is off by at most
half the round trip of the best measurement.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from duly.model import from_micros, to_micros


class Clock(Protocol):
    """A clock that shows the database's time."""

    def now(self) -> datetime: ...

    def now_us(self) -> int: ...


class DatabaseClock:
    """The database's clock, estimated from measurements that callers make while they query the database anyway."""

    # Microseconds of error that a measurement gains per second of age, because clocks drift apart. A worse but newer
    # measurement replaces an old one in time.
    _FADE_US_PER_S = 50

    def __init__(self) -> None:
        self._offset_us = to_micros(datetime.now(UTC)) - time.monotonic_ns() // 1000
        self._error_us = float("inf")
        self._measured_at = time.monotonic()

    def observe(self, database_now: datetime, sent: float, received: float) -> None:
        """Record one measurement: the database read its clock between `sent` and `received` (monotonic seconds)."""
        error_us = (received - sent) * 500_000
        faded = self._error_us + (received - self._measured_at) * self._FADE_US_PER_S
        offset_us = to_micros(database_now) - int((sent + received) * 500_000)
        if error_us <= faded:
            self._offset_us = offset_us
            self._error_us = error_us
            self._measured_at = received
            return
        # A worse measurement still bounds the offset: the database read its clock after it was asked and before it
        # answered. So a run that the database called due is due by this clock too, once the answer is here.
        earliest = to_micros(database_now) - int(received * 1e6)
        latest = to_micros(database_now) - int(sent * 1e6)
        bounded_us = min(max(self._offset_us, earliest), latest)
        moved_us = abs(bounded_us - self._offset_us)
        if moved_us > faded:
            # The clocks have drifted apart faster than was thought, or the database has another clock now. The middle
            # of this measurement would be off by seconds if only its answer was slow.
            self._error_us = min(2 * error_us, faded + moved_us)
            self._measured_at = received
        self._offset_us = bounded_us

    @property
    def error_us(self) -> float:
        """Maximum error of the estimate in microseconds, without drift."""
        return self._error_us

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset_us

    def now(self) -> datetime:
        return from_micros(self.now_us())


class ManualClock:
    """A clock that stands still until a test moves it, beside the database's own frozen clock."""

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
