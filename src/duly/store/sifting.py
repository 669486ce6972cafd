"""Keeps a bad row from failing others: a statement of many rows that failed is retried in halves, until the row is
found.

Refused data (`DataRefused`) are halved at once: the sender knows what to do with the bad row. Any other error that one
row may cause (`may_be_one_rows`) may be temporary: the batch is sent again as it is, and halved only after several
failures in a row. The row is then set apart without blame, and retried by itself with growing pauses.

When a number of tries in a row fail, the store is at fault and not a row: its errors must not cause a storm of
statements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from duly.errors import DulyError
from duly.store.pool import may_be_one_rows

#: Number of times a batch is sent as it is before it is halved.
TRIES = 3
# Failures in a row after which the store is at fault. Finding one row in a batch of 2,000 takes eleven.
_MAX_FRUITLESS = 20
# Pauses between two tries of a row set apart. They grow with the number of such rows: each is its own statement.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 5.0
_PAUSE_SECONDS_EACH = 0.02
# Maximum number of rows set apart that are tried at once; the others wait.
_MAX_AT_ONCE = 20

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Sifting(Generic[T]):
    """Rows on their way into the store. `write` reports on those that succeed."""

    def __init__(self, rows: Sequence[T], *, known: Sequence[T] = (), split: bool = True) -> None:
        """Rows in `known` are tried one by one, after the others. Without `split` the others are tried once, as they
        are."""
        self._whole = rows
        self._split = split
        self._waiting: list[Sequence[T]] = [[one] for one in reversed(known)] + ([rows] if rows else [])
        #: Rows that failed alone, with their errors.
        self.alone: list[tuple[T, DulyError]] = []
        #: Whether any row was written.
        self.fruitful = False

    @property
    def left(self) -> list[T]:
        """The rows that were not tried."""
        return [one for rows in reversed(self._waiting) for one in rows]

    async def through(self, write: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        """Writes the rows. Raises errors that no row causes, and those of the whole batch."""
        fruitless = 0
        while self._waiting:
            rows = self._waiting[-1]
            try:
                await write(rows)
            except DulyError as error:
                if not may_be_one_rows(error) or (rows is self._whole and not self._split):
                    raise
                fruitless += 1
                if len(rows) == 1:
                    self.alone.append((rows[0], error))
                elif fruitless >= _MAX_FRUITLESS:
                    if not self.fruitful:
                        self._waiting += [[one] for one, _ in self.alone]
                        self.alone = []
                    raise
                self._waiting.pop()
                if len(rows) > 1:
                    half = len(rows) // 2
                    self._waiting += [rows[half:], rows[:half]]
            else:
                fruitless, self.fruitful = 0, True
                self._waiting.pop()


async def without_the_bad(
    rows: Sequence[T], write: Callable[[Sequence[T]], Awaitable[None]]
) -> list[tuple[T, DulyError]]:
    """Writes the rows that can be written. Returns the others, each with the server's error."""
    sifting = Sifting(rows)
    try:
        await sifting.through(write)
    except DulyError as error:
        if not may_be_one_rows(error):
            raise
        return sifting.alone + [(one, error) for one in sifting.left]
    return sifting.alone


@dataclass(slots=True)
class _One(Generic[V]):
    what: V
    times: int = 0
    pause: float = 0.0
    at: float = inf
    """When to try it again; infinite while it is being tried."""


class Apart(Generic[K, V]):
    """The rows that a service has set apart, by key, and its failed batches in a row. Times are in seconds."""

    def __init__(self) -> None:
        self._known: dict[K, _One[V]] = {}
        self._failed = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: object) -> bool:
        return key in self._known

    @property
    def waiting(self) -> Iterator[V]:
        """The rows that are not being tried."""
        return (one.what for one in self._known.values() if one.at < inf)

    @property
    def splitting(self) -> bool:
        """Whether a batch that fails now is halved."""
        return self._failed >= TRIES - 1

    def failed(self, error: BaseException, *, fruitful: bool) -> None:
        if isinstance(error, DulyError) and may_be_one_rows(error):
            # If halving found nothing, the next failures are not halved at once.
            self._failed = 0 if self.splitting and not fruitful else self._failed + 1

    def passed(self) -> None:
        self._failed = 0

    def put(self, key: K, what: V, now: float) -> bool:
        """Sets a row apart, again or for the first time. Returns whether it is new."""
        one = self._known.setdefault(key, _One(what))
        longest = max(MAX_PAUSE_SECONDS, _PAUSE_SECONDS_EACH * len(self._known))
        one.pause = min(longest, FIRST_PAUSE_SECONDS * 2.0 ** min(one.times, 20))
        one.what, one.at, one.times = what, now + one.pause, one.times + 1
        return one.times == 1

    def take(self, now: float) -> list[tuple[K, V]]:
        """Some rows whose pause is over, or which wait since before the clock was set back. They stay known."""
        taken: list[tuple[K, V]] = []
        for key, one in self._known.items():
            if len(taken) < _MAX_AT_ONCE and one.at < inf and not now < one.at <= now + one.pause:
                one.at = inf
                taken.append((key, one.what))
        return taken

    def seconds_to_next(self, now: float) -> float | None:
        soonest = min((one.at for one in self._known.values()), default=inf)
        return max(0.0, soonest - now) if soonest < inf else None

    def forget(self, key: K) -> None:
        self._known.pop(key, None)

    def keep(self, wanted: Callable[[V], bool]) -> None:
        self._known = {key: one for key, one in self._known.items() if wanted(one.what)}
