"""The clock of a test, which stands still until the test moves it."""

from __future__ import annotations

from datetime import datetime

from duly.clock import DatabaseClock
from duly.model import from_micros, to_micros


class VirtualClock(DatabaseClock):
    """Replaces a pool's clock, so that everything that asks the pool for the time gets the test's.

    Measurements of the database's clock are ignored: between two of them the usual clock runs on; this one must not.
    """

    def __init__(self, start: datetime) -> None:
        super().__init__()
        self._virtual_us = to_micros(start)

    def observe(self, database_now: datetime, sent: float, received: float) -> None:
        pass

    def set(self, moment: datetime) -> None:
        self._virtual_us = to_micros(moment)

    def now_us(self) -> int:
        return self._virtual_us

    def now(self) -> datetime:
        return from_micros(self._virtual_us)
